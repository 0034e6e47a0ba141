"""Sinusoidal signals, of relative distances (Transformer-XL, section 3.3; XLNet `relative_positional_encoding`) or of
places."""

import jax.numpy as jnp


def distances_R(num_queries: int, num_keys: int, clamp_len: int) -> jnp.ndarray:
    """Distances from a row to a key, in positions, float32 [R = K + L]: from K (far behind) down to 1 - L (ahead).

    float32 always: bfloat16 holds integers to 256 only. `clamp_len` bounds them on both sides; -1 = no bound.
    """
    distance = jnp.arange(num_keys, -num_queries, -1, dtype=jnp.float32)
    return jnp.clip(distance, -clamp_len, clamp_len) if clamp_len > 0 else distance


def signals_2RF(distance_R: jnp.ndarray, width: int) -> jnp.ndarray:
    """The sine half [0] and the cosine half [1] of the signals of text read forwards; float32 [2, R, F = width / 2].

    Text read backwards has the other sign of every distance, which is the other sign of the sine half and no more.
    """
    angle_RF = _angles(distance_R, width)
    return jnp.stack([jnp.sin(angle_RF), jnp.cos(angle_RF)])


def signals_BLD(place_BL: jnp.ndarray, width: int) -> jnp.ndarray:
    """The sine half beside the cosine half, float32, of any whole numbers (Vaswani et al. 2017, section 3.5, whose
    halves are interleaved)."""
    angle_BLF = _angles(place_BL.astype(jnp.float32), width)
    return jnp.concatenate([jnp.sin(angle_BLF), jnp.cos(angle_BLF)], axis=-1)


def _angles(positions: jnp.ndarray, width: int) -> jnp.ndarray:
    frequency_F = 10_000.0 ** -(jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    return positions[..., None] * jnp.expand_dims(frequency_F, range(positions.ndim))
