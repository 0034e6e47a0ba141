"""The numbers on the pages are those that the commands printed, the code has, and the pictures show."""

import re

import pytest

from benchmarks import (
    any_order_study,
    eight_tasks,
    first_tpu_run,
    fit_scaling,
    long_recall,
    modern,
    narrow_start,
    proteins,
    receptors,
    results,
    sessions,
    studies,
    table6,
)
from docs import any_order_picture
from tests.docs.pictures import assert_same_picture
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.planning.scaling_law import read_fits

REPORTS = {
    any_order_study.NAME: any_order_study.report,
    eight_tasks.NAME: lambda measured: eight_tasks.report(measured, False),
    long_recall.NAME: long_recall.report,
    modern.NAME: modern.report,
    narrow_start.NAME: narrow_start.report,
    proteins.NAME: proteins.report,
    receptors.NAME: receptors.report,
    sessions.NAME: sessions.report,
    table6.NAME: table6.report,
}
NOT_MEASURED: dict[str, set[str]] = {
    "README.md": {"2.0", "3.11", "3.13"},  # versions
    "docs/any_order.md": set(),
    "docs/gallery.md": set(),
    "docs/measured.md": {"0.1", "2.6"},  # a setting, and a section of the paper
}
"""pages on which every other number with a point is a result"""


@pytest.mark.parametrize("page", results.pages(), ids=lambda page: page.relative_to(results.ROOT).as_posix())
def test_a_page_has_the_results_as_they_are(page):
    text = page.read_text()
    assert text == results.fill(text, results.read() | {"code": results.counts_of_code()}), "run `make reference`"
    assert [comment for comment in re.findall(r"<!--(?! ).*?-->", text) if not results.MARK.fullmatch(comment)] == []
    alone = re.findall(r"^ *<!--([\w-]+)-->$", text, re.MULTILINE)
    assert alone == [name for _, name, *_ in results.BLOCK.findall(text)], "a result has no table or output below it"
    # Markdown does not format a line that begins with a comment.
    assert re.findall(r"^(?:[-*] |\d+\. )? *<!--[\w-]+:.*", text, re.MULTILINE) == []


@pytest.mark.parametrize("name", NOT_MEASURED)
def test_every_number_on_a_page_of_measurements_is_a_result(name):
    text = results.BLOCK.sub("", (results.ROOT / name).read_text())
    text = re.sub(results.MARK.pattern + results.NUMBER.pattern, "", text)
    text = re.sub(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE)
    found = set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", text))
    assert found - NOT_MEASURED[name] == set(), "name the result in a comment before it (benchmarks/results.py)"


def test_the_results_of_studies_follow_from_their_records(tmp_path, monkeypatch, capsys):
    kept = results.read()
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
    for name, report in REPORTS.items():
        report(studies.read(studies.MEASURED / name))
    fit_scaling.report(read_fits())
    first_tpu_run.report(kept)
    found = results.read()
    assert len(found) >= 17
    for name, result in found.items():
        assert [kept[name][key] for key in ("head", "rows")] == [result["head"], result["rows"]], name


def test_a_law_is_fitted_to_the_recorded_runs():
    for method, where in fit_scaling.STUDIES.items():
        runs, _ = fit_scaling.runs_of(*where[:3])
        fit = read_fits()[method]
        assert fit.parameters == (min(run["parameters"] for run in runs), max(run["parameters"] for run in runs))
        assert fit.tokens == (min(run["tokens"] for run in runs), max(run["tokens"] for run in runs))


def test_every_result_says_where_it_comes_from():
    for name, result in results.read().items():
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["date"]), name
        assert re.fullmatch(r"[0-9a-f]{7,}", result["commit"]), name
        assert result["machine"], name
        assert result["command"].startswith("python "), name
        assert not re.search(r"/(home|work|tmp|root)/", str(result)), name
    for name, command in results.COMMANDS.items():
        room, _, module = command.split()[0].partition(".")
        assert module in COMMANDS if room == "xlnet_jax" else (results.ROOT / "benchmarks" / f"{module}.py").exists(), (
            name
        )
        assert "lines" in results.read()[name], name


def test_pictures_of_studies_are_drawn_from_their_records(tmp_path):
    fit_scaling.draw(read_fits(), tmp_path / "results_scaling.png")
    assert_same_picture(tmp_path / "results_scaling.png")
    receptors.draw(studies.read(studies.MEASURED / receptors.NAME), tmp_path / "receptors.png")
    assert_same_picture(tmp_path / "receptors.png")
    any_order_study.draw(studies.read(studies.MEASURED / any_order_study.NAME), tmp_path / "any_order_samples.png")
    assert_same_picture(tmp_path / "any_order_samples.png")
    any_order_picture.draw(tmp_path / "any_order.png")
    assert_same_picture(tmp_path / "any_order.png")


PAGE = """The loss is <!--losses:64:loss-->9.9, of <!--code:notebooks-->three; <!--printed:loss:2-->+1.5 and 9.9.

<!--losses-->

| a |
|---|
| 9.9 |

<!--printed-->

```
$ command
loss 9.9, then 9.9
…
```
"""
KEPT = {
    "losses": {"head": ["width", "loss"], "rows": [["64", "4.570 ± 0.024"], ["96", "4.504"]]},
    "printed": {"lines": ["begins", "loss 3.585, then +2.583", "ends"]},
    "code": {"head": ["what", "count"], "rows": [["notebooks", "four"]]},
}


def test_a_page_is_written_from_its_results():
    written = results.fill(PAGE, KEPT)
    assert (
        "is <!--losses:64:loss-->4.570, of <!--code:notebooks-->four; <!--printed:loss:2-->+2.583 and 9.9." in written
    )
    assert "\n<!--losses-->\n\n| width | loss |\n|---|---|\n| 64 | 4.570 ± 0.024 |\n| 96 | 4.504 |\n\n<!--pr" in written
    assert written.endswith("```\n$ command\nloss 3.585, then +2.583\n…\n```\n")
    assert results.fill(written, KEPT) == written


@pytest.mark.parametrize(
    "mark", ["<!--lost:64:loss-->1", "<!--losses:128:loss-->1", "<!--losses:64:cost-->1", "<!--printed:cost-->1",
             "<!--losses:64-->."]
)  # fmt: skip
def test_a_result_that_is_not_kept_is_an_error(mark):
    with pytest.raises(KeyError):
        results.fill(f"The loss is {mark}", KEPT)


def test_a_result_keeps_its_date_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
    results.keep("a", {"lines": ["1.5"]})
    kept = results.read()
    results.write({"a": kept["a"] | {"date": "2020-01-01"}})
    results.keep("a", {"lines": ["1.5"]})
    assert results.read()["a"]["date"] == "2020-01-01"
    results.keep("a", {"lines": ["1.6"]})
    assert results.read()["a"] == kept["a"] | {"lines": ["1.6"]}
