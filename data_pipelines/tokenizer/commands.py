"""Settings and output of the tokenizer commands: train, show and encode."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import tyro

from data_pipelines import sources
from data_pipelines.tokenizer.model import Tokenizer
from data_pipelines.tokenizer.normalization import Normalization
from data_pipelines.tokenizer.pieces import SPECIAL_PIECES
from data_pipelines.tokenizer.settings import TokenLevel
from data_pipelines.tokenizer.training import SAMPLE_BYTES, sample
from xlnet_jax.errors import InputError
from xlnet_jax.printing import printing_until_unread
from xlnet_jax.settings.common import TextSourceSettings
from xlnet_jax.settings.fields import at_least, check_bounds, setting, with_plain_paths
from xlnet_jax.storage.outputs import complete_folder

MEGABYTE = 10**6
SHOWN_PIECES = 24
ENCODED_AT_ONCE = 1000  # lines
MEANING: dict[Normalization, str] = {
    "english": "straight double quotes, NFKD, accents dropped",
    "nfkc": "NFKC",
    "none": "the text as it is",
}
NAME: dict[TokenLevel, str] = {
    "piece": "pieces",
    "word": "words and special symbols",
    "character": "characters and special symbols",
    "byte": "bytes and special symbols",
}
OPTIONS = {
    "lower": "lowercase",
    "keep_accents": "no NFKD, accents kept",
    "split_digit_commas": "commas are split from the digits before them",
    "remove_space": "white space collapsed",
}
TokenizerPath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TOKENIZER")]


@dataclass(frozen=True)
class Train(TextSourceSettings):
    """Train a tokenizer on text and write its folder."""

    source: tuple[str, ...]
    """files, globs, folders, URLs, tfds:NAME or hf:NAME"""
    out: str
    """output folder, on disk or in the cloud (gs://)"""
    vocab_size: int = setting(32_000, at_least(1))
    """number of pieces, including special pieces; the maximum for words and characters; ignored for bytes"""
    token_level: TokenLevel = "piece"
    """kind of token: pieces of words, words between spaces, characters, or bytes"""
    normalization: Normalization | Literal["auto"] = "auto"
    """text normalization; auto = english for English text with few accents, none for Thai and Lao, else nfkc"""
    lower: bool = False
    """lowercase all text, as in the original's uncased models"""
    user_symbols: tuple[str, ...] = ()
    """pieces that are never split or merged, such as <url> @user, for pieces and characters"""
    sample_megabytes: int = setting(SAMPLE_BYTES // MEGABYTE, at_least(1))
    """train on a uniform sample of the lines if the text is larger; training needs up to 30 times this memory"""


@dataclass(frozen=True)
class Adapt:
    """Add XLNet's special pieces to a SentencePiece model of others, and write the folder of a tokenizer.

    Text becomes the same pieces, with other ids.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """SentencePiece .model file: unigram or BPE, with any control pieces"""
    out: str
    """output folder, on disk or in the cloud (gs://)"""


@dataclass(frozen=True)
class Show:
    """Describe a tokenizer: its vocabulary, rules and hash."""

    tokenizer: TokenizerPath
    """tokenizer folder, SentencePiece .model file, or name of a model on the Hugging Face Hub"""


@dataclass(frozen=True)
class Encode:
    """Print the pieces, the ids and the decoded text of each line, separated by tabs.

    | marks a piece that begins a word.
    """

    tokenizer: TokenizerPath
    """tokenizer folder, SentencePiece .model file, or name of a model on the Hugging Face Hub"""
    text: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")] = None
    """one line of text; None = read --file, or standard input"""
    file: str | None = None
    """file, quoted glob, folder, URL, tfds:NAME or hf:NAME to read instead of TEXT; blank lines are skipped"""


TokenizerCommand = Train | Adapt | Show | Encode


def print_tokenizer(settings: TokenizerCommand) -> None:
    """Run the train, adapt, show or encode command, and print its result. Raises InputError."""
    with printing_until_unread():
        if isinstance(settings, Encode):
            for line in encode(settings):
                print(line)
            return
        if isinstance(settings, Train):
            fields = train_tokenizer(settings)
        else:
            fields = adapt_tokenizer(settings) if isinstance(settings, Adapt) else describe_tokenizer(settings)
        width = max(map(len, fields)) + 2
        for name, value in fields.items():
            print(f"{name:{width}}{value}")


def train_tokenizer(settings: Train) -> dict[str, str]:
    """Train a tokenizer, write its folder, and return the lines to print. Raises InputError."""
    settings = with_plain_paths(settings)
    if not settings.source:
        raise InputError("source", "", "names no text: give files, globs, folders, URLs, tfds:NAME or hf:NAME")
    check_bounds(settings)
    with complete_folder(settings.out) as folder:
        text = sources.find(settings.source, settings)
        sources.require_distinct(text)
        normalization: Normalization | Literal["auto"] = settings.normalization
        survey = None
        if normalization == "auto" and settings.token_level != "byte":
            survey = sources.survey(text)
            normalization = survey.normalization
        sample_bytes = settings.sample_megabytes * MEGABYTE
        drawn, seen = sample(sources.read_lines(text), sample_bytes)
        tokenizer = Tokenizer.train(
            drawn, settings.vocab_size, normalization, token_level=settings.token_level, lower=settings.lower,
            sample_bytes=sample_bytes, user_symbols=settings.user_symbols,
        )  # fmt: skip
        tokenizer.write(folder)
    share = "all" if len(drawn) == seen else f"a sample of {len(drawn):,}"
    return {
        "text": f"{share} of {seen:,} lines",
        "normalization": _normalization(tokenizer),
        **({"chosen": survey.reason} if survey else {}),
        "tokenizer": f"{tokenizer.vocab_size:,} {NAME[settings.token_level]} in {settings.out}",
    }


def adapt_tokenizer(settings: Adapt) -> dict[str, str]:
    """Write the folder of an adapted tokenizer, and return the lines to print. Raises InputError."""
    tokenizer = Tokenizer.adapt(settings.model)
    tokenizer.save(settings.out)
    return {"tokenizer": f"{tokenizer.vocab_size:,} pieces in {settings.out}", "normalization": "that of the model"}


def describe_tokenizer(settings: Show) -> dict[str, str]:
    """Return the properties of a tokenizer, to print. Raises InputError if there is none."""
    tokenizer = Tokenizer.load(settings.tokenizer)
    starts = tokenizer.is_word_start
    shown = np.linspace(len(SPECIAL_PIECES), tokenizer.vocab_size - 1, SHOWN_PIECES).astype(int)
    return {
        "vocabulary": f"{tokenizer.vocab_size:,} {NAME[tokenizer.settings.token_level]}",
        "special": "  ".join(f"{i} {piece}" for i, piece in enumerate(SPECIAL_PIECES)),
        "normalization": _normalization(tokenizer),
        "rules": "; ".join(text for name, text in OPTIONS.items() if getattr(tokenizer.settings, name)) or "-",
        "word starts": f"{starts.sum():,} pieces ({starts.mean():.0%})",
        "some pieces": "  ".join(tokenizer.pieces[i] for i in dict.fromkeys(shown.tolist())),
        "sha256": f"{tokenizer.sha256} (model and settings)",
    }


def encode(settings: Encode) -> Iterator[str]:
    """Yield one line per line of text: its pieces, its ids and the decoded text. Raises InputError."""
    if settings.text is not None and settings.file is not None:
        raise InputError("give either TEXT or `file`, not both")
    tokenizer = Tokenizer.load(settings.tokenizer)
    lines = _lines(settings)
    while batch := list(itertools.islice(lines, ENCODED_AT_ONCE)):
        for ids in tokenizer.encode_lines(batch):
            pieces = (("|" if tokenizer.is_word_start[i] else "") + tokenizer.pieces[i] for i in ids.tolist())
            yield "\t".join([" ".join(pieces), " ".join(map(str, ids)), tokenizer.decode(ids)])


def _lines(settings: Encode) -> Iterator[str]:
    if settings.text is not None:
        yield settings.text
    elif settings.file is not None:
        yield from filter(None, sources.read_lines(sources.find([settings.file])))
    else:
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                yield line.decode().removesuffix("\n")
            except UnicodeDecodeError as error:
                place = f"standard input, line {number}: byte {error.start}"
                raise InputError(f"{place} is not UTF-8; convert the text first") from None


def _normalization(tokenizer: Tokenizer) -> str:
    kind = tokenizer.settings.normalization
    return f"{kind} ({MEANING[kind]})"
