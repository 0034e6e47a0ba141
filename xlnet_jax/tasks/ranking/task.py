"""Document ranking: score each document for a query, as document <sep> query <sep> <cls>.

The network reads document and query together (Nogueira & Cho 2019), the document first, as the original puts passages
before questions (`run_squad.py`, `run_race.py`). The paper (section 3.3) instead ranks the 100 best documents of
ClueWeb09-B with XLNet's word embeddings in a kernel pooling network, without finetuning.
"""

import hashlib
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath

from data_pipelines.faults import Faults, TextRow
from data_pipelines.stateless import Purpose, choice, uniforms
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.language_model import BatchDropout, DeviceBatch
from xlnet_jax.printing import tell
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import Features, Outputs, encode_text, shorten
from xlnet_jax.tasks.ranking.trec import (
    TrecRun,
    best_first,
    is_run,
    mean_scores,
    read_collection,
    read_qrels,
    read_run,
    write_run,
)
from xlnet_jax.tasks.readers import files
from xlnet_jax.tasks.task import Role, Task, apply_to_texts

RUN_FILE = "run.trec"
SPECIALS = 3  # document <sep> query <sep> <cls>
SHUFFLES, SHUFFLED_PAIRS = 20, 1_000_000  # for the baseline: random orders, and (query, document) pairs in all of them
MOST_BANNED = 1000  # random numbers to draw instead of documents that must not be drawn, for each group
EVALUATION_SEED = 0  # the same for all runs, so that they rank the same documents


@dataclass(frozen=True)
class RankedQuery:
    """Query with its judgements and candidates: one example."""

    id: str
    text: str
    grades: Mapping[str, int]
    """grades of the judged documents; higher is better, below 1 = not relevant"""
    left_out: tuple[str, ...]
    """documents that are neither relevant nor non-relevant; they are not ranked"""
    candidates: tuple[str, ...] | None
    """documents to rank; None = all judged documents, and others"""
    collection: str
    """SHA-256 of all documents"""


@dataclass(frozen=True)
class PairTokens(Sequence[np.ndarray]):
    """Tokens of document <sep> query <sep> <cls>, joined on access, because the texts of all pairs would be many times
    larger than the collection."""

    documents: Sequence[np.ndarray]
    queries: Sequence[np.ndarray]
    pairs: np.ndarray
    """int64 [texts, 2]: index of the document and of the query"""
    limit: int
    """maximum number of tokens, with special tokens"""
    part: int
    """0 = input_ids, 1 = segment_ids, as returned by `encode_text`"""

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, text: Any) -> Any:
        document, query = self.documents[self.pairs[text, 0]], self.queries[self.pairs[text, 1]]
        of_document, of_query = shorten([len(document), len(query)], self.limit - SPECIALS)
        return encode_text(document[:of_document], query[:of_query])[self.part]


