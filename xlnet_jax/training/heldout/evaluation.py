"""Held-out loss of any checkpoint on any text, measured as in training: with the same windows, masks, targets and
carried memory, so that a run gets its own number for its own text."""

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data_pipelines import windows
from data_pipelines.corpus import Corpus
from data_pipelines.prepare import prepare_to_measure
from data_pipelines.readers import Errors
from data_pipelines.sources import Source
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints.pretrained import Pretrained, vocabulary_tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import flatten, nest, size
from xlnet_jax.objectives.build import objective_of
from xlnet_jax.objectives.rules import validate
from xlnet_jax.settings.config import Config
from xlnet_jax.training import sharding
from xlnet_jax.training.heldout.heldout import HeldOutLoss, held_out_batches
from xlnet_jax.training.heldout.unigram import unigram_line
from xlnet_jax.training.heldout.units import Measured, content_of
from xlnet_jax.training.optimizer import make_optimizer
from xlnet_jax.training.state import empty_mems_ZBMD, plan_state
from xlnet_jax.training.step import make_eval_step

AT_EVALUATION = ("mem_len", "clamp_len", "same_length")
"""Settings of the network that an evaluation may change: they decide what a row sees, not its parameters."""


@contextlib.contextmanager
def corpus_of(text: Sequence[Source], tokenizer: Tokenizer, config: Config, errors: Errors) -> Iterator[Corpus]:
    """Prepare this text as the held-out part of a corpus, which is deleted afterwards; the unigram counts are of the
    same text."""
    with tempfile.TemporaryDirectory() as folder:
        yield prepare_to_measure(
            text, tokenizer, Path(folder) / "corpus", block_len=windows.block_len(config.data), errors=errors
        )


def measure_loss(
    pretrained: Pretrained,
    corpus: Corpus,
    config: Config,
    unigram_counts: np.ndarray,
    on_batch: Callable[[int, int], None] = lambda number, batches: None,
) -> Measured:
    """Return the loss of a checkpoint on the validation split of a corpus. config: read for its objective, data, eval
    and mesh, and AT_EVALUATION of its network; unigram_counts: int64 [V], of the text that the unigram line knows.

    on_batch: called before each batch with its number, from 1, and the number of batches. Raises InputError where the
    settings contradict each other, or the corpus or the checkpoint does not fit.
    """
    tokenizer = vocabulary_tokenizer(pretrained)
    corpus.demand(tokenizer, "the checkpoint's")
    seen = {name: getattr(config.model, name) for name in AT_EVALUATION}
    config = replace(config, model=replace(pretrained.model, **seen))
    validate(config)
    mesh = sharding.make_mesh(config)
    put = sharding.batch_to_mesh(mesh, config.data.batch_size)
    batches = held_out_batches(corpus, tokenizer, config)
    unigram = unigram_line(unigram_counts, batches, put)

    objective = objective_of(config)
    plan = plan_state(objective, make_optimizer(config.optimizer, config.steps), mesh)
    held_out = HeldOutLoss(
        make_eval_step(objective, plan, mesh), batches, lambda: empty_mems_ZBMD(plan.mems_ZBMD), put, unigram,
        config.eval.every_steps,
    )  # fmt: skip
    counted = itertools.count(1)

    def is_stopped() -> bool:
        on_batch(next(counted), len(batches))
        return False

    numbers = held_out.measure(_laid_out(pretrained.params, plan.params), is_stopped)
    assert numbers is not None
    return Measured(
        config.objective,
        numbers["loss"],
        int(sum(batch["target_weights"].sum() for batch in batches)),
        unigram,
        int(sum(batch["row_weights"].sum() for batch in batches)),
        content_of(batches, tokenizer, config.objective),
        {name: number for name, number in numbers.items() if name != "loss"},
    )


def _laid_out(params: dict[str, Any], abstract_params: Any) -> Any:
    """Return the parameters that this objective needs, on the devices. Raises InputError where one is missing or of
    another size."""
    wanted, given = flatten(abstract_params), flatten(params)
    if missing := sorted(wanted.keys() - given.keys()):
        raise InputError(
            f"the checkpoint has no {', '.join(missing)}: it was trained by another objective, or without "
            "data.pair-loss; measure what it has learned"
        )
    for path, shape in wanted.items():
        if given[path].shape != shape.shape:
            raise InputError(
                f"the checkpoint's {path} is {size(given[path].shape)}, and not {size(shape.shape)}: of what "
                "else than the run that trained it, the size of a generator is not known"
            )
    return sharding.from_host(nest({path: given[path] for path in wanted}), sharding.shardings_of(abstract_params))
