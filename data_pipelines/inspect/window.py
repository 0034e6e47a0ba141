"""Show one window of a corpus: collect its data for the picture, and print its parts, its targets in order, the tokens
that replace targets, and the keys that each row sees."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from data_pipelines.batches import BatchSource
from data_pipelines.objectives import Filling
from data_pipelines.tokenizer import BOS, CLS, EOD, MASK, PAD, SEP, SPECIAL_PIECES, Tokenizer
from xlnet_jax.dims import WINDOW_SPECIALS
from xlnet_jax.printing import counted
from xlnet_jax.settings.config import DataConfig

UNUSED_MEMORY = np.iinfo(np.int32).max
FILLED_MEMORY = np.iinfo(np.int32).min
GROUPS = """
The numbers count groups: targets with the same number are predicted together, and no query row sees a target of its
group."""
OF_RECORDS = {
    "query": """
The query stream predicts each target from its position and from what its record shows: <s> and <eod>, which are context
for every row, and the symbols of lower rank. No row sees another record.""",
    "own": """
The content stream predicts each target at the target's own position, where it reads what the text shows. Every row sees
its whole record, with <s> and <eod>, and no other record.""",
    "next": """
Each position predicts the next symbol of its record, and the last symbol <eod>. It sees its record up to and including
itself, and no other record.""",
}
"""Explanation of a window of records, by what predicts: query rows, or the row of the target or of the token before"""
TARGET, SPECIAL, HEADING = "bold dark_orange3", "dim", "bold"  # styles of rich


@dataclass(frozen=True)
class WindowPart:
    """Positions begin ... end - 1 of a window."""

    name: str
    segment: int
    begin: int
    end: int


@dataclass(frozen=True)
class WindowView:
    """One row of a batch. Dimensions are those of dims.py; P counts the real targets, without padding."""

    filling: Filling
    data: DataConfig
    step: int
    row: int
    steps_per_block: int
    block: int
    partner: int  # block of a random B
    is_next: bool  # B is the text right after A
    is_reversed: bool
    mem_len: int
    mem_filled: int
    input_ids: np.ndarray  # int32 [L]
    pieces: list[str]  # L pieces, as the network reads them
    segment_ids: np.ndarray  # int32 [L]
    perm_rank: np.ndarray  # int32 [L]
    document_start: np.ndarray | None  # int32 [L]; None = documents see each other
    targets: np.ndarray  # int32 [P], positions, ascending
    predicted: dict[int, str]  # position of a target -> piece to predict
    fields: tuple[str, ...] = ()  # of records; () = the window is prose
    field_ids: np.ndarray | None = None  # int32 [L], index of the field of each symbol; None = the window is prose

    @property
    def by_query_stream(self) -> bool:
        """True if the query stream predicts the targets, in their order."""
        return self.filling.stream == "query"

    @property
    def predicts_next(self) -> bool:
        """True if a row predicts the token after its own, so that no token of the window is hidden."""
        return self.filling.target == "next"

    @cached_property
    def parts(self) -> list[WindowPart]:
        """Parts of the window (data.window) in order of position, without empty ones."""
        if self.fields:
            return self._parts_of_records()
        length, reuse = len(self.pieces), self.data.reuse_len
        specials = [("<sep>", 0, length - 2), ("<cls>", 2, length - 1)]
        if self.data.window == "pairs":
            sep = int(np.flatnonzero(self.segment_ids == 0)[-1])
            begins = [("A", 0, reuse), ("<sep>", 0, sep), ("B", 1, sep + 1), ("<sep>", 1, length - 2), specials[1]]
        else:
            begins = [("text", 0, reuse), *(specials if self.data.window == "sentences" else ())]
        found = [("reused", 0, 0), *begins, ("", 0, length)]
        parts = [WindowPart(*this, after[2]) for this, after in itertools.pairwise(found)]
        return [part for part in parts if part.begin < part.end]

    def _parts_of_records(self) -> list[WindowPart]:
        """Return the fields of each record: <s> is in the first, <eod> in the last, and all padding is one part."""
        assert self.field_ids is not None
        number_L = np.where(self.is_padding, 0, self.document)
        # <eod> belongs to the field of the symbol before it.
        field_L = np.where(self.input_ids == EOD, np.roll(self.field_ids, 1), self.field_ids)
        begins = np.flatnonzero(np.diff(number_L, prepend=-1) | np.diff(field_L, prepend=-1)).tolist()
        parts = []
        for begin, end in itertools.pairwise([*begins, len(self.pieces)]):
            field = int(field_L[begin])
            parts.append(WindowPart(self.fields[field] if number_L[begin] else "", field, begin, end))
        return parts

    @cached_property
    def order(self) -> list[int]:
        """Positions of the targets, in the order of prediction."""
        return self.targets[np.argsort(self.perm_rank[self.targets], kind="stable")].tolist()

    @cached_property
    def place(self) -> dict[int, int]:
        """Place of each target in the order, counted from 1, by position. The targets of a group have the same."""
        places = np.unique(self.perm_rank[self.targets], return_inverse=True)[1] + 1
        return dict(zip(self.targets.tolist(), places.tolist(), strict=True))

    @cached_property
    def marked(self) -> list[int]:
        """Positions that text and picture mark as targets; none if each row predicts the token after its own."""
        return [] if self.predicts_next else self.targets.tolist()

    @property
    def legend(self) -> str:
        """Explanation below the printed text and below the picture."""
        in_groups = self.by_query_stream and max(self.data.group_sizes) > 1
        kind = "query" if self.by_query_stream else self.filling.target
        return (OF_RECORDS[kind] if self.fields else self.filling.legend) + (GROUPS if in_groups else "")

    @cached_property
    def is_special(self) -> np.ndarray:
        """Mask of <sep> and <cls>, bool [L]. They have a rank but are never predicted. Of records, mask of <s>, <eod>
        and <pad>."""
        return np.isin(self.input_ids, (BOS, EOD, PAD) if self.fields else (SEP, CLS))

    @cached_property
    def is_padding(self) -> np.ndarray:
        """Mask of <pad>, bool [L]."""
        return self.input_ids == PAD

    @cached_property
    def key_rank(self) -> np.ndarray:
        """Ranks of the keys, int64 [K]: memory, then the tokens. A row sees the keys of at most its own rank
        (`permutation`)."""
        memory = np.full(self.mem_len, UNUSED_MEMORY, np.int64)
        memory[self.mem_len - self.mem_filled :] = FILLED_MEMORY
        return np.concatenate([memory, 2 * self.perm_rank.astype(np.int64)])

    @cached_property
    def document(self) -> np.ndarray:
        """Number of the document of each token, counted from 1 in reading order, int64 [L]. All 1 if documents see
        each other."""
        start = np.zeros(len(self.pieces)) if self.document_start is None else self.document_start
        return np.unique(start, return_inverse=True)[1] + 1

    def content_sees(self, positions: np.ndarray) -> np.ndarray:
        """Return bool [rows, K]: True where the rows of the content stream at these positions may see a key."""
        return self._sees(2 * self.perm_rank[positions], positions)

    def query_sees(self, positions: np.ndarray) -> np.ndarray:
        """Return as `content_sees`, for rows of the query stream at these targets."""
        return self._sees(2 * self.perm_rank[positions] - 1, positions)

    def _sees(self, rank: np.ndarray, positions: np.ndarray) -> np.ndarray:
        sees = self.key_rank <= rank[:, None]
        if self.document_start is None:
            return sees
        place = np.arange(len(self.key_rank)) - self.mem_len  # below 0 in memory, where a document may begin
        end = np.searchsorted(self.document, self.document[positions], side="right")
        return sees & (place >= self.document_start[positions, None]) & (place < end[:, None])


def view_window(source: BatchSource, tokenizer: Tokenizer, step: int, row: int) -> WindowView:
    """Return the view of row `row` of batch `step`."""
    rows = range(row, row + 1)
    data = dataclasses.replace(source.data, emit="compact")
    if data.window == "pairs" and data.pair_loss == "none":
        data = dataclasses.replace(data, pair_loss="next")  # so that is_next says where B comes from
    compact = dataclasses.replace(source, data=data)
    block, partner, _ = compact.assign(step // source.steps_per_block, rows)
    batch = {name: values[0] for name, values in compact.batch_at(step, rows).items()}
    real = batch["target_weights"] > 0
    targets, pieces, field_ids = batch["target_positions"][real], tokenizer.pieces, None
    fields = tuple(field.name for field in tokenizer.records.parsed) if tokenizer.records else ()
    if fields:
        if len(fields) > 1:  # a column says which field it is
            names = [fields[number] for number in tokenizer.field_of_V.tolist()]
            pieces = [piece.removeprefix(f"{name}:") for piece, name in zip(pieces, names, strict=True)]
        read = batch["input_ids"].copy()
        if source.filling.target == "own":
            read[targets] = batch["target_ids"][real]
        field_ids = tokenizer.field_of_V[read]
    return WindowView(
        filling=source.filling,
        data=source.data,
        step=step,
        row=row,
        steps_per_block=source.steps_per_block,
        block=int(block[0]),
        partner=int(partner[0]),
        is_next=bool(batch.get("is_next")),
        is_reversed=bool(batch["is_reversed"]),
        mem_len=source.mem_len,
        mem_filled=int(batch["mem_filled"]),
        input_ids=batch["input_ids"],
        pieces=[pieces[i] for i in batch["input_ids"]],
        segment_ids=batch.get("segment_ids", np.zeros_like(batch["input_ids"])),
        perm_rank=batch["perm_rank"],
        document_start=batch.get("document_start"),
        targets=targets,
        predicted={p: pieces[i] for p, i in zip(targets.tolist(), batch["target_ids"][real], strict=True)},
        fields=fields,
        field_ids=field_ids,
    )


def describe(view: WindowView) -> Iterator[RenderableType]:
    """Yield what rich prints about a window: its origin, its tokens, its targets."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=HEADING, width=10)
    for name, fact in _facts(view).items():
        table.add_row(name, Text(fact))
    yield table
    yield Text("\nTEXT", HEADING).append(f"  in the row's reading order{view.filling.mark}", "not bold")
    yield _text(view, backwards=False)
    if view.is_reversed:
        yield Text("\nTEXT", HEADING).append("  the same tokens in the order of the text", "not bold")
        yield _text(view, backwards=True)
    if view.by_query_stream or not view.predicts_next:
        name, what = ("ORDER", "of prediction, and") if view.by_query_stream else ("TARGETS", "and")
        keys = f"{len(view.key_rank)} keys ({view.mem_len} of memory, {len(view.pieces)} tokens)"
        yield Text(f"\n{name}", HEADING).append(f"  {what} how many of the {keys} each target sees", "not bold")
        yield _order(view)
    yield Text(view.legend)


