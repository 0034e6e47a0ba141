"""The examples of docs/trainer.md, and that of docs/README.md, run as they stand, on a tiny network and text."""

import re
from pathlib import Path

import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.ids import IdCorpus
from data_pipelines.windows import block_len
from tests.docs.test_commands import ROOT
from xlnet_jax.objectives.registry import batch_source
from xlnet_jax.training.metrics import read_records
from xlnet_jax.training.workdir import Workdir

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
EXAMPLES = [
    *BLOCK.findall((ROOT / "docs/trainer.md").read_text()),
    BLOCK.findall((ROOT / "docs/README.md").read_text())[0],
]
PACKAGES = ("optuna", "mlflow")
TINY = {
    "model": {
        "num_layers": 1,
        "d_model": 16,
        "num_heads": 1,
        "d_head": 16,
        "d_ff": 16,
        "mem_len": 16,
        "vocab_size": 300,
    },
    "data": {"batch_size": 8, "seq_len": 32, "windows_per_block": 4},
    "eval": {"every_steps": 2, "max_windows": 8},
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 1},
    "steps": 4,
}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number, tmp_path, monkeypatch):
    example = EXAMPLES[number]
    for package in PACKAGES:
        if f"import {package}" in example:
            pytest.importorskip(package, reason=f"no {package}: pip install -e '.[tuners]'")
    preset, shown = xlnet_jax.preset, []

    def tiny(name, **given):
        shown.append(preset(name, **given))
        merged = {key: {**of, **given.get(key, {})} if isinstance(of, dict) else of for key, of in TINY.items()}
        text = {} if "dataset" in example else {"corpus": "novel.txt"}
        return preset(name, **{**given, **merged, **text, "steps": given.get("steps", 4)})

    monkeypatch.setattr(xlnet_jax, "preset", tiny)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    lines = Path(sources.embedded()[1]).read_text().splitlines(keepends=True)
    Path("novel.txt").write_text("".join(lines[:400]))
    names = {}
    exec(compile(example, "docs/trainer.md", "exec"), names)
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 16, "a short example"
    if "optuna" in names:
        assert len(names["study"].trials) == 3
    if "mlflow" in names:
        assert list(tmp_path.glob("mlruns/*/*/metrics/train/loss"))
    if "dataset" in names:
        (config,) = shown
        ids = IdCorpus(names["dataset"], block_len(config.data), config.model.vocab_size)
        batch_source(ids, None, config)  # the page has enough ids for its own settings
    if "Finder" in names:
        assert 1e-5 < names["best"] < 1
        (last,) = [r["step"] for r in read_records(Workdir("runs/finder").metrics) if r["split"] == "train"][-1:]
        assert last == max(names["Finder"].losses)
