"""Settings of a pretraining run: presets are complete settings to start from, the objective changes them, and a command
line or Python keywords change them further. The lengths of a window's parts scale with data.seq_len unless they are
given, because the values of a preset fit only its own window length.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from data_pipelines.windows import resized
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.records import CLM, MASKED_SHARE, MLM, OBJECTIVES, RTD
from xlnet_jax.objectives.registry import objective_named, unread, validate
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvalConfig,
    LogConfig,
    ModelConfig,
    OptimizerConfig,
)
from xlnet_jax.settings.fields import with_values
from xlnet_jax.settings.parser import CommandLine, names_of, with_keywords
from xlnet_jax.settings.resolution import Resolution, Values

C = TypeVar("C", bound=Config)
EXAMPLE = "  python -m xlnet_jax.train --corpus my.txt --preset small --workdir runs/mine"

LENGTHS = ("reuse_len", "perm_size", "num_predict")


def scale_lengths(settings: Resolution[C], start: Config) -> None:
    """Choose lengths of a window's parts in proportion to data.seq_len, from their values in `start`."""
    settings.choose(lengths_of_window(start, settings.config.data.seq_len))
    data = settings.config.data
    if not _divides(data.perm_size, data) and _divides(start.data.perm_size, data):
        settings.choose({"data.perm_size": start.data.perm_size})  # it divides a reuse_len that was given


def lengths_of_window(start: Config, seq_len: int) -> Values:
    """Return `LENGTHS` for windows of another length."""
    if seq_len == start.data.seq_len or start.data.seq_len < 1:
        return {}
    return lengths_of(_scaled(start, max(seq_len, 1)))


def lengths_of(data: DataConfig) -> Values:
    """Return `LENGTHS` of these windows."""
    return {f"data.{name}": getattr(data, name) for name in LENGTHS}


def _scaled(start: Config, seq_len: int) -> DataConfig:
    """Return the settings for windows of another length. If `start` has the lengths that its objective derives (such as
    15% of targets), derive them again; otherwise scale them."""
    derive = objective_named(start.objective).start
    scaled = with_values(start, {"data": resized(start.data, seq_len)})
    return derive(scaled).data if lengths_of(derive(start).data) == lengths_of(start.data) else scaled.data


def _divides(perm_size: int, data: DataConfig) -> bool:
    return perm_size > 0 and not (data.reuse_len % perm_size or (data.seq_len - data.reuse_len) % perm_size)


def demo() -> Config:
    """2 x 128, for minutes on two CPU cores: learns much more than word frequencies from the novels of the package."""
    return Config(
        preset="demo",
        steps=1_000,
        model=ModelConfig(
            vocab_size=4_000, num_layers=2, d_model=128, num_heads=2, d_head=64, d_ff=512, mem_len=64,
            # 0.02 is for a width of 1,024. Attention starts to matter when its output is as large as the residual:
            # 0.02 x sqrt(1024 / 128), and a little more because the run is short.
            init_std=0.08,
            # A few epochs do not overfit.
            dropout=0.0, attention_dropout=0.0,
        ),
        data=DataConfig(batch_size=16, seq_len=128, reuse_len=64, perm_size=64, num_predict=22),
        optimizer=OptimizerConfig(method="muon", learning_rate=5.6e-3, matrix_rate=3.6, warmup_steps=100),
        checkpoint=CheckpointConfig(every_steps=250),
        eval=EvalConfig(every_steps=250),
        log=LogConfig(every_steps=20),
    )  # fmt: skip


def small() -> Config:
    """6 x 256 with half the paper's window, for one accelerator."""
    return Config(
        preset="small",
        steps=200_000,
        model=ModelConfig(
            num_layers=6, d_model=256, num_heads=4, d_ff=1024, mem_len=192, init_std=0.04, dtype="bfloat16"
        ),
        data=DataConfig(batch_size=256, seq_len=256, reuse_len=128, perm_size=128, num_predict=42),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=5_000),
    )


def base() -> Config:
    """XLNet-Base, 12 x 768. The paper names no schedule except BERT-Base's budget (section 3.4): batch 256, 1,000,000
    updates, learning rate 1e-4, warmup 10,000."""
    return Config(
        preset="base",
        steps=1_000_000,
        model=ModelConfig(num_layers=12, d_model=768, num_heads=12, d_ff=3072, dtype="bfloat16"),
        data=DataConfig(batch_size=256),
        optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=10_000),
    )


