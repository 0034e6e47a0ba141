"""Settings that contradict each other, checked before any work starts. The bounds of single settings are defined at
their fields."""

from collections.abc import Iterator
from itertools import chain

from xlnet_jax.dims import CLS_SEGMENT, WINDOW_SPECIALS
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import DIALS, Config, DataConfig, HeadConfig, ModelConfig, RunConfig
from xlnet_jax.settings.fields import out_of_bounds


def validate_network(model: ModelConfig, head: HeadConfig | None, where: str) -> None:
    """Raise InputError for the first setting of a checkpoint that is out of its bounds or contradicts another. where:
    the beginning of the message."""
    of_head = out_of_bounds(head, "head.") if head else ()
    # Lazily: relations are checked only between values of the right types.
    relations = (_model(model), absolute_positions(model, None), head_contradictions(head))
    for broken in chain(out_of_bounds(model, "model."), of_head, *relations):
        raise InputError(f"{where}: {broken}")


def head_contradictions(head: HeadConfig | None) -> Iterator[InputError]:
    """Yield what is wrong with a head."""
    if head and not head.has_weights and (head.use_projection or head.summary == "attn"):
        name, value = ("head.use_projection", True) if head.use_projection else ("head.summary", "attn")
        why = f": the head of task {head.task} has no weights of its own; give `head.summary` mean, last or first"
        yield InputError(name, value, why)


def run_contradictions(config: RunConfig) -> Iterator[InputError]:
    """Yield what is wrong with the settings of any training: first bounds, then relations."""
    yield from out_of_bounds(config)
    yield from _model(config.model)
    optimizer = config.optimizer
    if optimizer.decay_steps is not None and optimizer.decay_steps <= optimizer.warmup_steps:
        why = f"must be above `optimizer.warmup_steps` {optimizer.warmup_steps}: the decay begins after the warmup"
        yield InputError("optimizer.decay_steps", optimizer.decay_steps, why)
    if optimizer.schedule == "inverse_sqrt" and not optimizer.warmup_steps:
        why = (
            "with `optimizer.schedule` inverse_sqrt: its rate falls as sqrt(warmup_steps / step); give steps to warm up"
        )
        yield InputError("optimizer.warmup_steps", 0, why)
    if optimizer.profile == "paper2019":
        if optimizer.method != "adamw":
            why = "with `optimizer.profile` paper2019: that has Adam; give adamw"
            yield InputError("optimizer.method", optimizer.method, why)
        if (rate := optimizer.matrix_rate) != 1:
            why = "with `optimizer.profile` paper2019: that has one rate; give 1"
            yield InputError("optimizer.matrix_rate", f"{rate:g}", why)
    if (shared := config.model.share_layers) != "none" and (decay := optimizer.layer_decay) < 1:
        why = f"with `model.share_layers` {shared}: layers share parameters; leave it at 1"
        yield InputError("optimizer.layer_decay", f"{decay:g}", why)
    yield from _trace_steps(config)


def dial_contradictions(config: Config) -> Iterator[InputError]:
    """Yield what contradicts a dial, which chooses the sizes of a run."""
    given = [name for name in DIALS if getattr(config, name) is not None]
    if not given:
        return
    dial, value = given[0], f"{getattr(config, given[0]):g}"
    if len(given) > 1:
        yield InputError(dial, value, f"and `{given[1]}` both say how long to train: leave one of them out")
    if config.preset != "demo":
        why = f"with `preset` {config.preset}: both choose the network; leave one of them out"
        yield InputError(dial, value, why)
    for name in ("init", "fields"):
        if getattr(config, name):
            why = f"with `{name}`: no scaling law covers such runs; give `steps` instead"
            yield InputError(dial, value, why)


def traced_steps(steps: str | None) -> range:
    """Return the steps of `trace_steps`: range(10, 15) for 10:15. Raises ValueError if it is not such a range."""
    if steps is None:
        return range(0)
    begin, _, end = steps.partition(":")
    return range(int(begin), int(end))


def _trace_steps(config: RunConfig) -> Iterator[InputError]:
    try:
        traced = traced_steps(config.trace_steps)
    except ValueError:
        why = "is not a range of steps: give its first and end, such as 10:15"
        yield InputError("trace_steps", config.trace_steps, why)
        return
    if config.trace_steps and not 0 <= traced.start < traced.stop <= config.steps:
        why = f"must be two increasing numbers from 0 to `steps` {config.steps}"
        yield InputError("trace_steps", config.trace_steps, why)


def _model(model: ModelConfig) -> Iterator[InputError]:
    if model.positions == "learned" and model.num_segments > CLS_SEGMENT:
        why = "(type_vocab_size in Hugging Face): a text has two segments"
        yield InputError("model.num_segments", model.num_segments, why)
    if model.positions != "learned" and model.num_segments not in (0, 2):
        why = f"with `model.positions` {model.positions}: give 2, or 0 for none"
        yield InputError("model.num_segments", model.num_segments, why)
    if model.positions != "learned" and (model.embedding_width or model.share_layers != "none"):
        name = "embedding_width" if model.embedding_width else "share_layers"
        why = f"(ALBERT) needs `model.positions` learned, not {model.positions}"
        yield InputError(f"model.{name}", getattr(model, name), why)


