"""Small networks with random weights."""

import dataclasses

import jax
import numpy as np

from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.interop.contents import guess_objective
from xlnet_jax.interop.weights import abstract_params, nest
from xlnet_jax.settings.config import HeadConfig, ModelConfig

# Chosen so that no two sizes are alike: a transposed or mistaken axis has another shape.
SMALL = ModelConfig(
    vocab_size=40, num_layers=3, d_model=24, num_heads=4, d_head=6, d_ff=20, mem_len=5, dropout=0.0,
    attention_dropout=0.0,
)  # fmt: skip
CAUSAL = dataclasses.replace(SMALL, num_layers=2, attn_type="uni", num_segments=0)
BERT = dataclasses.replace(
    SMALL, mem_len=0, positions="learned", max_positions=18, activation="gelu_erf", num_segments=2
)
ROBERTA = dataclasses.replace(BERT, position_offset=2, num_segments=1, layer_norm_eps=1e-5)
HEADS = {
    "lm": None,
    "classification": HeadConfig("classification", 3, "first", scope="classification_mnli", labels=("a", "b", "c")),
    "no_projection": HeadConfig("classification", 5, "mean", use_projection=False, scope="classification_x"),
    "attn": HeadConfig("classification", 3, "attn", scope="classification_x"),
    "regression": HeadConfig("regression", scope="regression_sts-b"),
    "multiple_choice": HeadConfig("multiple_choice", 4),
    "question_answering": HeadConfig("question_answering"),
    "token_classification": HeadConfig("token_classification", 7, scope="classifier"),
    "span": HeadConfig("token_classification", 2, scope="qa_outputs"),
}


def random_params(config, head, seed=0):
    rng = np.random.default_rng(seed)
    shapes = abstract_params(config, head)
    return nest({path: rng.normal(scale=0.3, size=s.shape).astype(np.float32) for path, s in shapes.items()})


def strong_params(config, head=None):
    return jax.tree.map(lambda weight: 2 * weight, random_params(config, head))


def random_model(config=SMALL, head=None, tokenizer=None):
    reuse_len = 4 if config.mem_len else None
    params = random_params(config, head)
    return Pretrained(config, params, guess_objective(config, params), head, tokenizer, reuse_len=reuse_len)
