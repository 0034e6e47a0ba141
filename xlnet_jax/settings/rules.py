"""Which settings contradict each other: checked before any work starts, named with the rule they break."""

import math
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from xlnet_jax.dims import WINDOW_SPECIALS
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import (
    DataConfig,
    DistributedConfig,
    HeadConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from xlnet_jax.settings.plain import flatten


def validate_network(model: ModelConfig, head: HeadConfig | None, where: str) -> None:
    """Raises InputError with the first setting of a checkpoint that has the wrong type, or contradicts another."""
    for config in (model, head) if head else (model,):
        hints = get_type_hints(type(config))
        for name, value in vars(config).items():
            if not _has_type(value, hints[name]):
                raise InputError(f"{where}: {name.replace('_', '-')} {value!r} is not {_type_name(hints[name])}")
    memory = (f"model.mem-len {model.mem_len} must be at least 0",) if model.mem_len < 0 else ()
    for broken in (*_finite(model), *memory, *_model(model), *absolute_positions(model, None)):
        raise InputError(f"{where}: {broken}")


def validate_distributed(distributed: DistributedConfig) -> None:
    """Raises InputError where the place of a process among the others is not given whole."""
    place = {
        "coordinator-address": distributed.coordinator_address,
        "num-processes": distributed.num_processes,
        "process-id": distributed.process_id,
    }
    missing = [f"distributed.{name}" for name, value in place.items() if value is None]
    if missing and len(missing) < len(place):
        given = ", ".join(f"distributed.{name} {value}" for name, value in place.items() if value is not None)
        raise InputError(f"{given} needs {', '.join(missing)} beside it")
    for broken in _distributed(distributed):
        raise InputError(broken)


def _distributed(distributed: DistributedConfig) -> Iterator[str]:
    address, count, process = distributed.coordinator_address, distributed.num_processes, distributed.process_id
    if address is not None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            yield f"distributed.coordinator-address {address} must be HOST:PORT, as 10.0.0.1:8476"
    if count is not None:
        yield from positive("distributed.num-processes", count)
    if process is not None and not 0 <= process < (2**31 if count is None else count):
        yield f"distributed.process-id {process} must be from 0 to distributed.num-processes - 1" + (
            "" if count is None else f" = {count - 1}"
        )
    for name in ("initialization_timeout", "heartbeat_timeout_seconds"):
        yield from positive(f"distributed.{name.replace('_', '-')}", getattr(distributed, name))


def _has_type(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(isinstance(v, str) for v in value)
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if hint is int:
        return isinstance(value, int) and abs(value) < 2**31
    return isinstance(value, (int, float) if hint is float else hint)


def _type_name(hint: Any) -> str:
    return f"one of {', '.join(get_args(hint))}" if get_origin(hint) is Literal else f"of type {hint}"


def _finite(config: Any) -> Iterator[str]:
    for name, value, _ in flatten(config):
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{name} {value} must be a finite number"


def _countable(config: Any) -> Iterator[str]:
    """On a device whole numbers have 32 bits."""
    for name, value, _ in flatten(config):
        if isinstance(value, int) and abs(value) >= 2**31:
            yield f"{name} {value} must be below 2^31"


def run_contradictions(config: RunConfig) -> Iterator[str]:
    """Of the settings that every training has."""
    yield from _finite(config)
    for (name, value, _), (_, default, _) in zip(flatten(config), flatten(type(config)()), strict=True):
        if (value == "" != default) or (isinstance(value, tuple) and "" in value):
            yield f"{name} is empty: leave it out, or name something"
    yield from _model(config.model)
    yield from _optimizer(config.optimizer)
    if config.model.share_layers and config.optimizer.layer_decay < 1:
        yield "optimizer.layer-decay with model.share-layers: parameters of all layers stand at no depth; leave it at 1"
    yield from _distributed(config.distributed)
    for name, value in (
        ("steps", config.steps),
        ("data.batch-size", config.data.batch_size),
        ("checkpoint.every-steps", config.checkpoint.every_steps),
        ("checkpoint.keep", config.checkpoint.keep),
        ("mesh.fsdp", config.mesh.fsdp),
        ("mesh.tensor", config.mesh.tensor),
        ("mesh.dcn-data", config.mesh.dcn_data),
        ("optimizer.accumulate", config.optimizer.accumulate),
        ("optimizer.max-skipped", config.optimizer.max_skipped),
        ("log.every-steps", config.log.every_steps),
    ):
        yield from positive(name, value)
    for name, value in (
        ("checkpoint.every-minutes", config.checkpoint.every_minutes),
        ("checkpoint.keep-every", config.checkpoint.keep_every),
    ):
        if value < 0:
            yield f"{name} {value:g} must not be negative"
    if config.mesh.data < 1 and config.mesh.data != -1:
        yield f"mesh.data {config.mesh.data} must be at least 1, or -1 for all devices that are left"
    yield from _profile(config)
    if not 0 <= config.seed < 2**31:
        yield f"seed {config.seed} must be in [0, 2^31)"
    yield from _countable(config)


def traced_updates(profile: str | None) -> range:
    """The updates that --profile names: of 10:15, range(10, 15). Raises ValueError where it names none."""
    if profile is None:
        return range(0)
    begin, _, end = profile.partition(":")
    return range(int(begin), int(end))


def _profile(config: RunConfig) -> Iterator[str]:
    try:
        traced = traced_updates(config.profile)
    except ValueError:
        yield f"profile {config.profile} is not a range of updates: give the first and the end, as 10:15"
        return
    if config.profile and not 0 <= traced.start < traced.stop <= config.steps:
        yield f"profile {config.profile} must be two numbers that rise, from 0 to the {config.steps} steps of the run"


def positive(name: str, value: int) -> Iterator[str]:
    """A contradiction where the setting is below 1."""
    if value < 1:
        yield f"{name} {value} must be at least 1"


def _share(name: str, value: float) -> Iterator[str]:
    if not 0 <= value < 1:
        yield f"{name} {value} must be in [0, 1)"


def _model(model: ModelConfig) -> Iterator[str]:
    for name in ("vocab_size", "num_layers", "d_model", "num_heads", "d_head", "d_ff"):
        yield from positive(f"model.{name.replace('_', '-')}", getattr(model, name))
    yield from _share("model.dropout", model.dropout)
    yield from _share("model.attention-dropout", model.attention_dropout)
    if model.init_std <= 0:
        yield f"model.init-std {model.init_std} must be positive"
    if model.layer_norm_eps < 0:
        yield f"model.layer-norm-eps {model.layer_norm_eps} must not be negative"
    if model.clamp_len < 1 and model.clamp_len != -1:
        yield f"model.clamp-len {model.clamp_len} must be at least 1, or -1 for no bound"
    yield from positive("model.max-positions", model.max_positions)
    for name in ("num_segments", "position_offset"):
        if getattr(model, name) < 0:
            yield f"model.{name.replace('_', '-')} {getattr(model, name)} must not be negative"
    if model.positions != "learned" and model.num_segments not in (0, 2):
        yield (
            f"model.num-segments {model.num_segments} with model.positions {model.positions}: a key is of the same "
            "segment as its row or of another, so that there are 2, or none with 0"
        )
    if model.embedding_width is not None:
        yield from positive("model.embedding-width", model.embedding_width)
    if model.positions != "learned" and (model.embedding_width or model.share_layers):
        name = "embedding-width" if model.embedding_width else "share-layers"
        yield f"model.{name} is ALBERT's, with model.positions learned; these are {model.positions}"
    if model.d_model % 2:
        yield f"model.d-model {model.d_model} must be even: half of a position's signal is sines, half cosines"


def data_contradictions(data: DataConfig) -> Iterator[str]:
    for name in (
        "batch_size", "seq_len", "perm_size", "span_max", "mask_alpha", "mask_beta", "windows_per_block",
    ):  # fmt: skip
        yield from positive(f"data.{name.replace('_', '-')}", getattr(data, name))
    if not 0 < data.validation_fraction < 1:
        yield f"data.validation-fraction {data.validation_fraction} must be in (0, 1)"
    if data.reuse_len < 0:
        yield f"data.reuse-len {data.reuse_len} must be at least 0 (0 = windows that share nothing)"
    new, least = data.seq_len - data.reuse_len, least_new(data)
    if new < least:
        specials = WINDOW_SPECIALS[data.window]
        text = {"pairs": f"A, B and {specials}", "sentences": f"text and {specials}", "text": "no"}[data.window]
        yield (
            f"data.seq-len {data.seq_len} is too short for data.reuse-len {data.reuse_len}: a window holds the reused "
            f"part, {text} special tokens, so seq-len must be at least reuse-len + {least}"
        )
    if data.num_predict is not None:
        yield from _num_predict(data.num_predict, data)
    for name in ("mask_share", "random_share"):
        if not 0 <= (share := getattr(data, name)) <= 1:
            yield f"data.{name.replace('_', '-')} {share} must be in [0, 1]"
    if data.mask_share + data.random_share > 1 + 1e-9:
        yield (
            f"data.mask-share {data.mask_share:g} + data.random-share {data.random_share:g} is more than all targets: "
            "they sum to 1 at the most, and the rest is read as it is"
        )
    if data.mask_alpha < data.mask_beta:
        yield f"data.mask-alpha {data.mask_alpha} must be at least data.mask-beta {data.mask_beta}"
    if data.weights:
        yield from _weights(data.weights)


def least_new(data: DataConfig) -> int:
    """Return the fewest positions that a window can have behind its reused part."""
    return {"pairs": 2, "sentences": 1, "text": 0}[data.window] + WINDOW_SPECIALS[data.window]


def _num_predict(num_predict: int, data: DataConfig) -> Iterator[str]:
    yield from positive("data.num-predict", num_predict)
    new = data.seq_len - data.reuse_len
    if new < least_new(data):
        return
    half, limit = -(-num_predict // 2), min(data.reuse_len, new)
    if data.reuse_len == 0:
        if num_predict > (text := new - WINDOW_SPECIALS[data.window]):
            yield f"data.num-predict {num_predict} is more than the {text} tokens of text in a window"
    elif not limit:
        yield f"data.num-predict {num_predict}: the window is reused whole, with no part for half of them; give None"
    elif half > limit:
        yield (
            f"data.num-predict {num_predict} is more than the window can hold: {half} targets fall into each "
            f"part, and the shorter one has {limit} tokens; num-predict must be at most {2 * limit}"
        )


def _weights(weights: tuple[float, ...]) -> Iterator[str]:
    given = f"data.weights {', '.join(f'{w:g}' for w in weights)}"
    if not all(w > 0 for w in weights):
        yield f"{given} must be positive: leave out the source that is not to be read"
    elif abs(sum(weights) - 1) > 1e-6:
        yield f"{given} sum to {sum(weights):g}, not 1"


def memory_contradictions(mem_len: int, data: DataConfig) -> Iterator[str]:
    if mem_len < 0:
        yield f"model.mem-len {mem_len} must be at least 0 (0 = no memory)"
    carried = data.reuse_len * (data.windows_per_block - 1)
    if mem_len and not data.reuse_len:
        yield f"model.mem-len {mem_len} needs data.reuse-len: with 0, windows hand nothing on"
    elif mem_len > carried:
        yield (
            f"model.mem-len {mem_len} can never be filled: data.windows-per-block {data.windows_per_block} windows "
            f"carry at most (windows-per-block - 1) x data.reuse-len = {carried} positions"
        )


def _optimizer(optimizer: OptimizerConfig) -> Iterator[str]:
    if not optimizer.learning_rate > 0:
        yield f"optimizer.learning-rate {optimizer.learning_rate} must be positive"
    if optimizer.eps <= 0:
        yield f"optimizer.eps {optimizer.eps} must be positive"
    yield from _share("optimizer.beta1", optimizer.beta1)
    yield from _share("optimizer.beta2", optimizer.beta2)
    if not 0 <= optimizer.min_lr_ratio <= 1:
        yield f"optimizer.min-lr-ratio {optimizer.min_lr_ratio} must be in [0, 1]"
    if optimizer.spike_factor and optimizer.spike_factor <= 1:
        yield f"optimizer.spike-factor {optimizer.spike_factor} must be above 1, or 0 to take no update for a spike"
    if not 0 < optimizer.layer_decay <= 1:
        yield f"optimizer.layer-decay {optimizer.layer_decay} must be in (0, 1]"
    for name in ("weight_decay", "clip_norm", "warmup_steps"):
        if getattr(optimizer, name) < 0:
            yield f"optimizer.{name.replace('_', '-')} {getattr(optimizer, name)} must not be negative"
    if optimizer.decay_steps is not None and optimizer.decay_steps <= optimizer.warmup_steps:
        yield (
            f"optimizer.decay-steps {optimizer.decay_steps} must be above optimizer.warmup-steps "
            f"{optimizer.warmup_steps}: the schedule decays behind its warmup"
        )


def absolute_positions(model: ModelConfig, seq_len: int | None) -> Iterator[str]:
    """What positions that are places in a window of seq_len tokens leave no sense to; None = any window. Of every
    network, whatever it learns."""
    name = f"model.positions {model.positions}"
    if model.positions == "relative":
        return
    if model.positions == "learned":
        yield from _bert(model, seq_len)
    if model.mem_len:
        yield (
            f"model.mem-len {model.mem_len} with {name}: a place in the window says nothing of memory, which lies "
            "outside; it needs relative ones, or model.mem-len 0"
        )
    if model.clamp_len != -1:
        yield f"model.clamp-len {model.clamp_len} with {name}: it bounds distances, which only relative ones are"


def _bert(model: ModelConfig, seq_len: int | None) -> Iterator[str]:
    if model.norm == "pre":
        yield "model.positions learned with model.norm pre: BERT's encoder normalises behind every sum; it needs post"
    if model.attn_type == "uni":
        yield "model.positions learned with model.attn-type uni: BERT's encoder sees every place of its window"
    if model.num_places < 1:
        yield f"model.max-positions {model.max_positions} must be above model.position-offset {model.position_offset}"
    elif seq_len is not None and seq_len > model.num_places:
        yield f"data.seq-len {seq_len} is longer than the {model.num_places} places of model.max-positions"
