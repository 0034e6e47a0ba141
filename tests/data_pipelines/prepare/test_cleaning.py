"""Cleaning finds the duplicates, boilerplate and noise of a crawl whose truth is known, and keeps the rest."""

import json
import re
import sys
from collections import Counter
from functools import partial

import numpy as np
import pytest
from etils import epath

from data_pipelines import sources
from data_pipelines.prepare import cleaning, commands, encoding
from data_pipelines.prepare.cleaning import clean_text
from data_pipelines.prepare.quality import SOURCES, find_fault, normalize_line, plain_lines
from data_pipelines.prepare.runners import run_here, run_with_beam
from tests.data_pipelines import ALONE
from tests.data_pipelines.prepare.crawl import TEMPLATES, crawl
from xlnet_jax.errors import InputError

pytest.importorskip("datasketch", reason="needs the extra [clean]: pip install -e '.[clean]'")
pytest.importorskip("py3langid", reason="needs the extra [clean]: pip install -e '.[clean]'")

HELD_OUT = 20_261  # a seed that no threshold was chosen with
GERMAN = (
    "Am Morgen ging der alte Müller noch einmal durch das Dorf, um zu sehen, ob der Sturm der letzten Nacht die Dächer "
    "der Häuser beschädigt hatte. Die Kinder liefen ihm entgegen und erzählten, daß der große Baum vor der Kirche "
    "umgefallen sei. Niemand war verletzt worden, aber die Straße zum Fluß blieb für den ganzen Tag gesperrt, und der "
    "Bäcker mußte sein Brot über den Berg tragen."
)
CHINESE = (
    "清晨的时候，老张沿着河边慢慢地走回家。昨天夜里下了一场大雨，路上到处都是落叶和泥水，桥边的柳树也倒了一棵。"
    "孩子们在门口等着他，争着告诉他学校今天不上课，因为屋顶漏水，教室里的书都湿透了。他笑着听完，说等太阳出来以后，"
    "大家一起去帮老师把书搬到院子里晒干。邻居们听见了，也都点头答应，有人还准备了热茶和点心，说干完活就在院子里坐一会儿。"
)
RUSSIAN = (
    "Рано утром старый мельник ещё раз прошёл по деревне, чтобы посмотреть, не повредила ли ночная буря крыши домов. "
    "Дети выбежали ему навстречу и рассказали, что большое дерево у церкви упало. Никто не пострадал, но дорога к реке "
    "весь день оставалась закрытой, и пекарю пришлось нести хлеб через гору, а вечером все собрались у старосты и "
    "долго говорили о том, как жить дальше."
)


def write(file, texts):
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def cleaned(file, work, languages=(), runner=ALONE):
    """Clean a file, and return the lines of each of its documents, None for one that is dropped, and the report."""
    (source,), _, report = clean_text(sources.find([str(file)]), languages, epath.Path(work), runner)
    parts = [part for unit in source.units for part in unit.parts]
    documents = [
        d if kept else None for f, mask in parts for d, kept in zip(cleaning._read_documents(f), mask, strict=True)
    ]
    return documents, report


@pytest.mark.slow
def test_of_a_crawl_at_least_95_percent_is_found_and_at_most_1_percent_of_the_rest_lost(tmp_path):
    pages = crawl(HELD_OUT)
    documents, report = cleaned(write(tmp_path / "pages.jsonl", [page.text for page in pages]), tmp_path)
    total, dropped = Counter(page.kind for page in pages), Counter[str]()
    boilerplate, own = [], []
    for page, lines in zip(pages, documents, strict=True):
        dropped[page.kind] += lines is None
        if lines is not None:
            boilerplate += [line not in lines for line in page.around]
            own += [line in lines for line in page.own if page.kind == "unique" and page.own.count(line) == 1]
    assert total["unique"] > 500
    assert min(total.values()) > 50
    for kind in ("exact", "near", "template", "spam"):
        assert dropped[kind] >= 0.95 * total[kind], (kind, dropped, total)
    assert dropped["unique"] <= 0.01 * total["unique"]
    assert np.mean(boilerplate) >= 0.95
    assert np.mean(own) >= 0.97  # the others are quotations that several pages share, where they end a page
    assert report["kept"] == len(pages) - dropped.total()
    assert len(report["rules"]["near duplicate"]["examples"]) == 10
    assert all(
        len(rule["examples"]) == min(rule["count"], 10) for name, rule in report["rules"].items() if name != "notice"
    )


