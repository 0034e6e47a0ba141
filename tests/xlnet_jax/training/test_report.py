"""report.html of a run: what it shows, that it is safe to open, and that it cannot fail the run."""

import html
import re

import pytest

import xlnet_jax
from tests.xlnet_jax.training.tiny_run import arguments
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.objectives.presets import parse_config
from xlnet_jax.plots.report import report_page, samples_by_step, table
from xlnet_jax.training import report
from xlnet_jax.training.stop import LoopRequest

train = COMMANDS["train"]
WITH = "--eval.samples"
HEADINGS = ["Loss", "Samples of held-out text", "Attention", "Run and data", "Settings", "Next"]


@pytest.fixture(scope="module")
def reported(text, tmp_path_factory):
    """Return the page of a run, and its output."""
    folder = tmp_path_factory.mktemp("reported") / "run"
    assert train.main(arguments(text, folder, WITH)) == 0
    return folder


def headings_of(page):
    return re.findall("<h2>(.*?)</h2>", page)


def test_a_report_has_curves_samples_attention_data_settings_and_next_commands(reported):
    page = (reported / "report.html").read_text()
    assert [heading for heading in headings_of(page) if heading != "Chosen, and why"] == HEADINGS
    assert len(re.findall('src="data:image/png;base64,[A-Za-z0-9+/=]{1000,}"', page)) == 2
    assert re.findall("<dt>(step [0-9]+), loss", page) == ["step 6", "step 12"] * 2
    assert "held-out loss " in page
    assert f"python -m xlnet_jax.generate {reported}" in html.unescape(page)
    assert "<th>--model.d-model</th><td>16</td>" in page
    assert "validation  " in page


def test_a_report_loads_nothing_from_other_hosts_and_has_no_scripts(reported):
    page = (reported / "report.html").read_text()
    loaded = re.findall(r"""(?:src|href|action|url)\s*[=(]\s*["']?([^"'>\s]{1,20})""", page)
    assert loaded
    assert all(address.startswith("data:image/png") for address in loaded)
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_text_with_markup_is_shown_and_not_obeyed(text, tmp_path):
    attack = "<script>alert(1)</script> & <img src=http://other.example/x>"
    poisoned = tmp_path / "a&b<i>.txt"
    poisoned.write_text("\n".join(f"{line.rstrip()} {attack}" for line in text.read_text().splitlines() if line))
    assert train.main(arguments(poisoned, tmp_path / "run", WITH, "--steps", "6")) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script" not in page
    assert "<img src=http" not in page
    assert "<i>" not in page
    assert "a&amp;b&lt;i&gt;.txt" in page
    record = {"step": 1, "split": "sample", "kind": attack, "before": attack, "drawn": attack, "after": attack}
    built = report_page(attack, [attack], {attack: samples_by_step([record | {"held_out": attack}])})
    assert "<script" not in built + table({attack: attack})
    assert "&lt;script&gt;" in built


def test_a_resumed_run_has_the_report_of_all_its_steps(text, tmp_path):
    run = tmp_path / "run"
    assert train.main(arguments(text, run, WITH, "--steps", "6", "--optimizer.decay-steps", "12")) == 0
    assert "step 12" not in (run / "report.html").read_text()
    assert train.main(arguments(text, run, WITH, "--optimizer.decay-steps", "12")) == 0
    assert re.findall("<dt>(step [0-9]+), loss", (run / "report.html").read_text()) == ["step 6", "step 12"] * 2


class Interrupting(xlnet_jax.Callback):
    def on_step(self, loop, step, numbers):
        if step == 6:
            loop.interrupt.ask(LoopRequest.STOP)


def test_a_run_that_is_stopped_has_a_report_without_attention(text, tmp_path, capsys):
    config = parse_config(arguments(text, tmp_path / "run", WITH), "train", "")
    assert xlnet_jax.pretrain(config, callbacks=[Interrupting()]).stopped
    page = (tmp_path / "run" / "report.html").read_text()
    assert "ended at step " in page
    assert "Attention" not in headings_of(page)
    assert "\n  report " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("broken", "says"),
    [("report_page", "report      not written: no ink"), ("attention_weights", "attention   not drawn: no ink")],
)
def test_a_failure_to_draw_is_one_line_and_does_not_fail_the_run(broken, says, text, tmp_path, monkeypatch, capsys):
    def fail(*arguments, **more):
        raise RuntimeError("no ink")

    monkeypatch.setattr(report, broken, fail)
    assert train.main(arguments(text, tmp_path / "run", "--steps", "3")) == 0
    out = capsys.readouterr().out
    assert says in out
    assert "checkpoint " in out
    assert (tmp_path / "run" / "report.html").exists() == (broken != "report_page")


def test_of_many_evaluations_a_report_shows_some_at_even_distances():
    sample = {"split": "sample", "kind": "filled", "before": "a", "drawn": "b", "after": "c", "held_out": "d"}
    page = samples_by_step([sample | {"step": 10 * n} for n in range(1, 501)])
    shown = [int(step.replace(",", "")) for step in re.findall("<dt>step ([0-9,]+)", page)]
    assert len(shown) == 12
    assert shown[0] == 10
    assert shown[-1] == 5000
