"""Measure generated text by temperature, top-p, repetition penalty and order, beside the text itself.

    python -m benchmarks.sampling CHECKPOINT TEXT [--texts 32] [--pieces 64]

Each text continues the first 16 pieces of a line of the last tenth of TEXT, which the checkpoint must not have read. Of
the new pieces:

    repeated   share of 3-grams that occur earlier in the same text
    distinct   different 2-grams of all texts, as a share of all 2-grams (Li et al. 2016, section 5)
    nats       per piece, under a 5-gram model of the other nine tenths (benchmarks/ngram.py)

`repeated` and `nats` are means over texts with their standard errors. A good setting is close to the text itself in all
three.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np

import xlnet_jax
from benchmarks.ngram import probabilities
from benchmarks.results import keep_table
from data_pipelines.tokenizer import EOD

SETTINGS = (  # temperature, top-p, repetition penalty
    (0.0, 1.0, 1.0), (0.0, 1.0, 1.2), (0.7, 0.9, 1.0), (0.7, 0.9, 1.2), (0.7, 1.0, 1.0), (0.8, 0.9, 1.0),
    (0.8, 0.9, 1.1), (0.8, 0.9, 1.2), (1.0, 0.8, 1.0), (1.0, 0.8, 1.1), (1.0, 0.8, 1.2), (1.0, 0.9, 1.0),
    (1.0, 0.9, 1.1), (1.0, 1.0, 1.0),
)  # fmt: skip
GIVEN = 16
ORDER = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("text", type=Path)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--pieces", type=int, default=64)
    parser.add_argument("--orders", nargs="+", default=["left", "random", "confidence"])
    given = parser.parse_args()
    model = xlnet_jax.load(given.checkpoint)
    tokenizer = model.require_tokenizer()
    lines = [line for line in given.text.read_text().splitlines() if line.strip()]
    ids = np.concatenate([np.append(line, EOD) for line in tokenizer.encode_lines(lines)]).astype(np.int64)
    fitted, rest = np.split(ids, [len(ids) * 9 // 10])
    length = GIVEN + given.pieces
    train = fitted[: len(fitted) // length * length].reshape(-1, length)
    places = np.linspace(0, len(rest) - length, given.texts).astype(int)
    itself = np.stack([rest[place : place + length] for place in places])
    prompts = [tokenizer.decode(row[:GIVEN].tolist()) for row in itself]

    def row(name: str, texts: list[np.ndarray]) -> None:
        whole = np.stack([np.resize(text, length) for text in texts])
        nats = -np.log(probabilities(train, whole, tokenizer.vocab_size, ORDER)[:, GIVEN:]).mean(1)
        new = [text[GIVEN:length] for text in texts]
        threes = [list(zip(*(text[k:] for k in range(3)), strict=False)) for text in new]
        repeated = 100 * np.array([1 - len(set(of)) / max(len(of), 1) for of in threes])
        twos = [pair for text in new for pair in itertools.pairwise(text)]
        rows.append([name, _mean(repeated, 1), f"{len(set(twos)) / len(twos):.3f}", _mean(nats, 3)])
        print(*rows[-1], sep="  ", flush=True)

    rows: list[list[str]] = []
    row("the text itself", list(itself))
    orders = ("left",) if model.is_causal else given.orders
    for order in orders:
        for temperature, top_p, penalty in SETTINGS:
            drawn = xlnet_jax.generate(
                model, prompts, max_new_tokens=given.pieces, temperature=temperature, top_p=top_p,
                repetition_penalty=penalty, order=order, batch_size=given.texts,
            )  # fmt: skip
            by_piece = {piece: i for i, piece in enumerate(tokenizer.pieces)}
            new = [np.array([by_piece[piece] for piece in text.pieces] or [EOD]) for text in drawn]
            row(
                f"{order}, temperature {temperature:g}, top-p {top_p:g}, penalty {penalty:g}",
                [np.append(begin[:GIVEN], more) for begin, more in zip(itself, new, strict=True)],
            )
    keep_table(f"sampling-{Path(given.checkpoint).name}", ["setting", "repeated, %", "distinct", "nats"], rows)


def _mean(of_texts: np.ndarray, digits: int) -> str:
    """Return the mean and its standard error."""
    return f"{of_texts.mean():.{digits}f} ± {of_texts.std(ddof=1) / len(of_texts) ** 0.5:.{digits}f}"


if __name__ == "__main__":
    main()
