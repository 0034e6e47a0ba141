"""Measure the held-out loss by position in the window, and how many pieces a target sees there.

    python -m benchmarks.by_position runs/plm runs/plm-no-memory [--max-windows 4096]

Each argument is a pretraining run whose corpus still exists. The table has a row for each eighth of a window: its share
of all targets, the number of pieces of its window that a target sees, and the loss of each run in nats. Without memory,
targets at the beginning of a window see little of the text before them.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.results import keep_table
from xlnet_jax import load
from xlnet_jax.checkpoints.native import PretrainingRun
from xlnet_jax.dims import Batch
from xlnet_jax.models.heads import build_model
from xlnet_jax.objectives.language_model import cross_entropy_BP, empty_memory, inputs_of
from xlnet_jax.settings.config import Config
from xlnet_jax.training.evaluation import held_out_batches

PARTS = 8
"""of a window; each is a row of the table"""


class ByPosition(NamedTuple):
    """Sums over the targets at each position of a window: [L]."""

    targets: np.ndarray
    seen: np.ndarray
    """number of pieces of the window that a target sees"""
    loss: np.ndarray
    """nats"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--max-windows", type=int, default=4096)
    given = parser.parse_args()
    found = {name: measured(name, given.max_windows) for name in given.runs}
    first = next(iter(found.values()))
    head = ("place in the window", "targets", "pieces seen", *found)
    rows = []
    for part in np.array_split(np.arange(len(first.targets)), PARTS):
        losses = (f"{of_run.loss[part].sum() / of_run.targets[part].sum():.3f}" for of_run in found.values())
        targets = first.targets[part].sum()
        share, seen = targets / first.targets.sum(), first.seen[part].sum() / targets
        rows.append((f"{part[0]} to {part[-1]}", f"{share:.1%}", f"{seen:.0f}", *losses))
    keep_table("by-position", head, rows)


def measured(run_folder: str, max_windows: int) -> ByPosition:
    """Return the sums of a run over its held-out text."""
    pretrained, run = load(run_folder), PretrainingRun.of(run_folder)
    assert run, f"{run_folder} is not a run"
    corpus = run.corpus()
    assert corpus, f"the corpus of {run_folder} is gone"
    assert pretrained.tokenizer
    config = replace(run.config, model=pretrained.model, eval=replace(run.config.eval, max_windows=max_windows))
    batches = held_out_batches(corpus, pretrained.tokenizer, config)
    return sums(config, pretrained.params, batches)


def sums(config: Config, params: Any, batches: Sequence[Batch]) -> ByPosition:
    """Return the sums over consecutive batches, which pass memory to each other."""
    totals = ByPosition(*(np.zeros(config.data.seq_len) for _ in ByPosition._fields))
    mems_ZBMD = empty_memory(config)
    for batch in batches:
        losses_BP, mems_ZBMD = _losses(config, params, {k: jnp.asarray(v) for k, v in batch.items()}, mems_ZBMD)
        at_BP, weights_BP = batch["target_positions"], batch["target_weights"]
        rank_BL = batch["perm_rank"]
        seen_BP = (rank_BL[:, None] < np.take_along_axis(rank_BL, at_BP, 1)[:, :, None]).sum(-1)
        for total, values_BP in zip(totals, (np.ones_like(weights_BP), seen_BP, losses_BP), strict=True):
            np.add.at(total, at_BP, weights_BP * np.asarray(values_BP))
    return totals


@partial(jax.jit, static_argnums=0)
def _losses(
    config: Config, params: Any, batch: dict[str, jax.Array], mems_ZBMD: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the loss of each target, [B, P], and the memory of the next windows."""
    inputs, at_BP = inputs_of(batch, config)
    network = cast(Any, build_model(config.model, None))
    logits_BPV, outputs = network.apply(
        {"params": params}, inputs, mems_ZBMD, at_BP=at_BP, reuse_len=config.data.reuse_len
    )
    return cross_entropy_BP(logits_BPV, batch["target_ids"]), outputs.new_mems_ZBMD


if __name__ == "__main__":
    main()
