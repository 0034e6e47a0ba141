"""A window as text: where it comes from, its pieces with the targets marked, and what predicts them."""

from collections.abc import Iterable, Iterator

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from data_pipelines.inspect.window_view import WindowView
from data_pipelines.tokenizer import MASK, SPECIAL_PIECES
from xlnet_jax.dims import WINDOW_SPECIALS
from xlnet_jax.settings.config import Objective

TARGET, SPECIAL, HEADING = "bold dark_orange3", "dim", "bold"

MARKS: dict[Objective, str] = {
    "plm": "; [3:piece] = a target, the third to be predicted",
    "mlm": "; [<mask>→piece] = what the network reads, and the target",
    "clm": "; each piece predicts the next one",
    "rtd": "; [<mask>→piece] = what the generator reads, and the target",
}
LEGENDS: dict[Objective, str] = {
    "plm": """
A target is predicted by a row of the query stream, which knows the place of its token and not the token. It sees the
memory, the tokens of the reused part that are no targets, for a target in A or B those of A and B too, and the targets
before it in the order. rank decides: a row sees what ranks below it. <sep> and <cls> rank too, and are no targets.""",
    "mlm": """
A target is predicted by the row of the content stream at its place, which reads <mask>, a piece drawn at random, or
the target itself. rank decides: a row sees what does not rank above it. Without memory all see all; with it the reused
part, which becomes the memory of the next window, does not see what stands behind it: some of that is asked there.""",
    "clm": """
Each position predicts the piece behind it, and sees the memory and the window up to itself.""",
}
LEGENDS["rtd"] = f"""{LEGENDS["mlm"]}
All this is the generator's. The network reads what it draws in place of its targets, and judges every token."""


def describe(view: WindowView) -> Iterator[RenderableType]:
    """What rich prints of a window: its origin, its text, its targets."""
    yield _facts(view)
    yield Text("\nTEXT", HEADING).append(f"  in the order in which the row reads it{MARKS[view.objective]}", "not bold")
    yield _text(view, backwards=False)
    if view.is_reversed:
        yield Text("\nTEXT", HEADING).append("  the same tokens in the order of the text, from behind", "not bold")
        yield _text(view, backwards=True)
    keys = f"how many of the {len(view.key_rank)} keys ({view.mem_len} of memory, {len(view.pieces)} tokens) each sees"
    if view.objective == "plm":
        yield Text("\nORDER", HEADING).append(f"  in which the targets are predicted, and {keys}", "not bold")
        yield _order(view)
    elif view.objective in ("mlm", "rtd"):
        yield Text("\nTARGETS", HEADING).append(f"  and {keys}", "not bold")
        yield _order(view)
    yield Text(LEGENDS[view.objective])


def _facts(view: WindowView) -> Table:
    window = view.step % view.steps_per_block
    direction = "backwards, from the end of the block to its beginning" if view.is_reversed else "forwards"
    memory = (
        f"{view.mem_filled} of {view.mem_len} positions hold the tokens before the window" if view.mem_len else "none"
    )
    once = "; drawn once for all visits of the block" if view.data.masking == "static" else ""
    pair = [("A, B", _pair(view))] if view.data.window == "pairs" else []
    return _facts_table(
        ("objective", view.objective),
        ("batch", f"step {view.step:,}, row {view.row:,}"),
        ("reads", f"block {view.block:,} {direction}"),
        ("visit", f"{view.visit:,}, one reading of the block: this is window {window + 1} of {view.steps_per_block}"),
        ("window", f"{_lengths(view)}{once}"),
        ("memory", memory),
        *pair,
        ("targets", _targets(view)),
    )  # fmt: skip


def _lengths(view: WindowView) -> str:
    """'64 tokens: 32 reused + 29 of A and B + 3 special'"""
    length, specials = len(view.pieces), WINDOW_SPECIALS[view.data.window]
    name = "A and B" if view.data.window == "pairs" else "text"
    text = length - view.reuse_len - specials
    parts = ((view.reuse_len, "reused"), (text, f"of {name}"), (specials, "special"))
    return f"{length} tokens: {' + '.join(f'{count} {what}' for count, what in parts if count)}"


