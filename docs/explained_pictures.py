"""python -m docs.explained_pictures: draw the pictures of explained.md, and keep its numbers for `make reference`.

All values are those of `tiny` and of the code: masks come from `xlnet_jax.models.masks`, windows from the pipeline. Run
it again when `tiny` or the pipeline changes.
"""

import tempfile
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import xlnet_jax
from benchmarks.results import keep, print_table
from data_pipelines import sources, windows
from data_pipelines.prepare.commands import prepare
from xlnet_jax.inference.log_probs import CONTEXT, Query, query_inputs, stack_queries
from xlnet_jax.kernels.plain import shift_content_BNLK
from xlnet_jax.models.attention import distances_R
from xlnet_jax.models.layers import ATTENTION_WEIGHTS, tied_logits_BPV
from xlnet_jax.models.masks import rank_relations

WORDS = "the United States of America".split()
THE, UNITED, STATES, OF, AMERICA = range(5)
PLM = (CONTEXT, 0, 1, CONTEXT, CONTEXT)
WAYS = {
    "AR: from left to right": (0, 1, 2, 3, 4),
    "AE: United and States are masked": (CONTEXT, 0, 0, CONTEXT, CONTEXT),
    "PLM: United, then States": PLM,
}
"""ranks of the words; words of equal rank do not see each other"""
NEXT = {STATES: (CONTEXT, CONTEXT, 0, CONTEXT, 1), AMERICA: (CONTEXT, CONTEXT, 1, CONTEXT, 0)}
"""by the target that comes next, ranks of two orders in which the, United and of come first"""
STREAMS = {"two streams": "the query row of “?” predicts", "one stream": "the content row of “of” predicts"}
WIDTH, INK, SEEN, HIDDEN, MEMORY, QUERY, RED = 400, "#1b2a33", "#8ecae6", "#eef1f3", "#b9dfc4", "#f3c5cb", "#c03a4d"


# ---- values ----------------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """What `tiny` computes from the words in an order, with query rows at all of them."""

    query_LV: np.ndarray  # log-probabilities by the query stream
    content_LV: np.ndarray  # by the content stream, as if a network had only this one
    own_L: np.ndarray  # of the words themselves, by the query stream
    weights_ZTL: np.ndarray  # attention, the mean of all heads: content rows, then query rows


@cache
def read(rank_L: tuple[int, ...]) -> Read:
    """Return what `tiny` computes if the words have these ranks."""
    tiny, length = xlnet_jax.load("tiny"), len(WORDS)
    ids_L = tiny.require_tokenizer().encode_lines([" ".join(WORDS)])[0]
    query = Query(ids_L, np.arange(length), np.array(rank_L))
    ids_BL, rank_BL, positions_BP, _ = stack_queries([query], 1, length, length)
    inputs, mems = query_inputs(tiny.model, ids_BL, np.zeros_like(ids_BL), rank_BL, positions_BP, None)
    (logits_BPV, outputs), sown = tiny.network.apply({"params": tiny.params}, inputs, mems, mutable=[ATTENTION_WEIGHTS])
    table_VD, bias_V = tiny.params["backbone"]["word_embedding"], tiny.params["output_bias"]
    content_BLV = tied_logits_BPV(outputs.content_BLD, table_VD, bias_V)
    query_LV, content_LV = (np.asarray(jax.nn.log_softmax(x[0])) for x in (logits_BPV, content_BLV))
    (weights_ZBNTK,) = jax.tree.leaves(sown[ATTENTION_WEIGHTS])
    weights_ZTL = np.asarray(weights_ZBNTK[:, 0].mean(1)[..., -length:])
    return Read(query_LV, content_LV, query_LV[np.arange(length), ids_L], weights_ZTL)


def next_V(stream: str, target: int) -> np.ndarray:
    """Return the log-probabilities of the next word in an order of NEXT."""
    found = read(NEXT[target])
    return found.query_LV[target] if stream == "two streams" else found.content_LV[OF]


