"""Look up an objective by name, check settings against it, make its batches, and count the FLOPs of a training step."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from xlnet_jax.costs import MultiplyAdds, network_multiply_adds, remat_flops, spared_multiply_adds, total_flops
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.records import OBJECTIVES, ObjectiveRecord
from xlnet_jax.settings.config import Config, ModelConfig
from xlnet_jax.settings.rules import (
    absolute_positions,
    data_contradictions,
    dial_contradictions,
    memory_contradictions,
    run_contradictions,
)

if TYPE_CHECKING:
    from data_pipelines.batches import BatchSource
    from data_pipelines.corpus import Corpus, SplitName
    from data_pipelines.ids import IdCorpus
    from data_pipelines.objectives import FieldTables
    from data_pipelines.tokenizer import Tokenizer

_BY_NAME = {record.name: record for record in OBJECTIVES}


def objective_named(name: str, where: str = "`objective`") -> ObjectiveRecord:
    """Return the objective of this name. Raises InputError, which begins with `where`, for an unknown name."""
    if name not in _BY_NAME:
        near = difflib.get_close_matches(name, _BY_NAME, 1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise InputError(f"{where} {name} must be one of {', '.join(_BY_NAME)}{hint}")
    return _BY_NAME[name]


def batch_source(
    corpus: Corpus | IdCorpus | str | Path,
    tokenizer: Tokenizer | None,
    config: Config,
    split: SplitName = "train",
    max_windows: int | None = None,
) -> BatchSource:
    """Return the batches that pretraining with these settings reads from a corpus.

    corpus: made by `prepare_corpus`, or its folder. tokenizer: None = each token is a word. max_windows: largest number
    of held-out windows, in whole batches; None = all. `iterate(start, stop)` yields batches, which are made ahead of
    time: dicts of NumPy arrays (docs/data.md). Each is a pure function of (corpus, settings, seed, number). Raises
    InputError if the corpus cannot be read or its blocks are too short for a window.
    """
    from data_pipelines.batches import BatchSource
    from data_pipelines.corpus import Corpus

    opened = Corpus(corpus) if isinstance(corpus, str | Path) else corpus
    filling = objective_named(config.objective).filling
    is_word_start = tokenizer.is_word_start if tokenizer else np.ones(config.model.vocab_size, bool)
    fields = _field_tables(tokenizer, config) if tokenizer and tokenizer.records else None
    if not fields and config.data.field_order != ("together",):
        raise InputError("data.field_order", " ".join(config.data.field_order), "needs records: give `fields`")
    return BatchSource(
        opened, split, is_word_start, config.data, config.model.mem_len, config.seed, filling, max_windows, fields
    )


def _field_tables(tokenizer: Tokenizer, config: Config) -> FieldTables:
    """Return the fields of a tokenizer of records, in the orders of `data.field_order`. Raises InputError for an order
    that does not name each field once."""
    from data_pipelines.objectives import FieldTables

    assert tokenizer.records
    names, orders = [field.name for field in tokenizer.records.parsed], []
    for order in config.data.field_order:
        groups = [group.split(",") for group in order.split(">")]
        if order == "together":
            groups = [names]
        if sorted(name for group in groups for name in group) != sorted(names):
            why = f": give together, or name each field once, as in {'>'.join(names)}"
            raise InputError("data.field_order", order, why)
        orders.append([next(i for i, group in enumerate(groups) if name in group) for name in names])
    return FieldTables(segment_of_V(tokenizer, config.model), np.array(orders, np.int32)[:, tokenizer.field_of_V])


def segment_of_V(tokenizer: Tokenizer, model: ModelConfig) -> np.ndarray:
    """Return the segment of each piece, int32 [V]: in records the index of its field, in prose 0."""
    if model.positions == "learned":  # its segments are vectors, and not relations
        return np.minimum(tokenizer.field_of_V, max(model.num_segments - 1, 0))
    return tokenizer.field_of_V


def multiply_adds(config: Config) -> dict[str, MultiplyAdds]:
    """Return the multiply-adds of one step by part of the network, over all layers and the global batch."""
    record = objective_named(config.objective)
    if record.multiply_adds:
        return record.multiply_adds(config)
    return network_multiply_adds(config, config.data.num_slots if record.filling.stream == "query" else 0)


def step_flops(config: Config) -> int:
    """Return the FLOPs of one step, two per multiply-add, without those that remat repeats. Model FLOPs utilization
    (MFU) counts these."""
    return total_flops(multiply_adds(config))


def needed_flops(config: Config) -> int:
    """Return the FLOPs of one step that its result needs: fewer than `step_flops` (`spared_multiply_adds`)."""
    queries = config.data.num_slots if objective_named(config.objective).filling.stream == "query" else 0
    return step_flops(config) - 2 * 3 * spared_multiply_adds(config, queries)


def recomputed_flops(config: Config) -> int:
    """Return the FLOPs that remat adds to a step. Hardware FLOPs utilization (HFU) counts them and `step_flops`."""
    return remat_flops(multiply_adds(config), config.model.remat)


def validate(config: Config) -> None:
    """Check the settings of a pretraining run. Raises InputError with the first contradiction."""
    for contradictions in (
        dial_contradictions(config),
        run_contradictions(config),
        _network_contradictions(config),
        _batch_contradictions(config),
        objective_named(config.objective).contradictions(config),
        data_contradictions(config.data),
        memory_contradictions(config.model.mem_len, config.data),
    ):
        for broken in contradictions:
            raise broken


def _network_contradictions(config: Config) -> Iterator[InputError]:
    model, objective = config.model, objective_named(config.objective)
    if model.positions not in objective.positions:
        others = " or ".join(record.name for record in OBJECTIVES if model.positions in record.positions)
        why = (
            f"with `model.positions` {model.positions}: give `objective` {others}, or start from a preset with "
            f"{' or '.join(objective.positions)} positions"
        )
        yield InputError("objective", objective.name, why)
    if model.positions == "learned" and config.data.bidirectional:
        why = (
            "with `model.positions` learned: learned positions cannot show the reading direction; give "
            "`data.bidirectional` False"
        )
        yield InputError("data.bidirectional", True, why)
    yield from absolute_positions(model, config.data.seq_len)
    if model.attn_type != objective.attn_type:
        must = {"uni": "tokens must not see what they predict", "bi": "tokens must see both sides"}[objective.attn_type]
        why = f"with `model.attn_type` {model.attn_type}: {must}; give {objective.attn_type}"
        yield InputError("objective", objective.name, why)
    if model.same_length and model.attn_type == "bi":
        why = "with `model.attn_type` bi: it works only with causal attention (uni)"
        yield InputError("model.same_length", True, why)
    elif model.same_length and not model.mem_len:
        why = "with `model.mem_len` 0: every token would see only itself; give `model.mem_len`"
        yield InputError("model.same_length", True, why)


def _batch_contradictions(config: Config) -> Iterator[InputError]:
    """Yield settings that contradict the objective's batches."""
    data, filling = config.data, objective_named(config.objective).filling
    if data.pair_loss != "none" and data.window != "pairs":
        why = f"with `data.window` {data.window}: there is no segment B; give `data.window` pairs"
        yield InputError("data.pair_loss", data.pair_loss, why)
    if data.targets == "all" and (filling.objective != "plm" or data.num_predict is not None):
        why = "needs `objective` plm and `data.num_predict` None: every position has a target"
        yield InputError("data.targets", "all", why)
    if filling.stream == "content" and data.emit == "dense":
        why = "with `data.emit` dense: a target_mapping is for the query stream, which it lacks; give compact"
        yield InputError("objective", config.objective, why)
    if filling.stream == "content" and data.profile == "tf2":
        why = "with `data.profile` tf2: the profile orders <sep> and <cls>, but the objective has no order"
        yield InputError("objective", config.objective, why)
    if filling.replaces and filling.draws_targets and not data.mask_share + data.random_share:
        why = "with `data.random_share` 0: the network would see, and copy, every target"
        yield InputError("data.mask_share", 0, why)
    if not filling.draws_targets:
        for why in _running_text_contradictions(config):
            yield InputError("objective", config.objective, f"with {why}")