def _pair(view: WindowView) -> str:
    a, b = (next(part.end - part.begin for part in view.parts if part.name == name) for name in "AB")
    if view.data.pair_loss == "order":
        origin = "in order: B continues A" if view.is_next else "swapped: A continues B"
    else:
        origin = (
            "B is the continuation of A"
            if view.is_next
            else f"B is a random piece of text, from block {view.partner:,}"
        )
    return f"{a} + {b} tokens; {origin}"


def _targets(view: WindowView) -> str:
    if view.objective == "clm":
        return (
            f"{len(view.targets)}: the next piece at every position, {view.predicted[len(view.pieces) - 1]} at the last"
        )
    counted = f"{len(view.targets)} of {view.num_predict}"
    if empty := view.num_predict - len(view.targets):
        why = "there was too little text for"
        if view.data.targets == "words":
            why = "no word was short enough for"
        elif view.objective == "plm" and view.data.targets == "spans":
            why = "drawn on <sep> or <cls>, which are not predicted"
        counted += f"; {empty} {why}: weight 0, not drawn"
    if view.objective in ("mlm", "rtd"):
        read = [view.pieces[position] for position in view.predicted]
        masked = sum(piece == SPECIAL_PIECES[MASK] for piece in read)
        kept = sum(piece == view.predicted[position] for piece, position in zip(read, view.predicted, strict=True))
        counted += f"; {masked} read as <mask>, {len(read) - masked - kept} as another piece, {kept} as they are"
    return counted


def _facts_table(*facts: tuple[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style=HEADING, width=10)
    for name, fact in facts:
        table.add_row(name, Text(fact))
    return table


def _text(view: WindowView, backwards: bool) -> Table:
    table = Table("part", "segment", "positions", "", box=None, pad_edge=False, header_style="dim")
    for part in reversed(view.parts) if backwards else view.parts:
        positions = range(part.begin, part.end)
        first, last = (positions[-1], positions[0]) if backwards else (positions[0], positions[-1])
        span = str(first) if first == last else f"{first} … {last}"
        text = _marked(view, reversed(positions) if backwards else positions)
        table.add_row(part.name, str(part.segment), span, text)
    return table


def _marked(view: WindowView, positions: Iterable[int]) -> Text:
    words = Text()
    for position in positions:
        piece = view.pieces[position]
        if position in view.predicted and view.objective != "clm":
            is_plm = view.objective == "plm"
            mark = f"[{view.place[position]}:{piece}]" if is_plm else f"[{piece}→{view.predicted[position]}]"
            words.append(mark, TARGET)
        else:
            words.append(piece, SPECIAL if view.is_special[position] else "")
        words.append(" ")
    words.rstrip()
    return words


def _order(view: WindowView) -> Table:
    """The targets as they are predicted. mlm: all at once, from left to right."""
    is_plm = view.objective == "plm"
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("place", "rank", "position"):
        table.add_column(name, justify="right")
    for name in ("part", "piece") if is_plm else ("part", "piece", "read as"):
        table.add_column(name)
    behind = "A and B" if view.data.window == "pairs" else "text"
    for name in ("sees: memory", "reused", behind, "targets", "<sep> <cls>", "in all"):
        table.add_column(name, justify="right")
    part_of = {p: part.name for part in view.parts for p in range(part.begin, part.end)}
    tokens = view.prediction_sees[:, view.mem_len :]
    context, is_reused = ~view.is_target & ~view.is_special, np.arange(len(view.pieces)) < view.reuse_len
    slots = {position: slot for slot, position in enumerate(view.targets.tolist())}
    for position in view.order:
        sees = tokens[slots[position]]
        groups = (context & is_reused, context & ~is_reused, view.is_target, view.is_special)
        counts = [view.mem_filled, *(int((sees & group).sum()) for group in groups)]
        table.add_row(
            str(view.place[position]), str(view.perm_rank[position]), str(position), part_of[position],
            Text(view.predicted[position], TARGET), *([] if is_plm else [Text(view.pieces[position])]),
            *map(str, counts), str(sum(counts)),
        )  # fmt: skip
    return table
