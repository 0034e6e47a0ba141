"""Send metrics to Weights & Biases, where log.wandb names a project. The package is imported only then."""

import importlib.util
import uuid
from typing import Any

from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.settings.plain import to_dict
from xlnet_jax.storage.files import in_bucket


def demand_wandb(project: str) -> None:
    """Raise InputError where the package is missing."""
    if importlib.util.find_spec("wandb") is None:
        raise InputError(
            f"log.wandb {project}: the package wandb is not installed: pip install 'xlnet_jax[wandb]', or leave "
            "`log.wandb` out"
        )


class WandbRun:
    """Run at Weights & Biases: one for each workdir, however often it is resumed; `id_file` keeps its id."""

    def __init__(self, project: str, config: RunConfig, id_file: epath.Path):
        import wandb

        if not id_file.exists():
            id_file.write_text(uuid.uuid4().hex)
        settings: dict[str, Any] = {"project": project, "id": id_file.read_text(), "name": id_file.parent.name}
        if not in_bucket(id_file):
            settings["dir"] = str(id_file.parent)
        try:
            self._run = wandb.init(**settings, resume="allow", config=to_dict(config))
        except Exception as error:  # no key, no network, no such project: the types depend on the version
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"log.wandb {project}: Weights & Biases did not start the run ({reason}): wandb login, or "
                "WANDB_MODE=offline, or leave `log.wandb` out"
            ) from None
        # A resumed run writes some steps again. W&B drops records that go back in its own step counter, so our step is
        # a metric of its own, and the x axis of all others.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers | {"step": step})

    def finish(self) -> None:
        self._run.finish()
