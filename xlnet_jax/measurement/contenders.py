"""Contenders of a comparison: every objective and the rows of the paper's Table 6 (section 3.4), and the number of
training steps that a budget pays for.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import with_objective
from xlnet_jax.objectives.records import CLM, MLM, OBJECTIVES, PLM, RTD
from xlnet_jax.objectives.registry import step_flops, validate
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import with_values

BLOCK_SIZE = 32
"""largest block of `plm-blocks`, in tokens; it must divide both parts of the window"""


def _dae_transformer_xl(common: Config) -> Config:
    """Return BERT's objective with memory, relative positions and bidirectional data."""
    data = {"reuse_len": common.data.reuse_len, "bidirectional": common.data.bidirectional}
    return with_values(MLM.start(common), {"model.mem_len": common.model.mem_len, "data": data})


def _plm_k7(common: Config) -> Config:
    """Return settings that predict one token in K = 7, so that each has more context."""
    data = common.data
    fewer = None if data.num_predict is None else round(data.num_predict * data.mask_alpha / (7 * data.mask_beta))
    return with_values(common, {"data": {"mask_alpha": 7, "mask_beta": 1, "num_predict": fewer}})


def _plm_grouped(common: Config) -> Config:
    """Return settings that predict up to 16 targets together, for generation with several pieces in a pass."""
    return with_values(common, {"data.group_sizes": tuple(n for n in (1, 2, 4, 8, 16) if n <= common.data.num_slots)})


def _plm_blocks(common: Config) -> Config:
    """Return settings that predict every token, in blocks from left to right and in any order inside a block."""
    data = common.data
    common_divisor = math.gcd(data.reuse_len, data.seq_len - data.reuse_len)
    size = max(n for n in range(1, BLOCK_SIZE + 1) if not common_divisor % n)
    return with_values(common, {"data": {"targets": "all", "num_predict": None, "perm_size": size}})


def _with(values: Mapping[str, Any], start: Callable[[Config], Config] = PLM.start) -> Callable[[Config], Config]:
    return lambda common: with_values(start(common), values)


CONTENDERS: dict[str, Callable[[Config], Config]] = {
    **{record.name: functools.partial(with_objective, objective=record.name) for record in OBJECTIVES},
    # The numbers are rows of Table 6. Row 1: masked pieces of segment pairs, next sentence prediction, no memory.
    "bert": _with({"model.positions": "learned", "data.pair_loss": "next"}, MLM.start),
    "dae-transformer-xl": _dae_transformer_xl,  # 2
    "plm-k7": _plm_k7,  # 3
    "plm-no-memory": _with({"model.mem_len": 0}),  # 5
    "plm-no-spans": _with({"data.targets": "pieces"}),  # 6
    "plm-no-bidirectional": _with({"data.bidirectional": False}),  # 7
    "plm-next": _with({"data.pair_loss": "next"}),  # 8, with next sentence prediction
    "plm-grouped": _plm_grouped,
    "plm-blocks": _plm_blocks,
    # Al-Rfou et al. 2019
    "vanilla": _with({"model": {"mem_len": 0, "positions": "sinusoidal"}}, CLM.start),
    # Clark et al. 2020
    "electra": RTD.start,
}
"""Functions from the shared settings, those of XLNet, to the settings of each contender"""

Equal = Literal["tokens", "operations"]


def step_tokens(config: Config) -> int:
    """Return the number of tokens in the windows of one step; reused text counts again, as in papers."""
    return config.data.batch_size * config.data.seq_len


def step_operations(config: Config) -> int:
    """Return the FLOPs of one step, with those of Muon's products."""
    if config.optimizer.method != "muon":
        return step_flops(config)
    import jax

    from xlnet_jax.objectives.language_model import objective_of
    from xlnet_jax.training.optimizer import muon_flops
    from xlnet_jax.training.sharding import unboxed

    params = unboxed(jax.eval_shape(objective_of(config).init, jax.random.key(0)))
    return step_flops(config) + muon_flops(params)


STEP_COST: dict[Equal, Callable[[Config], int]] = {"tokens": step_tokens, "operations": step_operations}


def fit_to_budget(name: str, config: Config, budget: float, equal: Equal) -> Config:
    """Return the settings of a contender with as many steps as the budget pays for. Settings that count steps (warmup,
    decay, evaluation) keep their share of the run.

    Raises InputError if the budget is below one step or the settings contradict each other.
    """
    cost = STEP_COST[equal](config)
    steps = int(budget // cost)
    if steps < 1:
        raise InputError("budget", f"{budget:g}", f"is less than one step of {name}, which costs {cost:,} {equal}")
    optimizer, share = config.optimizer, steps / config.steps
    warmup = round(share * optimizer.warmup_steps)
    decay = None if optimizer.decay_steps is None else max(round(share * optimizer.decay_steps), warmup + 1)
    config = with_values(
        config,
        {
            "steps": steps,
            "optimizer": {"warmup_steps": warmup, "decay_steps": decay},
            "eval.every_steps": max(round(share * config.eval.every_steps), 1),
        },
    )
    try:
        validate(config)
    except InputError as contradiction:
        raise InputError(f"{name}: {contradiction}") from None
    return config
