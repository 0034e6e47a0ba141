"""Embeddings of a vocabulary that is dealt anew here (data_pipelines/tokenizer/foreign.py), there and back."""

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.config import InputError
from xlnet_jax.interop.pretrained import Found
from xlnet_jax.interop.weights import Weight

_BY_PIECE = {"backbone/word_embedding": 0.0, "output_bias": -30.0}
"""Arrays with an entry a piece, and what a new piece gets: one that no text has, and that is as good as never
predicted."""


def dealt(found: Found, tokenizer: Tokenizer, where: str) -> Found:
    """The same with the rows of this tokenizer. InputError where the weights have fewer than it has pieces; those
    behind, as of a vocabulary that was padded, stay behind."""
    assert tokenizer.foreign
    theirs, size = tokenizer.foreign.theirs, tokenizer.foreign.their_size
    variables, notes = dict(found.variables), list(found.notes)
    for name, filling in _named(found.table, variables):
        rows = variables[name]
        if len(rows) < size:
            raise InputError(f"{where}: its tokenizer has {size:,} pieces and {name} {len(rows):,}: of another model?")
        if len(rows) > size:
            notes.append(f"{len(rows) - size} rows of {name} stay behind, which stand for no piece")
        kept = rows[np.maximum(theirs, 0)]
        kept[theirs < 0] = filling
        variables[name] = kept
    model = dataclasses.replace(found.model, vocab_size=tokenizer.vocab_size)
    return dataclasses.replace(found, model=model, variables=variables, tokenizer=tokenizer, notes=tuple(notes))


def dealt_back(tensors: dict[str, np.ndarray], table: Iterable[Weight], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Their tensors, in the order of their vocabulary."""
    assert tokenizer.foreign
    theirs = tokenizer.foreign.theirs
    back = dict(tensors)
    for name, _ in _named(table, tensors):
        rows = np.zeros((tokenizer.foreign.their_size, *tensors[name].shape[1:]), tensors[name].dtype)
        rows[theirs[theirs >= 0]] = tensors[name][theirs >= 0]
        back[name] = rows
    return back


def _named(table: Iterable[Weight], there: Mapping[str, np.ndarray]) -> list[tuple[str, float]]:
    return [(w.name, _BY_PIECE[w.path]) for w in table if w.path in _BY_PIECE and w.name in there]
