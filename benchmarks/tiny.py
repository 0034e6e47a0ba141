"""Make the model that comes with the package, xlnet_jax/weights/tiny, from two public-domain texts.

    python -m benchmarks.tiny novels.txt speeches.txt [--workdir runs/tiny]

Runs the ordinary commands for a tokenizer, a corpus, pretraining (about 90 minutes on one CPU core), conversion to
bfloat16 in the form of Hugging Face, and held-out losses; then writes the model card with them. A stage whose output is
there is not run again, so that a stopped run goes on.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import studies
from xlnet_jax.storage import bundled

NAME = "tiny"
VOCAB_SIZE = 8_000
STEPS = 10_000
SETTINGS = f"""--preset demo --steps {STEPS} --model.num-layers 4 --model.d-model 128 --model.num-heads 4
    --model.d-head 32 --model.d-ff 512 --model.init-std 0.08 --data.num-predict 32 --optimizer.learning-rate 0.003
    --optimizer.matrix-rate 0.5 --optimizer.warmup-steps 500 --eval.every-steps 2500 --eval.max-windows 1024
    --log.every-steps 250 --checkpoint.every-steps 2500 --checkpoint.every-minutes 5 --checkpoint.keep 2""".split()
"""The demo's network is as wide and half as deep. The rate falls with the width as in benchmarks/scaling.py"""
AUSTEN = "data_pipelines/corpora/austen/validation.txt"
"""Northanger Abbey, of which the training text has nothing; its author is not among those of the novels"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("novels")
    parser.add_argument("speeches")
    parser.add_argument("--workdir", type=Path, default=Path("runs", NAME))
    given = parser.parse_args()
    work, out, texts = given.workdir, bundled.folder(NAME), (given.novels, given.speeches)
    tokenizer, corpus, run = work / "tokenizer", work / "corpus", work / "run"
    _make(tokenizer, "data_pipelines.tokenizer", "train", "--source", *texts, "--vocab-size", VOCAB_SIZE,
          "--out", tokenizer)  # fmt: skip
    _make(corpus, "data_pipelines.prepare", "--source", *texts, "--tokenizer", tokenizer, "--block-len", 1152,
          "--validation-fraction", 0.02, "--out", corpus)  # fmt: skip
    _run("xlnet_jax.train", *SETTINGS, "--corpus", corpus, "--workdir", run)
    _make(out, "xlnet_jax.convert", run, out, "--to", "hf", "--dtype", "bfloat16")
    losses = {name: _loss(out, text, work / f"{name}.json") for name, text in (("own", corpus), ("austen", AUSTEN))}
    (out / "README.md").write_text(card(losses, studies.time_of(run)))


def _run(module: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-m", module, *map(str, arguments)], check=True)


def _make(output: Path, module: str, *arguments: object) -> None:
    if not output.exists():
        _run(module, *arguments)


def _loss(model: Path, text: str | Path, out: Path) -> dict[str, Any]:
    _make(out, "xlnet_jax.evaluate", model, "--text", text, "--out", out)
    return json.loads(out.read_text())


def card(losses: dict[str, dict[str, Any]], time: studies.Record) -> str:
    """Return the model card. losses: numbers of xlnet_jax.evaluate on each text. time: of pretraining."""
    rows = [
        f"| {text} | {losses[name]['loss']:.3f} | {losses[name]['unigram']:.3f} | "
        f"{losses[name]['bits_per_character']:.3f} |"
        for name, text in (("own", "2% of the documents of these texts, held out"), ("austen", "Northanger Abbey"))
    ]
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

XLNet to begin with: 4 layers x 128, 1,891,264 parameters in bfloat16, {VOCAB_SIZE:,} pieces. It comes with xlnet_jax,
so that `finetune`, `embed`, `generate` and `evaluate` have something to work on. It is far too small to be good.

## Texts

Public-domain texts alone; none of them is here:

- English novels from before 1900, among them Henry James, Hardy, Bulwer-Lytton, Braddon and Meredith: 56 MB
- speeches of presidents of the United States: 3 MB

The licence of weights and tokenizer is that of the package, Apache-2.0.

## Training

`python -m benchmarks.tiny novels.txt speeches.txt`: permutation language modelling, {STEPS:,} steps of 16 windows of
128 tokens with a memory of 64 and 32 targets each, {time["seconds"] / 60:.0f} minutes on one CPU core. All settings
stand in benchmarks/tiny.py.

## Held-out loss

Measured by `python -m xlnet_jax.evaluate tiny --text FILE`, in nats a piece; unigram is the loss of a model that knows
only how often each piece occurs.

| text | loss | unigram | bits a character |
|---|---|---|---|
{chr(10).join(rows)}

## Use and limits

```python
import xlnet_jax

model = xlnet_jax.load("tiny")
hidden = model.hidden_states(*model.encode(["A text."]))  # [texts, tokens, 128]
```

`XLNetLMHeadModel.from_pretrained(FOLDER)` of transformers reads it as well; its folder is
`xlnet_jax.storage.bundled.folder("tiny")`. It knows the English of novels of the 19th century, with the views of their
time, and little else.
"""


if __name__ == "__main__":
    main()
