"""A SentencePiece model by the recipe of the released XLNet models."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Any

import sentencepiece

from data_pipelines.tokenizer.normalization import Normalization
from xlnet_jax.config import InputError

# README.md of the original. SentencePiece adds <unk>, <s> and </s> in front.
RECIPE: dict[str, Any] = {
    "model_type": "unigram",
    "character_coverage": 0.99995,
    "control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
    "user_defined_symbols": ["<eop>", ".", "(", ")", '"', "-", "–", "£", "€"],
    "shuffle_input_sentence": True,
    "input_sentence_size": 10_000_000,
}


def train_model(text: Iterable[str], vocab_size: int, normalization: Normalization) -> bytes:
    """What a .model file holds, from normalised lines. The same lines give the same bytes on any machine.

    Raises InputError where the text cannot have so large, or so small, a vocabulary, with the size that works.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text),
            model_writer=model,
            vocab_size=vocab_size,
            normalization_rule_name="identity" if normalization == "none" else "nmt_nfkc",
            max_sentence_length=2**30,  # bytes; the default skips paragraphs above 4192
            num_threads=8,  # partial sums depend on it: fixed, so that the model does not depend on the machine
            minloglevel=2,
            **RECIPE,
        )
    except RuntimeError as error:
        raise _vocabulary_error(vocab_size, str(error)) from None
    return model.getvalue()


def _vocabulary_error(vocab_size: int, message: str) -> Exception:
    """SentencePiece's two complaints about a vocabulary size, with what to do; other errors as they are."""
    if largest := re.search(r"value <= (\d+)", message):
        return InputError(
            f"vocab-size {vocab_size} is too large for this text: the largest that works is {largest[1]}; lower "
            "it or give more text"
        )
    if smallest := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return InputError(
            f"vocab-size {vocab_size} is too small for the characters of this text: the smallest that works is "
            f"{smallest[1]}"
        )
    if "sentences_.empty" in message:
        return InputError("there is no text to train a tokenizer on: normalisation leaves nothing of it")
    return RuntimeError(message)
