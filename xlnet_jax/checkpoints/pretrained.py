"""Build and check a `Pretrained`: its network, parameters and tokenizer must match."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import ForeignCheckpoint, Pretrained, guess_objective
from xlnet_jax.interop.weights import (
    GENERATOR,
    Weight,
    abstract_params,
    find_mismatch,
    flatten,
    initial_params,
    optional_params,
    to_ours,
)
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.settings.config import ModelConfig
from xlnet_jax.settings.rules import validate_network

P = TypeVar("P", bound=Pretrained)


def vocabulary_tokenizer(pretrained: Pretrained) -> Tokenizer:
    """Return the tokenizer of a checkpoint that predicts pieces. Raises InputError if it has no tokenizer, or a head
    for a task."""
    if pretrained.head is not None:
        raise InputError(
            f"the checkpoint has a head for {pretrained.head.task} and no vocabulary scores: give a pretrained one"
        )
    return pretrained.require_tokenizer()


def scoring_tokenizer(pretrained: Pretrained) -> Tokenizer:
    """Return the tokenizer of a checkpoint that predicts pieces in any order.

    Raises InputError if there is no tokenizer, no vocabulary scores or no query stream, or rows see only earlier
    positions.
    """
    tokenizer = vocabulary_tokenizer(pretrained)
    if pretrained.model.attn_type == "uni":
        raise InputError(
            "the checkpoint reads in one direction (`model.attn_type` uni) and cannot predict in other orders"
        )
    objective = objective_named(pretrained.objective)
    if objective.order is None:
        raise InputError(
            f"the checkpoint was trained with {objective.name}, which has no likelihood: it predicts "
            f"{objective.learns}, each by itself, and in no order"
        )
    if objective.order != "any":
        raise InputError(
            f"the checkpoint was trained to predict {objective.learns} ({objective.name}): it has no query stream, so "
            "it cannot predict in other orders"
        )
    return tokenizer


def on_device(pretrained: P, dtype: Literal["float32", "bfloat16"] = "float32") -> P:
    """Return the checkpoint with its weights on the device, so that they are not copied for every batch. dtype: compute
    type."""
    model = replace(pretrained.model, dtype=dtype, remat="none")
    (device,) = jnp.zeros(()).devices()  # the default one
    return replace(pretrained, model=model, params=jax.device_put(pretrained.params, device))


def assemble(found: ForeignCheckpoint, where: str, partial: bool) -> Pretrained:
    """Build the network of these variables.

    Raises InputError with the names of variables that are missing, unknown or misshapen; with `partial`, initializes or
    drops these parameters, and notes them.
    """
    loaded, table, variables = found
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


def check_params(pretrained: Pretrained, where: str) -> None:
    """Raise InputError if parameters are missing, unknown, or of other shapes than the settings require."""
    needed, flat = abstract_params(pretrained.model, pretrained.head), flatten(pretrained.params)
    optional = optional_params(pretrained.model, pretrained.head)
    shapes = {**optional, **needed}
    if pretrained.is_discriminator:  # the generator predicts pieces; only its run knows its sizes
        optional = {path: s for path, s in shapes.items() if not path.startswith(("backbone/", "detector/"))}
        flat = {path: array for path, array in flat.items() if not path.startswith(f"{GENERATOR}/")}
    table = [Weight(path, path, required=path not in optional) for path in shapes]
    if wrong := find_mismatch(flat, table, shapes):
        raise InputError(f"{where} is incomplete: {wrong}")


def check_given(given: Tokenizer, start: Pretrained, where: str) -> None:
    """Raise InputError if a tokenizer cannot belong to the weights that it is given for."""
    check_tokenizer(given, start.model, where)
    if start.tokenizer is None and given.foreign:
        raise InputError(
            f"{where}: put this tokenizer into the folder of the weights instead, and leave `tokenizer` out"
        )


def check_tokenizer(tokenizer: Tokenizer | None, model: ModelConfig, where: str) -> None:
    """Raise InputError if tokenizer and weights have vocabularies of different sizes."""
    if tokenizer and tokenizer.vocab_size != model.vocab_size:
        sizes = f"its tokenizer has {tokenizer.vocab_size:,} pieces and its weights {model.vocab_size:,}"
        raise InputError(f"{where}: {sizes}: they do not belong together")
