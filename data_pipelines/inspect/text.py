"""Text of a window: its origin, its pieces with the targets marked, and the rows that predict them."""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from data_pipelines.inspect.view import Part, WindowView
from data_pipelines.tokenizer import MASK, SPECIAL_PIECES
from xlnet_jax.dims import WINDOW_SPECIALS

TARGET, SPECIAL, HEADING = "bold dark_orange3", "dim", "bold"


def describe(view: WindowView) -> Iterator[RenderableType]:
    """Yield the text that rich prints of a window: its origin, its tokens, its targets."""
    yield _facts(view)
    yield Text("\nTEXT", HEADING).append(f"  in the order in which the row reads it{view.filling.mark}", "not bold")
    yield _text(view, backwards=False)
    if view.is_reversed:
        yield Text("\nTEXT", HEADING).append("  the same tokens in the order of the text", "not bold")
        yield _text(view, backwards=True)
    keys = f"how many of the {len(view.key_rank)} keys ({view.mem_len} of memory, {len(view.pieces)} tokens) each sees"
    if view.by_query_stream:
        yield Text("\nORDER", HEADING).append(f"  in which the targets are predicted, and {keys}", "not bold")
        yield _order(view)
    elif not view.predicts_next:
        yield Text("\nTARGETS", HEADING).append(f"  and {keys}", "not bold")
        yield _order(view)
    yield Text(view.filling.legend)


def _facts(view: WindowView) -> Table:
    data, length, specials = view.data, len(view.pieces), WINDOW_SPECIALS[view.data.window]
    of_text = "of A and B" if data.window == "pairs" else "of text"
    parts = ((view.reuse_len, "reused"), (length - view.reuse_len - specials, of_text), (specials, "special"))
    lengths = " + ".join(f"{count} {what}" for count, what in parts if count)
    once = "; drawn once for all visits of the block" if data.masking == "static" else ""
    direction = "backwards, from the end of the block to its beginning" if view.is_reversed else "forwards"
    window = f"window {view.step % view.steps_per_block + 1} of {view.steps_per_block}"
    filled = f"{view.mem_filled} of {view.mem_len} positions hold the tokens before the window"
    facts = {
        "objective": view.filling.objective,
        "batch": f"step {view.step:,}, row {view.row:,}",
        "reads": f"block {view.block:,} {direction}",
        "visit": f"{view.step // view.steps_per_block:,}, one reading of the block: this is {window}",
        "window": f"{length} tokens: {lengths}{once}",
        "memory": filled if view.mem_len else "none",
    }
    if data.window == "pairs":
        facts["A, B"] = _pair(view)
    if data.pack:
        facts["documents"] = f"{view.num_documents}, which do not see each other"
    table = Table.grid(padding=(0, 2))
    table.add_column(style=HEADING, width=10)
    for name, fact in (facts | {"targets": _targets(view)}).items():
        table.add_row(name, Text(fact))
    return table


def _pair(view: WindowView) -> str:
    a, b = (next(part.end - part.begin for part in view.parts if part.name == name) for name in "AB")
    if view.data.pair_loss == "order":
        origin = "in order: B continues A" if view.is_next else "swapped: A continues B"
    elif view.is_next:
        origin = "B is the continuation of A"
    else:
        origin = f"B is a random piece of text, from block {view.partner:,}"
    return f"{a} + {b} tokens; {origin}"


def _targets(view: WindowView) -> str:
    if view.predicts_next:
        first, last = view.targets[0], view.targets[-1]
        where = "every position" if len(view.targets) == len(view.pieces) else f"the positions {first} to {last}"
        return f"{len(view.targets)}: the next piece at {where}, {view.predicted[last]} at the last"
    counted = f"{len(view.targets)} of {view.num_predict}"
    if empty := view.num_predict - len(view.targets):
        why = "there was too little text for"
        if view.data.targets == "words":
            why = "no word was short enough for"
        elif view.by_query_stream and view.data.targets == "spans":
            why = "drawn on <sep> or <cls>, which are not predicted"
        counted += f"; {empty} {why}: weight 0, not drawn"
    if view.filling.replaces:
        read = [view.pieces[position] for position in view.predicted]
        masked = sum(piece == SPECIAL_PIECES[MASK] for piece in read)
        kept = sum(piece == view.predicted[position] for piece, position in zip(read, view.predicted, strict=True))
        counted += f"; {masked} read as <mask>, {len(read) - masked - kept} as another piece, {kept} as they are"
    return counted


def _text(view: WindowView, backwards: bool) -> Table:
    document = ["document"] if view.data.pack else []
    table = Table("part", "segment", *document, "positions", "", box=None, pad_edge=False, header_style="dim")
    pieces = [(part, positions) for part in view.parts for positions in _of_one_document(view, part)]
    for part, positions in reversed(pieces) if backwards else pieces:
        first, last = (positions[-1], positions[0]) if backwards else (positions[0], positions[-1])
        span = str(first) if first == last else f"{first} … {last}"
        text = _marked(view, reversed(positions) if backwards else positions)
        number = [str(view.document_of(np.array(first)))] if view.data.pack else []
        table.add_row(part.name, str(part.segment), *number, span, text)
    return table


def _of_one_document(view: WindowView, part: Part) -> Iterator[range]:
    """Yield the positions of a part, cut where documents begin."""
    inside = view.document_begins[(view.document_begins > part.begin) & (view.document_begins < part.end)]
    for begin, end in itertools.pairwise([part.begin, *inside.tolist(), part.end]):
        yield range(begin, end)


def _marked(view: WindowView, positions: Iterable[int]) -> Text:
    words = Text()
    for position in positions:
        piece = view.pieces[position]
        if position in view.predicted and not view.predicts_next:
            said = f"{piece}→{view.predicted[position]}" if view.filling.replaces else f"{view.place[position]}:{piece}"
            words.append(f"[{said}]", TARGET)
        else:
            words.append(piece, SPECIAL if view.is_special[position] else "")
        words.append(" ")
    words.rstrip()
    return words


def _order(view: WindowView) -> Table:
    """Return the targets in the order of their prediction; those predicted all at once, from left to right."""
    replaces = view.filling.replaces
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("place", "rank", "position"):
        table.add_column(name, justify="right")
    for name in ("part", "piece", "read as") if replaces else ("part", "piece"):
        table.add_column(name)
    after_reused = "A and B" if view.data.window == "pairs" else "text"
    for name in ("sees: memory", "reused", after_reused, "targets", "<sep> <cls>", "in all"):
        table.add_column(name, justify="right")
    part_of = {p: part.name for part in view.parts for p in range(part.begin, part.end)}
    tokens = view.prediction_sees[:, view.mem_len :]
    context, is_reused = ~view.is_target & ~view.is_special, np.arange(len(view.pieces)) < view.reuse_len
    slots = {position: slot for slot, position in enumerate(view.targets.tolist())}
    for position in view.order:
        sees = tokens[slots[position]]
        groups = (context & is_reused, context & ~is_reused, view.is_target, view.is_special)
        memory = view.prediction_sees[slots[position], : view.mem_len]
        counts = [int(memory.sum()), *(int((sees & group).sum()) for group in groups)]
        table.add_row(
            str(view.place[position]), str(view.perm_rank[position]), str(position), part_of[position],
            Text(view.predicted[position], TARGET), *([Text(view.pieces[position])] if replaces else []),
            *map(str, counts), str(sum(counts)),
        )  # fmt: skip
    return table
