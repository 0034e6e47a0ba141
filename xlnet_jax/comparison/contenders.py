"""Settings that can be compared: every objective, the rows of the paper's Table 6 (section 3.4), and the number of
training steps that a budget pays for. A contender is a function from the settings that all share, XLNet's, to its
own.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from xlnet_jax.errors import InputError
from xlnet_jax.objectives.clm import CLM
from xlnet_jax.objectives.mlm import MLM
from xlnet_jax.objectives.presets import with_objective
from xlnet_jax.objectives.registry import OBJECTIVES, step_flops, validate
from xlnet_jax.objectives.rtd import RTD
from xlnet_jax.settings.config import Config


def bert(common: Config) -> Config:
    """Return row 1: masked pieces of segment pairs, next sentence prediction, learned positions, no memory."""
    return _with(MLM.start(common), model={"positions": "learned"}, data={"pair_loss": "next"})


def dae_transformer_xl(common: Config) -> Config:
    """Return row 2, DAE + Transformer-XL: BERT's objective with memory, relative positions and texts read both ways."""
    data = {"reuse_len": common.data.reuse_len, "bidirectional": common.data.bidirectional}
    return _with(MLM.start(common), model={"mem_len": common.model.mem_len}, data=data)


def plm_k7(common: Config) -> Config:
    """Return row 3: one token in K = 7 is predicted, with correspondingly more context."""
    data = common.data
    fewer = None if data.num_predict is None else round(data.num_predict * data.mask_alpha / (7 * data.mask_beta))
    return _with(common, data={"mask_alpha": 7, "mask_beta": 1, "num_predict": fewer})


def plm_no_memory(common: Config) -> Config:
    """Return row 5: no memory."""
    return _with(common, model={"mem_len": 0})


def plm_no_spans(common: Config) -> Config:
    """Return row 6: targets are drawn piece by piece."""
    return _with(common, data={"targets": "pieces"})


def plm_no_bidirectional(common: Config) -> Config:
    """Return row 7: every text is read forwards."""
    return _with(common, data={"bidirectional": False})


def plm_next(common: Config) -> Config:
    """Return row 8: with next sentence prediction."""
    return _with(common, data={"pair_loss": "next"})


def vanilla(common: Config) -> Config:
    """Return a causal model without memory, with sinusoidal positions (Al-Rfou et al. 2019)."""
    return _with(CLM.start(common), model={"mem_len": 0, "positions": "sinusoidal"})


def electra(common: Config) -> Config:
    """Return replaced token detection by its published name (Clark et al. 2020)."""
    return RTD.start(common)


def _with(config: Config, model: Mapping[str, Any] = {}, data: Mapping[str, Any] = {}) -> Config:
    return replace(config, model=replace(config.model, **model), data=replace(config.data, **data))


CONTENDERS: dict[str, Callable[[Config], Config]] = {
    **{record.name: functools.partial(with_objective, objective=record.name) for record in OBJECTIVES},
    **{
        contender.__name__.replace("_", "-"): contender
        for contender in (
            bert, dae_transformer_xl, plm_k7, plm_no_memory, plm_no_spans, plm_no_bidirectional, plm_next, vanilla,
            electra,
        )
    },
}  # fmt: skip


Equal = Literal["tokens", "operations"]


def step_tokens(config: Config) -> int:
    """Return the number of tokens in the windows of one step, as papers count them: reused text counts again."""
    return config.data.batch_size * config.data.seq_len


STEP_COST: dict[Equal, Callable[[Config], int]] = {"tokens": step_tokens, "operations": step_flops}


def fit_to_budget(name: str, config: Config, budget: float, equal: Equal) -> Config:
    """Return the settings of a contender with as many steps as the budget pays for; settings that count steps (warmup,
    decay, evaluation) keep their share of the run.

    Raises InputError where the budget is below one step, or the settings contradict each other.
    """
    cost = STEP_COST[equal](config)
    steps = int(budget // cost)
    if steps < 1:
        raise InputError(f"--budget {budget:g} is less than one update of {name}, which takes {cost:,} {equal}")
    optimizer, share = config.optimizer, steps / config.steps
    warmup = round(share * optimizer.warmup_steps)
    decay = None if optimizer.decay_steps is None else max(round(share * optimizer.decay_steps), warmup + 1)
    config = replace(
        config,
        steps=steps,
        optimizer=replace(optimizer, warmup_steps=warmup, decay_steps=decay),
        eval=replace(config.eval, every_steps=max(round(share * config.eval.every_steps), 1)),
    )
    try:
        validate(config)
    except InputError as contradiction:
        raise InputError(f"{name}: {contradiction}") from None
    return config
