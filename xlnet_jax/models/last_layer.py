"""Compute the last layer outside of the loop over layers, for only the rows that are used.

When the query stream predicts, nothing reads the content stream of the last layer. A loop would compute it, and would
copy what its backward pass needs into arrays of all layers.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import lift

from xlnet_jax.models.layers import is_unrolled, rematerialized
from xlnet_jax.settings.config import ModelConfig


def split_off_last(layer: Any, config: ModelConfig) -> Any:
    """Return the class of config.num_layers layers, the last one outside of the loop over the others. They compute the
    same numbers as those of `scan_layers`, but cannot create parameters or sow arrays.

    Instances take (rows, an array with a leading layer axis, the tuple of a layer's other arguments, the same tuple for
    the last layer), and return the rows of the last layer and an array with a leading layer axis.
    """
    return nn.transforms.lift_transform(_split_off_last, layer, config)


def _split_off_last(layer: Any, config: ModelConfig) -> Any:
    """Return a function of the scope of all layers. layer: a function of the scope of one, which `make_scope` makes
    from its parameters and random keys (flax.core.lift)."""

    def run(
        make_scope: Any, repack: Any, params: Any, rngs: Any, rows: Any, by_layer_Z: Any, others: tuple, of_last: tuple
    ) -> Any:
        count = config.num_layers - 1
        # A backward pass that saves all would save what `_take` returns, and without a loop nothing is copied.
        is_taken = config.remat != "none" and not is_unrolled(config)
        keys_Z = lift.tree_map_rngs(lambda key: jax.random.split(key, config.num_layers), rngs)
        arrays_Z = (by_layer_Z,) if config.share_layers == "all" else (by_layer_Z, params)

        def compute(rows: Any, key: Any, arrays: Any, others: tuple, is_first_trace: bool = False) -> Any:
            by_layer, *own = arrays
            scope = make_scope(own[0] if own else params, key)
            if not is_first_trace:
                for inner in jax.tree.leaves(scope):
                    inner.rng_counters = _copy(inner.rng_counters)
            return layer(scope, rows, by_layer, *others)

        def compute_next(rows: Any, of_step: Any) -> Any:
            number, key, arrays = of_step
            if is_taken:
                arrays = jax.tree.map(functools.partial(_take, number), jax.lax.stop_gradient(arrays_Z), arrays)
            return compute(rows, key, arrays, others)

        # A scope's random keys depend on how often it was traced before; nn.scan traces it once before the loop.
        jax.eval_shape(lambda: compute(rows, _at(0, keys_Z), _at(0, arrays_Z), others, is_first_trace=True))
        rows, out_Z = jax.lax.scan(
            rematerialized(compute_next, config),
            rows,
            (jnp.arange(count), *_at(slice(-1), (keys_Z, arrays_Z))),
            unroll=max(count, 1) if is_unrolled(config) else 1,
        )
        compute_last = rematerialized(functools.partial(compute, others=of_last), config)
        rows, out = compute_last(rows, *_at(-1, (keys_Z, arrays_Z)))
        return (rows, jnp.concatenate([out_Z, out[None]])), ()

    return lift.pack(run, ("params",), (), ("dropout",), name="split_off_last")


@jax.custom_jvp
def _take(number: Any, x_Z: jnp.ndarray, x: jnp.ndarray) -> jnp.ndarray:
    """Return x_Z[number], with the derivatives of x. x is the same array, but it is not read, so that a loop over a
    part of x_Z need not copy that part."""
    return x_Z[number]


_take.defjvp(lambda primals, tangents: (_take(*primals), tangents[2]))


def _at(index: Any, arrays_Z: Any) -> Any:
    return jax.tree.map(lambda x: x[index], arrays_Z)


def _copy(counters: dict) -> dict:
    return {name: _copy(count) if isinstance(count, dict) else count for name, count in counters.items()}
