"""Accents are dropped from English alone: which normalisation `auto` chooses for texts of many languages."""

import unicodedata

import pytest

from data_pipelines import sources, texts
from data_pipelines.prepare import __main__ as prepare
from data_pipelines.tokenizer import Survey, Tokenizer, guess_normalization, normalize
from data_pipelines.tokenizer import __main__ as tokenizer
from xlnet_jax.printing import tell
from xlnet_jax.settings.config import Config
from xlnet_jax.storage.files import write_durably

# Sentences with accents as often as the language has them, about 1 % of the letters in Italian and 0.1 % in Dutch.
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
    "German": "Der Wagen stand schon vor der Tür, als sie endlich die Treppe herunterkam. Niemand hatte geglaubt, dass "
    "sie wirklich fahren würde, und am wenigsten sie selbst. Das Haus war kalt, und was noch zu tun war, das blieb.",
    "French": "Le train entra en gare avec une heure de retard. Sur le quai, il n'y avait plus personne, à part un "
    "employé qui balayait les feuilles mortes. Elle descendit, posa sa valise et attendit que quelqu'un vînt.",
    "Spanish": "El maestro abrió la ventana y miró hacia la plaza. Los niños jugaban todavía entre los árboles, y "
    "nadie parecía recordar lo que había pasado allí un año antes. No dijo nada; volvió y siguió escribiendo.",
    "Turkish": "Adam sabah erkenden kalktı ve denize baktı. Rüzgâr dinmiş, bulutlar dağılmıştı. Kimse onun ne "
    "düşündüğünü bilmiyordu, çünkü yıllardır kimseyle konuşmuyordu.",
    "Indonesian": "Pagi itu dia pergi ke pasar dengan ibunya dan membeli ikan. Jalan masih sepi, dan tidak ada orang "
    "yang melihat mereka lewat di depan rumah yang besar itu. Mereka tidak tahu bahwa seorang tua berdiri di belakang "
    "jendela dan menghitung orang yang lewat sejak pagi.",
    "Russian": "Старик вышел из дома рано утром и долго смотрел на реку. Никто не знал, о чём он думает.",
    "Korean": "노인은 아침 일찍 집을 나서서 오랫동안 강을 바라보았다. 그가 무슨 생각을 하는지 아무도 몰랐다.",
    "Japanese": "老人は朝早く家を出て、長いあいだ川を見ていた。彼が何を考えているのか、誰も知らなかった。",
    "Chinese": "老人一大早就出了门，久久地望着那条河。谁也不知道他在想什么。",
    "Hindi": "बूढ़ा आदमी सुबह जल्दी घर से निकला और बहुत देर तक नदी को देखता रहा।",
}


@pytest.fixture(scope="module")
def novels():
    return [line for line in sources.read_lines(sources.find(sources.embedded()[:1]), "strict") if line]


@pytest.mark.parametrize("language", OTHERS)
def test_other_languages_keep_their_letters(language):
    text = OTHERS[language]
    for lines in ([text], text.split(". "), [text] * 300, unicodedata.normalize("NFD", text).split(", ")):
        kind = guess_normalization(lines)
        assert kind == "nfkc"
    assert normalize(text, "nfkc") == unicodedata.normalize("NFKC", text)


def test_english_is_english_with_the_accents_that_novels_have(novels):
    loans = [
        "The naïve young man took his fiancée to a café, and she ate the crêpes with æsthetic pleasure.",
        "O, Zoë!",
    ]
    assert guess_normalization(novels) == "english"
    assert guess_normalization(novels[:5] + loans[1:]) == "english"
    for every in (100, 500):
        with_loans = [
            part for i, line in enumerate(novels) for part in ([line, loans[0]] if i % every == 0 else [line])
        ]
        assert guess_normalization(with_loans) == "english"
        assert guess_normalization([unicodedata.normalize("NFD", line) for line in with_loans]) == "english"
    assert guess_normalization(
        ["“Curious,” said the ﬁrst of them — ½ of it is gone…", "It is not all that they had!"]
    ) == ("english")
    assert guess_normalization([]) == guess_normalization(["An English line"]) == "english"


