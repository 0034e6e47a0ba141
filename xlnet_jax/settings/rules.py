"""Settings that contradict each other, checked before any work starts. The bounds of single settings are defined at
their fields."""

from collections.abc import Iterator
from itertools import chain

from xlnet_jax.dims import CLS_SEGMENT, WINDOW_SPECIALS
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import DataConfig, DistributedConfig, HeadConfig, ModelConfig, RunConfig
from xlnet_jax.settings.fields import out_of_bounds


def validate_network(model: ModelConfig, head: HeadConfig | None, where: str) -> None:
    """Raise InputError for the first setting of a checkpoint that is out of its bounds or contradicts another. where:
    the beginning of the message."""
    of_head = out_of_bounds(head, "head.") if head else ()
    # Lazily: relations are checked only between values of the right types.
    relations = (_model(model), absolute_positions(model, None), head_contradictions(head))
    for broken in chain(out_of_bounds(model, "model."), of_head, *relations):
        raise InputError(f"{where}: {broken}")


def head_contradictions(head: HeadConfig | None) -> Iterator[str]:
    """Yield what is wrong with a head."""
    if head and not head.has_weights and (head.use_projection or head.summary == "attn"):
        name = "head.use-projection" if head.use_projection else "head.summary attn"
        yield f"{name}: the head of task {head.task} has no weights of its own; give head.summary mean, last or first"


def validate_distributed(distributed: DistributedConfig) -> None:
    """Raise InputError if the settings of a process among others are out of bounds or incomplete."""
    place = {
        "coordinator-address": distributed.coordinator_address,
        "num-processes": distributed.num_processes,
        "process-id": distributed.process_id,
    }
    missing = [f"distributed.{name}" for name, value in place.items() if value is None]
    if missing and len(missing) < len(place):
        given = ", ".join(f"distributed.{name} {value}" for name, value in place.items() if value is not None)
        raise InputError(f"{given} also needs {', '.join(missing)}")
    for broken in chain(out_of_bounds(distributed, "distributed."), _distributed(distributed)):
        raise InputError(broken)


def _distributed(distributed: DistributedConfig) -> Iterator[str]:
    count, process = distributed.num_processes, distributed.process_id
    if count is not None and process is not None and process >= count:
        yield f"distributed.process-id {process} must be from 0 to distributed.num-processes - 1 = {count - 1}"


def run_contradictions(config: RunConfig) -> Iterator[str]:
    """Yield what is wrong with the settings of any training: first bounds, then relations."""
    yield from out_of_bounds(config)
    yield from _model(config.model)
    optimizer = config.optimizer
    if optimizer.decay_steps is not None and optimizer.decay_steps <= optimizer.warmup_steps:
        warmup = f"optimizer.warmup-steps {optimizer.warmup_steps}"
        yield f"optimizer.decay-steps {optimizer.decay_steps} must be above {warmup}: the decay begins after the warmup"
    if optimizer.profile == "paper2019":
        if optimizer.method != "adamw":
            yield f"optimizer.method {optimizer.method} with optimizer.profile paper2019: that has Adam; give adamw"
        if (rate := optimizer.matrix_rate) != 1:
            yield f"optimizer.matrix-rate {rate:g} with optimizer.profile paper2019: that has one rate; give 1"
    if config.model.share_layers and optimizer.layer_decay < 1:
        yield "optimizer.layer-decay with model.share-layers: all layers share their parameters; leave it at 1"
    yield from _distributed(config.distributed)
    yield from _trace_steps(config)


def traced_steps(steps: str | None) -> range:
    """Return the steps of `trace_steps`: range(10, 15) for 10:15. Raises ValueError if it is not such a range."""
    if steps is None:
        return range(0)
    begin, _, end = steps.partition(":")
    return range(int(begin), int(end))


def _trace_steps(config: RunConfig) -> Iterator[str]:
    try:
        traced = traced_steps(config.trace_steps)
    except ValueError:
        yield f"`trace_steps` {config.trace_steps} is not a range of steps: give its first and end, such as 10:15"
        return
    if config.trace_steps and not 0 <= traced.start < traced.stop <= config.steps:
        yield f"`trace_steps` {config.trace_steps} must be two increasing numbers from 0 to `steps` {config.steps}"


