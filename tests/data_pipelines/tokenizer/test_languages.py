"""Text of other languages is decoded unchanged, and its words begin in the right places."""

import itertools
import unicodedata

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
    "japanese": combined(
        ["母は", "あの子は", "年老いた漁師は", "となりの犬は"],
        ["朝早く", "雨が降っても", "夜おそくまで"],
        ["市場で", "川のそばで", "古い家で"],
        ["歌をうたった。", "友だちをまっていた。", "ゆっくりコーヒーをのんだ。"],
    ),
}
SIZES = {"korean": 68, "thai": 57, "japanese": 98}


@pytest.mark.parametrize("kind", ["auto", "nfkc"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_text_survives_a_round_trip_and_its_words_begin_at_spaces_if_it_has_them(language, kind):
    lines = LANGUAGES[language]
    tokenizer = Tokenizer.train(lines, SIZES[language], kind)
    # NFKC splits the vowel of the Thai word for water, and no decoding joins it again.
    assert tokenizer.settings.normalization == ("none" if (language, kind) == ("thai", "auto") else "nfkc")
    encoded = tokenizer.encode_lines(lines)
    expected = [normalize(line, tokenizer.settings.normalization) for line in lines]
    assert [tokenizer.decode(ids) for ids in encoded] == expected
    assert kind == "nfkc" or expected == [unicodedata.normalize("NFC", line).strip() for line in lines]
    for ids in encoded[::7]:
        pieces = [tokenizer.pieces[i] for i in ids]
        starts = tokenizer.is_word_start[ids]
        assert starts[0]
        if language == "korean":
            assert starts.tolist() == [p.startswith("▁") or p in set(".!?-") for p in pieces]
        else:
            assert starts.sum() > 1 + sum(p.startswith("▁") for p in pieces), "words are found without spaces"


@pytest.mark.parametrize(
    ("starting", "continuing"),
    [
        ("春天 来了 。 ， 「 ！", "々"),
        ("となり コーヒー 犬 は 。 、", "ゃく った ーヒー"),
        ("เด็ก แม่ ไม้ ทำงาน น้ำ", "า ำงาน ะ ้ำ ิ่ง ๆ"),
        ("ເດັກ ນ້ຳ", "າ ຳ ະ ່"),
        ("ទឹក", "ា ្"),
        ("ရေ", "ာ"),
        ("▁의 ▁ता ▁ing", "의 에서 는 ता ी ्या ing 1 é ’ …"),
    ],
    ids=["chinese", "japanese", "thai", "lao", "khmer", "burmese", "with spaces"],
)
def test_pieces_of_scripts_without_spaces_start_words_and_parts_of_a_syllable_do_not(starting, continuing):
    assert PieceTables.of(starting.split()).is_word_start.all()
    assert not PieceTables.of(continuing.split()).is_word_start.any()
