"""Network with its weights and its tokenizer: the contents of a checkpoint of any format."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import CLS, PAD, SEP, Tokenizer
from xlnet_jax.dims import CLS_SEGMENT
from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import Contents, Found, guessed_objective
from xlnet_jax.interop.weights import (
    GENERATOR,
    Mismatch,
    abstract_params,
    flatten,
    initial_params,
    optional_params,
    size,
    to_ours,
)
from xlnet_jax.models.detector import BertDetector
from xlnet_jax.models.encoder import build_encoder
from xlnet_jax.models.heads import build_model
from xlnet_jax.models.inputs import Inputs, text_inputs
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.settings.rules import validate_network
from xlnet_jax.settings.typed import list_of_texts

P = TypeVar("P", bound="Pretrained")


@dataclass(frozen=True)
class Pretrained(Contents):
    """Network with its weights: `network.apply({"params": params}, …)`."""

    @property
    def network(self) -> nn.Module:
        """The linen module of these weights; for a pair of generator and detector, the detector."""
        if self.judges_tokens:
            return BertDetector(self.model)
        return build_model(self.model, self.head)

    def encode(self, texts: str | Iterable[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (input_ids, attention_mask, segment_ids), int32 [B, L]: text <sep> <cls>, padded on the left as in the
        original. Raises InputError where the checkpoint has no tokenizer."""
        if self.tokenizer is None:
            raise InputError("this checkpoint has no tokenizer: put its spiece.model beside it")
        if not (texts := list_of_texts(texts)):
            raise InputError("`texts` is a list of at least one text")
        rows = [[*ids, SEP, CLS] for ids in self.tokenizer.encode_lines(texts)]
        length = max(map(len, rows))
        ids_BL = np.array([[PAD] * (length - len(row)) + row for row in rows], np.int32)
        mask_BL = np.array([[0] * (length - len(row)) + [1] * len(row) for row in rows], np.int32)
        return ids_BL, mask_BL, np.where(ids_BL == CLS, CLS_SEGMENT, 0).astype(np.int32)

    def hidden_states(
        self, input_ids_BL: np.ndarray, attention_mask_BL: np.ndarray, segment_ids_BL: np.ndarray | None = None
    ) -> jax.Array:
        """Return the hidden states of the last layer, [B, L, D]; every token sees every other, and the rows of padding
        are undefined."""
        segments = None if segment_ids_BL is None else jnp.asarray(segment_ids_BL)
        inputs = text_inputs(jnp.asarray(input_ids_BL), jnp.asarray(attention_mask_BL), segments)
        return _hidden_states_BLD(self.model, self.params["backbone"], inputs)


def vocabulary_tokenizer(pretrained: Pretrained) -> Tokenizer:
    """Return the tokenizer of a checkpoint that predicts pieces. Raises InputError where it has none, or a head for a
    task."""
    if pretrained.head is not None:
        raise InputError(f"the checkpoint has a head for {pretrained.head.task}, and no vocabulary scores")
    if pretrained.tokenizer is None:
        raise InputError("the checkpoint has no tokenizer: put its spiece.model beside it, or give `tokenizer`")
    return pretrained.tokenizer


def scoring_tokenizer(pretrained: Pretrained) -> Tokenizer:
    """Return the tokenizer of a checkpoint that predicts pieces in any order.

    Raises InputError where there is no tokenizer, no vocabulary scores or no query stream, and where rows see earlier
    positions only.
    """
    tokenizer = vocabulary_tokenizer(pretrained)
    if pretrained.model.attn_type == "uni":
        raise InputError("the checkpoint reads in one direction (attn-type uni), and cannot be asked in other orders")
    objective = objective_named(pretrained.objective)
    if objective.order != "any":
        raise InputError(
            f"the checkpoint has learned {objective.learns} ({objective.name}), each by itself, and cannot be "
            "asked in an order: it has no query stream"
        )
    return tokenizer


def on_device(pretrained: P, dtype: Literal["float32", "bfloat16"] = "float32") -> P:
    """Return the checkpoint with its weights on the device, so that every batch finds them there. dtype: compute
    type."""
    model = replace(pretrained.model, dtype=dtype, remat="none")
    (device,) = jnp.zeros(()).devices()  # the default one
    return replace(pretrained, model=model, params=jax.device_put(pretrained.params, device))


def _run_encoder(config: ModelConfig, backbone_params: Any, inputs: Inputs) -> jax.Array:
    return cast(Any, build_encoder(config).apply({"params": backbone_params}, inputs)).content_BLD


