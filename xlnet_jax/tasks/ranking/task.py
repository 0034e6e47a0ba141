"""Document ranking: documents by their score beside a query, document <sep> query <sep> <cls>. The paper (section 3.3)
ranks ClueWeb09-B's 100 best by XLNet's word embeddings in a kernel pooling network, without finetuning. Here the
whole network reads document and query together (Nogueira & Cho 2019), the document first, as the original has
passages before their questions (`run_squad.py`, `run_race.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from etils import epath

from data_pipelines.stateless import Purpose, choice, uniforms
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.traced import BatchDropout, DeviceBatch, apply
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.config import FinetuneConfig, RankingConfig
from xlnet_jax.tasks.features import Features, Outputs, encode_text
from xlnet_jax.tasks.losses import pairwise_loss_B, pointwise_loss_B, softmax_loss_B
from xlnet_jax.tasks.ranking.collection import Collection, RankedQuery, Run, write_run
from xlnet_jax.tasks.ranking.scores import RankingScores
from xlnet_jax.tasks.readers import Record
from xlnet_jax.tasks.task import Loss, Task


@dataclass(frozen=True)
class Passages:
    """Documents cut into pieces."""

    pieces: list[np.ndarray]
    """tokens, int32 [E], those of a document one after the other"""
    first: np.ndarray
    """int64 [documents]: its first piece"""
    count: np.ndarray
    """int64 [documents]"""

    @classmethod
    def cut(cls, tokens: Sequence[np.ndarray], length: int, most: int) -> Passages:
        """Cut each document into at most `most` pieces of `length` tokens; with one piece a document stays whole."""
        cuts = [
            [ids] if most == 1 else [ids[i : i + length] for i in range(0, max(len(ids), 1), length)][:most]
            for ids in tokens
        ]
        count = np.array([len(cut) for cut in cuts], np.int64)
        return cls([piece for cut in cuts for piece in cut], np.cumsum(count) - count, count)

    def any_of(self, documents: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return one piece of each document, chosen by uniforms in [0, 1)."""
        return self.first[documents] + choice(uniform, self.count[documents])

    def all_of(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (pieces, the place in `documents` that each comes from), int64 [pieces]."""
        origin = np.repeat(np.arange(len(documents)), self.count[documents])
        before = np.cumsum(self.count[documents]) - self.count[documents]
        return self.first[documents][origin] + np.arange(len(origin)) - before[origin], origin


@dataclass(frozen=True)
class PairTokens(Sequence[np.ndarray]):
    """Tokens of document <sep> query <sep> <cls>, joined when a batch asks for them: the texts of all pairs would be
    many times the collection."""

    documents: Sequence[np.ndarray]
    queries: Sequence[np.ndarray]
    pairs: np.ndarray
    """int64 [texts, 2]: of which document and which query"""
    limit: int
    """tokens of a text at the most, special ones included"""
    part: int
    """of what `encode_text` returns: 0 = input_ids, 1 = segment_ids"""

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, text: Any) -> Any:
        document, query = self.pairs[text]
        return encode_text(self.documents[document], self.queries[query], self.limit)[self.part]


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


RUN_FILE = "run.trec"
LOSSES_B = {"pairwise": pairwise_loss_B, "softmax": softmax_loss_B, "pointwise": pointwise_loss_B}
SPECIALS = 3  # document <sep> query <sep> <cls>


class Ranking(Task[RankedQuery, Run]):
    """Ranking of documents for a query. Examples are queries. A training item is a group of documents, the first of
    them relevant; an evaluation item is a document, or a passage of one. Answers are a run."""

    draws_anew = True
    reads_rows = False

    def __init__(self, config: FinetuneConfig):
        super().__init__(config)
        r = config.ranking
        if config.data.seq_len <= r.max_query_len + SPECIALS:
            raise InputError(
                f"`data.seq_len` {config.data.seq_len} leaves nothing for a document beside a query of "
                f"{r.max_query_len} tokens: raise it, or lower `ranking.max_query_len`"
            )
        if config.data.long_texts != "tail":
            raise InputError(
                f"`data.long_texts` {config.data.long_texts}: ranking reads long documents by `ranking.max_passages`"
            )
        self._settings = r
        self._collection = Collection(r)
        self._scores = RankingScores(r.cutoff, r.gain, r.relevant_from, r.max_grade)
        self.metric = self._scores.main
        self._tokens: dict[int, np.ndarray] = {}  # of documents that were read, by the one tokenizer of a run

    def read(self, paths: Sequence[str], labelled: bool) -> list[RankedQuery]:
        """Read the queries of qrels (labelled), or else of runs or files of queries. Errors as `Collection`."""
        return self._collection.judged(paths) if labelled else self._collection.unjudged(paths)

    def example(self, record: Record, number: int, labelled: bool) -> RankedQuery:
        """Refuse a row: queries and documents come from files of their own."""
        raise NotImplementedError

    def features(
        self, examples: Sequence[RankedQuery], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Return, for training, a group of C documents for each relevant one, with one passage each; otherwise one item
        a passage of the documents to rank. value: document, int32 [items, C], its place in the collection."""
        drawn = self._draws.groups(examples, self.config.seed, epoch) if training else self._draws.to_rank(examples)
        queries, documents = drawn.queries, drawn.documents
        used, places = np.unique(documents, return_inverse=True)
        passages, places = self._passages(used.tolist(), tokenizer), places.reshape(documents.shape)
        if training:
            pieces = passages.any_of(places, drawn.uniform)
        else:
            pieces, origin = passages.all_of(places[:, 0])
            pieces, queries, documents = pieces[:, None], queries[origin], documents[origin]
        query_tokens = [
            ids[: self._settings.max_query_len] for ids in tokenizer.encode_lines([e.text for e in examples])
        ]
        group = pieces.shape[1]
        pairs = np.stack([pieces.ravel(), queries.repeat(group)], axis=1)
        limit = self.config.data.seq_len
        return Features(
            tokens={
                name: PairTokens(passages.pieces, query_tokens, pairs, limit, part)
                for part, name in enumerate(("input_ids", "segment_ids"))
            },
            values={"document": documents.astype(np.int32)},
            examples=queries,
            texts_per_item=group,
        )

    def score(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> Loss:
        """Return the loss that `ranking.loss` names (losses.py); a group is one item."""
        scores_BC = _scores(model, params, batch, dropout).reshape(batch["input_ids"].shape[:2])
        return Loss.of(LOSSES_B[self._settings.loss](scores_BC), batch)

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return score, float32 [B]."""
        return {"score": _scores(model, params, batch, None)}

    def answers(self, examples: Sequence[RankedQuery], features: Features, outputs: Outputs) -> Run:
        """Return the score of each document, that of its best passage (Dai & Callan 2019)."""
        names = list(self._collection.documents)
        run: Run = {e.id: {} for e in examples}
        documents = features.values["document"][:, 0]
        for query, document, score in zip(features.examples, documents, outputs["score"], strict=True):
            scores, name = run[examples[query].id], names[document]
            scores[name] = max(float(score), scores.get(name, -math.inf))
        return run

    def metrics(self, examples: Sequence[RankedQuery], answers: Run) -> dict[str, float]:
        """Return NDCG@k, ERR@k, MAP, MRR and P@k, 0 to 1 (`RankingScores`)."""
        return self._scores.mean({e.id: e.judged.grades for e in examples}, answers)

    def write(self, folder: epath.Path, examples: Sequence[RankedQuery], answers: Run) -> list[str]:
        """Write run.trec, the ranking as a TREC run."""
        write_run(folder / RUN_FILE, answers)
        return [RUN_FILE]

    @cached_property
    def _draws(self) -> Draws:
        return Draws(self._collection.documents, self._settings)

    def _passages(self, documents: Sequence[int], tokenizer: Tokenizer) -> Passages:
        new = [document for document in documents if document not in self._tokens]
        texts = list(self._collection.documents.values())
        self._tokens |= zip(new, tokenizer.encode_lines([texts[document] for document in new]), strict=True)
        length = self.config.data.seq_len - self._settings.max_query_len - SPECIALS
        return Passages.cut([self._tokens[document] for document in documents], length, self._settings.max_passages)


def _scores(model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
    ids, mask, segments = (
        batch[name].reshape(-1, batch[name].shape[-1]) for name in ("input_ids", "attention_mask", "segment_ids")
    )
    return apply(model, params, dropout, text_inputs(ids, mask, segments), mask)
