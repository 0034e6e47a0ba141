"""Sinusoidal signals of relative distances (Transformer-XL, section 3.3; XLNet `relative_positional_encoding`) or of
places, and the position keys projected from them."""

import jax.numpy as jnp

from xlnet_jax.kernels.numerics import einsum_float32


def distances_R(num_queries: int, num_keys: int, clamp_len: int) -> jnp.ndarray:
    """Return the distances from a row to a key, in positions, float32 [R = K + L]: from K, long before the row, down to
    1 - L, after it.

    float32 always: bfloat16 represents integers exactly only up to 256. `clamp_len` bounds them on both sides; -1 = no
    bound.
    """
    distance = jnp.arange(num_keys, -num_queries, -1, dtype=jnp.float32)
    return jnp.clip(distance, -clamp_len, clamp_len) if clamp_len > 0 else distance


def signals_2RY(distance_R: jnp.ndarray, width: int) -> jnp.ndarray:
    """Return the sines [0] and the cosines [1] of distances in text read forwards; float32 [2, R, Y = width / 2]."""
    angle_RY = _angles(distance_R, width)
    return jnp.stack([jnp.sin(angle_RY), jnp.cos(angle_RY)])


def position_keys_2NRH(signals_2RY: jnp.ndarray, r_DNH: jnp.ndarray) -> jnp.ndarray:
    """Return the sine part [0] and the cosine part [1] of the position keys, float32; their sum is the keys of text
    read forwards.

    Text read backwards has the opposite sign of every distance, which flips the sign of the sines and nothing else. So
    both parts are projected once for the whole batch, and each row adds them up in its direction.
    """
    r_2YNH = r_DNH.reshape(2, -1, *r_DNH.shape[1:])
    return einsum_float32("iRY,iYNH->iNRH", signals_2RY.astype(r_DNH.dtype), r_2YNH)


def signals_BLD(place_BL: jnp.ndarray, width: int) -> jnp.ndarray:
    """Return the sines beside the cosines of any integers, float32 (Vaswani et al. 2017, section 3.5, who interleave
    them)."""
    angle_BLY = _angles(place_BL.astype(jnp.float32), width)
    return jnp.concatenate([jnp.sin(angle_BLY), jnp.cos(angle_BLY)], axis=-1)


def _angles(positions: jnp.ndarray, width: int) -> jnp.ndarray:
    frequency_Y = 10_000.0 ** -(jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    return positions[..., None] * jnp.expand_dims(frequency_Y, range(positions.ndim))
