"""Embedding: vectors of texts, learned so that similar texts have a high cosine, from tables of pairs or from the
judgements of a document collection.

The losses are those that sentence-transformers recommends: for pairs, with or without hard negatives, the choice of the
second text among all texts of a batch (MultipleNegativesRankingLoss; Henderson et al. 2017, section 4.4), in one
direction; for pairs with scores CoSENT (Huang et al. 2024).
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from etils import epath

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.kernels.arguments import MASKED
from xlnet_jax.objectives.language_model import BatchDropout, DeviceBatch
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.classification.glue import regression_scores
from xlnet_jax.tasks.classification.tables import text_field
from xlnet_jax.tasks.classification.task import PREDICTIONS, TableTask, TextExample, number_field, write_tsv
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import Features, Outputs, encode_text, tokens_of
from xlnet_jax.tasks.ranking.task import RankedQuery, Retrieval
from xlnet_jax.tasks.ranking.trec import TrecRun
from xlnet_jax.tasks.readers import Row
from xlnet_jax.tasks.task import A, E, Prediction, Role, Task, apply_to_texts

SPECIALS = 2  # text <sep> <cls>
NEGATIVE = re.compile(r"negative(_\d+)?")  # columns, as sentence-transformers names mined negatives
LEAST_SQUARE = 1e-24  # as in PyTorch's cosine; a row of padding has the vector 0, and must have a gradient
DRAWS, RANDOM_WIDTH = 10, 16  # of the baseline
Vectors = Mapping[str, np.ndarray]
"""vector of length 1 by text, float32 [D]"""


class Embedding(Task[E, A]):
    """Vectors of texts. A training item is a group of texts: an anchor, its positive, and negatives of the anchor. An
    evaluation item is one text."""

    def __init__(self, config: FinetuneConfig):
        super().__init__(config)
        self.require_room(SPECIALS)
        if config.data.long_texts != "tail":
            raise InputError("data.long_texts", config.data.long_texts, ": embedding cuts long texts; leave it at tail")
        self._rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # texts encoded so far; a run has one tokenizer
        self._cut: set[str] = set()  # those that lost tokens

    def items(self, groups: Sequence[Sequence[str]], tokenizer: Tokenizer, **values: np.ndarray) -> Features:
        """Return an item for each group of texts; all groups have the same size."""
        new = [text for text in _distinct(groups) if text not in self._rows]
        limit = self.config.data.seq_len - SPECIALS
        encoded = tokenizer.encode_lines(new)
        self._rows |= {text: encode_text(ids[:limit]) for text, ids in zip(new, encoded, strict=True)}
        self._cut |= {text for text, ids in zip(new, encoded, strict=True) if len(ids) > limit}
        rows = [self._rows[text] for group in groups for text in group]
        cut = len(self._cut.intersection(text for group in groups for text in group))
        return Features(tokens_of(rows), values, np.arange(len(groups)), texts_per_item=len(groups[0]), cut=cut)

    def contrasted(
        self, groups: Sequence[Sequence[str]], positives: Sequence[Sequence[str]], tokenizer: Tokenizer
    ) -> Features:
        """Return the training items of groups. values: text, the number of each, int32 [items, C]; positive, the
        numbers of the texts that are known to be similar to the anchor, int32 [items, P], -1 = none."""
        numbers = {text: i for i, text in enumerate(_distinct(groups))}
        known = np.full((len(groups), max(map(len, positives))), -1, np.int32)
        for row, texts in zip(known, positives, strict=True):
            row[: len(texts)] = [numbers.get(text, -1) for text in texts]
        number = np.array([[numbers[text] for text in group] for group in groups], np.int32)
        return self.items(groups, tokenizer, text=number, positive=known)

    def losses(self, model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
        """Return the loss in nats, float32 [B]: of choosing each positive; or, of the batch, CoSENT's in every row."""
        unit_BCD = _unit_vectors(model, params, batch, dropout).reshape(*batch["input_ids"].shape[:2], -1)
        weights_B, temperature = batch["target_weights"], self.config.temperature
        if "score" in batch:
            return jnp.full_like(weights_B, cosent_loss(unit_BCD, batch["score"], weights_B, temperature))
        return contrastive_loss_B(unit_BCD, batch["text"], batch["positive"], weights_B, temperature)

    def predict(self, model: nn.Module, params: Any, batch: DeviceBatch) -> dict[str, jax.Array]:
        """Return vector, float32 [B, D], of length 1."""
        return {"vector": _unit_vectors(model, params, batch, None)}