def _running_text_contradictions(config: Config) -> Iterator[str]:
    """Yield settings that contradict predicting every token of running text."""
    data, segments = config.data, config.model.num_segments
    predicts_next = objective_named(config.objective).filling.target == "next"
    if segments:
        yield f"`model.num_segments` {segments}: its windows have no segments A and B; give 0"
    if data.bidirectional and predicts_next:
        yield "`data.bidirectional` True: reversed rows would learn right to left; give `data.bidirectional` False"
    if data.window not in ("text", "records"):
        yield f"`data.window` {data.window}: it reads running text without segments; give text"
    if data.num_predict is not None:
        yield f"`data.num_predict` {data.num_predict}: every position predicts; give None"
    if 0 < data.reuse_len < data.seq_len:
        yield (
            f"`data.reuse_len` {data.reuse_len} in windows of {data.seq_len}: the rest of the window would be "
            f"predicted twice; give {data.seq_len}, or 0 without memory"
        )


def unread(config: Config) -> dict[str, str]:
    """Return the settings that have no effect together with the others, and the reason for each."""
    model, targets, filling = config.model, config.data.targets, objective_named(config.objective).filling
    name = f"`objective` {config.objective}"
    found: dict[str, str] = {}
    if not (filling.replaces and filling.draws_targets):
        why = f"{name} masks all its targets" if filling.replaces else f"{name} replaces no tokens"
        found |= dict.fromkeys(("data.mask_share", "data.random_share"), why)
    if filling.stream == "content":
        found["data.group_sizes"] = f"{name} predicts all targets at once or from left to right"
    if config.objective != "mdlm":
        found["data.bound_weights"] = f"{name} masks no random share, so its targets weigh the same"
    if not filling.draws_targets:
        found["data.targets"] = f"{name} predicts every token"
    if not filling.draws_targets or targets != "spans":
        why = f"{name} draws none" if not filling.draws_targets else f"`data.targets` is {targets}"
        found |= dict.fromkeys(("data.span_unit", "data.span_max"), f"it is for spans, and {why}")
    if model.positions != "learned":
        why = f"it is for learned positions, and `model.positions` is {model.positions}"
        found |= dict.fromkeys(("model.max_positions", "model.position_offset"), why)
    if config.optimizer.schedule != "wsd":
        found["optimizer.decay_share"] = (
            f"it is for schedule wsd, and `optimizer.schedule` is {config.optimizer.schedule}"
        )
    if model.positions != "relative":
        found["model.untie_r"] = f"it is for relative positions, and `model.positions` is {model.positions}"
    if config.dial:
        found["steps"] = f"`{config.dial}` {getattr(config, config.dial):g} chooses the steps"
    return found