def long() -> Config:
    """XLNet-Base with windows of 16,384 tokens and no memory, with as many tokens per step and targets per token as
    base. A window packs documents that do not see each other. Orders are permuted in chunks of 1,024: the targets of
    one chunk come in any order, and later chunks see earlier ones."""
    return with_values(
        base(),
        {
            "preset": "long",
            "model": {"mem_len": 0, "remat": "full"},
            "data": DataConfig(
                batch_size=8, seq_len=16_384, reuse_len=0, window="sentences", pack=True, perm_size=1024,
                num_predict=2_720,
                # Without memory, reading the windows of a block in order has no benefit.
                windows_per_block=1,
            ),
            "eval.max_windows": 512,
        },
    )  # fmt: skip


def large() -> Config:
    """XLNet-Large, 24 x 1024, with the paper's pretraining settings (appendix, hyperparameters for pretraining). Its 8
    windows per TPU core do not fit into 16 GiB without remat."""
    return Config(preset="large", model=ModelConfig(dtype="bfloat16", remat="full"))


def large_v1() -> Config:
    """XLNet-Large as the paper's first version trained it (arXiv 1906.08237v1)."""
    return with_values(
        large(),
        {
            "preset": "large_v1",
            "data.batch_size": 2048,
            "optimizer": OptimizerConfig(learning_rate=1e-5, warmup_steps=20_000),
        },
    )


def modern(other: Callable[[], Config]) -> Config:
    """The network and batches of another preset with a modern recipe: Muon for the matrices in layers, half of the
    tokens as targets instead of a sixth, windows that read each token once, without memory and without pairs of
    segments, layers that add nothing at first, and no dropout (benchmarks/modern.py). The rates follow from networks of
    64 and 128: the step of a matrix does not depend on its width, and that of embeddings is in proportion to their
    initial size. They were not tuned on larger networks.
    """
    start = other()
    rate, length = round(0.07 * start.model.init_std, 4), start.data.seq_len
    return with_values(
        start,
        {
            "preset": f"modern-{start.preset}",
            "model": {"mem_len": 0, "zero_init": True, "dropout": 0.0, "attention_dropout": 0.0},
            "data": {
                "window": "sentences", "reuse_len": 0, "perm_size": length, "num_predict": length // 2, "mask_alpha": 2
            },
            "optimizer": {"method": "muon", "learning_rate": rate, "matrix_rate": round(0.02 / rate, 1)},
        },
    )  # fmt: skip


def bert_base() -> Config:
    """BERT-Base, uncased: 109,482,240 parameters with its pooler (Devlin et al. 2019, section 3 and appendix A.2)."""
    return with_values(
        MLM.start(base()),
        {
            "preset": "bert-base",
            "model": ModelConfig(
                vocab_size=30_522, num_layers=12, d_model=768, num_heads=12, d_ff=3072, mem_len=0,
                positions="learned", activation="gelu_erf", dtype="bfloat16",
            ),
            "data": {"pair_loss": "next", "masking": "static"},
        },
    )  # fmt: skip


def roberta_base() -> Config:
    """RoBERTa-Base: 124,645,632 parameters with a pooler; dynamic masks, full sentences, no sentence loss, batches of
    8,192 (Liu et al. 2019, sections 4 and 5; table 9)."""
    return with_values(
        bert_base(),
        {
            "preset": "roberta-base",
            "steps": 500_000,
            "model": {
                "vocab_size": 50_265, "max_positions": 514, "position_offset": 2, "num_segments": 1,
                "layer_norm_eps": 1e-5,
            },
            "data": {"batch_size": 8192, "window": "sentences", "pair_loss": "none", "masking": "dynamic"},
            "optimizer": OptimizerConfig(learning_rate=6e-4, warmup_steps=24_000, beta2=0.98, clip_norm=0.0),
        },
    )  # fmt: skip


def albert_base() -> Config:
    """ALBERT-Base, second version: 11,683,584 parameters with its pooler; spans of up to three words, sentence order
    (Lan et al. 2020, sections 3.1 and 4.1). Batches and schedule are BERT-Base's, because ALBERT's need the optimizer
    LAMB, which we do not have."""
    return with_values(
        bert_base(),
        {
            "preset": "albert-base",
            "model": {
                "vocab_size": 30_000, "embedding_width": 128, "share_layers": "all", "activation": "gelu",
                "dropout": 0.0, "attention_dropout": 0.0,
            },
            "data": {
                "targets": "spans", "span_unit": "word", "span_max": 3, "pair_loss": "order", "masking": "dynamic"
            },
        },
    )  # fmt: skip


