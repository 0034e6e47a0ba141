"""Contents of a checkpoint: as read, under the names of its format, and under our names."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypedDict, cast

import flax.linen as nn
import jax
import msgspec
import numpy as np

from data_pipelines.tokenizer import CLS, PAD, SEP, Tokenizer
from xlnet_jax.dims import CLS_SEGMENT
from xlnet_jax.errors import InputError
from xlnet_jax.interop.weights import (
    Weight,
    abstract_params,
    find_mismatch,
    flatten,
    initial_params,
    optional_params,
    to_ours,
)
from xlnet_jax.models.heads import DETECTORS, build_encoder, build_model
from xlnet_jax.models.inputs import Inputs, check_inputs, text_inputs
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import HeadConfig, ModelConfig
from xlnet_jax.settings.fields import list_of_texts
from xlnet_jax.settings.rules import validate_network

NULL_THRESHOLD, LABEL_THRESHOLD = "qa.null_threshold", "label_threshold"
Thresholds = Mapping[str, float | None]
"""Finetuning settings that turn scores into predictions, by name: LABEL_THRESHOLD, and NULL_THRESHOLD if questions may
be unanswerable (None = no value was tuned)"""
_ThresholdsForm = TypedDict(
    "_ThresholdsForm",
    {"qa.null_threshold": float | None, "label_threshold": Annotated[float, msgspec.Meta(gt=0, lt=1)]},
    total=False,
)


@dataclass(frozen=True)
class Pretrained:
    """Network with its weights and its tokenizer: the contents of a checkpoint in any format.

    `params`: nested dicts of float32 arrays under our names, for `network.apply({"params": params}, …)`.
    """

    model: ModelConfig
    params: dict[str, Any]
    objective: str  # name of the pretraining objective
    head: HeadConfig | None = None  # None = language modeling
    tokenizer: Tokenizer | None = None
    reuse_len: int | None = None  # positions that became memory in pretraining; None = unknown
    extra: Mapping[str, Any] = field(default_factory=dict)  # Hugging Face's settings, kept for converting back
    notes: tuple[str, ...] = field(default=(), compare=False)  # what was dropped or assumed when reading
    thresholds: Thresholds = field(default_factory=dict)

    @property
    def is_causal(self) -> bool:
        """True if the network predicts pieces only from left to right."""
        return objective_named(self.objective).order == "left to right"

    @property
    def is_discriminator(self) -> bool:
        """True if the network detects replaced tokens (models/bert.py) and does not predict pieces."""
        return self.head is None and objective_named(self.objective).is_discriminator

    @property
    def network(self) -> nn.Module:
        """The linen module for these weights; of a generator and a detector, the detector."""
        if self.is_discriminator:
            return DETECTORS[self.model.network](self.model)
        return build_model(self.model, self.head)

    def require_tokenizer(self) -> Tokenizer:
        """Return the tokenizer. Raises InputError if the checkpoint has none."""
        if self.tokenizer is None:
            raise InputError(
                "the checkpoint has no tokenizer: put its spiece.model into its folder, or give `tokenizer`"
            )
        return self.tokenizer

    def tokenize(self, texts: str | Iterable[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (input_ids, attention_mask, segment_ids), int32 [B, L]: text <sep> <cls>, padded on the left as in the
        2019 code. Raises InputError if the checkpoint has no tokenizer."""
        tokenizer = self.require_tokenizer()
        if not (texts := list_of_texts(texts)):
            raise InputError("texts", "", "must have at least one text")
        rows = [[*ids, SEP, CLS] for ids in tokenizer.encode_lines(texts)]
        length = max(map(len, rows))
        ids_BL = np.array([[PAD] * (length - len(row)) + row for row in rows], np.int32)
        mask_BL = np.array([[0] * (length - len(row)) + [1] * len(row) for row in rows], np.int32)
        return ids_BL, mask_BL, np.where(ids_BL == CLS, CLS_SEGMENT, 0).astype(np.int32)

    def hidden_states(
        self, input_ids_BL: np.ndarray, attention_mask_BL: np.ndarray, segment_ids_BL: np.ndarray | None = None
    ) -> jax.Array:
        """Return the hidden states of the last layer, [B, L, D]. All tokens see each other; rows of padding are
        undefined. Raises InputError for arrays that do not fit the network or each other."""
        inputs = text_inputs(*cast(Any, (input_ids_BL, attention_mask_BL, segment_ids_BL)))
        check_inputs(inputs, None, self.model)
        return _hidden_states_BLD(self.model, self.params["backbone"], inputs)


