"""A network that does nothing but drop: it returns the masks of several sites, inside and outside of scanned layers."""

import flax.linen as nn
import jax.numpy as jnp

from tests.xlnet_jax.random_models import SMALL
from xlnet_jax.kernels.arguments import AttentionInputs, Relations
from xlnet_jax.models.attention import attend_with_dropout_BNTH
from xlnet_jax.models.inputs import Inputs
from xlnet_jax.models.layers import Dropout, scan_layers

RATE = 0.1
HEADS, ROWS, WIDTH = 4, 48, 64
LAYERS = SMALL.num_layers


class Layer(nn.Module):
    @nn.compact
    def __call__(self, rows_BTD, example_B):
        batch, rows, width = rows_BTD.shape
        # Equal scores, and values that are the rows of a unit matrix: element k of an output is the mask of key k.
        zeros_BNTH = jnp.zeros((batch, HEADS, rows, width))
        value_BNKH = jnp.broadcast_to(jnp.eye(width)[None, None], (batch, HEADS, width, width))
        everything = Relations(mask_BTK=jnp.ones((batch, rows, width), bool))
        # Not keys of zeros: jaxlib 0.10 on the CPU now and then computes NaN where both factors of a fused product are
        # broadcasts of one number.
        inputs = AttentionInputs(zeros_BNTH, value_BNKH, value_BNKH, everything)
        masks = {}
        for site in "ab":
            masks[f"hidden {site}"] = Dropout(RATE, train=True)(rows_BTD, example_B) > 0
            masks[f"attention {site}"] = attend_with_dropout_BNTH(self, RATE, inputs, example_B, "plain") > 0
        return rows_BTD, masks


class Sites(nn.Module):
    """Masks by site, bool [B, …]; those of layers are [B, LAYERS, …]."""

    rows: int = ROWS
    width: int = WIDTH

    @nn.compact
    def __call__(self, inputs: Inputs, *, train: bool):
        ones_BTD = jnp.ones((len(inputs.input_ids_BL), self.rows, self.width))
        embedded = Dropout(RATE, train)(ones_BTD, inputs.example_B) > 0
        layers = scan_layers(Layer, SMALL, in_axes=nn.broadcast)(name="layers")
        _, masks = layers(ones_BTD, inputs.example_B)
        return {"embedded": embedded} | {site: jnp.swapaxes(mask, 0, 1) for site, mask in masks.items()}
