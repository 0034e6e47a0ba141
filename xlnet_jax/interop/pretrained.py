"""A network with its weights and its tokenizer: what a checkpoint of any format comes to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import CLS, PAD, SEP, Tokenizer
from xlnet_jax.config import HeadConfig, InputError, ModelConfig
from xlnet_jax.interop.weights import Weight, abstract_params, flatten, initial_params, nest, to_ours
from xlnet_jax.models.backbone import Backbone
from xlnet_jax.models.heads import build_model
from xlnet_jax.models.inputs import Inputs, text_inputs

CLS_SEGMENT = 2


@dataclass(frozen=True)
class Pretrained:
    """`params`: nested dicts of float32 arrays, as `network.apply({"params": params}, …)` takes them."""

    model: ModelConfig
    params: dict[str, Any]
    head: HeadConfig | None = None  # None = language modelling
    tokenizer: Tokenizer | None = None
    reuse_len: int | None = None  # positions that became memory in pretraining, where that is known
    notes: tuple[str, ...] = field(default=(), compare=False)  # what was left behind or assumed on the way here

    @property
    def network(self) -> nn.Module:
        """The linen module of these weights."""
        return build_model(self.model, self.head)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(input_ids, attention_mask, segment_ids), int32 [B, L]: text <sep> <cls>, padded on the left as the original
        does. InputError where the checkpoint came without a tokenizer."""
        if self.tokenizer is None:
            raise InputError("this checkpoint has no tokenizer: put its spiece.model beside it")
        rows = [[*ids, SEP, CLS] for ids in self.tokenizer.encode_lines(texts)]
        length = max(map(len, rows))
        ids_BL = np.array([[PAD] * (length - len(row)) + row for row in rows], np.int32)
        mask_BL = np.array([[0] * (length - len(row)) + [1] * len(row) for row in rows], np.int32)
        return ids_BL, mask_BL, np.where(ids_BL == CLS, CLS_SEGMENT, 0).astype(np.int32)

    def hidden_states(
        self, input_ids_BL: np.ndarray, attention_mask_BL: np.ndarray, segment_ids_BL: np.ndarray | None = None
    ) -> jax.Array:
        """Of the last layer, [B, L, D], every token seeing every other; those of padding mean nothing."""
        segments = None if segment_ids_BL is None else jnp.asarray(segment_ids_BL)
        inputs = text_inputs(jnp.asarray(input_ids_BL), jnp.asarray(attention_mask_BL), segments)
        return _hidden_states_BLD(self.model, self.params["backbone"], inputs)


def _run_backbone(config: ModelConfig, backbone_params: Any, inputs: Inputs) -> jax.Array:
    return cast(Any, Backbone(config).apply({"params": backbone_params}, inputs)).content_BLD


_hidden_states_BLD = jax.jit(_run_backbone, static_argnums=0)


@dataclass(frozen=True)
class Found:
    """What a reader makes of the files of one format, before it is known to fit."""

    model: ModelConfig
    head: HeadConfig | None
    table: list[Weight]
    variables: Mapping[str, np.ndarray]
    tokenizer: Tokenizer | None = None
    reuse_len: int | None = None
    notes: tuple[str, ...] = ()


def assemble(found: Found, where: str, partial: bool) -> Pretrained:
    """The network of these variables. What is missing, unknown or of another shape is refused by name; with `partial`
    it is drawn afresh or left behind, and noted."""
    check_tokenizer(found.tokenizer, found.model, where)
    shapes = abstract_params(found.model, found.head)
    params, mismatch = to_ours(found.variables, found.table, shapes)
    notes = list(found.notes)
    if mismatch:
        if not partial:
            raise InputError(f"{where} is not whole: {mismatch}; --partial converts what fits")
        notes.append(f"does not fit: {mismatch}")
        params, drawn = with_drawn(params, found.model, found.head, found.table)
        if drawn:
            notes.append(f"drawn afresh: {', '.join(drawn)}")
    return Pretrained(found.model, params, found.head, found.tokenizer, found.reuse_len, tuple(notes))


def with_drawn(
    params: Mapping[str, Any], model: ModelConfig, head: HeadConfig | None, table: Iterable[Weight]
) -> tuple[dict[str, Any], list[str]]:
    """The parameters with those that the table requires and that are missing from the initialiser, and their paths."""
    flat = flatten(params)
    drawn = sorted({w.path for w in table if w.required} - flat.keys())
    if drawn:
        initial = flatten(initial_params(model, head))
        flat |= {path: np.asarray(initial[path]) for path in drawn}
    return nest(flat), drawn


def check_tokenizer(tokenizer: Tokenizer | None, model: ModelConfig, where: str) -> None:
    """InputError where a tokenizer cannot belong to the weights."""
    if tokenizer and tokenizer.vocab_size != model.vocab_size:
        raise InputError(
            f"{where}: its tokenizer has {tokenizer.vocab_size:,} pieces and its weights {model.vocab_size:,}: they "
            "do not belong together"
        )


def check_sizes(config: ModelConfig, sizes: Mapping[str, Any], where: str) -> None:
    """InputError naming the settings in which a configuration contradicts the sizes of the weights beside it."""
    wrong = [
        f"{name} {getattr(config, name)} (the weights have {size})"
        for name, size in sizes.items()
        if getattr(config, name) != size
    ]
    if wrong:
        raise InputError(f"{where} contradicts its weights: {', '.join(wrong)}")
