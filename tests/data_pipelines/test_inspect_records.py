"""The inspect command shows each record of a window with its fields, and what its targets see."""

from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from data_pipelines.batches import BatchSource
from data_pipelines.inspect.window import describe, view_window
from data_pipelines.objectives import FieldTables, clm, mdlm, mlm, plm
from data_pipelines.records import RecordFormat
from data_pipelines.tokenizer import BOS, EOD, PAD, SPECIAL_PIECES
from tests.data_pipelines.test_record_windows import CDR3, DATA, SEGMENT_V, J, Records, V
from xlnet_jax.plots.window import draw_window

PIECES = [*SPECIAL_PIECES, *(f"v:V{i}" for i in V), *(f"cdr3:{i}" for i in CDR3), *(f"j:J{i}" for i in J)]
TOKENIZER = SimpleNamespace(
    pieces=PIECES, records=RecordFormat(("v:word", "cdr3:word", "j:word")), field_of_V=SEGMENT_V
)


def view_of(filling):
    fields = FieldTables(SEGMENT_V, np.zeros((1, len(SEGMENT_V)), np.int32))
    source = BatchSource(Records(), "train", np.ones(len(PIECES), bool), DATA, 0, 0, filling, record_fields=fields)
    return source, view_window(source, TOKENIZER, 0, 1)


def printed(view):
    console = Console(width=120, highlight=False, markup=False)
    with console.capture() as text:
        for part in describe(view):
            console.print(part)
    return text.get()


@pytest.mark.parametrize("filling", [plm.FILLING, clm.FILLING, mlm.FILLING, mdlm.FILLING])
def test_each_record_is_shown_with_its_fields_and_its_ends(filling):
    source, view = view_of(filling)
    tokens, _ = source.corpus.read("train", np.array([view.block]))
    ids = tokens[0, : DATA.seq_len]
    assert [part.end for part in view.parts] == [*(part.begin for part in view.parts[1:]), DATA.seq_len]
    records = int((ids == BOS).sum())
    padding = view.parts.pop() if (ids == PAD).any() else None
    assert [part.name for part in view.parts] == ["v", "cdr3", "j"] * records
    for part in view.parts:
        own = ids[part.begin : part.end]
        assert (own[0] == BOS) == (part.name == "v")
        assert (own[-1] == EOD) == (part.name == "j")
        assert {TOKENIZER.records.parsed[SEGMENT_V[i]].name for i in own if i >= 9} == {part.name}
    assert padding is None or (ids[padding.begin :] == PAD).all()
    text = printed(view)
    assert f"48 tokens: {records} records, which do not see each other, and {(ids == PAD).sum()} <pad>" in text
    for words in ("A and B", "<sep>", "<cls>", "sentence", "document", "segment", "part ", "cdr3:"):
        assert words not in text
    assert "record  field  positions  symbols" in text


def test_every_target_sees_the_two_ends_of_its_record_and_the_symbols_before_it_in_the_order():
    _, view = view_of(plm.FILLING)
    lines = printed(view).split("order  rank")[1].split("\n\n")[0].splitlines()[1:]
    rows = [line.split() for line in lines if line.strip()]
    assert len(rows) == len(view.targets)
    seen = dict.fromkeys(range(1, 99), 0)
    for row in rows:
        record, (memory, ends, others, targets, total) = int(row[3]), map(int, row[-5:])
        assert (memory, ends, others, targets) == (0, 2, 0, seen[record])
        assert total == ends + targets
        seen[record] += 1


def test_the_picture_marks_records_and_fields(tmp_path, monkeypatch):
    _, view = view_of(plm.FILLING)
    words = []
    monkeypatch.setattr("xlnet_jax.plots.window.write_png", lambda figure, path: words.append(figure))
    draw_window(view, "a test", 0, tmp_path / "window.png")
    (figure,) = words
    texts = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    assert "record 1" in texts
    assert {"v", "cdr3", "j"} <= set(texts)
    legend = " ".join(texts)
    assert "A and B" not in legend
    assert "<sep>" not in legend
    assert "No row sees another" in legend.replace("\n", " ")
