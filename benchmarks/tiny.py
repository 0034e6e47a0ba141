"""Make the model of the package, xlnet_jax/weights/tiny, from two public-domain texts.

    python -m benchmarks.tiny novels.txt speeches.txt [--workdir runs/tiny]

Runs the normal commands to train a tokenizer, prepare corpora, pretrain in four stages (about two and a half hours on
one CPU core), convert to bfloat16 in Hugging Face's format, and measure a held-out loss. Then it writes the model card.
Outputs that exist are not made again, so a stopped run can continue.

In the second stage half of the windows say everything twice (benchmarks/twice.py), so that the network learns to look
words up in its context, which running text does not teach in this time. In the third stage it reads mostly running text
again, and in the last nothing else; otherwise it would expect words in random order at the beginning of a text.
"""

import argparse
import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import studies
from benchmarks.studies import run_module
from benchmarks.twice import sentences_twice, words_twice
from xlnet_jax.storage import hub

NAME = "tiny"
VOCAB_SIZE = 8_000


class Stage(NamedTuple):
    """Part of the pretraining, which starts from the weights of the stage before."""

    name: str
    steps: int
    rate: float
    """learning rate, which falls with the width as in benchmarks/scaling.py"""
    warmup: int
    weights: Mapping[str, float]
    """share of each text among the windows; empty = in proportion to length"""

    def settings(self, start: list[str]) -> list[str]:
        """Return the settings of the train command for the stage. start: settings of the network, or --init."""
        given = {"steps": self.steps, "optimizer.learning-rate": self.rate, "optimizer.warmup-steps": self.warmup}
        return [*SETTINGS, *start, *(word for name, value in given.items() for word in (f"--{name}", str(value)))]


STAGES = (
    Stage("first", 10_000, 0.003, 500, {}),
    Stage("twice", 5_000, 0.003, 200, {"novels": 0.47, "speeches": 0.03, "sentences_twice": 0.2, "words_twice": 0.3}),
    Stage("mostly", 5_000, 0.003, 200, {"novels": 0.8, "speeches": 0.05, "sentences_twice": 0.05, "words_twice": 0.1}),
    Stage("last", 3_000, 0.0015, 100, {}),
)
SETTINGS = """--preset demo --optimizer.method adamw
    --data.num-predict 32 --optimizer.matrix-rate 0.5 --eval.every-steps 2500
    --eval.max-windows 1024 --log.every-steps 250 --checkpoint.every-steps 2500 --checkpoint.every-minutes 5
    --checkpoint.keep 2""".split()
NETWORK = """--model.num-layers 4 --model.d-model 128 --model.num-heads 4 --model.d-head 32 --model.d-ff 512
    --model.init-std 0.08""".split()