def _unit_vectors(model: nn.Module, params: Any, batch: DeviceBatch, dropout: BatchDropout | None) -> jax.Array:
    vectors_BD = apply_to_texts(model, params, batch, dropout)
    return vectors_BD * jax.lax.rsqrt(jnp.maximum((vectors_BD**2).sum(-1, keepdims=True), LEAST_SQUARE))


def contrastive_loss_B(
    unit_BCD: jax.Array, text_BC: jax.Array, positive_BP: jax.Array, weights_B: jax.Array, temperature: float
) -> jax.Array:
    """Return the cross-entropy in nats of choosing the positive of each anchor by cosine / temperature, float32 [B].

    The candidates are the positives and negatives of all anchors in the batch, without rows of weight 0, the text of
    the anchor itself, and its other positives. unit: vectors of length 1, of the anchor, its positive, its negatives.
    text, positive: as of `Embedding.contrasted`.
    """
    batch, group, width = unit_BCD.shape
    place_Q, own_B = jnp.arange(batch * (group - 1)), jnp.arange(batch) * (group - 1)
    anchor_Q, text_Q = jnp.repeat(text_BC[:, 0], group - 1), text_BC[:, 1:].reshape(-1)
    is_known_BQ = (text_Q[None, :, None] == positive_BP[:, None, :]).any(-1) | (text_Q[None] == text_BC[:, :1])
    is_known_BQ |= (anchor_Q[None] == text_BC[:, :1]) & (place_Q[None] % (group - 1) == 0)
    is_padding_Q = jnp.repeat(weights_B, group - 1) == 0
    is_left_out_BQ = (is_known_BQ | is_padding_Q[None]) & (place_Q[None] != own_B[:, None])
    cosines_BQ = unit_BCD[:, 0] @ unit_BCD[:, 1:].reshape(-1, width).T
    logits_BQ = jnp.where(is_left_out_BQ, MASKED, cosines_BQ / temperature)
    return optax.softmax_cross_entropy_with_integer_labels(logits_BQ, own_B)


def cosent_loss(unit_BCD: jax.Array, score_B: jax.Array, weights_B: jax.Array, temperature: float) -> jax.Array:
    """Return log(1 + sum of exp((cosine of j - cosine of i) / temperature) over all i, j with score i > score j). unit:
    vectors of length 1 of two texts; rows of weight 0 are left out."""
    scaled_B = (unit_BCD[:, 0] * unit_BCD[:, 1]).sum(-1) / temperature
    is_real_B = weights_B > 0
    is_counted_BB = (score_B[:, None] > score_B[None]) & is_real_B[:, None] & is_real_B[None]
    excess_BB = jnp.where(is_counted_BB, scaled_B[None] - scaled_B[:, None], MASKED)
    return jax.nn.logsumexp(jnp.append(excess_BB.reshape(-1), 0.0))


# ---- tables ----------------------------------------------------------------------------------------------------------