_hidden_states_BLD = jax.jit(_run_encoder, static_argnums=0)


def assemble(found: Found, where: str, partial: bool) -> Pretrained:
    """Build the network of these variables.

    Raises InputError with the names of variables that are missing, unknown or misshapen; with `partial` such parameters
    are drawn afresh or left out, and noted.
    """
    validate_network(found.model, found.head, where)
    check_tokenizer(found.tokenizer, found.model, where)
    shapes = optional_params(found.model, found.head) | abstract_params(found.model, found.head)
    params, mismatch = to_ours(found.variables, found.table, shapes)
    notes = [*found.notes, *_precision(found.variables, where)]
    if mismatch:
        if not partial:
            raise InputError(f"{where} is not whole: {mismatch}; xlnet_jax.convert --partial takes what fits")
        notes.append(f"does not fit: {mismatch}")
        if mismatch.missing or mismatch.misshapen:
            params, _ = to_ours(found.variables, found.table, shapes, _drawn(found))
            notes.append("what is missing or of another shape was drawn afresh")
    objective = guessed_objective(found.model, params)
    loaded = Pretrained(
        found.model, params, objective, found.head, found.tokenizer, found.reuse_len, found.extra,
        thresholds=found.thresholds,
    )  # fmt: skip
    has_query_stream = "mask_embedding" in params.get("backbone", {})
    if loaded.head is None and loaded.model.positions == "relative" and not has_query_stream:
        notes.append("no mask embedding: there is no query stream, as of a network that has learned masked pieces")
    return replace(loaded, notes=tuple(notes))


def _drawn(found: Found) -> dict[str, np.ndarray]:
    required = {w.path for w in found.table if w.required}
    return {k: v for k, v in flatten(initial_params(found.model, found.head)).items() if k in required}


def _precision(variables: Mapping[str, np.ndarray], where: str) -> list[str]:
    kinds = {str(v.dtype) for v in variables.values()}
    if wrong := sorted(k for k in kinds if not ("float" in k or "int" in k)):
        raise InputError(f"{where} has weights of type {', '.join(wrong)}: real numbers are needed")
    notes = [f"weights in {', '.join(sorted(kinds - {'float32'}))}, kept as float32"] if kinds - {"float32"} else []
    broken = [name for name, v in variables.items() if not np.isfinite(np.asarray(v, np.float32)).all()]
    return [*notes, f"not all numbers are finite in {', '.join(sorted(broken))}"] if broken else notes


def check_params(pretrained: Pretrained, where: str) -> None:
    """Raise InputError where parameters are missing, unknown, or of other shapes than the settings demand."""
    needed, flat = abstract_params(pretrained.model, pretrained.head), flatten(pretrained.params)
    optional = optional_params(pretrained.model, pretrained.head)
    shapes = optional | needed
    if pretrained.judges_tokens:  # pieces are predicted by the generator, whose sizes its run alone knows
        optional = {path: s for path, s in shapes.items() if not path.startswith(("backbone/", "detector/"))}
        flat = {path: array for path, array in flat.items() if not path.startswith(f"{GENERATOR}/")}
    wrong = Mismatch(
        missing=sorted(shapes.keys() - flat.keys() - optional.keys()),
        unknown=sorted(flat.keys() - shapes.keys()),
        misshapen=[
            f"{path} is {size(flat[path].shape)}, not {size(shapes[path].shape)}"
            for path in sorted(shapes.keys() & flat.keys())
            if tuple(flat[path].shape) != shapes[path].shape
        ],
    )
    if wrong:
        raise InputError(f"{where} is not whole: {wrong}")


def check_given(given: Tokenizer, start: Pretrained, where: str) -> None:
    """Raise InputError where a tokenizer given for weights without one cannot belong to them."""
    check_tokenizer(given, start.model, where)
    if start.tokenizer is None and given.foreign:
        raise InputError(
            f"{where}: its ids are dealt anew where it is read beside its weights: put it into their folder, and leave "
            "--tokenizer out"
        )


def check_tokenizer(tokenizer: Tokenizer | None, model: ModelConfig, where: str) -> None:
    """Raise InputError where tokenizer and weights have vocabularies of different sizes."""
    if tokenizer and tokenizer.vocab_size != model.vocab_size:
        raise InputError(
            f"{where}: its tokenizer has {tokenizer.vocab_size:,} pieces and its weights {model.vocab_size:,}: they "
            "do not belong together"
        )
