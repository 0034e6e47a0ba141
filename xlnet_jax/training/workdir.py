"""The folder of a run: one run each, told apart by its identity settings.

config.json        the resolved settings         metrics.jsonl   losses and rates, one JSON object a line
tokenizer/         spiece.model and its settings  tensorboard/    the same as events
corpus/            token blocks                   curves.png      the picture, at the end
checkpoints/STEP/  the state of training          text.json       fingerprints of the text
compiled/          programs, for a restart        wandb-id        of the run at Weights & Biases
"""

import fcntl
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

from xlnet_jax.config import Config, InputError, from_dict, identity_difference, to_dict


class Workdir:
    """Paths of a run. `claim` makes the folder, or refuses one that holds another run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.config = folder / "config.json"
        self.text = folder / "text.json"
        self.tokenizer = folder / "tokenizer"
        self.corpus = folder / "corpus"
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"
        self.tensorboard = folder / "tensorboard"
        self.curves = folder / "curves.png"
        self.compiled = folder / "compiled"
        self.wandb_id = folder / "wandb-id"

    @property
    def has_checkpoints(self) -> bool:
        """Has anything been learned here that another run could spoil?"""
        return self.checkpoints.is_dir() and any(p.name.isdigit() for p in self.checkpoints.iterdir())

    def resumes(self) -> Config | None:
        """The settings of the run that is here and has learned something; None where there is none."""
        return self._there() if self.has_checkpoints and self.config.exists() else None

    def claim(self, config: Config) -> None:
        """Takes the folder for this process and writes the settings. InputError names the identity settings in which a
        run that is here differs, or the process that is running it. Before its first checkpoint a run may change."""
        self._make()
        self._lock()
        if self.config.exists() and self.has_checkpoints:
            self._refuse(identity_difference(config, self._there()))
        elif self.config.exists() and self.config.read_bytes() != _as_json(to_dict(config)):
            for made_for_other_settings in (self.tokenizer, self.corpus):
                shutil.rmtree(made_for_other_settings, ignore_errors=True)
        _write_durably(self.config, _as_json(to_dict(config)))

    def claim_text(self, made_from: dict[str, Any]) -> None:
        """The same for the text, by its fingerprints (`Manifest.made_from`), which outlive the corpus folder."""
        there = json.loads(self.text.read_bytes()) if self.text.exists() else made_from
        if self.has_checkpoints:
            self._refuse(
                [f"its {name.replace('_', ' ')} is another" for name in made_from if there.get(name) != made_from[name]]
            )
        _write_durably(self.text, _as_json(made_from))

    def _refuse(self, difference: list[str]) -> None:
        if difference:
            hint = "; steps may change only under an --optimizer.decay-steps of their own"
            raise InputError(
                f"workdir {self.folder} holds another run ({'; '.join(difference)}): give its settings, or another "
                f"--workdir{hint if any(d.startswith('steps: ') for d in difference) else ''}"
            )

    def _make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            raise InputError(f"workdir {self.folder} cannot be made a folder: {error.strerror}") from None

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
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{self.config} is not the settings of a run: {error}") from None


def _as_json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, indent=2).encode()


def _write_durably(path: Path, content: bytes) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
