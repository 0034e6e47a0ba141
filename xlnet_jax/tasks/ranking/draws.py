"""Draw documents for a query: groups for training, and the documents that evaluation ranks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data_pipelines.stateless import Purpose, choice, uniforms
from xlnet_jax.errors import InputError
from xlnet_jax.tasks.config import RankingConfig
from xlnet_jax.tasks.ranking.queries import RankedQuery

EVALUATION_SEED = 0  # runs of all seeds rank the same documents


class Drawn(NamedTuple):
    """Items of C documents each."""

    queries: np.ndarray  # int64 [items]
    documents: np.ndarray  # int64 [items, C], by their places in the collection
    uniform: np.ndarray  # float64 [items, C], in [0, 1): what else is drawn of a document


class Draws:
    """Draws from a collection; documents without a text are never drawn."""

    def __init__(self, documents: Mapping[str, str], settings: RankingConfig):
        self._settings = settings
        self._places = {document: place for place, document in enumerate(documents)}
        self._with_text = [place for place, text in enumerate(documents.values()) if text]
        self._has_text = set(self._with_text)

    def groups(self, examples: Sequence[RankedQuery], seed: int, epoch: int) -> Drawn:
        """Return a group for each relevant document, which comes first in it.

        The others are a pure function of (seed, epoch): drawn from the documents judged not relevant and the candidates
        and, where these are too few, from all documents. Raises InputError where no document is relevant, or a group
        cannot be filled.
        """
        count, least = self._settings.negatives, self._settings.relevant_from
        relevant = [self._of_places(d for d, g in e.judged.grades.items() if g >= least) for e in examples]
        never = [{*ids, *self._of_places(e.judged.left_out)} for ids, e in zip(relevant, examples, strict=True)]
        near = [sorted(({*self._near(e)} - banned) & self._has_text) for e, banned in zip(examples, never, strict=True)]
        items = [(q, place) for q, places in enumerate(relevant) for place in places if place in self._has_text]
        if not items:
            raise InputError(f"training: no document with a text has a grade from {least} on, so none is learned")
        far = 2 * count + max(map(len, never))  # some are passed over
        uniform = uniforms(seed, Purpose.NEGATIVES, epoch, np.arange(len(items)), count + far + 1 + count)
        for_near, for_far, left = np.split(uniform, [count, count + far], axis=1)
        documents = np.zeros(left.shape, np.int64)
        for row, (q, document) in enumerate(items):
            others = [near[q][i] for i in first_of_shuffle(for_near[row], len(near[q]))]
            others += self._any(for_far[row], never[q].union(others), count - len(others))
            if len(others) < count:
                raise InputError(
                    f"training: query {examples[q].id} has {len(others)} documents that are not relevant, and a group "
                    f"takes {count}; lower `ranking.negatives`"
                )
            documents[row] = [document, *others]
        return Drawn(np.array([q for q, _ in items]), documents, left)

    def to_rank(self, examples: Sequence[RankedQuery]) -> Drawn:
        """Return the candidates of each query, or else its judged documents and some others, the same at every call.
        Raises InputError where there is none."""
        judged = [self._of_places((*e.judged.grades, *e.judged.left_out)) for e in examples]
        others = self._settings.others
        width = others + max(map(len, judged), default=0)
        uniform = uniforms(EVALUATION_SEED, Purpose.CANDIDATES, 0, np.arange(len(examples)), width)
        found = [
            [*self._of_places(e.judged.grades), *self._any(of_query, set(places), others)]
            if e.candidates is None
            else self._of_places(e.candidates)
            for e, places, of_query in zip(examples, judged, uniform, strict=True)
        ]
        if not any(found):
            raise InputError("no query has a document to be ranked; look at `ranking.candidates` and `predict`")
        documents = np.concatenate([np.array(places, np.int64) for places in found])[:, None]
        queries = np.repeat(np.arange(len(examples)), [len(places) for places in found])
        return Drawn(queries, documents, np.zeros(documents.shape))

    def _near(self, example: RankedQuery) -> list[int]:
        grades = example.judged.grades.items()
        judged = (document for document, grade in grades if grade < self._settings.relevant_from)
        return self._of_places((*judged, *(example.candidates or ())))

    def _of_places(self, documents: Iterable[str]) -> list[int]:
        return [self._places[document] for document in documents if document in self._places]

    def _any(self, uniform: np.ndarray, banned: set[int], count: int) -> list[int]:
        if count <= 0:
            return []
        order = (self._with_text[i] for i in first_of_shuffle(uniform, len(self._with_text)))
        return [place for place in order if place not in banned][:count]


def first_of_shuffle(uniform: np.ndarray, size: int) -> list[int]:
    """Return the first `len(uniform)` places of a random order of 0 … size - 1, by uniforms in [0, 1) (Fisher and
    Yates, without an array of all places)."""
    steps = np.arange(min(len(uniform), size))
    moved: dict[int, int] = {}
    picked = []
    for i, j in zip(steps.tolist(), (steps + choice(uniform[: len(steps)], size - steps)).tolist(), strict=True):
        picked.append(moved.get(j, j))
        moved[j] = moved.get(i, i)
    return picked