def _facts(view: WindowView) -> dict[str, str]:
    data, length, specials = view.data, len(view.pieces), WINDOW_SPECIALS[view.data.window]
    of_text = "of A and B" if data.window == "pairs" else "of text"
    parts = ((data.reuse_len, "reused"), (length - data.reuse_len - specials, of_text), (specials, "special"))
    lengths = " + ".join(f"{count} {what}" for count, what in parts if count)
    draws = "once" if data.static_masks == 1 else f"{data.static_masks} times"
    once = f"; drawn {draws} for all visits of the block" if data.masking == "static" else ""
    direction = "backwards, from the end of the block to its beginning" if view.is_reversed else "forwards"
    window = f"window {view.step % view.steps_per_block + 1} of {view.steps_per_block}"
    filled = f"{view.mem_filled} of {view.mem_len} positions are filled with the tokens before the window"
    apart = ", which do not see each other"
    facts = {
        "objective": view.filling.objective,
        "batch": f"step {view.step:,}, row {view.row:,}",
        "reads": f"block {view.block:,} {direction}",
        "visit": f"{view.step // view.steps_per_block:,} (one pass over the block), {window}",
        "window": f"{length} tokens: {lengths}{once}",
        "memory": filled if view.mem_len else "none",
    }
    if data.window == "pairs":
        a, b = (next(part.end - part.begin for part in view.parts if part.name == name) for name in "AB")
        origin = "B is the continuation of A" if view.is_next else f"B is random text from block {view.partner:,}"
        if data.pair_loss == "order":
            origin = "in order: B continues A" if view.is_next else "swapped: A continues B"
        facts["A, B"] = f"{a} + {b} tokens; {origin}"
    if view.fields:
        count, padding = len(np.unique(view.document[~view.is_padding])), int(view.is_padding.sum())
        facts["window"] = f"{length} tokens: {counted(count, 'record')}{apart * (count > 1)}, and {padding} <pad>{once}"
        facts["fields"] = ", ".join(view.fields)
    elif data.pack:
        count = int(view.document[-1])
        facts["documents"] = f"{count}{apart * (count > 1)}"
    return facts | {"targets": _targets(view)}