def data_contradictions(data: DataConfig) -> Iterator[InputError]:
    """Yield what is wrong with the windows of pretraining."""
    new, least = data.seq_len - data.reuse_len, least_new(data)
    if new < least:
        why = (
            f"is too short for `data.reuse_len` {data.reuse_len}: with text and special tokens after it, it must be at "
            f"least {data.reuse_len + least}"
        )
        yield InputError("data.seq_len", data.seq_len, why)
    if data.static_masks > 1 and data.masking == "dynamic":
        why = "with `data.masking` dynamic: that draws new masks in every epoch; give static"
        yield InputError("data.static_masks", data.static_masks, why)
    if data.pack and data.window == "pairs":
        why = "with `data.window` pairs: A attends to B of another document; give `data.window` sentences or text"
        yield InputError("data.pack", True, why)
    if data.window == "records":
        for name, must in (("pack", True), ("bidirectional", False)):
            if getattr(data, name) != must:
                yield InputError(f"data.{name}", not must, f"with `data.window` records: give {must}")
        if data.reuse_len not in (0, data.seq_len):
            why = f"with `data.window` records: give 0, or `data.seq_len` {data.seq_len} for memory of long records"
            yield InputError("data.reuse_len", data.reuse_len, why)
    if data.targets == "all" and data.num_predict is not None:
        why = "with `data.targets` all: every token is a target; give None"
        yield InputError("data.num_predict", data.num_predict, why)
    if data.pack and data.emit == "dense":
        why = "with `data.emit` dense: perm_mask cannot mask other documents in memory; give `data.emit` compact"
        yield InputError("data.pack", True, why)
    if data.num_predict is not None:
        yield from _num_predict(data.num_predict, data)
    if data.mask_share + data.random_share > 1 + 1e-9:
        why = f"+ `data.random_share` {data.random_share:g} must be at most 1"
        yield InputError("data.mask_share", f"{data.mask_share:g}", why)
    if data.mask_alpha < data.mask_beta:
        yield InputError("data.mask_alpha", data.mask_alpha, f"must be at least `data.mask_beta` {data.mask_beta}")
    if data.weights and abs(sum(data.weights) - 1) > 1e-6:
        yield InputError("data.weights", data.weights, f"sum to {sum(data.weights):g}, not 1")


def least_new(data: DataConfig) -> int:
    """Return the smallest number of positions that must follow the reused part."""
    return {"pairs": 2, "sentences": 1, "text": 0, "records": 0}[data.window] + WINDOW_SPECIALS[data.window]


def _num_predict(num_predict: int, data: DataConfig) -> Iterator[InputError]:
    new = data.seq_len - data.reuse_len
    if new < least_new(data):
        return
    half, limit = -(-num_predict // 2), min(data.reuse_len, new)
    if not limit:
        if num_predict > (text := data.seq_len - WINDOW_SPECIALS[data.window]):
            yield InputError("data.num_predict", num_predict, f"is more than the {text} tokens of text in a window")
    elif half > limit:
        why = (
            f"is too many: each part of the window gets {half} targets, and the shorter part has {limit} tokens; give "
            f"at most {2 * limit}"
        )
        yield InputError("data.num_predict", num_predict, why)


def memory_contradictions(mem_len: int, data: DataConfig) -> Iterator[InputError]:
    """Yield what is wrong with a memory of mem_len positions for the windows of pretraining."""
    carried = data.reuse_len * (data.windows_per_block - 1)
    if mem_len and not data.reuse_len:
        yield InputError("model.mem_len", mem_len, "needs `data.reuse_len` above 0: only reused parts become memory")
    elif mem_len > carried:
        why = (
            f"can never be filled: with `data.windows_per_block` {data.windows_per_block} it holds at most "
            f"({data.windows_per_block} - 1) x `data.reuse_len` = {carried} positions"
        )
        yield InputError("model.mem_len", mem_len, why)


def absolute_positions(model: ModelConfig, seq_len: int | None) -> Iterator[InputError]:
    """Yield what contradicts sinusoidal or learned positions, in any training. seq_len: window length in tokens; None =
    unknown, as for a checkpoint."""
    given = f"with `model.positions` {model.positions}"
    if model.positions == "relative":
        return
    if model.positions == "learned":
        yield from _bert(model, seq_len)
    if model.mem_len:
        yield InputError("model.mem_len", model.mem_len, f"{given}: absolute positions cannot describe memory; give 0")
    if model.clamp_len != -1:
        why = f"{given}: only relative positions have distances; leave it at -1"
        yield InputError("model.clamp_len", model.clamp_len, why)


def _bert(model: ModelConfig, seq_len: int | None) -> Iterator[InputError]:
    if model.norm == "pre":
        why = "with `model.norm` pre: BERT's encoder normalizes after every sum; give post"
        yield InputError("model.positions", "learned", why)
    if model.attn_type == "uni":
        why = "with `model.attn_type` uni: BERT's encoder attends to the whole window; give bi"
        yield InputError("model.positions", "learned", why)
    if model.num_places < 1:
        why = f"must be above `model.position_offset` {model.position_offset}"
        yield InputError("model.max_positions", model.max_positions, why)
    elif seq_len is not None and seq_len > model.num_places:
        yield InputError(
            "data.seq_len", seq_len, f"is more than the {model.num_places} positions of `model.max_positions`"
        )