class Retrieval(Task[RankedQuery, TrecRun]):
    """Documents for a query. Examples are queries, answers are a run. Subclasses say how documents are scored."""

    draws_anew = True

    def __init__(self, config: FinetuneConfig):
        super().__init__(config)
        self._settings = config.ranking
        self.metric = f"ndcg@{config.ranking.cutoff}"

    def labels_of(self, example: RankedQuery) -> Sequence[str]:
        return [f"grade {grade}" for grade in example.grades.values()]

    @cached_property
    def documents(self) -> dict[str, str]:
        """Text of each document, by id."""
        texts = read_collection(self._settings.documents, "documents")
        if empty := [document for document, text in texts.items() if not text]:
            tell(f"documents: {len(empty)} have no text, {empty[0]} the first; they are ranked by their query alone")
        return texts

    @cached_property
    def _candidates(self) -> dict[str, tuple[str, ...]]:
        return self._best(self._settings.candidates, "`ranking.candidates`")

    def read(self, paths: Sequence[str], role: Role) -> list[RankedQuery]:
        """Read queries from qrels (train, eval), from runs, whose documents are reranked, or from files of queries, for
        which the documents of `ranking.candidates` are ranked, or else all.

        Raises InputError for an unknown id.
        """
        settings, labelled = self._settings, role != "predict"
        where = f"qrels {paths[0]}" if labelled else "`predict`"
        of_runs = not labelled and all(map(is_run, files(paths, where)))
        queries = self._read_queries(settings.queries if labelled or of_runs else paths, role)
        judged = read_qrels(paths, settings.judgements) if labelled else {}
        best = self._best(paths, where) if of_runs else self._candidates
        everything = None if labelled else tuple(self.documents)
        digest = hashlib.sha256("\n".join(f"{name} {text}" for name, text in self.documents.items()).encode())
        asked = judged or (best if of_runs else queries)
        _require_known(asked, queries, "queries", where)
        examples = []
        for query in asked:
            if labelled and not queries[query]:
                continue
            grades = {document: grade for document, grade in judged.get(query, {}).items() if grade is not None}
            left_out = tuple(document for document in judged.get(query, {}) if document not in grades)
            candidates = tuple(d for d in best.get(query, ()) if d not in left_out)
            chosen = candidates if of_runs or settings.candidates else everything
            examples.append(RankedQuery(query, queries[query], grades, left_out, chosen, digest.hexdigest()))
        _require_known((d for example in examples for d in example.grades), self.documents, "documents", where)
        if without := [example.id for example in examples if example.candidates == ()]:
            tell(f"{where}: {len(without)} of {len(examples)} queries have no candidates, {without[0]!r} the first")
        return examples

    def _read_queries(self, paths: Sequence[str], role: Role) -> dict[str, str]:
        """Return text by id. Queries without text are counted: they are not learned from or evaluated."""
        queries, faults = read_collection(paths, "queries"), Faults()
        self.faults[role], faults.read = faults, len(queries)
        for query, text in queries.items():
            if not text:
                faults.add(TextRow(f"queries {paths[0]}: {query}", text))
        if role == "predict":
            faults.keep("the scores of their documents alone")
        else:
            faults.skip()
        if self._settings.judgements == "cranfield":
            return {str(number): text for number, text in enumerate(queries.values(), 1)}
        return queries

    def _best(self, runs: Sequence[str], where: str) -> dict[str, tuple[str, ...]]:
        best = {query: tuple(best_first(scores)[: self._settings.depth]) for query, scores in read_run(runs).items()}
        _require_known((d for found in best.values() for d in found), self.documents, "documents", where)
        return best

    @cached_property
    def _places(self) -> dict[str, int]:
        return {document: place for place, document in enumerate(self.documents)}

    @cached_property
    def _with_text(self) -> list[int]:
        """Indices of the documents that can be drawn."""
        return [place for place, text in enumerate(self.documents.values()) if text]

    def draw_groups(self, examples: Sequence[RankedQuery], epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the query of each group, int64 [items]; its documents by their index in the collection, [items, C];
        and random numbers in [0, 1), float64 [items, C], to draw a passage of each. There is one group per relevant
        document, which comes first.

        The others are a pure function of (seed, epoch). They are drawn from the documents judged not relevant and the
        candidates, then from all documents if these are too few. Raises InputError if no document is relevant, or a
        group cannot be filled.
        """
        count, least = self._settings.negatives, self._settings.relevant_from
        relevant = [self.places_of(d for d, g in e.grades.items() if g >= least) for e in examples]
        never = [{*ids, *self.places_of(e.left_out)} for ids, e in zip(relevant, examples, strict=True)]
        near = []
        for example, banned in zip(examples, never, strict=True):
            others = (*(d for d, grade in example.grades.items() if grade < least), *(example.candidates or ()))
            near.append(sorted({*self.places_of(d for d in others if self.documents.get(d))} - banned))
        with_text = set(self._with_text)
        items = [(q, place) for q, places in enumerate(relevant) for place in places if place in with_text]
        if not items:
            raise InputError(
                f"no training document with a text has a grade from {least} on, so there is nothing to train on"
            )
        far = 2 * count + min(max(map(len, never)), MOST_BANNED)  # banned documents are skipped
        rows = np.arange(len(items))
        uniform = uniforms(self.config.seed, Purpose.NEGATIVES, epoch, rows, count + far + 1 + count)
        for_near, for_far, left = np.split(uniform, [count, count + far], axis=1)
        documents = np.zeros(left.shape, np.int64)
        for row, (q, document) in enumerate(items):
            drawn = [near[q][i] for i in first_of_shuffle(for_near[row], len(near[q]))]
            drawn += self._draw_any(for_far[row], never[q], count - len(drawn), drawn)
            if len(drawn) < count:
                raise InputError(
                    f"training: query {examples[q].id} has {len(drawn)} documents that are not relevant, and a group "
                    f"takes {count}; lower `ranking.negatives`"
                )
            documents[row] = [document, *drawn]
        return np.array([q for q, _ in items]), documents, left

    def draw_to_rank(self, examples: Sequence[RankedQuery]) -> tuple[np.ndarray, np.ndarray]:
        """Return queries [items] and documents [items, 1] as `draw_groups` does: the candidates of each query, or else
        its judged documents and some others, the same in every call. Raises InputError if there are none."""
        judged = [self.places_of((*e.grades, *e.left_out)) for e in examples]
        others = self._settings.others
        width = others + min(max(map(len, judged), default=0), MOST_BANNED)
        uniform = uniforms(EVALUATION_SEED, Purpose.CANDIDATES, 0, np.arange(len(examples)), width)
        found = [
            [*self.places_of(e.grades), *self._draw_any(of_query, set(places), others)]
            if e.candidates is None
            else self.places_of(e.candidates)
            for e, places, of_query in zip(examples, judged, uniform, strict=True)
        ]
        if not any(found):
            raise InputError("no query has a document to be ranked; look at `ranking.candidates` and `predict`")
        queries = np.repeat(np.arange(len(examples)), [len(places) for places in found])
        return queries, np.array([place for places in found for place in places])[:, None]

    def places_of(self, documents: Iterable[str]) -> list[int]:
        return [self._places[document] for document in documents if document in self._places]

    def _draw_any(
        self, uniform: np.ndarray, banned: Collection[int], count: int, drawn: Collection[int] = ()
    ) -> list[int]:
        """Draw documents with a text that are neither banned nor drawn; fewer than `count` if there are no more."""

        def left(places: Iterable[int]) -> Iterator[int]:
            return (place for place in places if place not in banned and place not in drawn)

        shuffled = (self._with_text[i] for i in first_of_shuffle(uniform, len(self._with_text)))
        found = list(itertools.islice(left(shuffled), max(count, 0)))
        if (missing := count - len(found)) > 0 and len(uniform) < len(self._with_text):  # most documents are banned
            others = [place for place in left(self._with_text) if place not in found]
            found += [others[i] for i in first_of_shuffle(uniform[:missing], len(others))]
        return found

    def metrics(self, examples: Sequence[RankedQuery], answers: TrecRun) -> dict[str, float]:
        """Return NDCG@k, ERR@k, MAP, MRR and P@k, 0 to 1 (`mean_scores`)."""
        return mean_scores({e.id: e.grades for e in examples}, answers, self._settings)

    def trivial_answers(
        self, train: Sequence[RankedQuery], examples: Sequence[RankedQuery]
    ) -> dict[str, list[TrecRun]]:
        """Return random orders of the documents that the network ranks."""
        queries, documents = self.draw_to_rank(examples)
        pairs = [(examples[query].id, document) for query, document in zip(queries, documents[:, 0], strict=True)]
        names, rng = list(self.documents), np.random.default_rng(EVALUATION_SEED)
        runs = []
        for _ in range(max(1, min(SHUFFLES, SHUFFLED_PAIRS // len(pairs)))):
            run: TrecRun = {e.id: {} for e in examples}
            for (query, document), score in zip(pairs, rng.random(len(pairs)).tolist(), strict=True):
                run[query][names[document]] = score
            runs.append(run)
        return {f"ranks the same documents in random order, the mean of {len(runs)}": runs}

    def write(self, folder: epath.Path, examples: Sequence[RankedQuery], answers: TrecRun) -> list[str]:
        """Write the ranking as a TREC run, run.trec."""
        write_run(folder / RUN_FILE, answers)
        return [RUN_FILE]


class Ranking(Retrieval):
    """Ranking by a network that reads document and query together. A training item is a group of documents, of which
    the first is relevant; an evaluation item is a document or a passage."""

    def __init__(self, config: FinetuneConfig):
        super().__init__(config)
        self.require_room(config.data.max_query_len + SPECIALS, "data.max_query_len")
        if config.data.long_texts != "tail":
            raise InputError(
                "data.long_texts", config.data.long_texts, ": ranking reads long documents by `ranking.max_passages`"
            )
        self._tokens: dict[int, np.ndarray] = {}  # tokens of the documents encoded so far; a run has one tokenizer

    def features(
        self, examples: Sequence[RankedQuery], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Return, for training, a group of C documents for each relevant one, with one passage per document; otherwise
        one item per passage of the documents to rank. value: document, int32 [items, C], its index in the
        collection."""
        if training:
            queries, documents, uniform = self.draw_groups(examples, epoch)
        else:
            queries, documents = self.draw_to_rank(examples)
        used, places = np.unique(documents, return_inverse=True)
        cuts = self._passages(used.tolist(), tokenizer)
        count = np.array([len(cut) for cut in cuts])
        first, places = np.cumsum(count) - count, places.reshape(documents.shape)
        if training:
            passages = first[places] + choice(uniform, count[places])
        else:
            of_item = count[places[:, 0]]
            passages = np.concatenate([first[place] + np.arange(count[place]) for place in places[:, 0]])[:, None]
            queries, documents = queries.repeat(of_item), documents.repeat(of_item, axis=0)
        whole = tokenizer.encode_lines([e.text for e in examples])
        query_tokens = [ids[: self.config.data.max_query_len] for ids in whole]
        group = passages.shape[1]
        pairs = np.stack([passages.ravel(), queries.repeat(group)], axis=1)
        pieces, limit = [piece for cut in cuts for piece in cut], self.config.data.seq_len
        lengths = (np.array(list(map(len, side)))[pairs[:, i]] for i, side in enumerate((pieces, query_tokens)))
        too_long = sum(lengths) > limit - SPECIALS
        return Features(
            tokens={
                name: PairTokens(pieces, query_tokens, pairs, limit, part)
                for part, name in enumerate(("input_ids", "segment_ids"))
            },
            values={"document": documents.astype(np.int32)},
            examples=queries,
            texts_per_item=group,
            cut=len(np.unique(pairs[too_long, 0])),
        )

    def _passages(self, documents: Sequence[int], tokenizer: Tokenizer) -> list[list[np.ndarray]]:
        """Return the tokens of each document as at most ranking.max_passages passages, int32 [E]; as a single one if
        that is 1."""
        new = [document for document in documents if document not in self._tokens]
        texts, most = list(self.documents.values()), self._settings.max_passages
        self._tokens |= zip(new, tokenizer.encode_lines([texts[document] for document in new]), strict=True)
        length = self.config.data.seq_len - self.config.data.max_query_len - SPECIALS
        of_documents = [self._tokens[document] for document in documents]
        if most == 1:
            return [[ids] for ids in of_documents]
        return [[ids[i : i + length] for i in range(0, max(len(ids), 1), length)][:most] for ids in of_documents]

    def losses(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
        """Return the loss that `ranking.loss` names, float32 [B]. A group is one item."""
        scores_BC = apply_to_texts(model, params, batch, dropout).reshape(batch["input_ids"].shape[:2])
        return LOSSES_B[self._settings.loss](scores_BC)

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return score, float32 [B]."""
        return {"score": apply_to_texts(model, params, batch, None)}

    def answers(self, examples: Sequence[RankedQuery], features: Features, outputs: Outputs) -> TrecRun:
        """Return the score of each document, which is that of its best passage (Dai & Callan 2019)."""
        names = list(self.documents)
        run: TrecRun = {e.id: {} for e in examples}
        documents = features.values["document"][:, 0]
        for query, document, score in zip(features.examples, documents, outputs["score"], strict=True):
            scores, name = run[examples[query].id], names[document]
            scores[name] = max(float(score), scores.get(name, -math.inf))
        return run


def pairwise_loss_B(scores_BC: jax.Array) -> jax.Array:
    """Return log(1 + exp(other - relevant)), averaged over the other documents (RankNet, Burges et al. 2005). scores:
    [B, C], the relevant document first."""
    return jax.nn.softplus(scores_BC[:, 1:] - scores_BC[:, :1]).mean(axis=1)


def pointwise_loss_B(scores_BC: jax.Array) -> jax.Array:
    """Return the binary cross-entropy in nats, averaged over the group. scores: [B, C], the relevant document first."""
    relevant_C = jnp.arange(scores_BC.shape[1]) == 0
    return optax.sigmoid_binary_cross_entropy(scores_BC, jnp.broadcast_to(relevant_C, scores_BC.shape)).mean(axis=1)


def softmax_loss_B(scores_BC: jax.Array) -> jax.Array:
    """Return the cross-entropy in nats of choosing the relevant document. scores: [B, C], the relevant document
    first."""
    return optax.softmax_cross_entropy_with_integer_labels(scores_BC, jnp.zeros(len(scores_BC), jnp.int32))


LOSSES_B = {"pairwise": pairwise_loss_B, "softmax": softmax_loss_B, "pointwise": pointwise_loss_B}


def first_of_shuffle(uniform: np.ndarray, size: int) -> Iterator[int]:
    """Yield the first `len(uniform)` elements of a random order of 0 … size - 1, from uniform numbers in [0, 1)
    (Fisher and Yates, without an array of all elements)."""
    steps = np.arange(min(len(uniform), size))
    moved: dict[int, int] = {}
    for i, j in zip(steps.tolist(), (steps + choice(uniform[: len(steps)], size - steps)).tolist(), strict=True):
        yield moved.get(j, j)
        moved[j] = moved.get(i, i)


def _require_known(ids: Iterable[str], texts: Mapping[str, str], what: str, where: str) -> None:
    asked = list(dict.fromkeys(ids))
    if unknown := [name for name in asked if name not in texts]:
        raise InputError(
            f"{where}: {len(unknown)} of {len(asked)} {what} are unknown, {unknown[0]!r} the first; `ranking.{what}` "
            f"has {len(texts)}, {next(iter(texts), '')!r} the first: fix or remove them, or, of Cranfield, give "
            "`ranking.judgements` cranfield"
        )
