"""The folder of a run: one run each, told apart by its identity settings.

config.json        the resolved settings         metrics.jsonl   losses and rates, one JSON object a line
tokenizer/         spiece.model and its settings  tensorboard/    the same as events
corpus/            token blocks                   curves.png      the picture, at the end
checkpoints/STEP/  the state of training
"""

import fcntl
import json
import os
import socket
from pathlib import Path

from xlnet_jax.config import Config, InputError, from_dict, identity_difference, to_dict


class Workdir:
    """Paths of a run. `claim` makes the folder, or refuses one that holds another run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.config = folder / "config.json"
        self.tokenizer = folder / "tokenizer"
        self.corpus = folder / "corpus"
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"
        self.tensorboard = folder / "tensorboard"
        self.curves = folder / "curves.png"

    def claim(self, config: Config) -> None:
        """Takes the folder for this process and writes the settings. InputError names the identity settings in which a
        run that is here differs, or the process that is running it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock()
        if self.config.exists():
            difference = identity_difference(config, self._there())
            if difference:
                raise InputError(
                    f"workdir {self.folder} holds another run ({'; '.join(difference)}): give its settings, or another "
                    "--workdir"
                )
        partial = self.config.with_suffix(".partial")
        with partial.open("w") as file:
            json.dump(to_dict(config), file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.config)

    def _lock(self) -> None:
        # Kept open for as long as the process lives: the kernel gives the lock back however it ends.
        self._lock_file = (self.folder / ".lock").open("a+")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock_file.seek(0)
            owner = self._lock_file.read() or "another process"
            raise InputError(f"workdir {self.folder} is in use by {owner}: wait, or give another --workdir") from None
        self._lock_file.truncate(0)
        self._lock_file.write(f"process {os.getpid()} on {socket.gethostname()}")
        self._lock_file.flush()

    def _there(self) -> Config:
        try:
            return from_dict(json.loads(self.config.read_text()))
        except (json.JSONDecodeError, InputError, TypeError) as error:
            raise InputError(f"{self.config} is not the settings of a run: {error}") from None