"""as wide as the demo's network, and twice as deep"""
LINES = 60_000
"""number of lines of the novels for each kind of text in which every sentence is repeated"""
AUSTEN = "data_pipelines/corpora/austen/validation.txt"
"""Northanger Abbey. The training text has no novels of its author."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("novels", type=Path)
    parser.add_argument("speeches", type=Path)
    parser.add_argument("--workdir", type=Path, default=Path("runs", NAME))
    given = parser.parse_args()
    work, out = given.workdir, hub.bundled_folder(NAME)
    tokenizer = work / "tokenizer"
    sources = {"novels": given.novels, "speeches": given.speeches}
    _make(tokenizer, "data_pipelines.tokenizer", "train", "--source", *sources.values(), "--vocab-size", VOCAB_SIZE,
          "--out", tokenizer)  # fmt: skip
    for kind, documents in said_twice(given.novels.read_text(), given.speeches.read_text()).items():
        sources[kind] = work / f"{kind}.txt"
        sources[kind].write_text("\n\n".join(documents) + "\n")
    start = NETWORK
    for stage in STAGES:
        corpus, texts = work / f"{stage.name}-corpus", [*(stage.weights or ("novels", "speeches"))]
        shares = ["--weights", *stage.weights.values()] if stage.weights else []
        _make(corpus, "data_pipelines.prepare", "--source", *(sources[text] for text in texts), *shares,
              "--tokenizer", tokenizer, "--block-len", 1152, "--validation-fraction", 0.02,
              "--out", corpus)  # fmt: skip
        run_module("xlnet_jax.train", *stage.settings(start), "--corpus", corpus, "--workdir", work / stage.name)
        start = ["--init", str(work / stage.name)]
    _make(out, "xlnet_jax.convert", work / STAGES[-1].name, out, "--to", "hf", "--dtype", "bfloat16")
    measured = work / "austen.json"
    _make(measured, "xlnet_jax.evaluate", out, "--text", AUSTEN, "--out", measured)
    (out / "README.md").write_text(card(json.loads(measured.read_text()), studies.time_of(work)["seconds"]))


def said_twice(novels: str, speeches: str) -> dict[str, list[str]]:
    """Return documents that say everything twice: sentences of the novels, and words of both texts."""
    draw = random.Random(0)
    lines = [line for line in novels.split("\n") if line]
    sentences = [part for line in draw.sample(lines, LINES) for part in re.split(r"(?<=[.!?])\s+", line)]
    return {
        "sentences_twice": sentences_twice(sentences, 4_000, draw),
        "words_twice": words_twice("\n".join(draw.sample(lines, LINES)) + speeches, 5_000, draw, at_least=5),
    }


def _make(output: Path, module: str, *arguments: object) -> None:
    if not output.exists():
        run_module(module, *arguments)


def card(austen: dict[str, Any], seconds: float) -> str:
    """Return the model card. austen: numbers of xlnet_jax.evaluate on Northanger Abbey. seconds: of pretraining."""
    loss = " | ".join(f"{austen[name]:.3f}" for name in ("loss", "unigram", "bits_per_character"))
    steps = [f"{stage.steps:,}" for stage in STAGES]
    return f"""---
language: en
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags:
- xlnet
- xlnet_jax
---

# tiny

A small XLNet to try things with: 4 layers x 128, 1,891,264 parameters in bfloat16, {VOCAB_SIZE:,} pieces. It comes with
xlnet_jax, so that you can try `finetune`, `embed`, `generate` and `evaluate`. It is far too small for good results.

## Texts

It was trained on public-domain texts, which are not included:

- English novels from before 1900, by Henry James, Hardy, Bulwer-Lytton, Braddon, Meredith and others: 56 MB
- speeches of presidents of the United States: 3 MB

Weights and tokenizer have the license of the package, Apache-2.0.

## Training

`python -m benchmarks.tiny novels.txt speeches.txt`: permutation language modeling in windows of 128 tokens, 16
per step, with a memory of 64 and 32 targets each. It took {seconds / 60:.0f} minutes on one CPU core, in four stages:

- {steps[0]} steps on the texts
- {steps[1]} steps in which sentences and words are repeated in half of the windows, so that the network learns to copy
  from its context
- {steps[2]} steps mostly on the texts
- {steps[3]} steps only on the texts

All settings are in benchmarks/tiny.py.

## Held-out loss

Measured by `python -m xlnet_jax.evaluate tiny --text FILE`, in nats per piece. Unigram is the loss of a model that
knows only the frequencies of pieces. The training texts include nothing by the author.

| text | loss | unigram | bits per character |
|---|---|---|---|
| Northanger Abbey | {loss} |

## Use and limits

```python
import xlnet_jax

model = xlnet_jax.load("tiny")
hidden = model.hidden_states(*model.tokenize(["A text."]))  # [texts, tokens, 128]
```

`XLNetLMHeadModel.from_pretrained(FOLDER)` of transformers reads it too; the folder is
`xlnet_jax.storage.hub.bundled_folder("tiny")`. It has learned the English of 19th-century novels, with the views of
their time, and to copy words from its context, but little else.
"""


if __name__ == "__main__":
    main()
