"""A training run, of pretraining or of finetuning."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from xlnet_jax.dims import Batch
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.training import sharding
from xlnet_jax.training.fit import Memory
from xlnet_jax.training.initial import InitialWeights
from xlnet_jax.training.state import TrainState
from xlnet_jax.training.step import Program
from xlnet_jax.training.stop import Interrupt
from xlnet_jax.training.workdir import Workdir

Numbers = Mapping[str, float]


class Batches(Protocol):
    """Training batches, addressed by step."""

    def iterate(self, start: int, stop: int, rows: np.ndarray) -> Iterator[Batch]:
        """Yield `rows` of the batches start, …, stop - 1."""
        ...


class Evaluation(Protocol):
    """Evaluation on held-out examples, and its consequences for the run."""

    @property
    def every_steps(self) -> int:
        """Number of steps between evaluations."""
        ...

    def recall(self, records: Iterable[dict[str, Any]], step: int) -> None:
        """Take over the recorded evaluations of a run that resumes at `step`."""
        ...

    def run(self, state: TrainState, step: int, interrupt: Interrupt) -> Numbers | None:
        """Return the metrics of the state after `step` steps; None where a stop cut the evaluation short."""
        ...

    def describe(self, numbers: Numbers) -> str:
        """Return the metrics as one line."""
        ...

    @property
    def is_worth_saving(self) -> bool:
        """True if the state evaluated last must get a checkpoint."""
        ...

    @property
    def is_enough(self) -> bool:
        """True if the run ends here, before its last step."""
        ...


@dataclass(frozen=True)
class Run:
    """Settings, program, data and starting weights of one run."""

    config: RunConfig
    workdir: Workdir
    program: Program[Any]
    batches: Batches
    evaluation: Evaluation | None
    weights: InitialWeights | None
    """None = all weights are drawn at random"""
    memory: Memory
    """that a step needs, and that the devices have"""
    rates: Callable[[float], Numbers]
    """returns the speed of a step that took these seconds, with seconds_per_step among it"""
    locate: Callable[[int], str]
    """says how to look at the batch of this number"""
    reference: Numbers = field(default_factory=dict)
    """numbers to show and record beside every loss"""

    def describe(self, batch: str) -> str:
        """Return the sizes of the run, a line each. batch: the global batch in words, as '16 rows of 128 tokens'."""
        config, program = self.config, self.program
        model, mesh, abstract = config.model, program.mesh, program.plan
        size = sum(a.size for a in jax.tree.leaves(abstract.params))
        shape = " x ".join(f"{axis} {n}" for axis, n in mesh.shape.items() if n > 1 or axis != "context")
        in_parts = f" in {config.optimizer.accumulate} parts" if config.optimizer.accumulate > 1 else ""
        return (
            f"model       {model.num_layers} layers x {model.d_model}, {size:,} parameters, {model.dtype}\n"
            f"devices     {mesh.size} x {jax.devices()[0].device_kind}: {shape}\n"
            f"batch       {batch}{in_parts}, {len(program.rows):,} a host, "
            f"{config.data.batch_size // sharding.batch_shards(mesh):,} a device\n"
            f"state       {sharding.bytes_on_device(abstract) / 2**20:,.0f} MiB a device: parameters, optimizer, memory"
        )
