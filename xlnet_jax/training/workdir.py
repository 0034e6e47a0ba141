"""The folder of a run: one run each, told apart by its identity settings.

config.json        the resolved settings         metrics.jsonl   losses and rates, one JSON object a line
tokenizer/         spiece.model and its settings  tensorboard/    the same as events
corpus/            token blocks                   curves.png      the picture, at the end
checkpoints/STEP/  the state of training
"""

import json
import os
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
        """Writes the settings. InputError names the identity settings in which a run that is here differs."""
        if self.config.exists():
            difference = identity_difference(config, self._there())
            if difference:
                raise InputError(
                    f"workdir {self.folder} holds another run ({'; '.join(difference)}): give its settings, or another "
                    "--workdir"
                )
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.config.with_suffix(".partial")
        with partial.open("w") as file:
            json.dump(to_dict(config), file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.config)

    def _there(self) -> Config:
        try:
            return from_dict(json.loads(self.config.read_text()))
        except (json.JSONDecodeError, InputError, TypeError) as error:
            raise InputError(f"{self.config} is not the settings of a run: {error}") from None