def _targets(view: WindowView) -> str:
    if view.fields and view.predicts_next:
        return f"{len(view.targets)}: the next symbol or <eod>, after every other token of a record"
    if view.predicts_next:
        first, last = view.targets[0], view.targets[-1]
        where = "every position" if len(view.targets) == len(view.pieces) else f"the positions {first} to {last}"
        return f"{len(view.targets)}: the next piece at {where}, {view.predicted[last]} at the last"
    slots = view.data.num_predict or len(view.targets)
    counted = f"{len(view.targets)} of {slots}"
    if empty := slots - len(view.targets):
        counted += f"; {empty} empty slots with weight 0 are not shown"
    if view.filling.replaces:
        read = [view.pieces[position] for position in view.predicted]
        masked = sum(piece == SPECIAL_PIECES[MASK] for piece in read)
        kept = sum(piece == view.predicted[position] for piece, position in zip(read, view.predicted, strict=True))
        counted += f"; {masked} masked, {len(read) - masked - kept} replaced by another piece, {kept} unchanged"
    return counted


def _text(view: WindowView, backwards: bool) -> Table:
    columns = ["part", "segment", *(["document"] if view.data.pack else []), "positions", ""]
    if view.fields:
        columns = ["record", "field", "positions", "symbols"]
    table = Table(*columns, box=None, pad_edge=False, header_style="dim")
    # Split the parts where documents begin.
    breaks = np.flatnonzero(np.diff(np.where(view.is_padding, 0, view.document))) + 1
    stretches = []
    for part in view.parts:
        inside = breaks[(breaks > part.begin) & (breaks < part.end)].tolist()
        stretches += [(part, range(*ends)) for ends in itertools.pairwise([part.begin, *inside, part.end])]
    for part, positions in reversed(stretches) if backwards else stretches:
        first, last = (positions[-1], positions[0]) if backwards else (positions[0], positions[-1])
        span = str(first) if first == last else f"{first} … {last}"
        number = [str(view.document[first])] if view.data.pack else []
        shown = positions[:1] if view.fields and view.is_padding[first] else positions
        text = _mark(view, reversed(shown) if backwards else shown)
        if view.fields:
            table.add_row(*(("", "") if view.is_padding[first] else (*number, part.name)), span, text)
        else:
            table.add_row(part.name, str(part.segment), *number, span, text)
    return table


