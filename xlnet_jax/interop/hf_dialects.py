"""Names of the parts of one network in BERT, RoBERTa, ALBERT and ELECTRA (transformers, modeling_bert.py and its
relatives)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Dialect:
    """Names of the parts of a network."""

    body: str
    classes: str  # prefix of its classes
    transform: tuple[str, str]  # its dense layer and its normalisation
    output_bias: str
    copies: tuple[str, str]  # of the embedding and of the bias, in some files
    pooler: str
    pairs: str | None  # the scores of next sentence prediction, or of sentence order
    sequence: tuple[str, str] | None  # projection and last layer of a head for texts; None: it is no such head
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of its settings, by our names, where not BERT's
    projection: str | None = None  # of narrow embeddings
    layer: str = "encoder.layer.{}"
    heads: str = "attention.self"
    layer_parts: tuple[str, ...] = (
        "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense",
        "output.LayerNorm",
    )  # fmt: skip
    exact_gelu: bool = False  # whatever hidden_act says, its scores go through that


DIALECTS = {
    "bert": Dialect(
        "bert",
        "Bert",
        ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
        "cls.predictions.bias",
        ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias"),
        "bert.pooler.dense",
        "cls.seq_relationship",
        ("bert.pooler.dense", "classifier"),
    ),
    "roberta": Dialect(
        "roberta",
        "Roberta",
        ("lm_head.dense", "lm_head.layer_norm"),
        "lm_head.bias",
        ("lm_head.decoder.weight", "lm_head.decoder.bias"),
        "roberta.pooler.dense",
        None,
        ("classifier.dense", "classifier.out_proj"),
        exact_gelu=True,
    ),
    "albert": Dialect(
        "albert",
        "Albert",
        ("predictions.dense", "predictions.LayerNorm"),
        "predictions.bias",
        ("predictions.decoder.weight", "predictions.decoder.bias"),
        "albert.pooler",
        "sop_classifier.classifier",
        ("albert.pooler", "classifier"),
        {
            "vocab_size": 30_000,
            "d_model": 4096,
            "num_heads": 64,
            "d_ff": 16_384,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "embedding_width": 128,
            "activation": "gelu_new",
        },
        "encoder.embedding_hidden_mapping_in",
        "encoder.albert_layer_groups.0.albert_layers.0",
        "attention",
        ("attention.dense", "attention.LayerNorm", "ffn", "ffn_output", "full_layer_layer_norm"),
    ),
    "electra": Dialect(
        "electra",
        "Electra",
        ("generator_predictions.dense", "generator_predictions.LayerNorm"),
        "generator_lm_head.bias",
        ("generator_lm_head.weight", ""),
        "electra.pooler",
        None,
        None,
        {"d_model": 256, "num_heads": 4, "d_ff": 1024, "embedding_width": 128},
        "embeddings_project",
        exact_gelu=True,
    ),
}