@pytest.mark.parametrize("name", ["김영희", "Ελένη", "Алёна", "山田", "नेहा"])
def test_english_with_names_in_another_script_keeps_them(novels, name):
    lines = [f"{line} And {name} was there." if i % 40 == 0 else line for i, line in enumerate(novels)]
    survey = Survey.of(lines)
    assert survey.normalization == "nfkc"
    assert survey.other_scripts / survey.letters < 0.001
    assert "of its letters are not Latin" in survey.reason


@pytest.mark.parametrize("language", ["Italian", "Dutch", "Spanish", "Indonesian"])
def test_a_mixture_with_english_keeps_the_letters_of_the_other_language(novels, language):
    line = OTHERS[language]
    assert guess_normalization([part for english in novels[:500] for part in (english, line)]) == "nfkc"
    assert guess_normalization(novels[:500] + [line] * 150) == "nfkc"


def test_a_trace_of_another_script_in_english_is_one():
    line = "The letter β stands for that which they have not seen, and the people of this town are not with us at all."
    plain = line.replace("β", "b")
    assert guess_normalization([line, *[plain] * 200]) == "english"
    assert guess_normalization([line, *[plain] * 50]) == "nfkc"


def test_thai_and_lao_keep_their_vowels():
    for text in ("ชายชราออกจากบ้านแต่เช้าและมองดูแม่น้ำอยู่นาน", "ຜູ້ເຖົ້າອອກຈາກເຮືອນແຕ່ເຊົ້າ ແລະ ເບິ່ງແມ່ນ້ຳ"):
        assert guess_normalization([text]) == "none"
        assert normalize(text, "none") == text


def test_a_text_is_judged_by_all_its_files(tmp_path, novels):
    for number in range(20):
        lines = novels[number * 100 :][:100] if number < 10 else [OTHERS["Italian"]] * 100
        (tmp_path / f"{number:02}.txt").write_text("\n".join(lines * 6))
    assert texts.survey(sources.find([str(tmp_path)]), "strict").normalization == "nfkc"
    found = sources.find([str(tmp_path / "0*.txt")])
    assert texts.survey(found, "strict").normalization == "english"
    assert texts.survey(found * 200, "strict").lines <= 10_000


# ---- what commands print --------------------------------------------------------------------------------------------

CAFE = [
    "The girl and the boy have been to the café, and they will be back.",
    "It is not that which they have seen.",
] * 40


@pytest.fixture
def dutch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tell.cache_clear()
    (tmp_path / "dutch.txt").write_text("\n\n".join(f"{OTHERS['Dutch']} {i}" for i in range(50)))
    return tmp_path


def test_what_is_changed_is_counted():
    survey = Survey.of(["E\u0301le\u0300ve: ﬁn, Å, Å, é", *CAFE[1:2] * 2000])
    assert survey.describe() == (
        "normalization english, as the text is English; it changes 6 of 56,010 letters (Å 2, ﬁ 1, é 1) in 2,001 lines"
    )


def test_commands_print_the_rule_that_they_choose_and_how_many_letters_it_changes(dutch, capsys):
    assert tokenizer.main("train --source dutch.txt --vocab-size 60 --out one".split()) == 0
    out = capsys.readouterr().out
    assert (
        "normalization  nfkc (NFKC)\nchosen         as 100% of it is not English; it changes none of 16,700 letters"
        in out
    )
    write_durably(dutch / "bare.model", (dutch / "one" / "spiece.model").read_bytes())
    words = "--tokenizer bare.model --out corpus --block-len 16 --source dutch.txt"
    assert prepare.main(words.split()) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith(
        "chosen      normalization nfkc, as 100% of it is not English; it changes none of 16,700 letters"
    )
    assert "pieces, normalization nfkc" in shown.out


def test_a_run_prints_the_rule_for_the_tokenizer_that_it_trains(dutch, capsys):
    from dataclasses import replace

    from xlnet_jax.training.resolve import Text

    config = replace(Config(), corpus=("dutch.txt",))
    config = replace(config, model=replace(config.model, vocab_size=60))
    assert Text.of(config)._train_tokenizer(config).settings.normalization == "nfkc"
    words = "chosen      normalization nfkc, as 100% of it is not English; it changes none"
    assert capsys.readouterr().out.startswith(words)
    config = replace(config, data=replace(config.data, normalization="english"))
    Text.of(config)._train_tokenizer(config)
    Tokenizer.train(CAFE, 45, "auto")
    assert capsys.readouterr() == ("", "")
