"""Accuracies on minimal pairs are shares of pairs whose acceptable sentence is likelier."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import xlnet_jax
from data_pipelines import sources
from xlnet_jax import InputError, score_texts
from xlnet_jax.__main__ import COMMANDS

command = COMMANDS["evaluate"]

SENTENCES = [
    "The list is new names", "The new names is list", "list The is names new", "new list names is The",
    "names new The list is", "is The names list new",
]  # fmt: skip
PARADIGMS = {"agreement_1": ("agreement", 4), "agreement_2": ("agreement", 2), "island": ("islands", 3)}


def rows_of(paradigm):
    phenomenon, count = PARADIGMS[paradigm]
    for i in range(count):
        # The last pair of each paradigm has equal pieces.
        bad = SENTENCES[(i + 1) % 6] if i < count - 1 else f" {SENTENCES[i]}"
        pair = {"sentence_good": SENTENCES[i], "sentence_bad": bad}
        yield {**pair, "UID": paradigm, "linguistics_term": phenomenon, "field": "syntax", "pairID": str(i)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blimp")
    for paradigm in PARADIGMS:
        (folder / f"{paradigm}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(paradigm)))
    return folder


def test_accuracies_are_means_over_paradigms_and_ties_count_half(model, checkpoint, folder, tmp_path):
    out = tmp_path / "blimp.json"
    found = xlnet_jax.evaluate(checkpoint, suite="blimp", text=str(folder), seed=3, out=str(out))
    expected = {}
    for word in ("left-to-right", "random:4", "pseudo"):
        shares = []
        for paradigm in PARADIGMS:
            pairs = [(row["sentence_good"], row["sentence_bad"]) for row in rows_of(paradigm)]
            scores = [[score_texts(model, [text], word, seed=3)[0].log_likelihood for text in pair] for pair in pairs]
            right = [good > bad for good, bad in scores[:-1]]
            shares.append((sum(right) + 0.5) / len(pairs))
            assert found.measured.tables["paradigms"][paradigm][word].value == pytest.approx(100 * shares[-1])
        expected[word] = {"agreement": np.mean(shares[:2]), "islands": shares[2], "all": np.mean(shares)}
        for phenomenon, share in expected[word].items():
            estimate = found.measured.tables["phenomena"][phenomenon][word]
            assert estimate.value == pytest.approx(100 * share)
            assert estimate.low <= estimate.value <= estimate.high
            assert f"{100 * share:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]" in found.report
    assert len({tuple(by_name.values()) for by_name in expected.values()}) > 1  # the orders differ
    assert "pairs       9 in 3 paradigms" in found.report
    assert "with a chance level of 50 %" in found.report
    assert json.loads(out.read_text()) == found.measured.numbers()
    assert list(found.measured.numbers()["paradigms"]) == list(PARADIGMS)


def test_parquet_gives_the_numbers_of_json_lines_and_max_texts_limits_each_paradigm(checkpoint, folder, tmp_path):
    rows = [row for paradigm in PARADIGMS for row in rows_of(paradigm)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "blimp.parquet")
    settings = {"suite": "blimp", "orders": ["left-to-right"], "max_texts": 2}
    tables = [
        xlnet_jax.evaluate(checkpoint, text=str(path), **settings).measured
        for path in (folder, tmp_path / "blimp.parquet")
    ]
    assert tables[0] == tables[1]
    assert tables[0].facts["pairs"] == 6


def test_a_dataset_on_the_hub_means_the_files_of_all_its_configurations(checkpoint, folder, monkeypatch):
    asked = []

    def find(names, settings):
        asked.extend(names)
        raise InputError("found")

    monkeypatch.setattr(sources, "find", find)
    names = ["hf:nyu-mll/blimp", "hf:nyu-mll/blimp/wh_island", "hf:nyu-mll/blimp:train", str(folder)]
    with pytest.raises(InputError, match="found"):
        xlnet_jax.evaluate(checkpoint, suite="blimp", text=names)
    assert asked == ["hf://datasets/nyu-mll/blimp", *names[1:]]


def test_a_causal_network_judges_from_left_to_right(causal, folder, tmp_path):
    xlnet_jax.save(causal, tmp_path / "causal")
    found = xlnet_jax.evaluate(tmp_path / "causal", suite="blimp", text=str(folder)).measured
    assert list(found.tables["phenomena"]["all"]) == ["left-to-right"]


def test_what_is_no_suite_is_named_in_one_line(checkpoint, folder, tmp_path):
    (row,) = [*rows_of("island")][:1]
    for number, gone in enumerate(("sentence_good", "UID")):
        lines = [row, {name: value for name, value in row.items() if name != gone}]
        (tmp_path / f"{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "blank.jsonl").write_text(json.dumps({**row, "sentence_bad": " "}) + "\n")
    (tmp_path / "pairs.txt").write_text("A sentence.\n")
    for words, said in (
        (("--text", tmp_path / "0.jsonl"), r"0\.jsonl: line 2 has no 'sentence_good', only 'sentence_bad', 'UID'"),
        (("--text", tmp_path / "1.jsonl"), r"1\.jsonl: line 2 has no 'UID', only"),
        (("--text", tmp_path / "empty.jsonl"), r"--suite blimp: there are no pairs in .*empty\.jsonl"),
        (("--text", tmp_path / "blank.jsonl"), r"blank\.jsonl: line 1: a sentence has no pieces"),
        (("--text", tmp_path / "pairs.txt"), r"--suite blimp: .*pairs\.txt is neither JSON Lines nor Parquet"),
        ((), r"--suite blimp needs --text, the names of its files"),
        (("--text", folder, "--mesh.fsdp", "1"), r"--mesh\.fsdp is for windows, but --suite reads whole texts"),
        (("--text", folder, "--orders", "up"), r"--orders up: give one or several"),
    ):
        with pytest.raises(InputError, match=said):
            command.main([str(checkpoint), "--suite", "blimp", *map(str, words)])
