"""The inspect command shows the text and order of a window, and the masks that the model computes from it."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest

from data_pipelines.corpus import Corpus
from data_pipelines.inspect.window import view_window
from data_pipelines.permutation import to_dense
from data_pipelines.tokenizer import CLS, SEP, Tokenizer
from tests.data_pipelines.conftest import DATA, MEM_LEN
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.models.masks import memory_in_use_BM, rank_relations
from xlnet_jax.objectives.inspect import InspectSettings, inspect_window
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.plots import window as plot
from xlnet_jax.settings.config import Config, EvalConfig, ModelConfig
from xlnet_jax.settings.fields import to_dict
from xlnet_jax.storage.reading import with_version
from xlnet_jax.training.evaluation import held_out_batches

inspect = COMMANDS["inspect"]

PLACES = np.arange(DATA.seq_len)
SEEN = (plot.Cell.SEEN, plot.Cell.SEEN_TARGET, plot.Cell.ITSELF)


@pytest.fixture(scope="module")
def folder(source):
    return source.corpus.folder


@pytest.fixture(scope="module")
def tokenizer(source):
    return source.corpus.tokenizer


@pytest.fixture
def show(tmp_path, capsys, monkeypatch):
    """Run the command without its picture, and return what it prints."""
    monkeypatch.setattr(plot, "draw_window", lambda *words: words[-1].write_text(""))

    def run(*words):
        assert inspect.main([*map(str, words), "--out", str(tmp_path / "window.png")]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("sizes", [(1,), (3,)])
def test_the_view_sees_what_the_model_sees_and_what_the_dense_masks_say(source, tokenizer, sizes):
    source = dataclasses.replace(source, data=dataclasses.replace(DATA, group_sizes=sizes))
    for step in (0, 3):
        dense = to_dense(source.batch_at(step))
        for row in range(DATA.batch_size):
            view = view_window(source, tokenizer, step, row)
            memory = memory_in_use_BM(np.array([view.mem_filled]), MEM_LEN)
            expected = rank_relations(view.perm_rank[None], view.targets[None], memory).visible_BTK()[0]
            seen = np.concatenate([view.content_sees(PLACES), view.query_sees(view.targets)])
            np.testing.assert_array_equal(seen, expected)
            query = dense["perm_mask"][row][view.targets]
            np.testing.assert_array_equal(view.query_sees(view.targets)[:, MEM_LEN:], ~query)
            assert [p.end for p in view.parts] == [p.begin for p in view.parts[1:]] + [DATA.seq_len]
            assert [view.input_ids[p.begin] for p in view.parts if p.name.startswith("<")] == [SEP, SEP, CLS]
            for part in view.parts:
                assert (view.segment_ids[part.begin : part.end] == part.segment).all()


OTHERS = {
    "mlm": ("mlm", {"targets": "words"}, MEM_LEN),
    "mlm without memory": ("mlm", {"reuse_len": 0, "pair_loss": "order", "masking": "static"}, 0),
    "mlm, sentences": ("mlm", {"reuse_len": 0, "window": "sentences"}, 0),
    "rtd": ("rtd", {"reuse_len": 0, "mask_share": 1.0, "random_share": 0.0}, 0),
    "clm": ("clm", {"window": "text", "reuse_len": 64, "num_predict": None, "bidirectional": False}, MEM_LEN),
    "mdlm": ("mdlm", {"window": "text", "reuse_len": 0, "num_predict": None, "bidirectional": False}, 0),
    "prefix": ("prefix", {"window": "text", "reuse_len": 0, "num_predict": None, "bidirectional": False}, 0),
}


@pytest.fixture(params=OTHERS.values(), ids=OTHERS.keys())
def other(source, request):
    """Batches of another objective."""
    objective, changes, mem_len = request.param
    return dataclasses.replace(
        source, filling=objective_named(objective).filling, data=dataclasses.replace(DATA, **changes), mem_len=mem_len
    )


def test_the_view_of_another_objective_sees_what_its_content_stream_sees(other, tokenizer):
    for step in (0, 1):
        batch = other.batch_at(step)
        for row in range(3):
            view = view_window(other, tokenizer, step, row)
            memory = memory_in_use_BM(np.array([view.mem_filled]), view.mem_len)
            expected = rank_relations(view.perm_rank[None], None, memory).visible_BTK()[0]
            np.testing.assert_array_equal(view.content_sees(PLACES), expected)

            assert [p.end for p in view.parts] == [*(p.begin for p in view.parts[1:]), DATA.seq_len]
            assert view.pieces == [tokenizer.pieces[i] for i in batch["input_ids"][row]]
            real = batch["target_weights"][row] > 0
            assert list(view.predicted.values()) == [tokenizer.pieces[i] for i in batch["target_ids"][row][real]]
    (content,) = matrices(view)
    np.testing.assert_array_equal(np.isin(content, SEEN), view.content_sees(PLACES))


def matrices(view):
    return plot._matrices(view, plot._whole_axis(view))


def printed_window(folder, show, row, *words):
    text = show(folder, "--row", row, "--step", 2, "--seed", 5, "--mem-len", MEM_LEN, *overrides(DATA), *words)
    return text.split("\nORDER")


def overrides(data):
    names = ("batch_size", "seq_len", "reuse_len", "perm_size", "num_predict", "windows_per_block")
    return [w for n in names for w in (f"--data.{n.replace('_', '-')}", str(getattr(data, n)))]


def pieces_of(text):
    """The pieces below the header of a TEXT section."""
    words = (word for line in text.splitlines()[2:] for word in line[28:].split())
    return [re.sub(r"^\[\d+:(.*)\]$", r"\1", word) for word in words]


def test_the_text_is_printed_piece_by_piece_and_backwards_too(folder, source, tokenizer, show):
    is_reversed = source.batch_at(2)["is_reversed"]
    for row in (int(is_reversed.argmin()), int(is_reversed.argmax())):
        view = view_window(source, tokenizer, 2, row)
        head, *texts = printed_window(folder, show, row)[0].split("\nTEXT")
        backwards = [view.pieces[::-1]] if view.is_reversed else []
        assert [pieces_of(text) for text in texts] == [view.pieces, *backwards]
        assert ("backwards" if view.is_reversed else "forwards") in head


def test_the_order_lists_each_target_with_what_its_row_sees(folder, source, tokenizer, show):
    view = view_window(source, tokenizer, 2, 3)
    text, order = printed_window(folder, show, 3)
    rows = [line.split() for line in order.splitlines()[2:] if re.match(r" *\d", line)]
    assert [int(r[2]) for r in rows] == view.order
    assert [r[4] for r in rows] == [view.pieces[p] for p in view.order]
    assert [int(r[1]) for r in rows] == sorted(view.perm_rank[view.targets])
    for place, found in enumerate(rows, start=1):
        sees = view.query_sees(np.array([int(found[2])]))[0]
        assert int(found[0]) == place
        assert int(found[8]) == place - 1
        assert int(found[10]) == sum(map(int, found[5:10])) == sees.sum()
        assert f"[{place}:{found[4]}]" in text
    assert max(map(len, (text + order).splitlines())) <= 120


def test_groups_have_one_number_and_the_legend_says_so(folder, source, tokenizer, show):
    source = dataclasses.replace(source, data=dataclasses.replace(DATA, group_sizes=(2,)))
    view = view_window(source, tokenizer, 2, 3)
    text, order = printed_window(folder, show, 3, "--data.group-sizes", 2)
    rows = [line.split() for line in order.splitlines()[2:] if re.match(r" *\d", line)]
    assert [int(r[0]) for r in rows] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert [int(r[8]) for r in rows] == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10]
    assert [text.count(f"[{place}:") for place in (1, 6)] == [2 * (1 + view.is_reversed), 1 + view.is_reversed]
    assert "The numbers count groups: targets with the same number are predicted together" in order
    assert "count groups" not in "".join(printed_window(folder, show, 3))


def test_the_cells_of_the_picture_say_what_the_rows_see(source, tokenizer):
    view = view_window(source, tokenizer, 1, 0)
    assert 0 < view.mem_filled < view.mem_len
    content, query, mapping = matrices(view)
    cell = plot.Cell
    unused = view.mem_len - view.mem_filled
    for cells, sees in ((content, view.content_sees(PLACES)), (query, view.query_sees(view.targets))):
        np.testing.assert_array_equal(np.isin(cells, SEEN), sees)
        assert (cells[:, :unused] == cell.UNUSED).all()
    assert (np.diag(content[:, view.mem_len :]) == cell.ITSELF).all()
    np.testing.assert_array_equal((mapping == cell.MAPPED).argmax(1) - view.mem_len, view.targets)


def run_of(folder, workdir, tokenizer, **settings):
    """Make the workdir of a run that read a corpus: its own copy, or one that was prepared before."""
    tokenizer.save(workdir / "tokenizer")
    if "corpus" not in settings:
        shutil.copytree(folder, workdir / "corpus", ignore=shutil.ignore_patterns("tokenizer"))
    config = Config(**{"data": DATA, "model": ModelConfig(mem_len=MEM_LEN)} | settings)
    (workdir / "config.json").write_text(json.dumps(with_version("run", to_dict(config))))
    return config


def test_a_workdir_brings_its_settings_and_finds_its_corpus(folder, tokenizer, tmp_path, show):
    for name, corpus in (("own", {}), ("before", {"corpus": (str(folder),)})):
        run_of(folder, tmp_path / name, tokenizer, seed=5, **corpus)
        ours = show(tmp_path / name, "--step", 2, "--row", 3)
        theirs = printed_window(folder, show, 3)
        assert f"of the run {tmp_path / name}; seed 5, 12 rows per batch" in " ".join(ours.split())  # in several lines
        assert ours[ours.index("reads") :] == "\nORDER".join(theirs)[ours.index("reads") - len(ours) :]


def test_a_workdir_brings_its_objective_and_another_can_be_asked_for(folder, tokenizer, tmp_path, show):
    data = dataclasses.replace(DATA, reuse_len=0, bidirectional=False)
    run_of(folder, tmp_path / "run", tokenizer, objective="mlm", data=data, model=ModelConfig(mem_len=0))
    masked = show(tmp_path / "run")
    assert "objective   mlm" in masked
    assert "64 tokens: 61 of A and B + 3 special" in masked
    assert "64: the next piece at every position" in show(tmp_path / "run", "--objective", "clm")


def test_a_window_is_found_that_fits_the_blocks_and_a_length_alone_takes_the_others_along(folder, show):
    assert "settings    fitted to the length of the blocks; seed 0" in (text := show(folder))
    assert "window      64 tokens: 32 reused + 29 of A and B + 3 special" in text
    text = show(folder, "--data.seq-len", 32)
    assert "window      32 tokens: 16 reused + 13 of A and B + 3 special" in text
    assert re.search(r"targets     [2-5] of 5", text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--row", "12"], "--row 12 must be from 0 to 11, or give a larger --data.batch-size"),
        (["--preset", "huge"], "--preset huge must be one of demo, small, base, long, large, large_v1"),
        (["--data.seq-len", "512"], "blocks of 158 tokens cannot hold a window: --data.seq-len 512"),
        (["--out", "missing/window.png"], "missing/window.png: there is no folder missing; create it"),
        (["--out", "window.jpg"], "--out window.jpg must end in .png: the picture is a PNG"),
    ],
)
def test_a_mistaken_setting_ends_in_one_line(folder, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(message)):
        inspect.main([str(folder), *overrides(DATA), "--mem-len", "0", *words])
    assert not list(tmp_path.iterdir())


def test_the_tokenizer_is_the_one_that_made_the_corpus(folder, tokenizer, tmp_path):
    shutil.copytree(folder, tmp_path / "corpus", ignore=shutil.ignore_patterns("tokenizer"))
    with pytest.raises(InputError, match="has no tokenizer: give the one it was made with as --tokenizer"):
        inspect.main([str(tmp_path / "corpus")])
    other = Tokenizer(tokenizer.model, dataclasses.replace(tokenizer.settings, normalization="none"))
    other.save(tmp_path / "other")
    with pytest.raises(InputError, match="was made with another tokenizer than"):
        inspect.main([str(folder), "--tokenizer", str(tmp_path / "other")])


def test_held_out_windows_are_those_that_an_evaluation_measures(folder, tokenizer, tmp_path):
    """The seed of the run and its limit on windows do not matter."""
    run, model = tmp_path / "run", ModelConfig(mem_len=MEM_LEN, vocab_size=600)
    config = run_of(folder, run, tokenizer, model=model, seed=9, eval=EvalConfig(max_windows=24))
    batches = held_out_batches(Corpus(folder), tokenizer, config)
    assert len(batches) == 2
    settings = InspectSettings(str(run), split="validation", step=1, row=3, out=str(tmp_path / "window.png"))
    found = inspect_window(settings).view
    np.testing.assert_array_equal(found.input_ids, batches[1]["input_ids"][3])
    np.testing.assert_array_equal(found.perm_rank, batches[1]["perm_rank"][3])
