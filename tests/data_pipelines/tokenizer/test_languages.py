"""Text of other languages is decoded unchanged, and its words begin in the right places."""

import itertools
import unicodedata

import numpy as np
import pytest

from data_pipelines.tokenizer import Tokenizer, normalize
from data_pipelines.tokenizer.pieces import PieceTables


def combined(*choices, form="{}"):
    """Return all sentences with one part of each choice."""
    return [form.format("".join(parts)) for parts in itertools.product(*choices)]


LANGUAGES = {
    "korean": combined(
        ["어머니께서는 ", "우리 아이는 ", "늙은 뱃사람은 ", "옆집 개는 "],
        ["이른 아침에 ", "비가 와도 ", "밤늦게까지 "],
        ["시장에서 ", "강가에서 ", "낡은 집에서 "],
        ["노래를 불렀다.", "친구를 기다렸다!", "책을 읽었을까?"],
    ),
    "thai": combined(
        ["แม่", "เด็กคนนั้น", "ชาวประมง", "เพื่อนบ้าน"],
        ["ตื่นแต่เช้า", "เดินช้าๆ", "ทำงานหนัก"],
        ["ที่ริมแม่น้ำ ", "ในตลาด ", "ใต้ต้นไม้ใหญ่ "],
        ["แล้วดื่มน้ำ", "เพราะฝนตก", "กับลูกสาวสองคน"],
    ),
    "hindi": combined(
        ["माँ ", "वह छोटा लड़का ", "बूढ़ा मछुआरा ", "हमारे पड़ोसी "],
        ["सुबह-सुबह ", "बारिश में भी ", "देर रात तक "],
        ["बाज़ार में ", "नदी के किनारे ", "पुराने घर में "],
        ["गीत गाते हैं।", "मित्र की प्रतीक्षा करते हैं।", "क्या पढ़ते हैं?"],
    ),
    "chinese": combined(
        ["母亲", "那个孩子", "老渔夫", "我们的邻居"],
        ["清早", "下雨的时候", "直到深夜"],
        ["在市场上", "在河边", "在旧房子里"],
        ["唱歌。", "等朋友来、不说话。", "读书——读了三遍。"],
    ),
    "japanese": combined(
        ["母は", "あの子は", "年老いた漁師は", "となりの犬は"],
        ["朝早く", "雨が降っても", "夜おそくまで"],
        ["市場で", "川のそばで", "古い家で"],
        ["歌をうたった。", "友だちをまっていた。", "ゆっくりコーヒーをのんだ。"],
    ),
}
SIZES = {"korean": 68, "thai": 57, "hindi": 62, "chinese": 100, "japanese": 98}
NORMALIZATIONS = ("auto", "nfkc")
languages = pytest.mark.parametrize("language", LANGUAGES)


@pytest.fixture(scope="module")
def trained():
    """(language, normalization) -> a tokenizer for that text."""
    return {
        (language, kind): Tokenizer.train(lines, SIZES[language], kind)
        for (language, lines), kind in itertools.product(LANGUAGES.items(), NORMALIZATIONS)
    }


@languages
@pytest.mark.parametrize("kind", NORMALIZATIONS)
def test_text_survives_a_round_trip(trained, language, kind):
    tokenizer, lines = trained[language, kind], LANGUAGES[language]
    back = [tokenizer.decode(ids) for ids in tokenizer.encode_lines(lines)]
    assert back == [normalize(line, tokenizer.settings.normalization) for line in lines]


@languages
def test_the_guessed_normalisation_leaves_the_text_as_it_is(trained, language):
    tokenizer, lines = trained[language, "auto"], LANGUAGES[language]
    back = [tokenizer.decode(ids) for ids in tokenizer.encode_lines(lines)]
    # Letters written in two canonical ways (ढ़) are one; NFKC goes further where it matters, in Thai น้ำ.
    assert back == [unicodedata.normalize("NFC", line).strip() for line in lines]


def test_thai_is_not_put_through_nfkc_unless_that_is_asked_for(trained):
    assert trained["thai", "auto"].settings.normalization == "none"
    assert trained["thai", "nfkc"].settings.normalization == "nfkc"
    assert all(trained[name, "auto"].settings.normalization == "nfkc" for name in LANGUAGES if name != "thai")


def test_a_chinese_book_survives_a_round_trip(published):
    path = published("corpora/handbook.zh-CN.docs.txt")
    lines = list(filter(None, map(str.strip, path.read_text().splitlines())))[:2000]
    tokenizer = Tokenizer.train(lines, 4000, "auto")
    encoded = tokenizer.encode_lines(lines)
    known = [i for i, ids in enumerate(encoded) if (ids != 0).all()]
    assert len(known) > 0.95 * len(lines), "rare characters are left out of the vocabulary"
    assert all(tokenizer.decode(encoded[i]) == normalize(lines[i], "nfkc") for i in known)
    assert tokenizer.is_word_start[np.concatenate(encoded)].mean() > 0.6


# ---- words ----------------------------------------------------------------------------------------------------------


def word_starts(*pieces):
    return PieceTables.of(pieces).is_word_start.tolist()


@pytest.mark.parametrize(
    "pieces",
    [
        ["春天", "来了", "。", "，", "「", "！"],
        ["となり", "コーヒー", "犬", "は", "。", "、"],
        ["เด็ก", "แม่", "ไม้", "ทำงาน", "น้ำ"],
        ["ເດັກ", "ນ້ຳ"],
        ["ទឹក"],
        ["ရေ"],
    ],
    ids=["chinese", "japanese", "thai", "lao", "khmer", "burmese"],
)
def test_pieces_of_scripts_without_spaces_start_words_without_one(pieces):
    assert all(word_starts(*pieces))


@pytest.mark.parametrize(
    "pieces",
    [
        ["ゃく", "った", "ーヒー", "々"],
        ["า", "ำงาน", "ะ", "้ำ", "ิ่ง", "ๆ"],
        ["າ", "ຳ", "ະ", "່"],
        ["ា", "្"],
        ["의", "에서", "는"],
        ["ता", "ी", "्या"],
        ["ing", "1", "é", "’", "…"],
    ],
    ids=["japanese", "thai", "lao", "khmer", "korean", "hindi", "latin"],
)
def test_pieces_that_only_go_on_with_a_word_do_not_start_one(pieces):
    assert not any(word_starts(*pieces))


@languages
def test_words_with_spaces_start_at_a_space_alone(trained, language):
    tokenizer, lines = trained[language, "auto"], LANGUAGES[language]
    for ids in tokenizer.encode_lines(lines[::7]):
        pieces = [tokenizer.pieces[i] for i in ids]
        starts = tokenizer.is_word_start[ids]
        assert starts[0]
        if language in ("korean", "hindi"):
            assert starts.tolist() == [p.startswith("▁") or p in set(".!?-") for p in pieces]
        else:
            assert starts.sum() > 1 + sum(p.startswith("▁") for p in pieces), "words are told without spaces"
