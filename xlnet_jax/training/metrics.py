"""The numbers of a run on disk: metrics.jsonl, one JSON object a line, and TensorBoard events beside it."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from xlnet_jax.training.weights_and_biases import WandbRun

Record = dict[str, float | int | str]


class MetricsWriter:
    """Appends records; each line is on disk before `write` returns. A resumed run first drops what lies ahead of it.
    Use as a context manager."""

    def __init__(self, path: Path, events_folder: Path, resume_step: int, wandb_run: WandbRun | None = None):
        kept = [r for r in read_records(path) if r["step"] <= resume_step]
        partial = path.with_suffix(".partial")
        partial.write_text("".join(map(_line, kept)))
        partial.replace(path)
        self._lines = path.open("a", buffering=1)
        # What an interrupted run wrote ahead of its last checkpoint is hidden, and written again.
        self._events = SummaryWriter(str(events_folder), purge_step=resume_step + 1)
        self._wandb_run = wandb_run

    def write(self, record: Record) -> None:
        """A record has "step", "split" (train, validation or time) and numbers."""
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

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._events.close()
        if self._wandb_run:
            self._wandb_run.finish()


def _line(record: Record) -> str:
    """JSON has no number for a loss that is not finite: it becomes null."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
    return json.dumps(plain) + "\n"


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics.jsonl, NaN for null; lines that are none, such as a last one cut off by a crash, are
    passed over."""
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and {"step", "split", _HAS[record.get("split") == "time"]} <= record.keys():
            yield {k: math.nan if v is None else v for k, v in record.items()}


_HAS = {False: "loss", True: "wall"}