def likeliest(log_probs_V: np.ndarray) -> list[tuple[str, float]]:
    """Return the three likeliest words with their probabilities."""
    pieces = xlnet_jax.load("tiny").require_tokenizer().pieces
    return [(pieces[i].lstrip("▁"), float(np.exp(log_probs_V[i]))) for i in np.argsort(-log_probs_V)[:3]]


def seen_TK(rank_L: Sequence[int], mem_len: int = 0) -> np.ndarray:
    """Return which keys the content rows, then the query rows of all words see."""
    memory_BM = jnp.ones((1, mem_len), bool)
    return np.asarray(rank_relations(jnp.array([rank_L]), jnp.arange(len(WORDS))[None], memory_BM).visible_BTK()[0])


def numbers() -> dict[str, tuple[Sequence[str], list[list[str]]]]:
    """Return the tables of explained.md by name: head and rows."""
    by_way = []
    for way, rank_L in WAYS.items():
        found = read(rank_L).own_L[[UNITED, STATES]]
        by_way.append([way.partition(":")[0], *(f"{x:.2f}" for x in (*found, found.sum()))])
    of_two = np.exp([next_V("two streams", target) for target in NEXT])
    of_one = [next_V("one stream", target) for target in NEXT]
    lost = (of_two * np.log(of_two / of_two.mean(0))).sum(1).mean()
    difference = np.abs(of_one[0] - of_one[1]).max()
    return {
        "explained-ways": (("", "log p of United", "log p of States", "sum"), by_way),
        "explained-streams": (("", "nats"), [["lost", f"{lost:.2f}"], ["difference", f"{difference:.1f}"]]),
    }


# ---- SVG -------------------------------------------------------------------------------------------------------------


def tag(name: str, inside: str = "", **attributes: object) -> str:
    shown = {k.replace("_", "-"): f"{v:.2f}" if isinstance(v, float) else v for k, v in attributes.items()}
    pairs = " ".join(f'{key}="{value}"' for key, value in shown.items())
    return f"<{name} {pairs}>{escape(inside)}</{name}>"


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12, **style: object) -> str:
    return tag("text", words, **{"x": x, "y": y, "text_anchor": anchor, "font_size": size, "fill": INK} | style)


def title(y: float, words: str) -> str:
    return text(12, y, words, size=13, font_weight="bold")


def box(x: float, y: float, width: float, height: float, fill: str, inside: str = "") -> str:
    shape = tag("rect", x=x, y=y, width=width, height=height, rx=2, fill=fill)
    return shape + text(x + width / 2, y + height / 2 + 4, inside, "middle") if inside else shape


def row_of_words(x: float, y: float, cell: int, words: Sequence[str]) -> list[str]:
    return [text(x + cell * i + cell / 2 - 1, y, word, "middle") for i, word in enumerate(words)]


def svg(about: str, height: int, parts: Sequence[str]) -> str:
    """Return a picture on a light panel, which can be read on dark pages too."""
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="Helvetica, Arial, sans-serif">'
    panel = tag("rect", width=WIDTH, height=height, rx=6, fill="#ffffff")
    return "\n".join([head, f"<title>{escape(about)}</title>", panel, *parts, "</svg>\n"])


# ---- pictures --------------------------------------------------------------------------------------------------------


def draw_ways() -> str:
    parts = []
    for number, (way, rank_L) in enumerate(WAYS.items()):
        y = 24 + 104 * number
        parts += [title(y, way), *row_of_words(12, y + 20, 59, WORDS)]
        for top, target in ((y + 26, UNITED), (y + 51, STATES)):
            for i, is_seen in enumerate(seen_TK(rank_L)[len(WORDS) + target]):
                parts.append(box(12 + 59 * i, top, 57, 22, SEEN if is_seen else HIDDEN, "?" if i == target else ""))
            parts.append(text(388, top + 16, f"log p {read(rank_L).own_L[target]:.2f}", "end"))
    return svg("What the predictions of United and States see with AR, AE and PLM", 324, parts)


