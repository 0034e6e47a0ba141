"""Compute the last layer outside of the loop over layers, for only the rows that are used.

When the query stream predicts, nothing reads the content stream of the last layer. A loop would compute it, and would
copy what its backward pass needs into arrays of all layers.
"""

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
    return nn.transforms.lift_transform(_split_off_last, rematerialized(layer, config), config)


def _split_off_last(layer: Any, config: ModelConfig) -> Any:
    """Return a function of the scope of all layers. layer: a function of the scope of one, which `make_scope` makes
    from its parameters and random keys (flax.core.lift)."""

    def run(
        make_scope: Any, repack: Any, params: Any, rngs: Any, rows: Any, by_layer_Z: Any, others: tuple, of_last: tuple
    ) -> Any:
        keys_Z = lift.tree_map_rngs(lambda key: jax.random.split(key, config.num_layers), rngs)
        arrays_Z = (keys_Z, by_layer_Z) if config.share_layers else (keys_Z, by_layer_Z, params)

        def compute(rows: Any, arrays: Any, others: tuple, is_first_trace: bool = False) -> Any:
            key, by_layer, *own = arrays
            scope = make_scope(own[0] if own else params, key)
            if not is_first_trace:
                for inner in jax.tree.leaves(scope):
                    inner.rng_counters = _copy(inner.rng_counters)
            return layer(scope, rows, by_layer, *others)

        # A scope's random keys depend on how often it was traced before; nn.scan traces it once before the loop.
        jax.eval_shape(lambda: compute(rows, _at(0, arrays_Z), others, is_first_trace=True))
        before, count = _at(slice(-1), arrays_Z), config.num_layers - 1
        rows, out_Z = jax.lax.scan(
            lambda rows, arrays: compute(rows, arrays, others),
            rows,
            before,
            length=count,
            unroll=max(count, 1) if is_unrolled(config) else 1,
        )
        rows, out = compute(rows, _at(-1, arrays_Z), of_last)
        return (rows, jnp.concatenate([out_Z, out[None]])), ()

    return lift.pack(run, ("params",), (), ("dropout",), name="split_off_last")


def _at(index: Any, arrays_Z: Any) -> Any:
    return jax.tree.map(lambda x: x[index], arrays_Z)


def _copy(counters: dict) -> dict:
    return {name: _copy(count) if isinstance(count, dict) else count for name, count in counters.items()}