class PairEmbedding(Embedding[TextExample, Vectors], TableTask[Vectors]):
    """Embedding of the texts of tables: two similar texts and others that are not similar to the first, or two texts
    with a score as their label. Answers are vectors by text."""

    metric = "mrr"
    without_text = "the cosine nan"

    def read(self, paths: Sequence[str], role: Role) -> list[TextExample]:
        """Read the examples of files. Raises InputError also if some have other columns than the first."""
        examples = super().read(paths, role)
        first = examples[0]
        for example in examples:
            if _form(example) != _form(first):
                raise InputError(
                    f"{example.where} has {_form(example)}, and {first.where} {_form(first)}: give all examples of "
                    f"`{role}` the same columns"
                )
        if role != "predict":
            self.metric = "mrr" if first.label is None else "spearman"  # `eval` is read last
        return examples

    def _with_label(self, example: TextExample, row: Row) -> TextExample:
        """Return the example with its negatives, and its score if it has one. Raises InputError for both."""
        columns, published, there = self.config.columns, self._published, row.content
        negatives = columns.negatives or [column for column in there if NEGATIVE.fullmatch(column)]
        texts = (*example.texts, *(text_field(row, (column,), "negatives") for column in negatives))
        has_score = columns.label is not None or not there.keys().isdisjoint(published.label)
        if has_score and negatives:
            raise InputError(f"{row.where} has a score and {negatives[0]}: leave one of these columns out")
        return dataclasses.replace(
            example, texts=texts, label=number_field(row, published.label) if has_score else None
        )

    def example_of(self, value: Any, where: str, number: int) -> TextExample:
        """Return the example of a row or of a pair of texts."""
        if not isinstance(value, Mapping) and not (isinstance(value, list | tuple) and len(value) == 2):
            raise InputError(
                f"{where} is not a pair of texts, but {value!r:.60}; `encode` returns the vector of a text"
            )
        return super().example_of(value, where, number)

    def labels_of(self, example: TextExample) -> Sequence[Any]:
        return (_form(example),) if example.label is None else (example.label,)

    def features(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Return, for training, one item per example, with values score, float32 [items], or those of `contrasted`;
        otherwise one item per distinct text."""
        groups = [example.texts for example in examples]
        if not training:
            return self.items([(text,) for text in _distinct(groups)], tokenizer)
        if examples[0].label is not None:
            return self.items(groups, tokenizer, score=np.array([example.label for example in examples], np.float32))
        return self.contrasted(groups, [group[1:2] for group in groups], tokenizer)

    def answers(self, examples: Sequence[TextExample], features: Features, outputs: Outputs) -> Vectors:
        """Return the vector of each text."""
        return dict(zip(_distinct(example.texts for example in examples), outputs["vector"], strict=True))

    def metrics(self, examples: Sequence[TextExample], answers: Vectors) -> dict[str, float]:
        """Return, with scores, the spearman and pearson correlations of the cosines; otherwise mrr and recall@1, from 0
        to 1, of the positive of each anchor among all positives and negatives by cosine."""
        if examples[0].label is not None:
            found = regression_scores(_cosines(examples, answers), np.array([e.label for e in examples], float))
            return {name: found[name] for name in ("spearman", "pearson")}
        candidates = {text: i for i, text in enumerate(_distinct(example.texts[1:] for example in examples))}
        matrix_QD = np.stack([answers[text] for text in candidates])
        known: dict[str, list[int]] = {}  # candidates that are similar to an anchor
        for anchor, positive, *_ in (example.texts for example in examples):
            of_anchor = known.setdefault(anchor, [candidates[anchor]] if anchor in candidates else [])
            of_anchor.append(candidates[positive])
        ranks = []
        for anchor, positive, *_ in (example.texts for example in examples):
            cosines_Q = matrix_QD @ answers[anchor]
            is_above_Q = ~(cosines_Q < cosines_Q[candidates[positive]])  # equal ones and NaN count as above
            is_above_Q[known[anchor]] = False
            ranks.append(1 + is_above_Q.sum())
        return {"mrr": float(np.mean(1 / np.array(ranks))), "recall@1": float(np.mean(np.array(ranks) == 1))}

    def trivial_answers(
        self, train: Sequence[TextExample], examples: Sequence[TextExample]
    ) -> dict[str, list[Vectors]]:
        """Return equal vectors if there are scores, else random ones."""
        texts = _distinct(example.texts for example in examples)
        if examples[0].label is not None:
            return {"equal vectors, whose cosines correlate with nothing": [dict.fromkeys(texts, np.ones(1))]}
        drawn = np.random.default_rng(0).normal(size=(DRAWS, len(texts), RANDOM_WIDTH))
        drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
        return {f"random vectors, the mean of {DRAWS}": [dict(zip(texts, vectors, strict=True)) for vectors in drawn]}

    def write(self, folder: epath.Path, examples: Sequence[TextExample], answers: Vectors) -> list[str]:
        """Write predictions.tsv with the id of each pair and the cosine of its texts."""
        rows = [(e.id, f"{value:.6g}") for e, value in zip(examples, _cosines(examples, answers), strict=True)]
        write_tsv(folder / PREDICTIONS, ("id", "cosine"), rows)
        return [PREDICTIONS]

    def predictions(self, examples: Sequence[TextExample], answers: Vectors) -> list[Prediction]:
        """Return the cosine of each pair."""
        return [Prediction(float(value), {}) for value in _cosines(examples, answers)]


def _distinct(groups: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(text for group in groups for text in group))


def _form(example: TextExample) -> str:
    """Return the number of texts, and whether there is a score."""
    return f"{len(example.texts)} texts" + (" and a score" if example.label is not None else "")


def _cosines(examples: Sequence[TextExample], vectors: Vectors) -> np.ndarray:
    """Return the cosine of the first two texts of each example, NaN if one is blank."""
    pairs = [example.texts[:2] for example in examples]
    return np.array([vectors[a] @ vectors[b] if a.strip() and b.strip() else math.nan for a, b in pairs])


# ---- documents -------------------------------------------------------------------------------------------------------


class DocumentEmbedding(Embedding[RankedQuery, TrecRun], Retrieval):
    """Embedding of queries and documents. A training item is a query, a relevant document, and others that ranking
    draws (`Retrieval.draw_groups`). All documents are ranked by their cosine with a query, or its candidates if it has
    some."""

    def features(
        self, examples: Sequence[RankedQuery], tokenizer: Tokenizer, head: HeadConfig, training: bool, epoch: int = 0
    ) -> Features:
        """Return, for training, one item per relevant document, with the values of `contrasted`; otherwise one item per
        distinct text."""
        if not training:
            return self.items([(text,) for text in self._texts(examples)], tokenizer)
        queries, documents, _ = self.draw_groups(examples, epoch)
        texts, least = list(self.documents.values()), self.config.ranking.relevant_from
        relevant = [[self.documents[d] for d, grade in e.grades.items() if grade >= least] for e in examples]
        groups = [
            (examples[q].text, *(texts[d] for d in of_item)) for q, of_item in zip(queries, documents, strict=True)
        ]
        return self.contrasted(groups, [relevant[q] for q in queries], tokenizer)

    def answers(self, examples: Sequence[RankedQuery], features: Features, outputs: Outputs) -> TrecRun:
        """Return the cosine of each query and each document that is ranked for it."""
        vectors = dict(zip(self._texts(examples), outputs["vector"], strict=True))
        run: TrecRun = {}
        for example in examples:
            names = self._ranked(example)
            cosines = [vectors[self.documents[name]] @ vectors[example.text] for name in names]
            run[example.id] = dict(zip(names, map(float, cosines), strict=True))
        return run

    def draw_to_rank(self, examples: Sequence[RankedQuery]) -> tuple[np.ndarray, np.ndarray]:
        """Return queries [items] and documents [items, 1] of all that is ranked, for the baseline."""
        pairs = [(q, place) for q, e in enumerate(examples) for place in self.places_of(self._ranked(e))]
        if not pairs:
            raise InputError("no query has a document to be ranked; look at `ranking.candidates`")
        queries, documents = np.array(pairs).T
        return queries, documents[:, None]

    def _ranked(self, example: RankedQuery) -> list[str]:
        names = self.documents if example.candidates is None else example.candidates
        return [name for name in names if name not in example.left_out]

    def _texts(self, examples: Sequence[RankedQuery]) -> list[str]:
        return _distinct([(e.text, *(self.documents[name] for name in self._ranked(e))) for e in examples])
