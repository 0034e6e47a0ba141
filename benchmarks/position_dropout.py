"""Compare one dropout mask of the positions for the whole batch with one per example, as in the 2019 code.

    python -m benchmarks.position_dropout [--rows 32] [--draws 32]

Prints the ratio of the variances of the pretraining gradient, with the weights of `tiny` on the novels of the package.
Batches and all other masks are the same on both sides.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import xlnet_jax
from data_pipelines import sources, windows
from xlnet_jax.objectives.language_model import BatchDropout, objective_of
from xlnet_jax.settings.config import Config

RATE = 0.1
"""of all dropout, as in the paper"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--draws", type=int, default=32)
    given = parser.parse_args()
    tiny = xlnet_jax.load("tiny")
    data = replace(xlnet_jax.preset("demo").data, batch_size=given.rows, windows_per_block=4)
    model = replace(tiny.model, dropout=RATE, attention_dropout=RATE, mem_len=0)
    config = Config(model=model, data=data)
    gradient = jax.jit(gradient_of(config), static_argnames="own_masks")
    found: dict[bool, list[np.ndarray]] = {False: [], True: []}
    for number, batch in enumerate(batches(tiny, config, given.draws)):
        for own_masks, gradients in found.items():
            gradients.append(np.asarray(gradient(tiny.params, batch, jax.random.key(number), own_masks=own_masks)))
    one, own = (np.var(found[own_masks], axis=0, ddof=1) for own_masks in (False, True))
    print(f"{given.rows} windows of {data.seq_len}, {given.draws} batches, dropout {RATE}")
    print(f"variance of the gradient with one mask for all: {one.sum() / own.sum():.3f} of that with one for each")


def batches(tiny: Any, config: Config, count: int) -> Iterator[dict[str, Any]]:
    """Yield batches of the novels."""
    with tempfile.TemporaryDirectory() as folder:
        tiny.tokenizer.save(Path(folder, "tokenizer"))
        length = windows.block_len(config.data)
        settings = xlnet_jax.PrepareSettings(
            f"{folder}/corpus", f"{folder}/tokenizer", source=(sources.embedded()[0],), block_len=length
        )
        corpus = xlnet_jax.prepare_corpus(settings)
        yield from xlnet_jax.batch_source(corpus, tiny.tokenizer, config).iterate(0, count)


def gradient_of(config: Config) -> Any:
    """Return a function (params, batch, key, own_masks) -> gradient of the mean loss, [number of parameters]."""
    objective = objective_of(config)
    mems = jnp.zeros((config.model.num_layers, 1, 0, config.model.d_model))

    def gradient(params: Any, batch: Any, key: jax.Array, own_masks: bool) -> jax.Array:
        def loss_of(params: Any, row: Any, number: jax.Array) -> jax.Array:
            # The mask of the positions depends only on the key, all others also on the index of the example.
            row_key = jax.random.fold_in(key, number) if own_masks else key
            row = jax.tree.map(lambda x: x[None], row)
            return objective.score(params, row, mems, BatchDropout(row_key, number[None])).loss_sum

        def mean(params: Any) -> jax.Array:
            numbers = jnp.arange(config.data.batch_size)
            return jax.vmap(loss_of, (None, 0, 0))(params, batch, numbers).sum() / batch["target_weights"].sum()

        return jnp.concatenate([g.ravel() for g in jax.tree.leaves(jax.grad(mean)(params))])

    return gradient


if __name__ == "__main__":
    main()
