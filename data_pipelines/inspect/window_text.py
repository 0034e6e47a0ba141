"""A window as text: where it comes from, its pieces with the targets marked, and the factorization order."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from data_pipelines.inspect.window_view import WindowView
from xlnet_jax.dims import WINDOW_SPECIALS

TARGET, SPECIAL, HEADING = "bold dark_orange3", "dim", "bold"

LEGEND = """
A target is predicted by a row of the query stream, which knows the place of its token and not the token. It sees the
memory, the tokens of the reused part that are no targets, for a target in A or B those of A and B too, and the targets
before it in the order. rank decides: a row sees what ranks below it. <sep> and <cls> rank too, and are no targets."""


def describe(view: WindowView) -> Iterator[RenderableType]:
    """What rich prints of a window: its origin, its text, its order."""
    yield _facts(view)
    yield Text("\nTEXT", HEADING).append(
        "  in the order in which the row reads it; [3:piece] = a target, the third to be predicted", "not bold"
    )
    yield _text(view, backwards=False)
    if view.is_reversed:
        yield Text("\nTEXT", HEADING).append("  the same tokens in the order of the text, from behind", "not bold")
        yield _text(view, backwards=True)
    yield Text("\nORDER", HEADING).append(
        f"  in which the targets are predicted, and how many of the {len(view.key_rank)} keys ({view.mem_len} of "
        f"memory, {len(view.pieces)} tokens) each sees",
        "not bold",
    )
    yield _order(view)
    yield Text(LEGEND)


def _facts(view: WindowView) -> Table:
    length, total = len(view.pieces), sum(p.end - p.begin for p in view.parts if p.name in ("A", "B"))
    window, (_, a, _, b, _, _) = view.step % view.steps_per_block, view.parts
    direction = "backwards, from the end of the block to its beginning" if view.is_reversed else "forwards"
    origin = "the continuation of A" if view.is_next else f"a random piece of text, from block {view.partner:,}"
    specials = WINDOW_SPECIALS["pairs"]
    memory = (
        f"{view.mem_filled} of {view.mem_len} positions hold the tokens before the window" if view.mem_len else "none"
    )
    empty = view.num_predict - len(view.targets)
    dropped = f"; {empty} drawn on <sep> or <cls>, which are not predicted: weight 0, not drawn" if empty else ""
    return _facts_table(
        ("batch", f"step {view.step:,}, row {view.row:,}"),
        ("reads", f"block {view.block:,} {direction}"),
        ("visit", f"{view.visit:,}, one reading of the block: this is window {window + 1} of {view.steps_per_block}"),
        ("window", f"{length} tokens: {view.reuse_len} reused + {total} of A and B + {specials} special"),
        ("memory", memory),
        ("A, B", f"{a.end - a.begin} + {b.end - b.begin} tokens; B is {origin}"),
        ("targets", f"{len(view.targets)} of {view.num_predict}{dropped}"),
    )  # fmt: skip


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
        piece, place = view.pieces[position], view.place.get(position)
        style = SPECIAL if view.is_special[position] else ""
        words.append(f"[{place}:{piece}]" if place else piece, TARGET if place else style).append(" ")
    words.rstrip()
    return words


def _order(view: WindowView) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("place", "rank", "position"):
        table.add_column(name, justify="right")
    for name in ("part", "piece"):
        table.add_column(name)
    for name in ("sees: memory", "reused", "A and B", "targets", "<sep> <cls>", "in all"):
        table.add_column(name, justify="right")
    part_of = {p: part.name for part in view.parts for p in range(part.begin, part.end)}
    tokens = view.query_sees[:, view.mem_len :]
    context, is_reused = ~view.is_target & ~view.is_special, view.segment_ids >= 0
    is_reused[view.reuse_len :] = False
    slots = {position: slot for slot, position in enumerate(view.targets.tolist())}
    for position in view.order:
        sees = tokens[slots[position]]
        groups = (context & is_reused, context & ~is_reused, view.is_target, view.is_special)
        counts = [view.mem_filled, *(int((sees & group).sum()) for group in groups)]
        table.add_row(
            str(view.place[position]), str(view.perm_rank[position]), str(position), part_of[position],
            Text(view.pieces[position], TARGET), *map(str, counts), str(sum(counts)),
        )  # fmt: skip
    return table
