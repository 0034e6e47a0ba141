"""tokenizer.json for a SentencePiece model with our settings, in the format of Hugging Face's library tokenizers.

The library normalizes text by the settings and the model, splits it at spaces and finds the likeliest pieces of each
word, as SentencePiece does. Three things differ (`DIFFERENCES`). `TokenizerSettings.split_digit_commas` splits pieces
such as '1,' after the search; here they are made so unlikely that the search avoids them. The names of special pieces
in a text become special pieces in transformers. And the library adds likelihoods in double precision: if two
segmentations agree to six digits, SentencePiece's choice depends on its rounding errors and varies for the same word.
"""

import base64
import itertools
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from data_pipelines.records import SPACED
from data_pipelines.tokenizer import BOS, CLS, EOD, EOP, MASK, SEP, SPACE, SPECIAL_PIECES, UNK, Tokenizer

Json = dict[str, Any]

DIFFERENCES = (
    "AutoTokenizer of transformers returns our ids, except for texts that contain the name of a special piece such as "
    "<sep> or <unk>, and for words with two segmentations that are equally likely to six digits"
)
DIGIT_COMMAS = "; some numbers before a comma are split differently"
NO_JSON = "a BPE model of SentencePiece has no tokenizer.json: AutoTokenizer of transformers returns other ids"
_UNLIKELY = 100.0  # subtracted from the score of a piece that no text should get, as transformers does (XLNetConverter)
_EXTRA = 0.1  # SentencePiece subtracts it from the score of user-defined symbols (unigram_model.cc)
_WHITE_SPACE = "[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"  # where str.split splits


def tokenizer_json(
    tokenizer: Tokenizer, single: Sequence[tuple[str, int]], pair: Sequence[tuple[str, int]]
) -> Json | None:
    """Return the content of tokenizer.json, or None for a BPE model, which it cannot hold.

    single, pair: special pieces around one text "A" or two, "A" and "B", with the segment of each.
    """
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2  # typed Any: protobuf creates its messages at import
    model = proto.ModelProto()
    model.ParseFromString(tokenizer.model)
    kinds = proto.TrainerSpec
    if model.trainer_spec.model_type not in (kinds.UNIGRAM, kinds.WORD, kinds.CHAR):
        return None
    is_byte = tokenizer.settings.token_level == "byte"
    is_character = model.trainer_spec.model_type == kinds.CHAR and not is_byte
    if is_byte or model.trainer_spec.model_type == kinds.UNIGRAM:
        vocabulary = _unigram(
            tokenizer, model, proto.ModelProto.SentencePiece, is_byte or model.trainer_spec.byte_fallback
        )
    else:
        vocabulary = {
            "type": "WordLevel", "vocab": {piece: i for i, piece in enumerate(tokenizer.pieces)},
            "unk_token": SPECIAL_PIECES[UNK],
        }  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(i) for i in range(len(SPECIAL_PIECES)) if i != EOP],
        "normalizer": {"type": "Sequence", "normalizers": list(_normalizers(tokenizer, model.normalizer_spec))},
        "pre_tokenizer": _cut(tokenizer, is_character, model.trainer_spec.user_defined_symbols),
        "post_processor": _around(single, pair),
        "decoder": {"type": "Sequence", "decoders": list(_decoders(model))},
        "model": vocabulary,
    }


def symbols_json(tokenizer: Tokenizer) -> Json | None:
    """Return the content of tokenizer.json for records of one field, which are read as <s>, their symbols and <eod>;
    None for several fields, and for symbols that match a regular expression of one's own."""
    assert tokenizer.records
    field, *others = tokenizer.records.parsed
    if others or field.level.startswith("/"):
        return None
    frame = [(SPECIAL_PIECES[BOS], 0), ("A", 0), (SPECIAL_PIECES[EOD], 0)]
    one = _regex(field.pattern.pattern if field.pattern else r"[\s\S]")
    each = {"type": "Split", "pattern": one, "behavior": "Isolated", "invert": False}
    is_spaced = field.level in SPACED
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(i) for i in range(len(SPECIAL_PIECES))],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"} if is_spaced else each,
        "post_processor": _around(frame, [*frame, *(("B" if name == "A" else name, 0) for name, _ in frame)]),
        "decoder": None if is_spaced else {"type": "Fuse"},
        "model": {
            "type": "WordLevel", "vocab": {piece: i for i, piece in enumerate(tokenizer.pieces)},
            "unk_token": SPECIAL_PIECES[UNK],
        },
    }  # fmt: skip