def _model(model: ModelConfig) -> Iterator[str]:
    if model.positions == "learned" and model.num_segments > CLS_SEGMENT:
        yield f"model.num-segments {model.num_segments} (type_vocab_size in Hugging Face): a text has two segments"
    if model.positions != "learned" and model.num_segments not in (0, 2):
        yield f"model.num-segments {model.num_segments} with model.positions {model.positions}: give 2, or 0 for none"
    if model.positions != "learned" and (model.embedding_width or model.share_layers):
        name = "embedding-width" if model.embedding_width else "share-layers"
        yield f"model.{name} (ALBERT) needs model.positions learned, not {model.positions}"


def data_contradictions(data: DataConfig) -> Iterator[str]:
    """Yield what is wrong with the windows of pretraining."""
    new, least = data.seq_len - data.reuse_len, least_new(data)
    if new < least:
        yield (
            f"data.seq-len {data.seq_len} is too short for data.reuse-len {data.reuse_len}: with text and special "
            f"tokens after it, data.seq-len must be at least {data.reuse_len + least}"
        )
    if data.pack and data.window == "pairs":
        yield "data.pack with data.window pairs: A attends to B of another document; give data.window sentences or text"
    if data.pack and data.emit == "dense":
        yield "data.pack with data.emit dense: perm_mask cannot mask other documents in memory; give data.emit compact"
    if data.num_predict is not None:
        yield from _num_predict(data.num_predict, data)
    if data.mask_share + data.random_share > 1 + 1e-9:
        yield f"data.mask-share {data.mask_share:g} + data.random-share {data.random_share:g} must be at most 1"
    if data.mask_alpha < data.mask_beta:
        yield f"data.mask-alpha {data.mask_alpha} must be at least data.mask-beta {data.mask_beta}"
    if data.weights and abs(sum(data.weights) - 1) > 1e-6:
        yield f"data.weights {', '.join(f'{w:g}' for w in data.weights)} sum to {sum(data.weights):g}, not 1"


def least_new(data: DataConfig) -> int:
    """Return the smallest number of positions that must follow the reused part."""
    return {"pairs": 2, "sentences": 1, "text": 0}[data.window] + WINDOW_SPECIALS[data.window]


def _num_predict(num_predict: int, data: DataConfig) -> Iterator[str]:
    new = data.seq_len - data.reuse_len
    if new < least_new(data):
        return
    half, limit = -(-num_predict // 2), min(data.reuse_len, new)
    if not limit:
        if num_predict > (text := data.seq_len - WINDOW_SPECIALS[data.window]):
            yield f"data.num-predict {num_predict} is more than the {text} tokens of text in a window"
    elif half > limit:
        yield (
            f"data.num-predict {num_predict} is too many: each part of the window gets {half} targets, and the "
            f"shorter part has {limit} tokens; give at most {2 * limit}"
        )


def memory_contradictions(mem_len: int, data: DataConfig) -> Iterator[str]:
    """Yield what is wrong with a memory of mem_len positions for the windows of pretraining."""
    carried = data.reuse_len * (data.windows_per_block - 1)
    if mem_len and not data.reuse_len:
        yield f"model.mem-len {mem_len} needs data.reuse-len above 0: only reused parts become memory"
    elif mem_len > carried:
        yield (
            f"model.mem-len {mem_len} can never be filled: with data.windows-per-block {data.windows_per_block} "
            f"it holds at most (windows-per-block - 1) x data.reuse-len = {carried} positions"
        )


def absolute_positions(model: ModelConfig, seq_len: int | None) -> Iterator[str]:
    """Yield what contradicts sinusoidal or learned positions, in any training. seq_len: window length in tokens; None =
    unknown, as for a checkpoint."""
    name = f"model.positions {model.positions}"
    if model.positions == "relative":
        return
    if model.positions == "learned":
        yield from _bert(model, seq_len)
    if model.mem_len:
        yield f"model.mem-len {model.mem_len} with {name}: absolute positions cannot describe memory; give 0"
    if model.clamp_len != -1:
        yield f"model.clamp-len {model.clamp_len} with {name}: only relative positions have distances; leave it at -1"


def _bert(model: ModelConfig, seq_len: int | None) -> Iterator[str]:
    if model.norm == "pre":
        yield "model.positions learned with model.norm pre: BERT's encoder normalizes after every sum; give post"
    if model.attn_type == "uni":
        yield "model.positions learned with model.attn-type uni: BERT's encoder attends to the whole window; give bi"
    if model.num_places < 1:
        yield f"model.max-positions {model.max_positions} must be above model.position-offset {model.position_offset}"
    elif seq_len is not None and seq_len > model.num_places:
        yield f"data.seq-len {seq_len} is more than the {model.num_places} positions of model.max-positions"
