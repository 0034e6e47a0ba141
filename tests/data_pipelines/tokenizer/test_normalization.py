"""`auto` drops accents from English text alone; texts of many languages show what it chooses."""

import unicodedata
from pathlib import Path

import pytest

from data_pipelines import sources
from data_pipelines.tokenizer import guess_normalization, normalize
from data_pipelines.tokenizer.normalization import Survey
from xlnet_jax.__main__ import COMMANDS

prepare = COMMANDS["prepare"]
tokenizer = COMMANDS["tokenizer"]

# Sentences in which accents are as frequent as in the language: about 1% of letters in Italian, 0.1% in Dutch.
OTHERS = {
    "Italian": "La casa era vuota da molti anni e nessuno ne parlava. Ogni mattina il vecchio apriva la porta, "
    "guardava la strada e poi tornava dentro senza dire una parola. Non sapeva perché lo facesse, ma non poteva "
    "farne a meno. Quel giorno, però, trovò una lettera sotto la porta.",
    "Italian in ASCII": "La casa era vuota da molti anni e nessuno ne parlava. Ogni mattina il vecchio apriva la "
    "porta, guardava la strada e poi tornava dentro. Non sapeva perche' lo facesse, ma e' certo.",
    "Dutch": "De man liep langzaam over de brug en keek naar het water. Hij had de hele dag gewerkt en wilde niet naar "
    "huis. In de stad wist iedereen wat er was gebeurd, of dacht dat te weten, maar niemand durfde het te zeggen. Toen "
    "hij bij de kerk kwam, zag hij dat de deur open stond. Er was maar één kaars aan. Hij ging zitten en wachtte tot "
    "het donker werd, want hij wilde met niemand praten. Na een uur hoorde hij iemand achter zich lopen.",
    "Indonesian": "Pagi itu dia pergi ke pasar dengan ibunya dan membeli ikan. Jalan masih sepi, dan tidak ada orang "
    "yang melihat mereka lewat di depan rumah yang besar itu. Mereka tidak tahu bahwa seorang tua berdiri di belakang "
    "jendela dan menghitung orang yang lewat sejak pagi.",
    "Russian": "Старик вышел из дома рано утром и долго смотрел на реку. Никто не знал, о чём он думает.",
    "Japanese": "老人は朝早く家を出て、長いあいだ川を見ていた。彼が何を考えているのか、誰も知らなかった。",
}


@pytest.fixture(scope="module")
def novels():
    return [line for line in sources.read_lines(sources.find(sources.embedded()[:1])) if line]


@pytest.mark.parametrize("language", OTHERS)
def test_other_languages_keep_their_letters(language):
    text = OTHERS[language]
    for lines in ([text], text.split(". "), [text] * 300, unicodedata.normalize("NFD", text).split(", ")):
        assert guess_normalization(lines) == "nfkc"
    assert normalize(text, "nfkc") == unicodedata.normalize("NFKC", text)


def test_english_is_english_with_the_accents_that_novels_have(novels):
    loan = "The naïve young man took his fiancée to a café, and she ate the crêpes with æsthetic pleasure."
    with_loans = [part for i, line in enumerate(novels) for part in ([line, loan] if i % 100 == 0 else [line])]
    decomposed = [unicodedata.normalize("NFD", line) for line in with_loans]
    odd = ["“Curious,” said the ﬁrst of them — ½ of it is gone…", "It is not all that they had!"]
    for lines in (novels, [*novels[:5], "O, Zoë!"], with_loans, decomposed, odd, ["An English line"]):
        assert guess_normalization(lines) == "english"


@pytest.mark.parametrize("name", ["김영희", "Ελένη", "Алёна", "山田", "नेहा"])
def test_english_with_names_in_another_script_keeps_them(novels, name):
    lines = [f"{line} And {name} was there." if i % 40 == 0 else line for i, line in enumerate(novels)]
    survey = Survey.of(lines)
    assert survey.normalization == "nfkc"
    assert survey.other_scripts / survey.letters < 0.001
    assert "of its letters are not Latin" in survey.reason


def test_a_trace_of_another_script_in_english_is_one():
    line = "The letter β stands for that which they have not seen, and the people of this town are not with us at all."
    plain = line.replace("β", "b")
    assert guess_normalization([line, *[plain] * 200]) == "english"
    assert guess_normalization([line, *[plain] * 50]) == "nfkc"


def test_thai_and_lao_keep_their_vowels():
    for text in ("ชายชราออกจากบ้านแต่เช้าและมองดูแม่น้ำอยู่นาน", "ຜູ້ເຖົ້າອອກຈາກເຮືອນແຕ່ເຊົ້າ ແລະ ເບິ່ງແມ່ນ້ຳ"):
        assert guess_normalization([text]) == "none"
        assert normalize(text, "none") == text


@pytest.mark.parametrize("lines", [[], [""], ["31 4 15", "9,26"] * 100, ["１２ 34"], ["+ - = 。"]])
def test_a_text_without_letters_stays_as_it_is(lines):
    """There is nothing to choose a rule by, and each of the others would change such characters."""
    survey = Survey.of(lines)
    assert survey.normalization == "none"
    assert survey.reason == f"as the {len(lines)} lines have no letters"


@pytest.mark.parametrize("lines", [["ACGTTGCA"] * 20, ["x1 y2"], ["it was the best of times"]])
def test_a_text_of_few_words_is_not_said_to_be_english(lines):
    assert Survey.of(lines).reason.startswith("as ASCII text of few words counts as English; it changes none of ")


def test_a_text_is_judged_by_all_its_files(tmp_path, novels):
    for number in range(20):
        lines = novels[number * 100 :][:100] if number < 10 else [OTHERS["Italian"]] * 100
        (tmp_path / f"{number:02}.txt").write_text("\n".join(lines * 6))
    assert sources.survey(sources.find([str(tmp_path)])).normalization == "nfkc"
    found = sources.find([str(tmp_path / "0*.txt")])
    assert sources.survey(found).normalization == "english"
    assert sources.survey(found * 200).lines <= 10_000


# ---- what commands print --------------------------------------------------------------------------------------------


def test_commands_print_no_rule_about_the_letters_of_numbers(tmp_path, capsys):
    (tmp_path / "numbers.txt").write_text("\n".join(f"{i} {i * i} {i * i * i}" for i in range(500)))
    words = f"train --source {tmp_path}/numbers.txt --vocab-size 30 --out {tmp_path}/made --token-level character"
    assert tokenizer.main(words.split()) == 0
    assert (
        "normalization  none (the text as it is)\nchosen         as the 500 lines have no letters\n"
        in capsys.readouterr().out
    )


def test_commands_print_the_rule_that_they_choose_and_how_many_letters_it_changes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("dutch.txt").write_text("\n\n".join(f"{OTHERS['Dutch']} {i}" for i in range(50)))
    rule = "as 100% of it is not English; it changes none of 16,700 letters"
    assert tokenizer.main("train --source dutch.txt --vocab-size 60 --out one".split()) == 0
    assert f"normalization  nfkc (NFKC)\nchosen         {rule}" in capsys.readouterr().out
    Path("one/tokenizer_settings.json").unlink()
    words = "--tokenizer one/spiece.model --out corpus --block-len 16 --source dutch.txt"
    assert prepare.main(words.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"chosen      normalization nfkc, {rule}")
    assert "pieces, normalization nfkc" in out