def _unigram(tokenizer: Tokenizer, model: Any, kinds: Any, byte_fallback: bool) -> Json:
    normal = [piece.score for piece in model.pieces if piece.type == kinds.NORMAL]
    are_split = tokenizer.ends_in_digit_comma & tokenizer.settings.split_digit_commas
    best, worst = max(normal, default=0.0), min(normal, default=0.0)

    def score(i: int) -> float:
        piece = model.pieces[i]
        if piece.type == kinds.USER_DEFINED:
            # Not below the worst, because the library derives the score of unknown characters from it.
            return max(len(piece.piece.encode()) * best - _EXTRA, worst)
        return float(piece.score) - (_UNLIKELY if are_split[i] else 0)

    vocabulary = [[piece, score(i)] for i, piece in enumerate(tokenizer.pieces)]
    return {"type": "Unigram", "unk_id": UNK, "vocab": vocabulary, "byte_fallback": byte_fallback}


def _special(i: int) -> Json:
    return {
        "id": i, "content": SPECIAL_PIECES[i], "single_word": False, "lstrip": i == MASK, "rstrip": False,
        "normalized": False, "special": True,
    }  # fmt: skip


def _normalizers(tokenizer: Tokenizer, spec: Any) -> Iterable[Json]:
    settings = tokenizer.settings
    if settings.remove_space:
        yield _replace(_regex(_WHITE_SPACE), " ")
        yield _replace(_regex(r"\A | \z"), "")
    if settings.normalization == "english":
        yield _replace({"String": "``"}, '"')
        yield _replace({"String": "''"}, '"')
        if not settings.keep_accents:
            yield {"type": "NFKD"}
            yield _replace(_regex(f"[{''.join(_combining())}]"), "")
    elif settings.normalization == "nfkc":
        yield {"type": "NFKC"}
    if settings.lower:
        yield {"type": "Lowercase"}
    if spec.precompiled_charsmap:
        if "nfkc" in spec.name:
            yield {"type": "NFKC"}  # the library's Precompiled drops the marks of a letter
        yield {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(spec.precompiled_charsmap).decode()}
    if spec.remove_extra_whitespaces:
        yield _replace(_regex(r"\A +| +\z"), "")
        yield _replace(_regex(" {2,}"), " ")
    space = " "
    if spec.escape_whitespaces:
        space = SPACE
        yield _replace({"String": " "}, space)
    if spec.add_dummy_prefix:
        yield {"type": "Prepend", "prepend": space}


def _cut(tokenizer: Tokenizer, is_character: bool, whole: Sequence[str]) -> Json | None:
    if is_character:
        units = "|".join([*map(re.escape, whole), r"[\s\S]"])
        return {"type": "Split", "pattern": _regex(units), "behavior": "Isolated", "invert": False}
    if tokenizer.settings.token_level == "byte" or not tokenizer.words_are_independent:
        return None
    return {"type": "Split", "pattern": {"String": SPACE}, "behavior": "MergedWithNext", "invert": False}


def _decoders(model: Any) -> Iterable[Json]:
    if model.trainer_spec.byte_fallback:
        yield {"type": "ByteFallback"}
    yield _replace({"String": SPACE}, " ")
    yield {"type": "Fuse"}
    if model.normalizer_spec.add_dummy_prefix:
        yield {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _around(single: Sequence[tuple[str, int]], pair: Sequence[tuple[str, int]]) -> Json:
    def parts(form: Sequence[tuple[str, int]]) -> list[Json]:
        kinds = ("SpecialToken", "Sequence")
        return [{kinds[name in ("A", "B")]: {"id": name, "type_id": segment}} for name, segment in form]

    special = {
        SPECIAL_PIECES[i]: {"id": SPECIAL_PIECES[i], "ids": [i], "tokens": [SPECIAL_PIECES[i]]}
        for i in (BOS, CLS, SEP, EOD)
        if (SPECIAL_PIECES[i], 0) in single or i in (CLS, SEP)
    }
    return {"type": "TemplateProcessing", "single": parts(single), "pair": parts(pair), "special_tokens": special}


def _replace(pattern: Json, content: str) -> Json:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _regex(pattern: str) -> Json:
    return {"Regex": pattern}


def _combining() -> Iterable[str]:
    """Yield the characters that unicodedata calls combining, as ranges of a regular expression."""
    marks = [code for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code))]
    for _, run in itertools.groupby(enumerate(marks), lambda pair: pair[1] - pair[0]):
        codes = [code for _, code in run]
        yield f"{chr(codes[0])}-{chr(codes[-1])}"
