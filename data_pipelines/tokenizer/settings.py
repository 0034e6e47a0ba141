"""Settings of a tokenizer that SentencePiece does not store: the content of tokenizer_settings.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from data_pipelines.tokenizer.normalization import Normalization, normalize
from xlnet_jax.storage.reading import naming_damage, with_version, without_version

TokenLevel = Literal["piece", "word", "character", "byte"]

SAMPLE_LINES = 10_000  # number of lines used to guess the normalization


@dataclass(frozen=True)
class TokenizerSettings:
    """Treatment of text before and after SentencePiece. The defaults are those of the original's English models."""

    normalization: Normalization = "english"
    split_digit_commas: bool = True
    """split pieces such as '1,' into the digits and the comma (prepro_utils.py, encode_pieces)"""
    lower: bool = False
    """lowercase text (`uncased` in the original)"""
    keep_accents: bool = False
    """only with normalization english: make quotes straight, but keep accents"""
    remove_space: bool = True
    """strip white space at both ends of a line, and collapse it to single spaces inside"""
    token_level: TokenLevel = "piece"
    """unit of the vocabulary: a piece of a word, a word between spaces, a character, or a byte of UTF-8"""

    @classmethod
    def usual_for(
        cls, normalization: Normalization, lower: bool = False, token_level: TokenLevel = "piece"
    ) -> TokenizerSettings:
        """Return settings for a text. The digit rule is on only for English pieces. Bytes without normalization keep
        their white space."""
        return cls(
            normalization,
            split_digit_commas=normalization == "english" and token_level == "piece",
            lower=lower,
            remove_space=token_level != "byte" or normalization != "none",
            token_level=token_level,
        )

    def normalize(self, lines: Sequence[str]) -> list[str]:
        """Normalize lines for SentencePiece."""
        options = {"lower": self.lower, "keep_accents": self.keep_accents, "remove_space": self.remove_space}
        return [normalize(line, self.normalization, **options) for line in lines]

    def to_json(self) -> dict[str, Any]:
        """Return the content of tokenizer_settings.json."""
        return with_version("tokenizer", dataclasses.asdict(self))

    def identity(self) -> dict[str, Any]:
        """Return the settings in the hash of a tokenizer. Options at their defaults are omitted, so a new option does
        not change the hashes of existing tokenizers."""
        options = {f.name: f.default for f in dataclasses.fields(self)[2:]}
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in options or v != options[k]}


OURS = "xlnet_jax"  # key in the tokenizer_config.json that we write


def settings_of_hugging_face(theirs: dict[str, Any], where: str) -> TokenizerSettings:
    """Return the settings of a SentencePiece model in a Hugging Face folder, from its tokenizer_config.json. Raises
    InputError as `read_settings` does."""
    if OURS in theirs:
        return read_settings(theirs[OURS], where)
    return TokenizerSettings(
        lower=bool(theirs.get("do_lower_case", False)),
        keep_accents=bool(theirs.get("keep_accents", False)),
        remove_space=bool(theirs.get("remove_space", True)),
    )


def read_settings(content: Any, where: str) -> TokenizerSettings:
    """Read settings from the JSON object of `to_json`. Raises InputError, naming `where`, for any other content."""
    where, remedy = f"tokenizer settings {where}", "delete it for the defaults"
    values = without_version("tokenizer", content, where, remedy)
    with naming_damage(where, remedy):
        return msgspec.convert(dataclasses.asdict(TokenizerSettings(**values)), TokenizerSettings)
