"""Factorization orders and hidden sets of texts, by the words that name them."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from data_pipelines.stateless import Purpose, smallest_first, uniforms
from xlnet_jax.errors import InputError

LEFT_TO_RIGHT, RIGHT_TO_LEFT, RANDOM, ALL = "left-to-right", "right-to-left", "random:", "all"
PSEUDO, BOUND = "pseudo", "bound:"
_ORDER = re.compile(rf"{LEFT_TO_RIGHT}|{RIGHT_TO_LEFT}|{RANDOM}[1-9]\d*|{ALL}|\d+( \d+)*")
_ALONE = re.compile(rf"{PSEUDO}|{BOUND}[1-9]\d*")
LONGEST_OF_ALL = 6  # pieces: 720 orders
Draw = tuple[int, int, int]
"""What random orders and samples depend on besides the length: the seed, the number of a segment, that of its text"""


def has_no_order(word: str) -> bool:
    """Return True if a word names hidden sets instead of an order."""
    return bool(_ALONE.fullmatch(word))


def check_orders(orders: Sequence[str]) -> None:
    """Raise InputError for orders that do not exist."""
    alone = len(orders) == 1 and has_no_order(orders[0])
    if not (alone or (orders and all(map(_ORDER.fullmatch, orders)))):
        raise InputError(
            "orders",
            ", ".join(orders),
            f": give one or several of {LEFT_TO_RIGHT}, {RIGHT_TO_LEFT}, {RANDOM}8 (any number), {ALL} and "
            f'positions of the pieces, such as "2 0 1"; or only {PSEUDO} or {BOUND}128',
        )


def weighted_queries(
    orders: Sequence[str], group_P: np.ndarray, pieces: int, draw: Draw, name: str
) -> list[list[tuple[float, np.ndarray, np.ndarray]]]:
    """Return the queries whose scores add up to each row of a segment's result: (weight, places of pieces, ranks).
    group: of each piece in the segment; those of lower groups come first. pieces: in the text; name: of the text."""
    length = len(group_P)
    places_P = np.arange(length)
    if orders[0] == PSEUDO:
        # One query per piece: with several targets, other content rows would leak a piece to its own query row.
        return [[(1, places_P[place : place + 1], places_P[:1]) for place in places_P]]
    if orders[0].startswith(BOUND):
        sets = hidden_sets(length, int(orders[0].removeprefix(BOUND)), draw)
        return [[(weight, hidden_P, np.zeros_like(hidden_P)) for weight, hidden_P in sets]]
    drawn = itertools.chain(*(permutations(order, length, pieces, draw, name) for order in orders))
    by_group = (order_P[np.argsort(group_P[order_P], kind="stable")] for order_P in drawn)
    return [[(1, places_P, np.argsort(order_P))] for order_P in by_group]


def permutations(order: str, length: int, pieces: int, draw: Draw, name: str) -> Iterable[np.ndarray]:
    """Return arrays of positions in the order of prediction; argsort of one gives the rank of each position. length: of
    the segment; pieces: of the whole text."""
    if order == LEFT_TO_RIGHT:
        return [np.arange(length)]
    if order == RIGHT_TO_LEFT:
        return [np.arange(length)[::-1]]
    if order.startswith(RANDOM):
        count = int(order.removeprefix(RANDOM))
        return [smallest_first(_uniform(draw, sample, length, length))[0] for sample in range(count)]
    if length < pieces or (order == ALL and length > LONGEST_OF_ALL):
        most = f"at most {LONGEST_OF_ALL} pieces" if order == ALL else "one segment"
        why = f"is for texts of {most}, not for the {pieces} pieces of {name}: give {RANDOM}8, or raise `max_len`"
        raise InputError("orders", f"{order!r}", why)
    if order == ALL:
        return map(np.array, itertools.permutations(range(length)))
    positions = [int(word) for word in order.split()]
    if sorted(positions) != list(range(length)):
        why = f"must have each position of the {length} pieces exactly once in {name}"
        raise InputError("orders", f"{order!r}", why)
    return [np.array(positions)]


def hidden_sets(length: int, samples: int, draw: Draw) -> Iterator[tuple[float, np.ndarray]]:
    """Yield (weight, hidden positions) of the masked-diffusion bound: samples, stratified over the number of hidden
    pieces; or all sets with their exact weights, if they are not more."""
    if 2**length - 1 <= samples:
        for count in range(1, length + 1):
            weight = 1 / (count * math.comb(length, count))  # the probability of the set, times length / count
            yield from ((weight, np.array(places)) for places in itertools.combinations(range(length), count))
        return
    for sample in range(samples):
        uniform = _uniform(draw, sample, length, 1 + length)
        count = 1 + int(length * (sample + uniform[0, 0]) / samples)
        yield length / count / samples, smallest_first(uniform[:, 1:])[0, :count]


def _uniform(draw: Draw, sample: int, length: int, width: int) -> np.ndarray:
    """Return the uniforms [1, width] of a sample, for a segment of this length."""
    seed, segment, text = draw
    return uniforms(seed, Purpose.SCORING_ORDER, sample + (segment << 32), [length + (text << 20)], width)
