"""Contradictions between objectives, networks and windows, with their reasons."""

from collections.abc import Iterator

from xlnet_jax.errors import InputError
from xlnet_jax.objectives.record import Record
from xlnet_jax.objectives.registry import OBJECTIVES, objective_named
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.rules import (
    absolute_positions,
    data_contradictions,
    memory_contradictions,
    run_contradictions,
)


def validate(config: Config) -> None:
    """Check the settings of a pretraining run. Raises InputError with the first contradiction."""
    for broken in _contradictions(config):
        raise InputError(broken)


def _contradictions(config: Config) -> Iterator[str]:
    yield from run_contradictions(config)
    yield from objective_contradictions(config)
    yield from data_contradictions(config.data)
    yield from memory_contradictions(config.model.mem_len, config.data)


def objective_contradictions(config: Config) -> Iterator[str]:
    """Yield what contradicts the objective, or the network and windows of any objective, each in a line."""
    model, data, objective = config.model, config.data, objective_named(config.objective)
    if model.network == "bert":
        yield from _learned_positions(config, objective)
    yield from absolute_positions(model, data.seq_len)
    if model.same_length and model.attn_type == "bi":
        yield "model.same-length with model.attn-type bi: only a row that looks back alone (uni) has a length to keep"
    elif model.same_length and not model.mem_len:
        yield "model.same-length with model.mem-len 0: every row would see itself alone; give it a memory"
    if data.pair_loss != "none" and data.window != "pairs":
        yield f"data.pair-loss {data.pair_loss} with data.window {data.window}: there is no B; it needs pairs"
    yield from objective.contradictions(config)


def unread(config: Config) -> Iterator[tuple[str, str]]:
    """Yield (setting, why it changes nothing beside the others)."""
    model = config.model
    yield from objective_named(config.objective).unread(config)
    if model.network != "bert":
        why = f"it is of learned positions, and model.positions is {model.positions}"
        yield from ((f"model.{name}", why) for name in ("max-positions", "position-offset"))
    if model.positions != "relative":
        yield "model.untie-r", f"it is of relative positions, and model.positions is {model.positions}"


def _learned_positions(config: Config, objective: Record) -> Iterator[str]:
    if "learned" not in objective.positions:
        fitting = " or ".join(record.name for record in OBJECTIVES if "learned" in record.positions)
        yield (
            f"--objective {objective.name} with model.positions learned: that is BERT's encoder, which sees every "
            f"place of its window; give --objective {fitting}, or start from a preset with "
            f"{' or '.join(objective.positions)} ones"
        )
    if config.data.bidirectional:
        yield "data.bidirectional with model.positions learned: places do not say which way a row reads; turn it off"
