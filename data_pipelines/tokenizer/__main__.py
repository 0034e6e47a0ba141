"""python -m data_pipelines.tokenizer: train a tokenizer, look into one, or encode text with it."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from etils import epath

from data_pipelines import sources
from data_pipelines.readers import Errors
from data_pipelines.tokenizer.model import Tokenizer
from data_pipelines.tokenizer.normalization import Normalization
from data_pipelines.tokenizer.sampling import SAMPLE_BYTES, sample
from data_pipelines.tokenizer.settings import TokenLevel
from data_pipelines.tokenizer.symbols import SPECIAL_PIECES
from xlnet_jax.api import command
from xlnet_jax.errors import InputError
from xlnet_jax.settings import cli
from xlnet_jax.storage.files import demand_place

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
    "keep_accents": "no NFKD, accents stay",
    "split_digit_commas": "digits are split from a comma behind them",
    "remove_space": "white space collapsed",
}
TokenizerPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TOKENIZER")]


@dataclass(frozen=True)
class Train:
    """Train a tokenizer on text and write its folder."""

    source: tuple[str, ...]
    """files, globs, folders, or tfds:NAME"""
    out: Path
    """folder to make"""
    vocab_size: int = 32_000
    """pieces of the vocabulary, the special ones among them; of words and characters the most there may be, and bytes
    have 256 and the special ones"""
    token_level: TokenLevel = "piece"
    """what text is cut into: pieces of words, what stands between spaces, characters, or bytes"""
    normalization: Normalization | Literal["auto"] = "auto"
    """what is done to text first; auto = english where the letters are ASCII, else nfkc, and for bytes none"""
    lower: bool = False
    """lowercase all text, as the original's uncased models"""
    text_field: str = "text"
    """what holds the text of a document in JSON, Parquet and TFDS"""
    tfds_data_dir: str | None = None
    """where TFDS datasets are prepared; None = TFDS's default"""
    corpus_errors: Errors = "strict"
    """bytes that are not UTF-8: stop and say where, or read U+FFFD"""
    sample_megabytes: int = SAMPLE_BYTES // MEGABYTE
    """of a larger text, a uniform sample of lines is learned from: up to 30 times as much memory is needed"""

    def run(self) -> None:
        if os.path.lexists(self.out):
            raise InputError(f"--out {self.out} exists: name a folder that does not")
        demand_place(epath.Path(self.out))
        if not self.source:
            raise InputError("--source names no text: give files, globs, folders, or tfds:NAME")
        for name, value in (("vocab-size", self.vocab_size), ("sample-megabytes", self.sample_megabytes)):
            if value < 1:
                raise InputError(f"--{name} {value}: give a number above 0")
        text = sources.find(self.source, self.text_field, self.tfds_data_dir)
        drawn = sample(sources.read_lines(text, self.corpus_errors), self.sample_megabytes * MEGABYTE)
        tokenizer = Tokenizer.train(
            drawn.lines,
            self.vocab_size,
            self.normalization,
            token_level=self.token_level,
            lower=self.lower,
            sample_bytes=self.sample_megabytes * MEGABYTE,
        )
        tokenizer.save(self.out)
        share = "all" if drawn.is_whole else f"a sample of {len(drawn.lines):,}"
        _print_fields(
            {
                "text": f"{share} of {drawn.seen_lines:,} lines",
                "normalization": _normalization(tokenizer),
                "tokenizer": f"{tokenizer.vocab_size:,} {NAME[self.token_level]} in {self.out}",
            }
        )


@dataclass(frozen=True)
class Show:
    """What a tokenizer is: its vocabulary, rules and hash."""

    tokenizer: TokenizerPath
    """its folder, or a SentencePiece .model file"""

    def run(self) -> None:
        tokenizer = Tokenizer.load(self.tokenizer)
        starts = tokenizer.is_word_start
        shown = np.linspace(len(SPECIAL_PIECES), tokenizer.vocab_size - 1, SHOWN_PIECES).astype(int)
        _print_fields(
            {
                "vocabulary": f"{tokenizer.vocab_size:,} {NAME[tokenizer.settings.token_level]}",
                "special": "  ".join(f"{i} {piece}" for i, piece in enumerate(SPECIAL_PIECES)),
                "normalization": _normalization(tokenizer),
                "rules": "; ".join(text for name, text in OPTIONS.items() if getattr(tokenizer.settings, name)) or "-",
                "word starts": f"{starts.sum():,} pieces ({starts.mean():.0%})",
                "some pieces": "  ".join(tokenizer.pieces[i] for i in dict.fromkeys(shown.tolist())),
                "sha256": f"{tokenizer.sha256} (model and settings)",
            }
        )


@dataclass(frozen=True)
class Encode:
    """The pieces and ids of each line of text, and the text that they decode to, parted by tabs.

    A piece that begins a word has | in front of it.
    """

    tokenizer: TokenizerPath
    """its folder, or a SentencePiece .model file"""
    text: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")] = None
    """one line; None = --file, or standard input"""
    file: str | None = None
    """a file, a glob in quotes, a folder, or tfds:NAME, instead; blank lines are left out"""

    def run(self) -> None:
        if self.text is not None and self.file is not None:
            raise InputError("there is a text and --file: give one of them")
        tokenizer = Tokenizer.load(self.tokenizer)
        lines = self._lines()
        while batch := list(itertools.islice(lines, ENCODED_AT_ONCE)):
            for ids in tokenizer.encode_lines(batch):
                pieces = (("|" if tokenizer.is_word_start[i] else "") + tokenizer.pieces[i] for i in ids.tolist())
                print(" ".join(pieces), " ".join(map(str, ids)), tokenizer.decode(ids), sep="\t")

    def _lines(self) -> Iterator[str]:
        if self.text is not None:
            return iter([self.text])
        if self.file is not None:
            return filter(None, sources.read_lines(sources.find([self.file]), "strict"))
        return _standard_input()


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Does what the command line says; returns the exit code."""
    task = cli.parse(
        Train | Show | Encode,  # type: ignore[arg-type]
        argv,
        "python -m data_pipelines.tokenizer",
        __doc__ or "",
    )
    try:
        task.run()
        sys.stdout.flush()
    except BrokenPipeError:
        # A reader such as head has seen enough; what is left in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _standard_input() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"standard input, line {number}: byte {error.start} is not UTF-8; convert the text first"
            ) from None


def _normalization(tokenizer: Tokenizer) -> str:
    kind = tokenizer.settings.normalization
    return f"{kind} ({MEANING[kind]})"


def _print_fields(fields: dict[str, str]) -> None:
    width = max(map(len, fields)) + 2
    for name, value in fields.items():
        print(f"{name:{width}}{value}")


if __name__ == "__main__":
    command.run(main)
