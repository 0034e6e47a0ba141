"""Commands of studies, some of which run for hours: all their settings exist and agree with each other."""

from pathlib import Path

import pytest

from benchmarks import chinese, english, long_recall, table6, tiny
from benchmarks.eight_tasks import STARTS, TASKS
from xlnet_jax.api import runs
from xlnet_jax.comparison import request
from xlnet_jax.finetune import main as finetune
from xlnet_jax.objectives import command_line


@pytest.mark.parametrize("study", [chinese, english, long_recall, tiny], ids=lambda study: study.__name__)
def test_of_pretraining(study):
    config = command_line.parse_config([*study.SETTINGS, "--corpus", "corpus", "--workdir", "run"], "train", "")
    assert config.corpus == ("corpus",)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_of_finetuning(task, start, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "start", lambda config, *_: config)
    _, *words = task.command(start, 1e-3, [0, 1], (Path("train"), Path("dev")), "tiny", tmp_path)
    config = finetune(words)
    assert (config.reinitialize, config.seeds) == (start == "random", (0, 1))


@pytest.mark.parametrize("contender", table6.CONTENDERS)
def test_of_a_comparison(contender, tmp_path):
    for folder, _ in table6.TASKS.values():
        (tmp_path / folder).mkdir(parents=True)
        for part in ("train", "dev"):
            (tmp_path / folder / f"{part}.tsv").write_text("")
    _, *words = table6.command(contender, 0, "corpus", tmp_path, tmp_path / "run")
    asked = request.parse(words, "")
    assert set(request.finetuning(asked)) == set(table6.TASKS)
