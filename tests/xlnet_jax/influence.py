"""Tokens that the rows of a network depend on, by gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from xlnet_jax.models.heads import build_encoder


def influence_on_rows(config, backbone, inputs, mems):
    """Return the sizes of the gradients of each row's hidden state, content rows, then query rows, by the tokens and by
    the memory of its example: [T, B, L] and [T, B, M].

    Each position gets an embedding of its own, so that the gradient by token is the gradient by embedding row."""
    shape = inputs.input_ids_BL.shape
    table = backbone["word_embedding"][inputs.input_ids_BL.reshape(-1)]
    inputs = inputs._replace(input_ids_BL=jnp.arange(len(table)).reshape(shape))
    network = build_encoder(dataclasses.replace(config, vocab_size=len(table)))
    # A random direction: a sum of features is constant under layer normalisation.
    direction_D = jax.random.normal(jax.random.key(3), (config.d_model,))

    @jax.jit
    def sizes(of_row_T):
        def along_direction(table, mems):
            outputs = network.apply({"params": {**backbone, "word_embedding": table}}, inputs, mems)
            rows = [hidden for hidden in outputs[:2] if hidden is not None]
            return (jnp.concatenate(rows, axis=1) @ direction_D @ of_row_T).sum()

        by_table, by_mems = jax.grad(along_direction, (0, 1))(table, mems)
        return jnp.abs(by_table).sum(-1).reshape(shape), jnp.abs(by_mems).sum((0, 3))

    rows = shape[1] + (0 if inputs.target_positions_BP is None else inputs.target_positions_BP.shape[1])
    of_tokens, of_memory = zip(*(sizes(of_row_T) for of_row_T in np.eye(rows, dtype=np.float32)), strict=True)
    return np.stack(of_tokens), np.stack(of_memory)
