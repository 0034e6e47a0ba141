"""Checkpoint in Python: its network, its weights as jax arrays, and the predictions of its task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.checkpoints import formats, native
from xlnet_jax.checkpoints.pretrained import Pretrained, on_device
from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import NULL_THRESHOLD
from xlnet_jax.models.heads import build_model
from xlnet_jax.settings.fields import from_dict

if TYPE_CHECKING:
    from xlnet_jax.tasks.config import FinetuneConfig
    from xlnet_jax.tasks.task import Prediction

RANKING = "ranking"  # its command reads collections of documents; one document beside a query is a pair of texts


@dataclass(frozen=True)
class Model(Pretrained):
    """Checkpoint with its weights as jax arrays: functions under `jax.jit` may close over them."""

    finetuning: FinetuneConfig | None = None
    """settings of the finetuning that made the checkpoint; None = unknown, or it was not finetuned"""

    def predict(
        self, inputs: Iterable[Any], *, batch_size: int | None = None, seq_len: int | None = None
    ) -> list[Prediction]:
        """Return the prediction of a finetuned model for each input, in their order. It runs on one device.

        inputs: for classification and regression a text, or a pair of texts; for ranking a pair of document and query,
        whose score is that of one passage, the document's beginning; for labels of words a list of words; for question
        answering {"question": …, "context": …}; for multiple choice {"context": …, "question": …, "options":
        […]}. Rows of a table of pandas or dictionaries are taken too, with the columns of the finetuning, or words.
        batch_size: inputs (or windows of them) that the network reads at once. seq_len: longest input, in tokens.
        None = both as in finetuning; without a record of it, the task's defaults. Predictions depend on
        neither batch_size nor the other inputs.

        Raises InputError where the checkpoint has no head or no tokenizer, and names the first input that has another
        form.
        """
        from xlnet_jax.inference.log_probs import FEW_TOKENS, power_of_two
        from xlnet_jax.tasks.defaults import make_task
        from xlnet_jax.tasks.features import batch_by_length, restore_order
        from xlnet_jax.tasks.readers import rows_of

        if isinstance(inputs, str | Mapping) or not isinstance(inputs, Iterable):
            raise InputError("`inputs` is a list of inputs; put a single one into a list")
        inputs = inputs if hasattr(inputs, "columns") else list(inputs)  # a generator is read once
        rows = rows_of(inputs)
        inputs = list(inputs) if rows is None else rows
        config = self.settings(batch_size=batch_size, seq_len=seq_len)
        if self.tokenizer is None:
            raise InputError("this checkpoint has no tokenizer: put its spiece.model beside it")
        task = make_task(config)
        examples = task.examples_of(inputs)
        if not examples:
            return []
        features = task.features(examples, self.tokenizer, config.head, training=False)
        # Few shapes, as a program is compiled for each: a number of rows that does not fill a batch is rounded up.
        fitting = max(power_of_two(len(features)), FEW_TOKENS // config.data.seq_len)
        data = replace(config.data, batch_size=min(config.data.batch_size, fitting))
        params, run = on_device(self).params, _compiled(config)
        batches = batch_by_length(features, data, np.arange(data.batch_size))
        outputs = restore_order([(items, run(params, batch)) for items, batch in batches], len(features))
        return task.predictions(examples, task.answers(examples, features, outputs))

    def settings(self, *, batch_size: int | None = None, seq_len: int | None = None) -> FinetuneConfig:
        """Return the settings of the finetuning with this network and head; those of the task where there are none."""
        from xlnet_jax.tasks.defaults import DEFAULTS, set_ungiven

        if self.head is None:
            raise InputError("this checkpoint has vocabulary scores and no head: finetune it for a task first")
        task: str = self.head.task
        if task == "question_answering":
            task = "squad2" if NULL_THRESHOLD in self.thresholds else "squad"
        config = set_ungiven(replace(self.finetuning or DEFAULTS[task](), head=self.head), self.thresholds)
        if config.task == RANKING:
            config = replace(config, task=self.head.task)
        mem_len = config.model.mem_len if config.data.long_texts == "memory" else 0
        data = replace(
            config.data, batch_size=batch_size or config.data.batch_size, seq_len=seq_len or config.data.seq_len
        )
        model = replace(self.model, mem_len=mem_len, same_length=self.model.same_length and mem_len > 0)
        return replace(config, model=model, data=data)


def predict(checkpoint: str | Path, inputs: Iterable[Any]) -> list[Prediction]:
    """Return the predictions of a finetuned checkpoint, a folder, for inputs: `Model.predict` of `load`."""
    return load(checkpoint).predict(inputs)


@functools.lru_cache(8)
def _compiled(config: FinetuneConfig) -> Callable[[Any, Any], dict[str, jax.Array]]:
    """Return the jitted prediction of a task, traced once for each shape of a batch."""
    from xlnet_jax.tasks.defaults import make_task

    return jax.jit(functools.partial(make_task(config).predict, build_model(config.model, config.head)))


def load(path: str | Path, *, partial: bool = False, activation: formats.Activation | None = None) -> Model:
    """Load a checkpoint of this project, of the 2019 code, or of Hugging Face.

    Its weights are jax arrays in host memory, where jax has its CPU backend, and are not bound to it: each call moves
    them to the device that it runs on, and `on_device` moves them once. Allow for twice the weights while it reads.

    partial: take the parameters that fit where some are missing, unknown or of another shape; `notes` names these.
    activation: in place of the one in the configuration. Raises InputError on files that are damaged, contradict each
    other, or hold what this project does not have.
    """
    loaded = formats.load(path, partial=partial, activation=activation)
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        device = jax.local_devices()[0]
    with jax.default_device(device):
        params = jax.block_until_ready(jax.tree.map(jnp.asarray, loaded.params))
    of_loaded = {field.name: getattr(loaded, field.name) for field in fields(loaded)} | {"params": params}
    return Model(**of_loaded, finetuning=finetuning_of(Path(path)))


def finetuning_of(path: Path) -> FinetuneConfig | None:
    """Return the settings of the finetuning that made a checkpoint of this project; None where there was none."""
    folder = native.find(path)
    settings = native.read_settings(folder) if folder else {}
    if "task" not in settings:
        return None
    from xlnet_jax.tasks.config import FinetuneConfig

    return from_dict(FinetuneConfig, settings)
