"""Commands to disturb, each a tiny run, and the results that must not differ."""

import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from data_pipelines import sources
from tests.faults.children import Outcome
from tests.xlnet_jax.training.tiny_run import TINY, records_of

Result = Mapping[str, Any]
TRAIN = (
    f"{' '.join(TINY)} --steps 20 --log.every-steps 2 --eval.every-steps 10 --eval.max-windows 16 "
    "--checkpoint.every-steps 4 --checkpoint.keep 2"
)
FINETUNE = (
    "--steps 12 --optimizer.warmup-steps 1 --optimizer.learning-rate 0.02 --data.batch-size 8 --data.seq-len 16 "
    "--data.buckets 16 --selection.every-steps 4 --checkpoint.every-steps 4 --checkpoint.keep 2"
)


@dataclass(frozen=True)
class Command:
    """Command that runs in a folder of its own, with what it reads in another."""

    name: str
    line: str
    """module and arguments, with {given} for the folder of what it reads; it writes below the current folder"""
    result: Callable[[Path], Result]
    """what must be equal after any disturbance, from the folder that it ran in"""

    def words(self, given: Path) -> list[str]:
        return self.line.format(given=given).split()


def make_inputs(folder: Path, run: Callable[[list[str], Path], Outcome]) -> None:
    """Write a text, tables and a run that the commands read. run: runs a command in a folder."""
    with open(sources.embedded()[0]) as novels:
        (folder / "novel.txt").write_text("".join(itertools.islice(novels, 400)))
    rows = [f"{text}\t{label}" for label, text in enumerate(("a dreadful rain", "a lovely walk"))] * 8
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    outcome = run(COMMANDS["train"].words(folder), folder)
    assert outcome.code == 0, outcome


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _hashes(folder: Path, *globs: str) -> dict[str, str]:
    files = [path for glob in globs for path in sorted(folder.glob(glob)) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _state(checkpoint: Path) -> dict[str, Any]:
    items = {
        item: ocp.StandardCheckpointer().restore(checkpoint.absolute() / item)
        for item in ("params", "optimizer", "guard", "mems")
        if (checkpoint / item).exists()
    }
    leaves = jax.tree_util.tree_leaves_with_path(items)
    return {jax.tree_util.keystr(path): leaf.tobytes().hex() for path, leaf in leaves}


def learned(folder: Path) -> Result:
    """Return the records of a run, the step of its newest checkpoint, and a hash of every file that holds no time."""
    run = folder / "run"
    kept = ("config.json", "text.json", "tokenizer/*", "corpus/**/*", "results.json", "predictions/*")
    return {"records": records_of(run), "newest": newest(run).name, "files": _hashes(run, *kept)}


def newest(run: Path) -> Path:
    """Return the newest checkpoint of a run. Which older ones there are depends on the steps at which it stopped."""
    return max(run.glob("checkpoints/[0-9]*/config"), key=lambda found: int(found.parent.name)).parent


def _run(folder: Path) -> Result:
    names = {"names": _names(folder), "run": _names(folder / "run")}
    return {**names, **learned(folder), "state": _state(newest(folder / "run"))}


def _files_alone(folder: Path) -> Result:
    return {"names": _names(folder), "files": _hashes(folder, "**/*")}


COMMANDS = {
    command.name: command
    for command in (
        Command("train", f"xlnet_jax.train {TRAIN} --corpus {{given}}/novel.txt --workdir run", _run),
        Command(
            "finetune",
            f"xlnet_jax.finetune {FINETUNE} --task sst-2 --init {{given}}/run --train {{given}}/train.tsv "
            "--eval {given}/dev.tsv --predict {given}/dev.tsv --workdir run",
            _run,
        ),
        Command(
            "prepare",
            "data_pipelines.prepare --source {given}/novel.txt --tokenizer {given}/run/tokenizer --block-len 64 "
            "--out corpus",
            _files_alone,
        ),
        Command(
            "tokenizer",
            "data_pipelines.tokenizer train --source {given}/novel.txt --vocab-size 300 --out tok",
            _files_alone,
        ),
        Command("convert", "xlnet_jax.convert {given}/run hf --to hf", _files_alone),
    )
}
