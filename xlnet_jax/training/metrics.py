"""The numbers of a run on disk: metrics.jsonl, one JSON object a line, and TensorBoard events beside it."""

import json
from collections.abc import Iterator
from typing import Any

from etils import epath
from tensorboardX import SummaryWriter

from xlnet_jax.disk import Spool, write_durably

Record = dict[str, float | int | str]


class MetricsWriter:
    """Appends records; each line is on disk before `write` returns, and in a bucket before `flush` does. A resumed run
    first drops what lies ahead of it. Use as a context manager."""

    def __init__(self, path: epath.Path, events_folder: epath.Path, resume_step: int):
        kept = [r for r in read_records(path) if r["step"] <= resume_step]
        self._spool = Spool(path.parent)
        lines = self._spool.folder / path.name
        write_durably(lines, "".join(json.dumps(r) + "\n" for r in kept).encode())
        self._lines = lines.open("a", buffering=1)
        # What an interrupted run wrote ahead of its last checkpoint is hidden, and written again.
        self._events = SummaryWriter(str(self._spool.folder / events_folder.name), purge_step=resume_step + 1)

    def write(self, record: Record) -> None:
        """A record has "step", "split" (train or validation) and numbers."""
        self._lines.write(json.dumps(record) + "\n")
        for name, value in record.items():
            if name not in ("step", "split"):
                self._events.add_scalar(f"{record['split']}/{name}", value, record["step"])

    def flush(self) -> None:
        """What was written until now outlives this machine."""
        self._events.flush()
        self._spool.publish()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._events.close()
        self._spool.publish()


def read_records(path: epath.Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics.jsonl; lines that are none, such as a last one cut off by a crash, are passed over."""
    if not path.exists():
        return
    for line in path.read_bytes().decode(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and {"step", "split", "loss"} <= record.keys():
            yield record
