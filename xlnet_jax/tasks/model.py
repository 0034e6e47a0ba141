"""Use a checkpoint in Python: load it, with its weights as jax arrays, and predict with it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
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
from xlnet_jax.printing import progress
from xlnet_jax.settings.fields import from_dict, with_values
from xlnet_jax.settings.hints import check_calls
from xlnet_jax.storage.programs import keep_programs

if TYPE_CHECKING:
    from xlnet_jax.tasks.config import FinetuneConfig
    from xlnet_jax.tasks.task import Prediction

RANKING = "ranking"  # `predict` treats a document with a query as a pair of texts
TOKENS_OF_TEXT = 256  # per text of `encode`'s batch_size
ONLY_VALUES = {
    "convert_to_numpy": True,
    "convert_to_tensor": False,
    "output_value": "sentence_embedding",
    "precision": "float32",
    "prompt_name": None,
    "truncate_dim": None,
}
"""Keywords of sentence-transformers for which `encode` has no other value"""


@dataclass(frozen=True)
class Model(Pretrained):
    """Checkpoint with its weights as jax arrays. Functions under `jax.jit` may close over them."""

    finetuning: FinetuneConfig | None = None
    """settings of the finetuning that made the checkpoint; None = unknown, or it was not finetuned"""

    @keep_programs()
    @check_calls
    def predict(
        self, inputs: Iterable[Any], *, batch_size: int | None = None, seq_len: int | None = None
    ) -> list[Prediction]:
        """Return the prediction of a finetuned model for each input, in order. It runs on one device.

        inputs: for classification and regression a text, or a pair of texts; for ranking a pair of document and query,
        of which the beginning of the document is scored; for token classification a list of words; for question
        answering {"question": …, "context": …}; for multiple choice {"context": …, "question": …, "options": […]}. Also
        a pandas DataFrame or dictionaries with the columns of the finetuning, or with words. batch_size: number of
        inputs (or windows of them) to process at once. seq_len: maximum length of an input, in tokens. None = as in
        finetuning, or the task's defaults if that is unknown. Predictions do not depend on batch_size or on other
        inputs.

        Raises InputError if the checkpoint has no head or no tokenizer, or for the first input of the wrong type.
        """
        from xlnet_jax.inference.log_probs import FEW_TOKENS, power_of_two
        from xlnet_jax.tasks.defaults import make_task
        from xlnet_jax.tasks.features import batch_by_length, restore_order
        from xlnet_jax.tasks.readers import rows_of

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
        # A program is compiled for each shape, so a number of rows that does not fill a batch is rounded up.
        fitting = max(power_of_two(len(features)), FEW_TOKENS // config.data.seq_len)
        data = with_values(config.data, {"batch_size": min(config.data.batch_size, fitting)})
        params, run = on_device(self).params, _compiled(config)
        batches = batch_by_length(features, data, np.arange(data.batch_size))
        outputs = restore_order([(items, run(params, batch)) for items, batch in batches], len(features))
        return task.predictions(examples, task.answers(examples, features, outputs))

    @check_calls
    def encode(
        self,
        sentences: str | Iterable[Any],
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        prompt: str | None = None,
        **others: Any,
    ) -> np.ndarray:
        """Return the vectors of texts, float32 [texts, D], called as `SentenceTransformer.encode`; of one str [D].

        sentences: texts, or the batches of MTEB, dictionaries with a list of texts as "text". batch_size: texts to
        process at once, counted as 256 tokens each; does not change the vectors. show_progress_bar: show a line with
        the number of texts on a terminal. normalize_embeddings: scale vectors to length 1. prompt: text to put before
        each text. others: ignored, such as device and MTEB's task_metadata, except those of `ONLY_VALUES`.

        Pooling and errors are those of `embed_texts`. Raises InputError also for other values than `ONLY_VALUES`.
        """
        from xlnet_jax.inference.embed import TEXTS_AT_ONCE, embed_texts

        for name, only in ONLY_VALUES.items():
            if others.get(name, only) != only:
                raise InputError(name, others[name], f"is not supported, only {only}")
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        texts = [text for part in texts for text in (part["text"] if isinstance(part, Mapping) else [part])]
        if prompt:
            texts = [f"{prompt}{text}" for text in texts]
        model, vectors = on_device(self), []
        with progress(bool(show_progress_bar)) as show:
            for begin in range(0, max(len(texts), 1), TEXTS_AT_ONCE):
                show(f"{begin:,} of {len(texts):,} texts")
                part, batch_tokens = texts[begin : begin + TEXTS_AT_ONCE], max(batch_size, 1) * TOKENS_OF_TEXT
                vectors.append(embed_texts(model, part, normalize=normalize_embeddings, batch_tokens=batch_tokens))
        return vectors[0][0] if isinstance(sentences, str) else np.concatenate(vectors)

    def settings(self, *, batch_size: int | None = None, seq_len: int | None = None) -> FinetuneConfig:
        """Return the settings of the finetuning, with this network and head; the task's defaults if they are
        unknown."""
        config = self._settings
        asked = {"data.batch_size": batch_size, "data.seq_len": seq_len}
        return with_values(config, {name: value for name, value in asked.items() if value})

    @functools.cached_property
    def _settings(self) -> FinetuneConfig:
        from xlnet_jax.settings.resolution import Resolution
        from xlnet_jax.tasks.defaults import DEFAULTS

        if self.head is None:
            raise InputError("this checkpoint has vocabulary scores and no head: finetune it for a task first")
        task: str = self.head.task
        if task == "question_answering":
            task = "squad2" if NULL_THRESHOLD in self.thresholds else "squad"
        config = self.finetuning or DEFAULTS[task]()
        settings = Resolution.of(config, DEFAULTS[config.task]())
        settings.choose(self.thresholds)
        mem_len = config.model.mem_len if config.data.long_texts == "memory" else 0
        settings.set({"head": self.head, "ranking.documents": (), "model": self.model})  # pairs need no collection
        settings.set({"model.mem_len": mem_len, "model.same_length": self.model.same_length and mem_len > 0})
        settings.set({"task": self.head.task if config.task == RANKING else config.task})
        return settings.final()


def predict(checkpoint: str | Path, inputs: Iterable[Any]) -> list[Prediction]:
    """Return the predictions of a finetuned checkpoint, given by its folder: `load`, then `Model.predict`."""
    return load(checkpoint).predict(inputs)


@functools.lru_cache(8)
def _compiled(config: FinetuneConfig) -> Callable[[Any, Any], dict[str, jax.Array]]:
    """Return the jitted prediction of a task, which is traced once per batch shape."""
    from xlnet_jax.tasks.defaults import make_task

    return jax.jit(functools.partial(make_task(config).predict, build_model(config.model, config.head)))


def load(path: str | Path, *, partial: bool = False, activation: formats.Activation | None = None) -> Model:
    """Load a checkpoint of this project, of the 2019 code, or of Hugging Face.

    The weights are jax arrays in host memory, if jax has its CPU backend. Each call copies them to the device that it
    runs on; `on_device` copies them once. Reading takes up to twice the memory of the weights.

    partial: load the parameters that fit if some are missing, unknown or of another shape; `notes` lists these.
    activation: replaces the one in the configuration. Raises InputError if files are damaged or contradict each other,
    or the model is not supported.
    """
    loaded = formats.load(path, partial=partial, activation=activation)
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS excludes the CPU
        device = jax.local_devices()[0]
    with jax.default_device(device):
        params = jax.block_until_ready(jax.tree.map(jnp.asarray, loaded.params))
    of_loaded = {field.name: getattr(loaded, field.name) for field in fields(loaded)} | {"params": params}
    return Model(**of_loaded, finetuning=finetuning_of(Path(path)))


def finetuning_of(path: Path) -> FinetuneConfig | None:
    """Return the settings of the finetuning that made a checkpoint of this project; None if there was none."""
    folder = native.find(path)
    settings = native.read_settings(folder) if folder else {}
    if "task" not in settings:
        return None
    from xlnet_jax.tasks.config import FinetuneConfig

    return from_dict(FinetuneConfig, settings)