def electra_small() -> Config:
    """ELECTRA-Small, 12 x 256: 13,549,057 parameters with its detector, and a generator of a quarter of its width
    (Clark et al. 2020, table 6)."""
    return with_values(
        RTD.start(base()),
        {
            "preset": "electra-small",
            "model": with_values(
                bert_base().model, {"d_model": 256, "num_heads": 4, "d_ff": 1024, "embedding_width": 128}
            ),
            "data": {"batch_size": 128, "seq_len": 128, "perm_size": 128, "num_predict": round(MASKED_SHARE * 128)},
            "optimizer": OptimizerConfig(learning_rate=5e-4, warmup_steps=10_000),
        },
    )


def transformer_xl_wt103() -> Config:
    """Transformer-XL Standard on WikiText-103: 16 x 410, segments and memory of 150 (Dai et al. 2019, section 4.1; its
    code's run_wt103_base.sh). Differences: a vocabulary of pieces with one softmax, instead of words in clusters, and
    embeddings that are not scaled by the square root of the width."""
    return with_values(
        CLM.start(base()),
        {
            "preset": "transformer-xl-wt103",
            "steps": 200_000,
            "model": {
                "num_layers": 16, "d_model": 410, "num_heads": 10, "d_head": 41, "d_ff": 2100, "mem_len": 150,
                "activation": "relu", "attention_dropout": 0.0, "untie_r": False, "layer_norm_eps": 1e-5,
            },
            "data": {"batch_size": 60, "seq_len": 150, "reuse_len": 150, "perm_size": 150},
            "optimizer": OptimizerConfig(
                learning_rate=2.5e-4, warmup_steps=0, schedule="cosine", weight_decay=0.0, clip_norm=0.25, eps=1e-8
            ),
        },
    )  # fmt: skip


def transformer_xl_wt103_large() -> Config:
    """Transformer-XL Large on WikiText-103: 18 x 1024, segments and memory of 384 (its code's run_wt103_large.sh)."""
    return with_values(
        transformer_xl_wt103(),
        {
            "preset": "transformer-xl-wt103-large",
            "steps": 4_000_000,
            "model": {
                "num_layers": 18, "d_model": 1024, "num_heads": 16, "d_head": 64, "d_ff": 4096, "mem_len": 384,
                "dropout": 0.2, "attention_dropout": 0.2,
            },
            "data": {"batch_size": 128, "seq_len": 384, "reuse_len": 384, "perm_size": 384},
            "optimizer.warmup_steps": 16_000,
        },
    )  # fmt: skip


def vanilla() -> Config:
    """The 12-layer character transformer of Al-Rfou et al. (2019, section 3): causal, segments of 512 without memory.
    Differences: sinusoidal positions, no auxiliary losses, and the optimizer and schedule of base."""
    return with_values(
        CLM.start(base()),
        {
            "preset": "vanilla",
            "model": {
                "vocab_size": 265, "num_layers": 12, "d_model": 512, "num_heads": 2, "d_head": 256, "d_ff": 2048,
                "mem_len": 0, "positions": "sinusoidal", "activation": "relu", "dropout": 0.55,
                "attention_dropout": 0.55,
            },
            "data": {"batch_size": 16, "token_level": "byte"},
        },
    )  # fmt: skip


PRESETS: dict[str, Callable[[], Config]] = {
    make().preset: make
    for make in (
        demo, small, base, long, large, large_v1, bert_base, roberta_base, albert_base, electra_small,
        transformer_xl_wt103, transformer_xl_wt103_large, vanilla,
    )
} | {f"modern-{other().preset}": functools.partial(modern, other) for other in (small, base, large)}  # fmt: skip