@pytest.fixture
def prepare(tmp_path, trained):
    def prepare(names, out, clean=(), runner=ALONE, tokenizer=trained, validation=(), block_len=64):
        train, held_out = (sources.find([str(name) for name in given]) for given in (names, validation))
        return commands.prepare(
            train, held_out or None, tokenizer, tmp_path / out, block_len=block_len, validation_fraction=0.2,
            runner=runner, clean=clean,
        )  # fmt: skip

    return prepare


@pytest.fixture
def pages(tmp_path):
    texts = [page.text for page in crawl(3, 120)]
    return [write(tmp_path / "one.jsonl", texts[:60]), write(tmp_path / "two.jsonl", texts[60:])]


def test_the_corpus_is_the_same_for_any_parts_and_number_of_processes(prepare, pages, monkeypatch):
    alone = prepare(pages, "alone")
    monkeypatch.setattr(encoding, "PART_CHARS", 20_000)
    monkeypatch.setattr(encoding, "GROUP_BYTES", 50_000)
    monkeypatch.setattr(cleaning, "LINES_AT_ONCE", 100)
    both = prepare(pages, "both", runner=partial(run_here, processes=2))
    for file in ("clean.json", "unigram_counts.npy", "corpus-train.array_record-00000-of-00002"):
        assert (alone.folder / file).read_bytes() == (both.folder / file).read_bytes()


def test_beam_cleans_as_this_machine_does(prepare, pages):
    pytest.importorskip("apache_beam", reason="the extra [beam] is not installed")
    beam, here = prepare(pages, "beam", runner=partial(run_with_beam, runner="Direct")), prepare(pages, "here")
    assert beam.manifest == here.manifest


def test_nothing_is_dropped_unless_it_is_asked_for(prepare, pages):
    corpus = prepare(pages, "corpus", clean=None)
    assert sum(split.documents for split in corpus.manifest.splits.values()) == 120
    assert not (corpus.folder / "clean.json").exists()


def test_a_cleaned_corpus_is_opened_again_and_another_is_refused(prepare, pages):
    made = prepare(pages, "corpus")
    assert prepare(pages, "corpus").manifest == made.manifest
    assert prepare(pages, "corpus", tokenizer=None).manifest == made.manifest
    for other in (None, ("en",)):
        with pytest.raises(InputError, match="the way its text is cleaned differs"):
            prepare(pages, "corpus", clean=other)


def test_training_text_loses_its_copies_of_validation_text(prepare, tmp_path):
    texts = [page.text for page in crawl(3, 120) if page.kind == "unique"]
    train = write(tmp_path / "train.jsonl", texts)
    validation = write(tmp_path / "validation.jsonl", [text.replace(", ", "; ") for text in texts[:20]])
    corpus = prepare([train], "corpus", validation=[validation])
    assert corpus.manifest.splits["validation"].documents == 20
    assert corpus.manifest.splits["train"].documents == len(texts) - 20


def test_a_tokenizer_is_trained_on_the_text_when_it_is_clean(prepare, tmp_path, capsys):
    texts = [f"<p>{page.text}</p>" for page in crawl(3, 120) if not page.text.startswith("<")]
    corpus = prepare([write(tmp_path / "pages.jsonl", texts)], "corpus", tokenizer=None, block_len=32)
    assert "<p>" not in "".join(corpus.tokenizer.pieces)
    assert corpus.unknown_share < 0.01