def draw_streams() -> str:
    parts = [text(12, 22, "Given: the, United, of. What comes next in the order?", size=13)]
    for y, (stream, how) in zip((48, 162), STREAMS.items(), strict=True):
        parts.append(title(y, f"{stream.capitalize()}: {how}"))
        for x, target in zip((12, 204), NEXT, strict=True):
            asked = ("?" if i == target else "·" if i in NEXT else word for i, word in enumerate(WORDS))
            parts.append(text(x, y + 22, " ".join(asked), size=13, fill=RED))
            for i, (word, p) in enumerate(likeliest(next_V(stream, target))):
                top = y + 30 + 20 * i
                parts += [text(x, top + 12, word), box(x + 68, top, max(76 * p, 1), 15, SEEN)]
                parts.append(text(x + 74 + 76 * p, top + 12, f"{p:.2f}"))
    return svg("Predictions for two positions after the same words, with two streams and with one", 262, parts)


def draw_layers() -> str:
    found, count = read(PLM), len(WORDS)
    height = 86 + 56 * len(found.weights_ZTL)
    x_of = [40 + 74 * i for i in range(count)]
    edges, nodes = [], row_of_words(3, height - 28, 74, WORDS)
    for level in range(len(found.weights_ZTL) + 1):
        y = height - 56 - 56 * level
        for i, x in enumerate(x_of):
            nodes.append(box(x - 12, y - 9, 24, 18, SEEN, f"h{level}"))
            if i in (UNITED, STATES):
                nodes.append(box(x + 15, y - 9, 24, 18, QUERY, f"g{level}"))
        for row in (*range(count), count + UNITED, count + STATES) if level else ():
            x, color = (x_of[row % count] + 27, RED) if row >= count else (x_of[row], "#8fa3ad")
            for key, weight in enumerate(found.weights_ZTL[level - 1, row]):
                ends = {"x1": x_of[key], "y1": y + 56, "x2": x, "y2": y}
                edges += [tag("line", **ends, stroke=color, stroke_width=float(4 * weight))] if weight > 0.01 else []
    for i in (UNITED, STATES):
        p = np.exp(found.own_L[i])
        nodes.append(text(x_of[i] + 27, 16, f"p = {p:.3f}", "middle", fill=RED))
    nodes.append(text(12, height - 8, "h0: embeddings. g0: one learned vector for all targets."))
    return svg("Attention of content and query rows in each layer of tiny", height, edges + nodes)


def draw_masks() -> str:
    order, mem_len, count = (OF, UNITED, AMERICA, STATES, THE), 2, len(WORDS)
    seen = seen_TK([order.index(i) for i in range(count)], mem_len)
    parts, fills = [text(12, 22, f"Order: {', '.join(WORDS[i] for i in order)}", size=13)], [MEMORY] * mem_len
    fills += [SEEN] * count
    for y, stream, first in ((46, "Content stream", 0), (212, "Query stream", count)):
        parts += [title(y, stream), *row_of_words(72, y + 18, 46, ["mem"] * mem_len + WORDS)]
        for step, target in enumerate(order):
            top = y + 24 + 24 * step
            parts.append(text(66, top + 15, WORDS[target], "end"))
            for key, is_seen in enumerate(seen[first + target]):
                mark = "?" if first and key == mem_len + target else ""
                parts.append(box(72 + 46 * key, top, 44, 22, fills[key] if is_seen else HIDDEN, mark))
    return svg("Which keys the rows of both streams see", 366, parts)