def windows_of_records(start: Config, long: str) -> Values:
    """Return the settings of windows that hold whole records, from those of prose: no memory, unless long records
    continue; for plm, every symbol is a target."""
    data, model = start.data, start.model
    continues = long == "continue" and model.mem_len > 0
    values: dict[str, Any] = {"data.window": "records", "data.pack": True, "data.bidirectional": False}
    if not continues:
        values |= {"data.reuse_len": 0, "data.windows_per_block": 1, "model.mem_len": 0}
    elif data.window != "records":
        values |= {"data.reuse_len": data.seq_len}
    values |= {"data.perm_size": data.seq_len, "data.pair_loss": "none"}
    if start.objective == "plm":
        values |= {"data.targets": "all", "data.num_predict": None}
    return values


def with_objective(config: Config, objective: str) -> Config:
    """Return the settings for another objective, as in its paper if the paper has them. Sizes and optimizer do not
    change. Raises InputError for an unknown objective."""
    return config if objective == config.objective else objective_named(objective).start(config)


def defaults_of(config: Config) -> Config:
    """Return the settings of the run's preset and objective, without what the user set. The lengths of a window's parts
    are those that follow from its data.seq_len."""
    start = with_objective(PRESETS[config.preset](), config.objective)
    start = with_values(start, lengths_of_window(start, config.data.seq_len))
    return _with_windows_of(config, start)


def _with_windows_of(config: Config, start: C) -> C:
    """Return the settings to start from, with the windows of records if `config` has `fields`."""
    return with_values(start, windows_of_records(start, config.long)) if config.fields else start


def parse_config(argv: Sequence[str], prog: str, description: str) -> Config:
    """Return the settings of a run from a command line, starting from its --preset and --objective.

    Raises InputError for words that cannot be read, and for settings that contradict each other or have no effect.
    Prints help and exits on --help.
    """
    line = CommandLine.of(argv)
    config = parse_config_as(Config, line, prog, f"{description}\n\n{EXAMPLE}")
    refuse_unread(Resolution(config, line.chosen))
    return config


def parse_config_as(kind: type[C], argv: Sequence[str], prog: str, description: str) -> C:
    """Return the settings of a command that adds its own to Config. kind: a dataclass that extends Config.

    Raises InputError for words that cannot be read and for contradictions. Prints help and exits on --help.
    """
    listed = "\n".join(f"  {record.name:7} {record.summary}" for record in OBJECTIVES)
    about = f"{description}\n\nobjectives:\n{listed}"
    line = CommandLine.of(argv)
    start, origin = (kind(**vars(_start(each))) for each in (line, line.of_file_alone))
    config = parser.parse(kind, line, prog, about, start, origin)
    if line.is_of_a_run:
        start = with_values(start, line.file_values(start, origin))
    settings = Resolution(config, line.chosen)
    start = _choose_records(settings, start)
    scale_lengths(settings, start)
    validate(settings.config)
    return settings.config


def preset(name: str = "demo", **settings: Any) -> Config:
    """Return the settings of a preset with some of them replaced, for `pretrain` or your own training loop.

    settings: fields of Config by name, with sections as dictionaries: corpus="my.txt", steps=200,
    data={"batch_size": 8}. As with the flags of `train`, an objective changes the settings to start from, and the parts
    of a window scale with data.seq_len unless you give them. Raises InputError for an unknown preset, objective or
    setting, for a value out of bounds, and for a setting that has no effect.
    """
    if name not in PRESETS:
        raise InputError("preset", name, f"must be one of {', '.join(PRESETS)}")
    start = PRESETS[name]()
    start = with_objective(start, settings.get("objective", start.objective))
    resolution = Resolution(with_keywords(start, settings), names_of(settings))
    start = _choose_records(resolution, start)
    scale_lengths(resolution, start)
    refuse_unread(resolution)
    return resolution.config


def _choose_records(settings: Resolution[C], start: C) -> C:
    """Choose the windows of records if the settings have `fields`; return the settings to start from."""
    if settings.config.fields:
        settings.choose(windows_of_records(start, settings.config.long))
    return _with_windows_of(settings.config, start)


def refuse_unread(settings: Resolution[Config]) -> None:
    """Raise InputError for a setting that was given but has no effect together with the others."""
    for name, why in unread(settings.config).items():
        settings.refuse(name, InputError(name, "", f"has no effect: {why}; leave it out"))


def _start(line: CommandLine) -> Config:
    """Return the settings that preset and objective start from."""
    preset = parser.named_default(line, "--preset", PRESETS, "demo")
    objectives = {record.name: functools.partial(with_objective, preset, record.name) for record in OBJECTIVES}
    return parser.named_default(line, "--objective", objectives, preset.objective)
