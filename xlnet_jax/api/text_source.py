"""Settings of every command that reads text: which field holds it, where TFDS looks, and what becomes of bad bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from data_pipelines.sources import Source


@dataclass(frozen=True, kw_only=True)
class TextSourceSettings:
    """Settings that say how named texts are read."""

    text_field: str = "text"
    """field that holds the text in JSON, Parquet, TFDS and on the Hub"""
    tfds_data_dir: str | None = None
    """folder of prepared TFDS datasets; None = TFDS's default"""
    corpus_errors: Literal["strict", "replace"] = "strict"
    """bytes that are not UTF-8: stop and say where, or read U+FFFD"""

    def find(self, names: Sequence[str], split: str = "train") -> list[Source]:
        """Return the sources that files, globs, folders, URLs, tfds:NAME or hf:NAME stand for; `split`: of a dataset.

        Raises InputError where a name stands for nothing.
        """
        from data_pipelines import sources

        return sources.find(names, self.text_field, self.tfds_data_dir, split)
