"""Assign the instructions of a compiled step to parts of the model, by the scopes of the code that they come from.

Scopes are the names of flax modules and of `jax.named_scope`; the compiler keeps them in the metadata of instructions.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Literal, TypeAlias

from xlnet_jax.planning.hlo import Instruction, Program
from xlnet_jax.planning.traffic import exchanges

Part: TypeAlias = Literal[
    "attention scores", "relative shift", "position product", "attention dropout", "hidden dropout", "projections",
    "feed-forward", "vocabulary", "memory, embedding", "optimizer", "collectives", "copies", "rest",
]  # fmt: skip

PART_OF_SCOPE: dict[str, Part] = {
    # xlnet_jax/models/attention.py: content and value products, softmax, masks and segments; a fused kernel.
    "attention_scores": "attention scores",
    # xlnet_jax/kernels/plain.py
    "position_scores": "position product",
    "relative_shift": "relative shift",
    "attention_dropout": "attention dropout",
    # Modules of xlnet_jax/models/layers.py and xlnet.py. What of them has no scope within: projections, residual, norm.
    "Dropout": "hidden dropout",
    "attention": "projections",
    "feed_forward": "feed-forward",
    "backbone": "memory, embedding",
    # xlnet_jax/models/layers.py and xlnet_jax/objectives/language_model.py
    "vocabulary": "vocabulary",
    # Slices and updates of the arrays that the loop over layers reads and stacks.
    "dynamic_index_in_dim": "copies",
    "dynamic_update_index_in_dim": "copies",
}
"""Part by the innermost scope that is listed here"""

_COPIES = ("copy", "copy-start", "slice-start")
_PRODUCTS = ("dot", "convolution")
_NO_WORK = ("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "broadcast", "iota")


def part_of(program: Program, instruction: Instruction) -> Part:
    """Return the part that an instruction counts for.

    A fusion counts for the part of its largest product; without a product, for the part whose instructions in it
    compute the most bytes. The root of a fusion would not do: it is often only the last of many steps.
    """
    if any(exchanges(program, instruction)):
        return "collectives"
    if instruction.opcode in _COPIES:
        return "copies"
    if instruction.opcode != "fusion":
        return part_of_scopes(instruction.op_name)
    fused = [(i, part_of_scopes(i.op_name)) for i in _fused(program, instruction)]
    for eligible in ([(i, part) for i, part in fused if i.opcode in _PRODUCTS], fused):
        computed: Counter[Part] = Counter()
        for inner, part in eligible:
            if part != "rest":
                computed[part] += sum(shape.bytes for shape in inner.shapes)
        if computed:
            return computed.most_common(1)[0][0]
    return part_of_scopes(instruction.op_name)


def part_of_scopes(op_name: str) -> Part:
    """Return the part by the scopes of an instruction, outermost first, as "jit(train_step)/jvp(XLNetLM)/backbone"."""
    scopes = op_name.split("/")
    # Transformations stand around the name of a scope, as in transpose(jvp(vocabulary)); flax numbers its modules.
    names = [re.sub(r"^(?:\w+\()*|\)*$|_\d+\)*$", "", scope) for scope in scopes]
    for name in reversed(names):
        if name in PART_OF_SCOPE:
            return PART_OF_SCOPE[name]
    # The step is the gradient of the loss, which `jvp` marks, and what is done with it.
    return "optimizer" if names[0] == "train_step" and "jvp(" not in op_name else "rest"


def _fused(program: Program, fusion: Instruction) -> Iterator[Instruction]:
    """Yield the instructions of a fusion, and of fusions within it, that compute something."""
    for inner in program.fused(fusion).instructions.values():
        if inner.opcode == "fusion":
            yield from _fused(program, inner)
        elif inner.opcode not in _NO_WORK:
            yield inner
