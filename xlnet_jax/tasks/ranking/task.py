"""Document ranking: documents by their score beside a query, document <sep> query <sep> <cls>.

The paper (section 3.3) ranks ClueWeb09-B's 100 best by XLNet's word embeddings in a kernel pooling network, without
finetuning. Here the whole network reads document and query together (Nogueira & Cho 2019), the document first, as the
original has passages before their questions (`run_squad.py`, `run_race.py`).
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from etils import epath

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.objectives.base import BatchDropout, DeviceBatch, apply
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.base import Loss, Task
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.features import Features, Outputs
from xlnet_jax.tasks.losses import pairwise_loss_B, pointwise_loss_B, softmax_loss_B
from xlnet_jax.tasks.ranking.draws import Draws
from xlnet_jax.tasks.ranking.pairs import PairTokens, Passages
from xlnet_jax.tasks.ranking.queries import Collection, RankedQuery
from xlnet_jax.tasks.ranking.scores import RankingScores
from xlnet_jax.tasks.ranking.trec import Run, write_run
from xlnet_jax.tasks.readers import Record

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
