"""Document ranking: documents by their score beside a query, document <sep> query <sep> <cls>.

The paper (section 3.3) ranks ClueWeb09-B's 100 best by XLNet's word embeddings in a kernel pooling network, without
finetuning. Here the whole network reads document and query together (Nogueira & Cho 2019), the document first, as the
original has passages before their questions (`run_squad.py`, `run_race.py`).
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import flax.linen as nn
import jax
import numpy as np
from etils import epath

from data_pipelines.stateless import Purpose, uniforms
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.config import HeadConfig, InputError
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.supervised import pairwise_loss_B, pointwise_loss_B, softmax_loss_B
from xlnet_jax.tasks.collection import read_collection
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import Features
from xlnet_jax.tasks.ranking_pairs import PairTokens, Passages, shuffled
from xlnet_jax.tasks.ranking_scores import RankingScores
from xlnet_jax.tasks.task import DeviceBatch, Loss
from xlnet_jax.tasks.trec import Judgements, Run, is_run, ranked, read_qrels, read_run, write_run

RUN_FILE = "run.trec"
LOSSES_B = {"pairwise": pairwise_loss_B, "softmax": softmax_loss_B, "pointwise": pointwise_loss_B}
SPECIALS = 3  # document <sep> query <sep> <cls>
EVALUATION_SEED = 0  # runs of all seeds rank the same documents


@dataclass(frozen=True)
class RankedQuery:
    """A query, and what is known of documents."""

    id: str
    text: str
    judged: Judgements
    candidates: tuple[str, ...] | None
    """to be ranked; None = all that are judged, and others"""


class Ranking:
    """Examples are queries. An item of training is a group of documents, the first of them relevant; one of evaluation
    is a document, or a passage of it."""

    draws_anew = True

    def __init__(self, config: FinetuneConfig):
        self._config, self._settings = config, config.ranking
        _validate(config)
        r = config.ranking
        self._scores = RankingScores(r.cutoff, r.gain, r.relevant_from, r.max_grade)
        self.metric = self._scores.main

    def read(self, paths: Sequence[str], labelled: bool) -> list[RankedQuery]:
        """labelled: the queries of qrels. Otherwise those of runs, whose documents are ranked anew, or of files of
        queries, for which the documents of --ranking.candidates are ranked, or else all."""
        if labelled:
            return self._of_qrels(paths)
        if all(is_run(path) for path in paths):
            best = self._best(read_run(paths), "--predict")
            known = self._known(best, self._queries, "queries", "--predict")
            return [RankedQuery(query, self._queries[query], Judgements(), best[query]) for query in known]
        everything = tuple(self._documents)
        return [
            RankedQuery(query, text, Judgements(), self._candidates_of(query, set()) or everything)
            for query, text in self._read_queries(paths).items()
        ]

    def head(self, train: Sequence[RankedQuery]) -> HeadConfig:
        """One number, the score."""
        return HeadConfig("regression")

    def features(
        self, examples: Sequence[RankedQuery], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """training: a group for each relevant document, the others in it by (seed, epoch); otherwise all that are to be
        ranked. values: document, int32 [items, C], which of the collection it is."""
        if training:
            queries, documents, uniform = self._groups(examples, epoch)
        else:
            queries, documents = self._to_rank(examples)
        used, places = np.unique(documents, return_inverse=True)
        texts = list(self._documents.values())
        passages = self._passages(tokenizer.encode_lines([texts[d] for d in used]))
        places = places.reshape(documents.shape)
        if training:
            pieces = passages.any_of(places, uniform)
        else:
            pieces, origin = passages.all_of(places[:, 0])
            pieces, queries, documents = pieces[:, None], queries[origin], documents[origin]
        query_tokens = [
            ids[: self._settings.max_query_len] for ids in tokenizer.encode_lines([e.text for e in examples])
        ]
        group = pieces.shape[1]
        pairs = np.stack([pieces.ravel(), queries.repeat(group)], axis=1)
        limit = self._config.data.seq_len
        return Features(
            tokens={
                name: PairTokens(passages.pieces, query_tokens, pairs, limit, part)
                for part, name in enumerate(("input_ids", "segment_ids"))
            },
            values={"document": documents.astype(np.int32)},
            examples=queries,
            texts_per_item=group,
        )

    def score(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout_key: jax.Array | None) -> Loss:
        """The loss of --ranking.loss, a group one item."""
        scores_BC = _scores(model, params, batch, dropout_key).reshape(batch["input_ids"].shape[:2])
        loss_B = LOSSES_B[self._settings.loss](scores_BC)
        return Loss((loss_B * batch["target_weights"]).sum(), batch["target_weights"].sum())

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """score, float32 [B]."""
        return {"score": _scores(model, params, batch, None)}

    def metrics(
        self, examples: Sequence[RankedQuery], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """NDCG@k, ERR@k, MAP, MRR and P@k (`RankingScores`)."""
        return self._scores.mean({e.id: e.judged.grades for e in examples}, self._run(examples, features, outputs))

    def write(
        self,
        folder: epath.Path,
        examples: Sequence[RankedQuery],
        features: Features,
        outputs: Mapping[str, np.ndarray],
    ) -> list[str]:
        """The ranking as a TREC run."""
        write_run(folder / RUN_FILE, self._run(examples, features, outputs))
        return [RUN_FILE]

    @cached_property
    def _documents(self) -> dict[str, str]:
        texts = read_collection(self._settings.documents, "documents")
        if empty := [document for document, text in texts.items() if not text]:
            _note(f"documents: {len(empty)} have no text, {empty[0]} the first; they are ranked by their query alone")
        return texts

    @cached_property
    def _places(self) -> dict[str, int]:
        return {document: place for place, document in enumerate(self._documents)}

    @cached_property
    def _with_text(self) -> list[int]:
        return [place for place, text in enumerate(self._documents.values()) if text]

    @cached_property
    def _queries(self) -> dict[str, str]:
        return self._read_queries(self._settings.queries)

    @cached_property
    def _candidates(self) -> dict[str, tuple[str, ...]]:
        return self._best(read_run(self._settings.candidates), "--ranking.candidates")

    def _read_queries(self, paths: Sequence[str]) -> dict[str, str]:
        queries = read_collection(paths, "queries")
        if empty := [query for query, text in queries.items() if not text]:
            raise InputError(f"queries {paths[0]}: {len(empty)} have no text, {empty[0]} the first; leave them out")
        if self._settings.judgements == "cranfield":
            return {str(number): text for number, text in enumerate(queries.values(), 1)}
        return queries

    def _of_qrels(self, paths: Sequence[str]) -> list[RankedQuery]:
        r, where = self._settings, f"qrels {paths[0]}"
        judged = read_qrels(paths, r.judgements)
        queries = self._known(judged, self._queries, "queries", where)
        self._known((d for q in queries for d in judged[q].grades), self._documents, "documents", where)
        highest = max((grade for q in queries for grade in judged[q].grades.values()), default=0)
        if highest > r.max_grade:
            raise InputError(f"{where}: a grade of {highest}, and --ranking.max-grade is {r.max_grade}: raise it")
        return [
            RankedQuery(q, self._queries[q], judged[q], self._candidates_of(q, judged[q].left_out)) for q in queries
        ]

    def _candidates_of(self, query: str, left_out: Iterable[str]) -> tuple[str, ...] | None:
        if not self._settings.candidates:
            return None
        return tuple(d for d in self._candidates.get(query, ()) if d not in left_out)

    def _best(self, run: Run, where: str) -> dict[str, tuple[str, ...]]:
        best = {query: ranked(scores)[: self._settings.depth] for query, scores in run.items()}
        known = set(self._known((d for found in best.values() for d in found), self._documents, "documents", where))
        return {query: tuple(d for d in found if d in known) for query, found in best.items()}

    def _known(self, ids: Iterable[str], texts: Mapping[str, str], what: str, where: str) -> list[str]:
        asked = list(dict.fromkeys(ids))
        known = [name for name in asked if name in texts]
        if len(known) == len(asked):
            return known
        unknown = [name for name in asked if name not in texts]
        message = (
            f"{where}: {len(unknown)} of {len(asked)} {what} are unknown, {unknown[0]!r} the first; "
            f"--ranking.{what} has {len(texts)}, {next(iter(texts), '')!r} the first"
        )
        if self._settings.unknown == "refuse":
            hint = ", or, of Cranfield, --ranking.judgements cranfield" if what == "queries" else ""
            raise InputError(f"{message}: mend them, leave them out by --ranking.unknown skip{hint}")
        _note(f"{message}; they are left out")
        return known

    def _passages(self, tokens: Sequence[np.ndarray]) -> Passages:
        length = self._config.data.seq_len - self._settings.max_query_len - SPECIALS
        return Passages.cut(tokens, length, self._settings.max_passages)

    def _groups(self, examples: Sequence[RankedQuery], epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(queries [items], documents [items, C], uniforms [items, C])"""
        r, count = self._settings, self._settings.negatives
        relevant = [{d for d, grade in e.judged.grades.items() if grade >= r.relevant_from} for e in examples]
        never = [self._of_places(ids | e.judged.left_out) for ids, e in zip(relevant, examples, strict=True)]
        hard = [self._hard(e, banned) for e, banned in zip(examples, never, strict=True)]
        items = [
            (q, self._places[d]) for q, e in enumerate(examples) for d in e.judged.grades
            if d in relevant[q] and self._documents.get(d)
        ]  # fmt: skip
        if not items:
            raise InputError(
                f"training: no document with a text has a grade from {r.relevant_from} on, so none is learned"
            )
        # For the hard ones; for others, of which some are passed over; for their passages.
        width = count + (2 * count + max(map(len, never))) + (1 + count)
        uniform = uniforms(self._config.seed, Purpose.NEGATIVES, epoch, np.arange(len(items)), width)
        documents = np.zeros((len(items), 1 + count), np.int64)
        for row, (q, document) in enumerate(items):
            others = [hard[q][i] for i in shuffled(uniform[row, :count], len(hard[q]))]
            others += self._drawn(uniform[row, count : -count - 1], never[q].union(others), count - len(others))
            if len(others) < count:
                raise InputError(
                    f"training: query {examples[q].id} has {len(others)} documents that are not relevant, and a group "
                    f"takes {count}; lower --ranking.negatives"
                )
            documents[row] = [document, *others]
        return np.array([q for q, _ in items]), documents, uniform[:, -count - 1 :]

    def _hard(self, example: RankedQuery, banned: set[int]) -> list[int]:
        """Judged as not relevant, or candidates."""
        judged = [d for d, grade in example.judged.grades.items() if grade < self._settings.relevant_from]
        with_text = (d for d in (*judged, *(example.candidates or ())) if self._documents.get(d))
        return sorted(self._of_places(with_text) - banned)

    def _of_places(self, documents: Iterable[str]) -> set[int]:
        return {self._places[document] for document in documents if document in self._places}

    def _drawn(self, uniform: np.ndarray, banned: set[int], count: int) -> list[int]:
        """Documents with a text, without those; uniforms for as many as may be passed over besides."""
        if count <= 0:
            return []
        order = (self._with_text[i] for i in shuffled(uniform, len(self._with_text)))
        return [place for place in order if place not in banned][:count]

    def _to_rank(self, examples: Sequence[RankedQuery]) -> tuple[np.ndarray, np.ndarray]:
        """(queries [items], documents [items, 1])"""
        judged = [self._of_places({*e.judged.grades, *e.judged.left_out}) for e in examples]
        others = self._settings.others
        width = others + max(map(len, judged), default=0)
        uniform = uniforms(EVALUATION_SEED, Purpose.CANDIDATES, 0, np.arange(len(examples)), width)
        found: list[list[int]] = []
        for e, places, of_query in zip(examples, judged, uniform, strict=True):
            if e.candidates is not None:
                found.append([self._places[d] for d in e.candidates])
            else:
                graded = [self._places[d] for d in e.judged.grades if d in self._places]
                found.append([*graded, *self._drawn(of_query, places, others)])
        queries = np.repeat(np.arange(len(examples)), [len(documents) for documents in found])
        return queries, np.array([d for documents in found for d in documents], np.int64)[:, None]

    def _run(
        self, examples: Sequence[RankedQuery], features: Features, outputs: Mapping[str, np.ndarray]
    ) -> dict[str, dict[str, float]]:
        """A document has the score of its best passage (Dai & Callan 2019)."""
        names = list(self._documents)
        run: Run = {e.id: {} for e in examples}
        documents = features.values["document"][:, 0]
        for query, document, score in zip(features.examples, documents, outputs["score"], strict=True):
            scores, name = run[examples[query].id], names[document]
            scores[name] = max(float(score), scores.get(name, -math.inf))
        return run


