"""Units in which a held-out loss is reported, and counts of the text that it was measured on."""

import math
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from data_pipelines.tokenizer import CLS, EOD, EOP, SEP, UNK, Tokenizer
from xlnet_jax.dims import Batch
from xlnet_jax.objectives.registry import objective_named


@dataclass(frozen=True)
class Content:
    """Counts of the text that pieces stand for, after the tokenizer's normalisation."""

    pieces: int
    characters: int  # spaces count, and an end of a line is read as a space; an unknown piece is one
    bytes: int  # these characters in UTF-8
    words: int  # pieces that begin with a space; at token level word, unknown pieces too
    unknown: int  # pieces that the vocabulary does not have
    documents: int  # ends of documents, not counted above


@dataclass(frozen=True)
class Measured:
    """Loss on some windows, and their text: the predicted text where the loss is a likelihood, otherwise the whole
    windows.

    In a likelihood an end of a document counts as a word and a character, as Transformer-XL's code counts `<eos>`.
    """

    objective: str
    loss: float  # nats per target
    targets: int
    unigram: float  # nats per target of a model that knows the frequencies of pieces alone
    windows: int
    content: Content
    besides: dict[str, float]  # other measures, by the names of `HeldOutLoss.measure`

    @property
    def perplexity(self) -> float:
        """Perplexity per target."""
        return math.exp(self.loss)

    @property
    def bits_per_piece(self) -> float:
        return self.loss / math.log(2)

    def bits_per(self, unit: str) -> float:
        """Return bits per piece x pieces / units of the text. unit: characters, bytes or words."""
        return self.bits_per_piece * self._pieces / max(self._count(unit), 1)

    @property
    def word_perplexity(self) -> float | None:
        """exp(nats of the whole text / its words): comparable between vocabularies (Dai et al. 2019, table 1). None
        where no float can hold it, as in scripts without spaces, whose lines are words."""
        bits = self.bits_per("words")
        return 2.0**bits if bits < sys.float_info.max_exp else None

    def numbers(self) -> dict[str, Any]:
        """Return every number by its name. Masked pieces are predicted together from the rest of the text, so no
        likelihood of the text follows from their loss."""
        plain = asdict(self)
        found = {**plain.pop("content"), **plain.pop("besides"), **plain}
        if objective_named(self.objective).loss == "pseudo":
            return found | {"pseudo_perplexity": self.perplexity}
        found |= {"perplexity": self.perplexity, "bits_per_piece": self.bits_per_piece}
        found |= {f"bits_per_{unit[:-1]}": self.bits_per(unit) for unit in ("characters", "bytes", "words")}
        return found | {"word_perplexity": self.word_perplexity} if self.is_likelihood else found

    @property
    def is_likelihood(self) -> bool:
        """True if the loss is the likelihood of a text."""
        return objective_named(self.objective).loss == "likelihood"

    @property
    def _pieces(self) -> int:
        return self.targets if self.is_likelihood else self.content.pieces

    def _count(self, unit: str) -> int:
        ends = self.content.documents if self.is_likelihood else 0
        return getattr(self.content, unit) + ends


def content_of(batches: Iterable[Batch], tokenizer: Tokenizer, objective: str) -> Content:
    """Count the text that these batches predict where the loss is a likelihood, otherwise the text in their windows,
    without <sep> and <cls>."""
    is_likelihood = objective_named(objective).loss == "likelihood"
    counts_V = np.zeros(tokenizer.vocab_size, np.int64)
    for batch in batches:
        ids = batch["target_ids"][batch["target_weights"] > 0] if is_likelihood else _text_ids(batch)
        counts_V += np.bincount(ids.ravel(), minlength=tokenizer.vocab_size)
    documents = int(counts_V[[EOD, EOP]].sum())
    counts_V[[SEP, CLS]] = 0
    tables = tokenizer.tables
    return Content(
        int(counts_V.sum()) - (documents if is_likelihood else 0),
        int(counts_V @ tables.characters),
        int(counts_V @ tables.bytes),
        int(counts_V @ tables.has_space),
        int(counts_V[UNK]),
        documents,
    )


def _text_ids(batch: Batch) -> np.ndarray:
    """Return the pieces of the windows of held-out text, with the original pieces at masked targets."""
    ids = batch["input_ids"].copy()
    if "target_positions" in batch:
        row, slot = np.nonzero(batch["target_weights"])
        ids[row, batch["target_positions"][row, slot]] = batch["target_ids"][row, slot]
    return ids[batch["row_weights"] > 0]
