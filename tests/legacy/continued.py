"""Continue the runs of version 0.1.0 without dropout, whose masks have changed since: python -m tests.legacy.continued
compares the parameters that they end with."""

import contextlib
import hashlib
import json
import tarfile
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from xlnet_jax.interop.weights import flatten
from xlnet_jax.storage.checksums import write_checksums

HERE = Path(__file__).parent
RUNS: dict[str, dict[str, Any]] = json.loads((HERE / "runs.json").read_text())
LOSSES = ("loss", "pair_loss", "detection_loss")
RATES = ("--model.dropout", "--model.attention-dropout")


def unpack(folder: Path) -> None:
    """Write the folders that README.md lists into `folder`."""
    with tarfile.open(HERE / "yesterday.tar.xz") as archive:
        archive.extractall(folder, filter="data")


def go_on(name: str, folder: Path, *, dropout: bool) -> int:
    """Give the command of a run again, in a folder that holds its workdir. Return the exit code.

    dropout: False = none from here on. The checkpoint must say so too: a run that resumes may not change its rates.
    """
    module, *arguments = RUNS[name]["command"].split()
    if not dropout:
        _record_no_dropout(folder / name)
        arguments = _without(RATES, arguments) + [word for rate in RATES for word in (rate, "0")]
    with contextlib.chdir(folder):
        return import_module(module).main(arguments)


def _without(flags: tuple[str, ...], arguments: list[str]) -> list[str]:
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    return [word for flag, value in pairs if flag not in flags for word in (flag, value)]


def _record_no_dropout(workdir: Path) -> None:
    checkpoint = workdir / "checkpoints" / "3"
    for file in (workdir / "config.json", checkpoint / "config" / "metadata"):
        settings = json.loads(file.read_text())
        settings["model"] |= {"dropout": 0.0, "attention_dropout": 0.0}
        file.write_text(json.dumps(settings))
    write_checksums(checkpoint)


def losses(workdir: Path) -> list[dict[str, Any]]:
    """Return the recorded losses, a row for each step and split."""
    rows = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [{k: r[k] for k in ("step", "split", *LOSSES) if k in r} for r in rows if r["split"] != "time"]


def digest(workdir: Path, step: int = 6) -> str:
    """Return the SHA-256 of a checkpoint's parameters: path, then bytes, of each array in the order of paths."""
    restored = ocp.StandardCheckpointer().restore((workdir / "checkpoints" / str(step) / "params").absolute())
    sha256 = hashlib.sha256()
    for path, array in sorted(flatten(restored).items()):
        sha256.update(path.encode() + np.asarray(array).tobytes())
    return sha256.hexdigest()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        unpack(Path(scratch))
        for run, expected in RUNS.items():
            assert go_on(run, Path(scratch), dropout=False) == 0
            same = digest(Path(scratch) / run) == expected["without_dropout"]["parameters_sha256"]
            print(f"{run:10} {'the same bits' if same else 'OTHER BITS'}", flush=True)
