"""Metrics of a run on disk: metrics.jsonl, one JSON object a line, and TensorBoard events."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath
from tensorboardX import SummaryWriter

from xlnet_jax.errors import InputError
from xlnet_jax.storage.files import Spool, write_durably
from xlnet_jax.storage.reading import demand_regular, parse_json
from xlnet_jax.storage.versions import with_version, without_version
from xlnet_jax.training.watch.wandb import WandbRun

Record = dict[str, float | int | str]
_FIRST: Record = {"step": 0, "split": "format"}
"""First record of the file, beside its version"""


class MetricsWriter:
    """Append records: a line is on disk when `write` returns, and in a bucket when `flush` returns.

    A resumed run first drops the records after its checkpoint. Use as a context manager.
    """

    def __init__(
        self, path: epath.Path, events_folder: epath.Path, resume_step: int, wandb_run: WandbRun | None = None
    ):
        kept = [r for r in read_records(path) if r["step"] <= resume_step]
        self._spool = Spool(path.parent)
        lines = self._spool.folder / path.name
        write_durably(lines, "".join(map(_line, (with_version("metrics", _FIRST), *kept))).encode())
        self._lines = lines.open("a", buffering=1)
        self.events_folder = self._spool.folder / events_folder.name  # on this machine
        # TensorBoard hides the events that an interrupted run wrote after its last checkpoint: they are written again.
        self._events = SummaryWriter(str(self.events_folder), purge_step=resume_step + 1)
        self._wandb_run = wandb_run

    def write(self, record: Record) -> None:
        """Write a record: "step", "split" (train, validation or time) and numbers."""
        self._lines.write(_line(record))
        numbers = {
            f"{record['split']}/{name}": float(value)
            for name, value in record.items()
            if name not in ("step", "split", "at") and math.isfinite(float(value))
        }
        for name, value in numbers.items():
            self._events.add_scalar(name, value, record["step"])
        if self._wandb_run:
            self._wandb_run.log(int(record["step"]), numbers)

    def flush(self) -> None:
        """Make what was written so far outlive a crash of this machine: upload it to a bucket."""
        os.fsync(self._lines.fileno())
        self._events.flush()
        self._spool.publish()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
        self._lines.close()
        self._events.close()
        self._spool.publish()
        if self._wandb_run:
            self._wandb_run.finish()


def _line(record: Record) -> str:
    """Return a line of JSON; a number that is not finite becomes null."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(plain) + "\n"


def read_records(path: epath.Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a metrics.jsonl after the first, which has the version, with NaN for null.

    Skip damaged lines, such as a last one cut off by a crash. Raises InputError where the version is missing or not the
    one that is read here.
    """
    if not path.exists():
        return
    demand_regular(path)
    lines = path.read_bytes().decode(errors="replace").splitlines()
    if lines:
        where, remedy = f"{path}, line 1", "delete the file: the run goes on without its earlier records"
        without_version("metrics", parse_json(lines[0], where, dict[str, Any], remedy), where, remedy)
    for line in lines[1:]:
        try:
            record = parse_json(line, str(path), dict[str, int | float | str | None])
        except InputError:
            continue
        whole = {"step", "split", _HAS.get(str(record.get("split")), "step")} <= record.keys()
        texts = {name for name, value in record.items() if isinstance(value, str)}
        if whole and texts <= {"split"} and isinstance(record["step"], int) and 0 <= record["step"] < 2**31:
            yield {k: math.nan if v is None else v for k, v in record.items()}


_HAS = {"train": "loss", "time": "wall"}


class SilentWriter(MetricsWriter):
    """Writer of all processes but the first: it writes nothing."""

    def __init__(self) -> None:
        """Open nothing."""
        self.events_folder = Path()

    def write(self, record: Record) -> None:
        """Write nothing."""

    def flush(self) -> None:
        """Upload nothing."""

    def __exit__(self, *_: object) -> None:
        """Close nothing."""
