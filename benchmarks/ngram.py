"""Measure the held-out loss of an n-gram model of a prepared corpus, with modified Kneser-Ney smoothing.

    python -m benchmarks.ngram CORPUS [--order 5]

It is the interpolated model of Chen & Goodman (1998), section 3, equations 26 to 30, as in KenLM, over the pieces of
the corpus's tokenizer. The n-grams of each order are numbered and counted by sorting: 15 million tokens take a minute
or two. The loss is over all pieces of validation blocks that have `order` - 1 pieces before them.
"""

import argparse
from pathlib import Path

import numpy as np

from data_pipelines.corpus import Corpus, SplitName


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--order", type=int, default=5)
    given = parser.parse_args()
    corpus = Corpus(given.corpus)
    train, held_out = blocks_of(corpus, "train"), blocks_of(corpus, "validation")
    predicted = probabilities(train, held_out, corpus.tokenizer.vocab_size, given.order)[:, given.order - 1 :]
    loss = -float(np.log(predicted).mean())
    print(f"{given.order}-gram: {loss:.4f} nats per piece, over {predicted.size:,} held-out pieces")


def blocks_of(corpus: Corpus, split: SplitName) -> np.ndarray:
    """Return the tokens of a split: [N, T], int64."""
    tokens, _ = corpus.read(split, np.arange(corpus.num_blocks(split)))
    return tokens.astype(np.int64)


def probabilities(train: np.ndarray, held_out: np.ndarray, vocab_size: int, order: int) -> np.ndarray:
    """Return the probability of each held-out piece given at most order - 1 pieces before it in its block: [M, T].

    train: [N, T], blocks of pieces. held_out: [M, T].
    """
    blocks, trained = np.concatenate([train, held_out]), len(train)
    found = np.full(held_out.shape, 1 / vocab_size)
    grams = np.zeros((len(blocks), blocks.shape[1] + 1), np.int64)  # numbers of 0-grams
    for n in range(1, order + 1):
        shorter = grams
        # Column j holds the n-gram that begins at j: the (n-1)-gram there and the next piece.
        keys, grams = _numbered(shorter[:, :-1] * vocab_size + blocks[:, n - 1 :])
        if n < order:
            counts = _continuations(grams, blocks[:, n:], vocab_size, trained, len(keys))
        else:
            counts = np.bincount(grams[:trained].ravel(), minlength=len(keys))
        contexts = keys // vocab_size
        discounted, kept = _discounted(counts, contexts, int(shorter.max()) + 1)
        gram, context = grams[trained:], shorter[trained:, :-1]
        found[:, n - 1 :] = discounted[gram] + kept[context] * found[:, n - 1 :]
    return found


def _numbered(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted distinct keys, and the index of each key among them."""
    distinct, numbers = np.unique(keys.ravel(), return_inverse=True)
    return distinct, numbers.reshape(keys.shape)


def _continuations(grams: np.ndarray, following: np.ndarray, vocab_size: int, trained: int, size: int) -> np.ndarray:
    """Return for each n-gram the number of different pieces before it in the training blocks."""
    longer = (grams[:trained, :-1] * vocab_size + following[:trained]).ravel()
    _, first = np.unique(longer, return_index=True)
    return np.bincount(grams[:trained, 1:].ravel()[first], minlength=size)


def _discounted(counts: np.ndarray, contexts: np.ndarray, num_contexts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the discounted probability of each n-gram in its context, and the probability that each context leaves to
    shorter ones: 1 for an unseen context."""
    n1, n2, n3, n4 = (int((counts == k).sum()) for k in (1, 2, 3, 4))
    y = n1 / max(n1 + 2 * n2, 1)
    discounts = np.array(
        [0.0, 1 - 2 * y * n2 / max(n1, 1), 2 - 3 * y * n3 / max(n2, 1), 3 - 4 * y * n4 / max(n3, 1)]
    ).clip(0, [0, 1, 2, 3])[np.minimum(counts, 3)]
    totals = np.bincount(contexts, counts, num_contexts)
    taken = np.bincount(contexts, discounts, num_contexts)
    seen = totals > 0
    kept = np.divide(taken, totals, out=np.ones(num_contexts), where=seen)
    shares = np.divide(counts - discounts, totals[contexts], out=np.zeros(len(counts)), where=seen[contexts])
    return shares, kept


if __name__ == "__main__":
    main()