def _mark(view: WindowView, positions: Iterable[int]) -> Text:
    words = Text()
    for position in positions:
        piece = view.pieces[position]
        if position in view.marked:
            said = f"{piece}→{view.predicted[position]}" if view.filling.replaces else f"{view.place[position]}:{piece}"
            words.append(f"[{said}]", TARGET)
        else:
            words.append(piece, SPECIAL if view.is_special[position] else "")
        words.append(" ")
    words.rstrip()
    return words


def _order(view: WindowView) -> Table:
    """Return the table of targets in the order of prediction; by position if all are predicted at once."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    is_target, is_reused = np.zeros(len(view.pieces), bool), np.arange(len(view.pieces)) < view.data.reuse_len
    is_target[view.targets] = True
    context = ~is_target & ~view.is_special
    after_reused = "A and B" if view.data.window == "pairs" else "text"
    groups = {
        "reused": context & is_reused,
        after_reused: context & ~is_reused,
        "targets": is_target,
        "<sep> <cls>": view.is_special,
    }
    if view.fields:
        groups = {"<s> <eod>": view.is_special, "other symbols": context, "targets": is_target}
    place = ("record", "field", "symbol") if view.fields else ("part", "piece")
    words = (*place, "read as") if view.filling.replaces else place
    for name in ("order", "rank", "position", *words, "sees: memory", *groups, "total"):
        table.add_column(name, justify="left" if name in words else "right")
    part_of = {position: part.name for part in view.parts for position in range(part.begin, part.end)}
    prediction_sees = (view.query_sees if view.by_query_stream else view.content_sees)(view.targets)
    sees_of = dict(zip(view.targets.tolist(), prediction_sees, strict=True))
    for position in view.order:
        memory, sees = np.split(sees_of[position], [view.mem_len])
        counts = [int(memory.sum()), *(int((sees & group).sum()) for group in groups.values())]
        read = [Text(view.pieces[position])] if view.filling.replaces else []
        numbers = map(str, (view.place[position], view.perm_rank[position], position))
        record = [str(view.document[position])] if view.fields else []
        piece = Text(view.predicted[position], TARGET)
        table.add_row(*numbers, *record, part_of[position], piece, *read, *map(str, (*counts, sum(counts))))
    return table
