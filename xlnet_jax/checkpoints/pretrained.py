"""Check a `Pretrained`: its network, parameters and tokenizer must match."""

from dataclasses import replace
from typing import Literal, TypeVar

import jax

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.interop.contents import Pretrained, check_tokenizer
from xlnet_jax.interop.weights import GENERATOR, Weight, abstract_params, find_mismatch, flatten, optional_params
from xlnet_jax.objectives.registry import objective_named

P = TypeVar("P", bound=Pretrained)


def require_vocabulary_scores(pretrained: Pretrained) -> None:
    """Raise InputError if a checkpoint has a head for a task, and does not predict pieces."""
    if pretrained.head is not None:
        why = f"has a head for {pretrained.head.task} and no vocabulary scores: give a pretrained one"
        raise InputError(f"the checkpoint {why}")


def vocabulary_tokenizer(pretrained: Pretrained) -> Tokenizer:
    """Return the tokenizer of a checkpoint that predicts pieces. Raises InputError for others, and without one."""
    require_vocabulary_scores(pretrained)
    return pretrained.require_tokenizer()


def scoring_tokenizer(pretrained: Pretrained, by_itself: bool = False) -> Tokenizer:
    """Return the tokenizer of a checkpoint that predicts pieces in any order or, by itself, each given the others, as a
    network of masked pieces does.

    Raises InputError if there is no tokenizer, no vocabulary scores or no query stream, or rows see only earlier
    positions.
    """
    tokenizer = vocabulary_tokenizer(pretrained)
    if pretrained.model.attn_type == "uni":
        raise InputError(
            "the checkpoint reads in one direction (`model.attn_type` uni) and cannot predict in other orders"
        )
    objective = objective_named(pretrained.objective)
    if by_itself and objective.filling.stream == "content" and not objective.is_discriminator:
        return tokenizer
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
    (device,) = jax.device_put(0).devices()  # the default one
    return replace(pretrained, model=model, params=jax.device_put(pretrained.params, device))


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
