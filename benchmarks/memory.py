"""Compare evaluation with memory and with a sliding window: python benchmarks/memory.py CHECKPOINT

Both sides use the weights of one causal checkpoint in float32, and predict every piece of a text with the same
attention length. With memory, the text is read in segments, each piece once. The sliding window needs a pass for every
piece; the passes run compiled and in batches, of the fastest size among --batches. A model without memory has no other
way: in Dai et al. 2019, table 9, Al-Rfou et al.'s was 363, 773, 1,409 and 1,874 times slower at attention lengths of
800, 1,800, 2,800 and 3,800, on one GPU.

The sides take turns. The table has medians, without compilation. Losses are those of pieces after the first attention
length. Before it nothing is cut off, so the two sides must agree there.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import xlnet_jax
from data_pipelines import sources
from xlnet_jax import __main__ as command
from xlnet_jax.checkpoints.pretrained import Pretrained, on_device, vocabulary_tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.inference.log_probs import by_window, causal_beside_likeliest

SAME = 1e-4
HEAD = f"{'attention':>9}{'difference':>12}{'loss, nats per piece':>22}{'ms per piece':>22}{'ratio':>9}"
SIDES = f"{'length':>9}{'before':>12}" + 2 * f"{'memory':>11}{'window':>11}"


def seconds(run: Callable[[], np.ndarray]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def fastest(side: Callable[[int], np.ndarray], batches: list[int]) -> int:
    for batch in batches:
        side(batch)  # compiles
    return min(batches, key=lambda batch: seconds(lambda: side(batch)))


def measure(model: Pretrained, ids_L: np.ndarray, attention: int, given: argparse.Namespace) -> None:
    """Print a row of the table."""
    behind_P = np.arange(attention + 1, attention + 1 + given.pieces)
    before_P = np.unique(np.linspace(1, attention, min(attention, given.checked)).astype(int))
    read = given.segments * given.segment

    def memory(pieces: int) -> np.ndarray:
        read = causal_beside_likeliest(model, [ids_L[: pieces + 1]], segment_len=given.segment, mem_len=attention)
        return read[0][:, 0]

    def window(targets_P: np.ndarray, batch: int) -> np.ndarray:
        return by_window(model, ids_L, attention, targets_P, batch * attention)

    batch = fastest(lambda batch: window(behind_P, batch), given.batches)
    remembered_L = memory(behind_P[-1])
    difference = np.abs(remembered_L[before_P - 1] - window(before_P, batch)).max()
    losses = -remembered_L[behind_P - 1].mean(), -window(behind_P, batch).mean()
    # Segments and windows cost the same everywhere in the text.
    turns = [(seconds(lambda: memory(read)), seconds(lambda: window(behind_P, batch))) for _ in range(given.pairs)]
    of_memory, of_windows = (statistics.median(side) for side in zip(*turns, strict=True))
    of_memory, of_windows = 1e3 * of_memory / read, 1e3 * of_windows / len(behind_P)
    print(
        f"{attention:9,}{difference:12.1e}{losses[0]:11.4f}{losses[1]:11.4f}"
        f"{of_memory:11.4f}{of_windows:11.3f}{of_windows / of_memory:9,.0f}",
        flush=True,
    )
    if difference > SAME:
        raise InputError(f"memory and window differ by {difference:.1e} where nothing is cut off: more than {SAME}")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("checkpoint", help="a causal checkpoint with a tokenizer")
    parser.add_argument("--attention", type=int, nargs="+", default=[50, 100, 200, 400, 800], help="lengths, in pieces")
    parser.add_argument("--text", default=sources.embedded()[1], help="default: the held-out novel of the package")
    parser.add_argument("--pieces", type=int, default=200, help="predicted pieces after the attention length")
    parser.add_argument("--checked", type=int, default=200, help="most pieces to compare before it")
    parser.add_argument("--segment", type=int, default=128, help="pieces per segment")
    parser.add_argument("--segments", type=int, default=32, help="number of segments to time")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16], help="batch sizes to try for the window")
    parser.add_argument("--pairs", type=int, default=3, help="turns of each side")
    given = parser.parse_args(argv)
    model = on_device(xlnet_jax.load(given.checkpoint))
    needed = max(max(given.attention) + given.pieces, given.segments * given.segment) + 1
    lines = sources.read_lines(sources.find([given.text]))
    ids_L = sources.first_pieces(lines, vocabulary_tokenizer(model), needed)
    if len(ids_L) < needed:
        raise InputError(f"--text {given.text} has {len(ids_L):,} pieces, and {needed:,} are needed: give a longer one")
    m = model.model
    print(
        f"{m.num_layers} layers of {m.d_model}, segments of {given.segment}, {given.pieces:,} pieces\n{HEAD}\n{SIDES}"
    )
    for attention in given.attention:
        measure(model, ids_L, attention, given)
    return 0


if __name__ == "__main__":
    command.run(main)