def test_a_run_that_was_stopped_does_not_clean_again(prepare, pages, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(cleaning, "_drop_duplicates", lambda files: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare(pages, "stopped")
    straight = prepare(pages, "straight")
    for name in ("plain_lines", "find_fault"):
        monkeypatch.setattr(cleaning, name, None)
    assert prepare(pages, "stopped").manifest == straight.manifest


def test_a_document_longer_than_a_part_stays_whole(tmp_path, monkeypatch, prepare):
    lines = [line for page in crawl(5, 200) if page.kind == "unique" for line in page.own if len(line) > 160]
    (tmp_path / "long.txt").write_text("\n".join(lines[:150]) + "\n\n" + "\n".join(lines[150:200]) + "\n")
    monkeypatch.setattr(encoding, "PART_CHARS", 5000)
    assert sum(s.documents for s in prepare([tmp_path / "long.txt"], "corpus").manifest.splits.values()) == 2


@pytest.mark.parametrize(
    ("document", "lines"),
    [
        ("<p>Tom &amp; Jerry&nbsp;said &quot;no&quot;</p><p>Next</p>", ['Tom & Jerry said "no"', "Next"]),
        ("a < b and c > d, List<String>, <eop> &amp;lt; AT&T ?a=1&copy=2", None),
        ("one<br/>two<li>three <b>bold</b>", ["one", "two", "three bold"]),
        ("x<script>if (a<b) { '<p>' }</script >y<style>p{}</style><!-- <p>no</p> -->z", ["xyz"]),
        ("the <script> tag alone", ["the tag alone"]),
        ("&lt;b&gt; is a tag", ["<b> is a tag"]),
        ("İ<script>1</script>İ", ["İİ"]),
        ("", []),
    ],
)
def test_markup_becomes_lines_of_text(document, lines):
    expected = lines if lines is not None else ["a < b and c > d, List<String>, <eop> < AT&T ?a=1&copy=2"]
    assert plain_lines(document) == expected


def test_unclosed_markup_of_a_megabyte_is_read_in_a_second():
    assert len(plain_lines("<script <!-- <a &" * 60_000)) == 1


@pytest.mark.parametrize(("text", "language"), [(GERMAN, "de"), (CHINESE, "zh"), (RUSSIAN, "ru"), (TEMPLATES[0], "en")])
def test_prose_in_other_languages_breaks_no_rule(text, language, tmp_path):
    assert find_fault([text], language) is None
    documents, report = cleaned(
        write(tmp_path / "texts.jsonl", [GERMAN, CHINESE, RUSSIAN, TEMPLATES[0]]), tmp_path, [language]
    )
    assert [document[0] for document in documents if document] == [text]
    assert report["rules"]["language"]["count"] == 3


WORDS = TEMPLATES[0].split()


@pytest.mark.parametrize(
    ("rule", "lines"),
    [
        ("lorem ipsum", [TEMPLATES[0], "Lorem ipsum dolor"]),
        ("length", [" ".join(WORDS[:49])]),
        ("length", [CHINESE[:99]]),
        ("word length", [" ".join(["".join(WORDS[n : n + 4]) for n in range(60)])]),
        ("symbols", [" ".join(f"#{word}" for word in WORDS)]),
        ("bullets", ["- " + " ".join(WORDS[n : n + 4]) for n in range(0, 80, 4)]),
        ("ellipses", [" ".join(WORDS[n : n + 40]) + ("…" if n else "") for n in (0, 30, 60)]),
        ("no letters", [" ".join(WORDS[:50] + ["123"] * 20)]),
        ("no letters", [CHINESE + "，。1234567890" * 30]),
        ("stop words", [" ".join(f"{word}s" for word in WORDS)]),
        ("repetition", [TEMPLATES[0], TEMPLATES[0], TEMPLATES[1]]),
        ("repetition", [" ".join(WORDS[:20] + WORDS[30:80] + WORDS[:20])]),
        ("repetition", [CHINESE + CHINESE[:60]]),
    ],
)
def test_each_rule_finds_what_it_names(rule, lines):
    assert find_fault(lines, "zh" if CHINESE[:9] in lines[0] else "en") == rule
    assert rule in SOURCES


def test_numbers_and_case_do_not_make_lines_differ_but_tables_do():
    assert normalize_line("Posted on 3. May, 12:30") == normalize_line("posted on 14 May 8:05")
    assert normalize_line("12 | 7") != normalize_line("13 | 7")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("--clean", "english"), "--clean english is none of the "),
        (("--clean", "--fields", "text:word"), "--clean works on prose, not on records: leave it out"),
        (("--clean", "de"), "--clean drops all of its documents, of all texts most for language"),
    ],
)
def test_what_cannot_be_cleaned_is_one_line(refused, place, settings, message):
    write(place / "pages.jsonl", [page.text for page in crawl(3, 60)])
    assert message in refused("--source", "pages.jsonl", *settings, keeps="de" in settings)


def test_without_the_libraries_the_extra_is_named(prepare, pages, monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid", None)
    with pytest.raises(
        InputError, match=r"`clean` needs datasketch and py3langid: pip install -e '\.\[clean\]' in the"
    ):
        prepare(pages, "corpus")


def test_the_command_prints_what_each_rule_dropped(place, capsys):
    write(place / "pages.jsonl", [page.text for page in crawl(3, 120)])
    settings = commands.PrepareSettings(
        source=("pages.jsonl",), out="corpus", tokenizer="tokenizer", block_len=64, clean=()
    )
    for _ in range(2):
        commands.print_corpus(settings)
        out = capsys.readouterr().out
        assert re.search(
            r"^cleaned     \d+ of 120 documents kept\n  repeated line    [\d,]+ lines \(after CCNet", out, re.M
        )
        assert "  ten examples of each are in corpus/clean.json\n" in out