def _scores(model: nn.Module, params: Any, batch: DeviceBatch, dropout_key: jax.Array | None) -> jax.Array:
    ids, mask, segments = (
        batch[name].reshape(-1, batch[name].shape[-1]) for name in ("input_ids", "attention_mask", "segment_ids")
    )
    rngs = {} if dropout_key is None else {"dropout": dropout_key}
    inputs = text_inputs(ids, mask, segments)
    return cast(jax.Array, model.apply({"params": params}, inputs, mask, train=dropout_key is not None, rngs=rngs))


def _validate(config: FinetuneConfig) -> None:
    r = config.ranking
    for name in ("documents", "queries"):
        if not getattr(r, name):
            raise InputError(
                f"--ranking.{name}: none is given, and qrels and runs have ids alone; name the files of texts"
            )
    for name in ("negatives", "depth", "max_query_len", "max_passages", "cutoff", "relevant_from", "max_grade"):
        if getattr(r, name) < 1:
            raise InputError(f"--ranking.{name.replace('_', '-')} {getattr(r, name)}: it must be 1 or more")
    if config.data.seq_len <= r.max_query_len + SPECIALS:
        raise InputError(
            f"--data.seq-len {config.data.seq_len} leaves nothing for a document beside a query of "
            f"{r.max_query_len} tokens: raise it, or lower --ranking.max-query-len"
        )
    if config.data.long_texts != "tail":
        raise InputError(
            f"--data.long-texts {config.data.long_texts}: ranking reads long documents by --ranking.max-passages"
        )


def _note(message: str) -> None:
    print(f"note: {message}", file=sys.stderr)
