"""The folder of a run: one run each, told apart by its identity settings.

config.json        the resolved settings         metrics.jsonl   losses and rates, one JSON object a line
tokenizer/         spiece.model and its settings  tensorboard/    the same as events
corpus/            token blocks                   curves.png      the picture, at the end
checkpoints/STEP/  the state of training          text.json       fingerprints of the text
compiled/          programs, for a restart        wandb-id        of the run at Weights & Biases
results.json       of a finetuning run that ended predictions/    what it says of its texts

On a disk or in a bucket (gs://bucket/folder).
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any, TypeVar

from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import Config, RunConfig
from xlnet_jax.settings.fields import differences
from xlnet_jax.settings.plain import from_dict, identity_difference, to_dict
from xlnet_jax.storage.files import demand_bucket_library, in_bucket, write_durably
from xlnet_jax.storage.lock import Lock

R = TypeVar("R", bound=RunConfig)


class Workdir:
    """Paths of a run. `claim` makes the folder, or refuses one that holds another run."""

    def __init__(self, folder: epath.PathLike):
        self.folder = folder = epath.Path(folder)
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
        return self.checkpoints.is_dir() and any(
            p.name.isdigit() and _is_complete(p) for p in self.checkpoints.iterdir()
        )

    def resumes(self, kind: type[R]) -> R | None:
        """The settings of the run that is here and has learned something; None where there is none."""
        return self.settings(kind) if self.has_checkpoints and self.config.exists() else None

    def claim(self, config: RunConfig) -> None:
        """Takes the folder for this process and writes the settings. InputError names the identity settings in which a
        run that is here differs, or the process that is running it. Before its first checkpoint a run may change."""
        self.lock()
        if self.config.exists() and self.has_checkpoints:
            self._refuse(identity_difference(config, self.settings(type(config))))
        elif isinstance(config, Config) and self.config.exists() and not _has_text_of(config, self.settings(Config)):
            for made_for_other_settings in (self.tokenizer, self.corpus):
                made_for_other_settings.rmtree(missing_ok=True)
        self.write_settings(config)

    def write_settings(self, config: RunConfig) -> None:
        """Into config.json."""
        write_durably(self.config, _as_json(to_dict(config)))

    def claim_text(self, made_from: dict[str, Any]) -> None:
        """The same for the text, by its fingerprints (`Manifest.made_from`), which outlive the corpus folder."""
        there = json.loads(self.text.read_bytes()) if self.text.exists() else made_from
        if self.has_checkpoints:
            self._refuse(
                [f"its {name.replace('_', ' ')} is another" for name in made_from if there.get(name) != made_from[name]]
            )
        write_durably(self.text, _as_json(made_from))

    def _refuse(self, difference: list[str]) -> None:
        if difference:
            hint = "; steps may change only under an --optimizer.decay-steps of their own"
            raise InputError(
                f"workdir {self.folder} holds another run ({'; '.join(difference)}): give its settings, or another "
                f"--workdir{hint if any(d.startswith('steps: ') for d in difference) else ''}"
            )

    def make(self) -> None:
        """Makes the folder, where it is not there. InputError where that cannot be."""
        with self._named():
            self.folder.mkdir(parents=True, exist_ok=True)

    def lock(self) -> None:
        """Makes the folder, and takes it for as long as this object lives. InputError names the process that has it."""
        if in_bucket(self.folder):
            demand_bucket_library()
        self.make()
        with self._named():
            self._lock = Lock(self.folder)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            raise InputError(f"workdir {self.folder} cannot be made a folder: {error.strerror or error}") from None
        except InputError:
            raise
        except Exception as error:  # of the library that speaks to the bucket
            if not in_bucket(self.folder):
                raise
            reason = str(error).partition("\n")[0][:200]
            raise InputError(
                f"workdir {self.folder} cannot be written ({reason}): check the name, and that your account may write "
                "there (role Storage Object User, `gcloud auth application-default login`)"
            ) from None

    def settings(self, kind: type[R]) -> R:
        """Those of config.json. InputError where they are not of this kind."""
        try:
            return from_dict(kind, json.loads(self.config.read_text()))
        except (ValueError, TypeError, AttributeError) as error:
            reason = str(error).partition(";")[0]
            raise InputError(
                f"{self.config} is not the settings of a run of this kind ({reason}): give another --workdir"
            ) from None


def _has_text_of(ours: Config, theirs: Config) -> bool:
    """Say whether both settings give the same tokenizer and the same blocks."""
    return not any(setting.has("text", "blocks") for setting, _ in differences(ours, theirs))


def _as_json(values: dict[str, Any]) -> bytes:
    return json.dumps(values, indent=2).encode()


def _is_complete(checkpoint: epath.Path) -> bool:
    """Orbax renames a finished folder on a disk, and puts a file into one in a bucket."""
    return not in_bucket(checkpoint) or (checkpoint / "commit_success.txt").exists()
