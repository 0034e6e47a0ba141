"""The folder of a run. A folder holds one run, which is identified by its identity settings.

config.json        the resolved settings         metrics.jsonl   losses and rates, one JSON object per line
tokenizer/         spiece.model and its settings  tensorboard/    the same as events
corpus/            token blocks                   curves.png      the picture, at the end
checkpoints/STEP/  the state of training          text.json       fingerprints of the text
choice.json        what a dial chose, and why
compiled/          programs, for a restart        wandb-id        id of the run at Weights & Biases
results.json       of a finished finetuning run   predictions/    of a finished finetuning run
confusion.png      of its labels                  predicted.png   of its numbers
report.html        a page about the run, at the end
out-of-memory.txt  the backend's error, in full

On a disk or in a bucket (gs://bucket/folder).
"""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import jax
from etils import epath

from xlnet_jax.checkpoints.listing import has_weights, list_checkpoints
from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import Config, RunConfig
from xlnet_jax.settings.fields import differences, from_dict, identity_difference, to_dict
from xlnet_jax.storage.files import in_bucket, require_bucket_library
from xlnet_jax.storage.lock import BucketLock, DiskLock, lock
from xlnet_jax.storage.programs import keep_programs
from xlnet_jax.storage.reading import read_versioned, write_versioned

R = TypeVar("R", bound=RunConfig)
_SECONDS_TO_APPEAR = 60.0
"""time within which a host sees a file of another host: NFS caches an older state for a while"""


PLATFORMS = ("tpu", "gpu")
"""platforms whose compiled programs are kept in the workdir"""