@functools.partial(jax.jit, static_argnums=0)
def _hidden_states_BLD(config: ModelConfig, backbone_params: Any, inputs: Inputs) -> jax.Array:
    return cast(Any, build_encoder(config).apply({"params": backbone_params}, inputs)).content_BLD


def guess_objective(model: ModelConfig, params: Mapping[str, Any]) -> str:
    """Infer the pretraining objective from the weights, because checkpoints of other projects do not name it."""
    if model.is_causal:
        return "clm"
    if "detector" in params:
        return "rtd"
    return "plm" if "mask_embedding" in params.get("backbone", {}) else "mlm"


def assemble(
    loaded: Pretrained, table: list[Weight], variables: Mapping[str, np.ndarray], where: str, partial: bool
) -> Pretrained:
    """Return a checkpoint with the parameters that these variables hold, and the objective that they show.

    variables: arrays by their names in the format; table: where they belong. Raises InputError with the names of
    variables that are missing, unknown or misshapen; with `partial`, initializes or drops these parameters, and notes
    them.
    """
    model, head = loaded.model, loaded.head
    validate_network(model, head, where)
    check_tokenizer(loaded.tokenizer, model, where)
    shapes = {**optional_params(model, head), **abstract_params(model, head)}
    notes, drawn = [*loaded.notes, *_precision(variables, where)], {}
    if mismatch := find_mismatch(variables, table, shapes):
        if not partial:
            raise InputError(f"{where} is incomplete: {mismatch}; xlnet_jax.convert --partial converts what fits")
        notes.append(f"does not fit: {mismatch}")
        if mismatch.missing or mismatch.misshapen:
            required = {w.path for w in table if w.required}
            drawn = {path: a for path, a in flatten(initial_params(model, head)).items() if path in required}
            notes.append("what is missing or of another shape was newly initialized")
    params = to_ours(variables, table, shapes, drawn)
    has_query_stream = "mask_embedding" in params.get("backbone", {})
    if head is None and model.positions == "relative" and not has_query_stream:
        notes.append("no mask embedding, so no query stream: the network was trained on masked pieces")
    return replace(loaded, params=params, objective=guess_objective(model, params), notes=tuple(notes))


def _precision(variables: Mapping[str, np.ndarray], where: str) -> list[str]:
    kinds = {str(v.dtype) for v in variables.values()}
    if wrong := sorted(k for k in kinds if not ("float" in k or "int" in k)):
        raise InputError(f"{where} has weights of type {', '.join(wrong)}; they must be real numbers")
    notes = [f"weights in {', '.join(sorted(kinds - {'float32'}))}, kept as float32"] if kinds - {"float32"} else []
    broken = [name for name, v in variables.items() if not np.isfinite(np.asarray(v, np.float32)).all()]
    return [*notes, f"some numbers are not finite in {', '.join(sorted(broken))}"] if broken else notes


def check_tokenizer(tokenizer: Tokenizer | None, model: ModelConfig, where: str) -> None:
    """Raise InputError if tokenizer and weights have vocabularies of different sizes."""
    if tokenizer and tokenizer.vocab_size != model.vocab_size:
        sizes = f"its tokenizer has {tokenizer.vocab_size:,} pieces and its weights {model.vocab_size:,}"
        raise InputError(f"{where}: {sizes}: they do not belong together")


def require_layers(model: ModelConfig, variables: Mapping[str, np.ndarray], where: object) -> None:
    """Raise InputError if the settings have more layers than there are arrays, before a table is built."""
    if model.share_layers != "all" and model.num_layers > len(variables):
        raise InputError(f"{where} declares {model.num_layers:,} layers, but holds only {len(variables):,} arrays")


def read_thresholds(content: Any) -> Thresholds:
    """Return the thresholds in a JSON value. Raises msgspec.ValidationError if it is malformed."""
    return cast(Thresholds, msgspec.convert(content, _ThresholdsForm))


def describe_thresholds(thresholds: Thresholds) -> str:
    """Return e.g. 'qa.null_threshold -1.25', or "" if there are no values."""
    return ", ".join(f"{name} {value:.6g}" for name, value in thresholds.items() if value is not None)
