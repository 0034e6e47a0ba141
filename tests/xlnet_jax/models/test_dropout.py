"""Dropout of networks and heads: the original's sites and scale, and the losses of a few steps."""

import dataclasses
import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from tests.xlnet_jax.training.tiny import CONFIG, batch_at
from xlnet_jax.kernels.arguments import AttentionInputs, Relations
from xlnet_jax.kernels.dropout import AttentionDropout, attention_seed_BN, threshold
from xlnet_jax.kernels.plain import attention_BNTH
from xlnet_jax.models.heads import build_model, init_params
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.models.layers import Dropout
from xlnet_jax.objectives.language_model import BatchDropout, LanguageModel
from xlnet_jax.settings.config import Config, HeadConfig
from xlnet_jax.training import sharding
from xlnet_jax.training.step import Program

ROWS, LENGTH, TARGETS, MEMORY = 8, 16, 6, 8
WIDTH, INNER, HEADS = 16, 32, 2
BERT = dataclasses.replace(
    CONFIG,
    objective="mlm",
    model=dataclasses.replace(CONFIG.model, positions="learned", mem_len=0, max_positions=LENGTH),
)
CONFIGS = {"xlnet": CONFIG, "bert": BERT}


def batch_of(config: Config, step):
    batch = batch_at(step)
    if config.model.network == "bert":
        batch |= {"perm_rank": np.zeros_like(batch["perm_rank"]), "mem_filled": np.zeros_like(batch["mem_filled"])}
    return batch


# ---- scale -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_what_is_kept_is_scaled_up(rate):
    """Check hidden states and attention weights. With equal scores and the rows of a unit matrix as values, each output
    is a row of weights."""
    rows_BTD = jnp.full((4, 8, 16), 3.0)
    dropped = Dropout(rate, train=True).apply({}, rows_BTD, jnp.arange(4), rngs={"dropout": jax.random.key(0)})
    np.testing.assert_allclose(np.unique(dropped), [0, 3 / (1 - rate)], rtol=1e-6)
    key_BNKH = jnp.broadcast_to(jnp.eye(8)[None, None], (2, 2, 8, 8))
    everything = Relations(mask_BTK=jnp.ones((2, 8, 8), bool))
    dropout = AttentionDropout(rate, attention_seed_BN(jax.random.key(0), jnp.arange(2), 2))
    inputs = AttentionInputs(jnp.zeros((2, 2, 8, 8)), key_BNKH, key_BNKH, everything, dropout=dropout)
    np.testing.assert_allclose(np.unique(attention_BNTH(inputs)), [0, 1 / 8 / (1 - rate)], rtol=1e-6)


# ---- sites -----------------------------------------------------------------------------------------------------------

ALL_ROWS = LENGTH + TARGETS
DISTANCES = MEMORY + 2 * LENGTH
SITES = {
    # Embeddings, positions (sines and cosines), the last hidden states; in each layer the outputs of attention, of the
    # activation and of the feed-forward layer (modeling.py: transformer_xl, rel_multihead_attn, positionwise_ffn). The
    # last layer and what follows have only query rows.
    "xlnet": [
        (2, DISTANCES, WIDTH // 2),
        (ROWS, ALL_ROWS, WIDTH),
        *[(ROWS, rows, WIDTH) for rows in (ALL_ROWS, ALL_ROWS, TARGETS, TARGETS, TARGETS)],
        *[(ROWS, rows, INNER) for rows in (ALL_ROWS, TARGETS)],
    ],
    # Embeddings; in each layer the outputs of attention and of the feed-forward layer (Devlin et al. 2019, their code).
    "bert": [(ROWS, LENGTH, WIDTH)] * 3,
}
WEIGHTS = {
    "xlnet": [(ROWS, HEADS, rows, MEMORY + LENGTH) for rows in (ALL_ROWS, TARGETS)],
    "bert": [(ROWS, HEADS, LENGTH, LENGTH)],
}


def masks_of(jaxpr, rate):
    """Yield the shapes of the masks of this rate: comparisons of random bits with its threshold."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "ge" and getattr(eqn.invars[1], "val", None) == threshold(rate):
            yield eqn.outvars[0].aval.shape
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from masks_of(inner, rate)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_network_drops_where_the_original_does(name):
    """The layers are one scan and the last layer, so each of their sites occurs once or twice."""
    config = CONFIGS[name]
    rates = {"dropout": 0.25, "attention_dropout": 0.125}
    objective = LanguageModel(dataclasses.replace(config, model=dataclasses.replace(config.model, **rates)))
    params = sharding.unboxed(jax.eval_shape(objective.init, jax.random.key(0)))
    dropout = BatchDropout(jax.random.key(0), jnp.arange(ROWS))
    mems = jnp.zeros(objective.mems.shape)
    program = jax.make_jaxpr(lambda params: objective.score(params, batch_of(config, 0), mems, dropout))(params)
    assert sorted(masks_of(program.jaxpr, 0.25)) == sorted(SITES[name])
    assert list(masks_of(program.jaxpr, 0.125)) == WEIGHTS[name]


@pytest.mark.parametrize(
    ("head", "hidden", "attention"),
    [
        # The summary (summarize_sequence); where it is pooled by attention, also the pool's weights and output.
        (HeadConfig("classification", 3), [(ROWS, 1, WIDTH)], []),
        (HeadConfig("classification", 3, summary="attn"), [(ROWS, 1, WIDTH)] * 2, [(ROWS, HEADS, LENGTH)]),
        # Whether there is an answer (get_qa_outputs).
        (HeadConfig("question_answering"), [(ROWS, 1, WIDTH)], []),
        (HeadConfig("token_classification", 3), [], []),
    ],
    ids=["last", "attn", "question_answering", "token_classification"],
)
def test_a_head_drops_where_the_original_does(head, hidden, attention):
    model = dataclasses.replace(BERT.model, dropout=0.25, attention_dropout=0.125)
    ids_BL = jnp.ones((ROWS, LENGTH), jnp.int32)
    rest = {"question_answering": (ids_BL[:, 0], ids_BL, ids_BL[:, 0]), "token_classification": ()}
    arguments = text_inputs(ids_BL, ids_BL, ids_BL), *rest.get(head.task, (ids_BL,))
    params = sharding.unboxed(jax.eval_shape(lambda key: init_params(model, head, key), jax.random.key(0)))
    apply = functools.partial(build_model(model, head).apply, train=True, rngs={"dropout": jax.random.key(0)})
    program = jax.make_jaxpr(apply)({"params": params}, *arguments)
    assert sorted(masks_of(program.jaxpr, 0.25)) == sorted([*SITES["bert"], *hidden])
    assert sorted(masks_of(program.jaxpr, 0.125)) == sorted([*WEIGHTS["bert"], *attention])


# ---- golden run ------------------------------------------------------------------------------------------------------

# Update this table only for a change that is meant to alter dropout (the bits of a mask, a site, a rate), and say so in
# the commit.
GOLDEN = {
    "xlnet": [4.575708, 4.247670, 4.273920, 4.368846],
    "bert": [4.472514, 4.137533, 4.556134, 4.193307],
}


@pytest.mark.parametrize("name", CONFIGS)
def test_losses_of_a_tiny_run_with_dropout(name):
    config = CONFIGS[name]
    program, losses = Program.of(config, LanguageModel(config), jax.devices()[:1]), []
    state = program.init_state({})
    for t in range(4):
        state, metrics = program.train_step(state, program.put(batch_of(config, t)))
        losses.append(float(metrics["loss"]))
    np.testing.assert_allclose(losses, GOLDEN[name], rtol=0, atol=1e-4)