class Workdir:
    """The paths of a run. `claim` creates the folder, or refuses one that holds another run."""

    def __init__(self, folder: epath.PathLike):
        self.folder = folder = epath.Path(folder)
        self.config = folder / "config.json"
        self.text = folder / "text.json"
        self.choice = folder / "choice.json"
        self.tokenizer = folder / "tokenizer"
        self.corpus = folder / "corpus"
        self.checkpoints = folder / "checkpoints"
        self.metrics = folder / "metrics.jsonl"
        self.tensorboard = folder / "tensorboard"
        self.curves = folder / "curves.png"
        self.report = folder / "report.html"
        self.compiled = folder / "compiled"
        self.wandb_id = folder / "wandb-id"
        self.out_of_memory = folder / "out-of-memory.txt"
        self._lock: DiskLock | BucketLock | None = None

    @property
    def has_checkpoints(self) -> bool:
        """True if there is a complete checkpoint."""
        return self.newest_step is not None

    @property
    def newest_step(self) -> int | None:
        """Step of the newest checkpoint that is not empty; None if there is none."""
        there = list_checkpoints(self.checkpoints)
        return max((step for step, path in there.items() if has_weights(path)), default=None)

    def resumes(self, kind: type[R]) -> R | None:
        """Return the settings of the run that has a checkpoint here; None if there is none."""
        return self.settings(kind) if self.has_checkpoints and self.config.exists() else None

    def claim(self, config: RunConfig) -> None:
        """Lock the folder for this process, if it is not locked, and write the settings.

        Raises InputError if another process runs here, if the run here has other identity settings, or if it
        has done more than `steps`. A run without a checkpoint may change its settings: what was made for the old ones
        is deleted.
        """
        self.lock()
        if self.config.exists() and self.has_checkpoints:
            self._refuse(identity_difference(config, self.settings(type(config)), resumes=True))
            if (done := self.newest_step or 0) > config.steps:
                raise InputError(
                    "steps",
                    config.steps,
                    f": workdir {self.folder} holds a checkpoint after {done} steps: give `steps` {done} or more, "
                    "or another `workdir`",
                )
        elif isinstance(config, Config) and self.config.exists() and not _has_text_of(config, self.settings(Config)):
            for made_for_other_settings in (self.tokenizer, self.corpus):
                made_for_other_settings.rmtree(missing_ok=True)
        self.write_settings(config)

    def write_settings(self, config: RunConfig) -> None:
        """Write config.json."""
        write_versioned(self.config, "run", to_dict(config))

    def claim_text(self, made_from: dict[str, Any], origins: dict[str, Any]) -> None:
        """Claim the workdir for a text by its fingerprints (`Manifest.made_from`), which are kept even if the corpus is
        deleted.

        origins: where text from URLs came from (`Manifest.origins`), stored too. Raises InputError if the run here was
        trained on another text.
        """
        there = read_versioned(self.text, "run") if self.text.exists() else made_from
        if self.has_checkpoints:
            self._refuse(
                [f"its {name.replace('_', ' ')} differs" for name in made_from if there.get(name) != made_from[name]]
            )
        write_versioned(self.text, "run", made_from | ({"origins": origins} if origins else {}))

    def _refuse(self, difference: list[str]) -> None:
        if difference:
            raise InputError(
                f"workdir {self.folder} holds another run ({'; '.join(difference)}): give its settings, or another "
                f"`workdir` (and `init` {self.folder}, to begin with its weights)"
            )

    def make(self) -> None:
        """Create the folder if it does not exist. Raises InputError if that is impossible."""
        with self._named():
            self.folder.mkdir(parents=True, exist_ok=True)

    def lock(self) -> None:
        """Create the folder, and lock it until `close` or the end of the process. A run calls it before all its work.

        Raises InputError, with the process that holds the lock, if it is locked.
        """
        if self._lock:
            return
        if in_bucket(self.folder):
            require_bucket_library()
        with self._named():
            self._lock = lock(self.folder, f"workdir {self.folder}")

    def require_shared(self) -> None:
        """Raise InputError if this is not the folder that process 0 claimed. Other processes call it, after the claim.

        It waits, because a network file system may show a new file late.
        """
        until = time.monotonic() + _SECONDS_TO_APPEAR
        while not self.config.exists():
            if time.monotonic() > until:
                raise InputError(
                    f"{self.folder} on {socket.gethostname()} is not the folder that process 0 has by this name: give "
                    "all hosts the same `workdir`, in storage that they share (NFS, Filestore, gs://BUCKET/FOLDER)"
                )
            time.sleep(1)

    def close(self) -> None:
        """Release the lock, if this process holds it."""
        if self._lock:
            self._lock.release()
            self._lock = None

    def keep_programs(self) -> contextlib.AbstractContextManager[None]:
        """Keep compiled programs here for a restart, which may be on another machine that shares only the workdir;
        those of CPUs in the user's folder, for other runs too. JAX_COMPILATION_CACHE_DIR names another folder."""
        return keep_programs(str(self.compiled) if jax.default_backend() in PLATFORMS else None)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            raise InputError(f"workdir {self.folder} cannot be made a folder: {error.strerror or error}") from None
        except InputError:
            raise
        except Exception as error:  # of any type, from the library that accesses the bucket
            if not in_bucket(self.folder):
                raise
            reason = str(error).partition("\n")[0][:200]
            raise InputError(
                f"workdir {self.folder} cannot be written ({reason}): check the name, and that your account may write "
                "there (role Storage Object User, `gcloud auth application-default login`)"
            ) from None

    def settings(self, kind: type[R]) -> R:
        """Read config.json. Raises InputError if it does not hold settings of this type."""
        try:
            return from_dict(kind, read_versioned(self.config, "run"))
        except (ValueError, TypeError, AttributeError) as error:
            reason = str(error).partition(";")[0]
            raise InputError(
                f"{self.config} does not hold settings of a run of this kind ({reason}): give another `workdir`"
            ) from None


def _has_text_of(ours: Config, theirs: Config) -> bool:
    """Return True if both settings give the same tokenizer and the same blocks."""
    return not any(setting.has("text", "blocks") for setting, _ in differences(ours, theirs))
