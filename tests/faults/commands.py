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
from tests.faults.children import Children
from tests.xlnet_jax.training.tiny_run import TINY, records_of

Result = Mapping[str, Any]
TRAIN = (
    f"{' '.join(TINY)} --steps 6 --log.every-steps 2 --eval.every-steps 3 --eval.max-windows 16 "
    "--checkpoint.every-steps 2 --checkpoint.keep 1"
)
FINETUNE = (
    "--steps 4 --optimizer.warmup-steps 1 --optimizer.learning-rate 0.02 --data.batch-size 8 --data.seq-len 16 "
    "--data.buckets 16 --selection.every-steps 2 --checkpoint.every-steps 2 --checkpoint.keep 1"
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


def make_inputs(folder: Path, children: Children) -> None:
    with open(sources.embedded()[0]) as novels:
        (folder / "novel.txt").write_text("".join(itertools.islice(novels, 400)))
    rows = [f"{text}\t{label}" for label, text in enumerate(("a dreadful rain", "a lovely walk"))] * 8
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    outcome = children.run(COMMANDS["train"].words(folder), folder)
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


def _run(folder: Path) -> Result:
    """Return the learned numbers, and a hash of every file that holds no time."""
    run = folder / "run"
    checkpoints = _names(run / "checkpoints")
    kept = ("config.json", "text.json", "tokenizer/*", "corpus/**/*", "results.json", "predictions/*")
    return {
        "names": _names(folder),
        "run": _names(run),
        "checkpoints": checkpoints,
        "states": [_state(run / "checkpoints" / step) for step in checkpoints],
        "records": records_of(run),
        "files": _hashes(run, *kept),
    }


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
        Command("convert", "xlnet_jax.convert {given}/run hf --to hf", _files_alone),
    )
}