def draw_windows() -> str:
    """Draw the windows that two rows of three batches read, each at its place in the text of its row."""
    tokenizer = xlnet_jax.load("tiny").require_tokenizer()
    sizes = {"seq_len": 16, "reuse_len": 6, "perm_size": 2, "num_predict": 4, "windows_per_block": 3, "batch_size": 2}
    model = {"vocab_size": tokenizer.vocab_size, "mem_len": 6}
    config = xlnet_jax.preset("demo", data=sizes | {"bidirectional": False}, model=model)
    block_len, novel = windows.block_len(config.data), sources.find([sources.embedded()[0]])
    with tempfile.TemporaryDirectory() as folder:
        corpus = prepare(novel, None, tokenizer, f"{folder}/corpus", block_len=block_len, validation_fraction=0.05)
        source = xlnet_jax.batch_source(corpus, tokenizer, config)
        batches = [source.batch_at(step) for step in range(3)]
    colors = {"memory": MEMORY, "reused": SEEN, "A": "#d3e8f3", "B": "#e0d2ef", "special": "#c9ced1"}
    parts = [text(388, 19, "• target", "end")]
    for x, (kind, color) in zip((12, 88, 156, 192, 228), colors.items(), strict=True):
        parts += [box(x, 9, 12, 12, color), text(x + 16, 19, kind)]
    for row, y in enumerate((46, 204)):
        parts.append(title(y, f"Row {row} of each batch"))
        for step, batch in enumerate(batches):
            x, top = 12 + 13 * step * windows.advance(config.data), y + 26 + 44 * step
            ids_L, reused = batch["input_ids"][row], config.data.reuse_len
            parts.append(text(12, top - 6, f"batch {step} begins: {tokenizer.decode(ids_L[:reused].tolist())}"))
            parts += [box(x - 13 * (slot + 1), top, 12, 14, MEMORY) for slot in range(batch["mem_filled"][row])]
            is_target_L = np.isin(range(len(ids_L)), batch["target_positions"][row][batch["target_weights"][row] > 0])
            for i, piece in enumerate(tokenizer.pieces[token] for token in ids_L):
                part = "reused" if i < reused else "AB "[batch["segment_ids"][row, i]]
                color = colors["special" if piece in ("<sep>", "<cls>") else part]
                parts.append(box(x + 13 * i, top, 12, 14, color, "•" if is_target_L[i] else ""))
    return svg("Windows of two rows in three batches", 346, parts)


def draw_shift() -> str:
    """Draw scores by distance and, after the shift, by key; each cell shows the distance to which it belongs."""
    rows, mem_len = 3, 2
    distance_R = distances_R(rows, rows + mem_len, clamp_len=-1)
    by_distance_LR = jnp.broadcast_to(distance_R, (rows, len(distance_R)))
    by_key_LK = shift_content_BNLK(by_distance_LR[None, None], rows + mem_len)[0, 0]
    names = [f"{kind}{i + 1}" for kind, count in (("m", mem_len), ("x", rows)) for i in range(count)]
    parts = row_of_words(52, 150, 42, names)
    for y, about, scores in ((24, "Before: by distance", by_distance_LR), (130, "After: by key", by_key_LK)):
        first = y + (28 if y > 24 else 10)
        parts += [title(y, about), *(text(44, first + 16 + 26 * i, f"x{i + 1}", "end") for i in range(rows))]
        for (i, j), distance in np.ndenumerate(np.asarray(scores)):
            fill = QUERY if distance == 0 else HIDDEN if distance < 0 else SEEN
            parts.append(box(52 + 42 * j, first + 26 * i, 40, 24, fill, f"{distance:g}"))
    return svg("Scores before and after the relative shift", 246, parts)


PICTURES = {
    f"explained_{draw.__name__.removeprefix('draw_')}.svg": draw
    for draw in (draw_ways, draw_streams, draw_layers, draw_masks, draw_windows, draw_shift)
}


def main() -> None:
    for name, draw in PICTURES.items():
        Path(__file__).with_name(name).write_text(draw())
    for name, (head, rows) in numbers().items():
        print_table(head, rows)
        keep(name, {"head": list(head), "rows": rows}, "python -m docs.explained_pictures")


if __name__ == "__main__":
    main()
