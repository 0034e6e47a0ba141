"""100 new tokens here and by Hugging Face's generate (PyTorch, eager), A B A B: python benchmarks/generate.py

Needs `pip install torch transformers`; without them the second table comes alone. The same random weights on both sides,
float32, one text, greedy, every token computed to the end. Hugging Face's side runs with memory (`use_mems`, its
setting for sequential decoding, and its faster one) and without. Loading and compilation are left out on both sides,
the reading of the prompt is in. Then the time a token here, for texts that grow to many times the context.
"""

import argparse
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import xlnet_jax
from data_pipelines import sources
from data_pipelines.tokenizer import EOD, EOP, Tokenizer
from xlnet_jax.config import PRESETS, ModelConfig
from xlnet_jax.interop.pretrained import Pretrained
from xlnet_jax.interop.weights import initial_params
from xlnet_jax.objectives.blanks import Blanks, Kind
from xlnet_jax.objectives.generation import Generator, Sampling

PROMPT, NEW, CONTEXT = 50, 100, 512
MULTIPLES = 1, 2, 4, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default="base", help="size of the network")
    parser.add_argument("--pairs", type=int, default=3, help="turns of each side")
    parser.add_argument("--context", type=int, default=CONTEXT, help="positions that are kept here")
    parser.add_argument("--growing-context", type=int, default=128, help="the same for texts that outgrow it")
    given = parser.parse_args()
    model = random_model(PRESETS[given.preset]().model)
    m = model.model
    print(f"{m.num_layers} layers of {m.d_model}, vocabulary of {m.vocab_size:,}, {os.cpu_count()} cores")
    compare(model, given.pairs, given.context)
    grow(model, given.growing_context)


def random_model(config: ModelConfig) -> Pretrained:
    with open(sources.embedded()[0]) as novels:
        tokenizer = Tokenizer.train((line.strip() for line in novels), 4_000, "english")
    config = dataclasses.replace(config, vocab_size=tokenizer.vocab_size, dtype="float32")
    return Pretrained(config, jax.tree.map(np.asarray, initial_params(config, None)), None, tokenizer)
