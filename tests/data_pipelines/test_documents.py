"""Windows that pack several documents: where each document begins, and targets that see part of their own document."""

import dataclasses
import itertools

import numpy as np
import pytest

from data_pipelines import sources
from data_pipelines.batches import BatchSource
from data_pipelines.corpus import Start
from data_pipelines.inspect.window import view_window
from data_pipelines.objectives import clm, mdlm, mlm, plm
from data_pipelines.tokenizer import CLS, EOD, SEP, Tokenizer
from tests.data_pipelines.conftest import MEM_LEN, prepared
from xlnet_jax.models.masks import document_bounds, memory_in_use_BM, rank_relations
from xlnet_jax.settings.config import DataConfig

DATA = DataConfig(
    batch_size=8, seq_len=64, reuse_len=32, perm_size=16, num_predict=11, windows_per_block=4, window="text", pack=True
)
WHOLE = {"reuse_len": 0, "perm_size": 64}  # windows that share nothing
FORMS = {
    "plm": (plm.FILLING, {}),
    "plm, sentences": (plm.FILLING, {"window": "sentences"}),
    "plm without memory": (plm.FILLING, WHOLE),
    "plm, all targets that their context allows, words": (plm.FILLING, {"num_predict": None, "span_unit": "word"}),
    "plm in groups": (plm.FILLING, WHOLE | {"group_sizes": (2, 11)}),
    "plm in groups, sentences": (
        plm.FILLING,
        WHOLE | {"window": "sentences", "group_sizes": (8,), "num_predict": 50},
    ),
    "mlm, static": (mlm.FILLING, WHOLE | {"targets": "pieces", "masking": "static"}),
    "mdlm": (mdlm.FILLING, WHOLE | {"num_predict": None}),
    "clm": (clm.FILLING, {"reuse_len": 64, "num_predict": None, "bidirectional": False}),
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return batches of documents cut from the novels, from a single word to several windows long."""
    folder = tmp_path_factory.mktemp("documents")
    with open(sources.embedded()[0]) as novel:
        words = " ".join(itertools.islice(novel, 900)).split()
    rng, text = np.random.default_rng(0), []
    ends = np.cumsum(rng.geometric(rng.choice([0.04, 0.7], len(words))))
    for begin, end in itertools.pairwise([0, *ends[ends < len(words)].tolist()]):
        text.append(" ".join(words[begin:end]))
    (folder / "text.txt").write_text("\n\n".join(text) + "\n")
    tokenizer = Tokenizer.train([" ".join(words)], 400, "english")
    corpus = prepared([folder / "text.txt"], tokenizer, DATA, folder / "blocks")
    return BatchSource(corpus, "train", tokenizer.is_word_start, DATA, MEM_LEN, 5, plm.FILLING)


def formed(source, form):
    filling, changes = form
    return dataclasses.replace(source, filling=filling, data=dataclasses.replace(source.data, **changes))


def starts_by_hand(source, step):
    """Compute document_start of a batch from the corpus, one token at a time."""
    visit, index = divmod(step, source.steps_per_block)
    blocks, _, is_reversed = source.assign(visit, range(DATA.batch_size))
    _, starts = source.corpus.read("train", blocks)
    text = source.data.seq_len - {"sentences": 2, "text": 0}[source.data.window]
    begin = index * (source.data.reuse_len or text)
    found = np.zeros((len(blocks), source.data.seq_len), int)
    for row, of_block in enumerate(starts):
        size = len(of_block)
        begins = [i for i in range(size) if i == 0 or of_block[i] == Start.DOCUMENT]
        if is_reversed[row]:
            begins = sorted(size - end for end in [*begins[1:], size])
        for place in range(source.data.seq_len):
            at = begin + min(place, text - 1)
            found[row, place] = max(i for i in begins if i <= at) - begin
    return found


@every_form
def test_a_batch_says_where_the_document_of_each_token_begins(source, form):
    source = formed(source, form)
    directions = set()
    whole = [source.batch_at(step) for step in range(6)]
    for step, batch in enumerate(whole):
        np.testing.assert_array_equal(batch["document_start"], starts_by_hand(source, step))
        directions |= set(batch["is_reversed"].tolist())
    rows = np.array([1, 2, 6])
    for step, batch in enumerate(source.iterate(4, 6, rows), start=4):
        for name, values in batch.items():
            np.testing.assert_array_equal(values, whole[step][name][rows], err_msg=name)
    assert directions == {False, source.data.bidirectional}


@pytest.mark.parametrize("name", [name for name in FORMS if name.startswith("plm")])
def test_every_target_sees_a_token_of_its_own_document(source, name):
    """A row that sees no token attends to all documents equally, and to its own target."""
    source = formed(source, FORMS[name])
    dropped = 0
    for step in range(24):
        batch = source.batch_at(step)
        running = dataclasses.replace(source, data=dataclasses.replace(source.data, pack=False)).batch_at(step)
        for row in range(DATA.batch_size):
            rank, start = batch["perm_rank"][row], batch["document_start"][row]
            for slot in np.flatnonzero(batch["target_weights"][row]):
                target = batch["target_positions"][row, slot]
                assert ((rank < rank[target]) & (start == start[target])).any()
        dropped += (running["target_weights"].sum() - batch["target_weights"].sum()).item()
    assert dropped > 0, "no document is short enough to try this"


def test_a_causal_row_does_not_predict_the_first_token_of_the_next_document(source):
    """Also at the end of a window, where the next window begins with that document."""
    source = formed(source, FORMS["clm"])
    seen_at_the_end = set()
    for step in range(8):
        batch = source.batch_at(step)
        is_end = batch["input_ids"] == EOD
        np.testing.assert_array_equal(batch["target_weights"], ~is_end)
        seen_at_the_end |= set(is_end[:, -1].tolist())
    assert seen_at_the_end == {False, True}


def test_sep_and_cls_belong_to_the_last_document_of_their_window(source):
    batch = formed(source, FORMS["plm, sentences"]).batch_at(3)
    np.testing.assert_array_equal(batch["input_ids"][:, -2:], [[SEP, CLS]] * DATA.batch_size)
    np.testing.assert_array_equal(batch["document_start"][:, -2:], batch["document_start"][:, -3:-2].repeat(2, 1))


@pytest.mark.parametrize("name", ["plm", "plm, sentences", "plm in groups", "clm"])
def test_the_view_of_a_window_sees_what_the_model_sees(source, name):
    source = formed(source, FORMS[name])
    several = 0
    for step, row in itertools.product((0, 1, 3), range(4)):
        view = view_window(source, source.corpus.tokenizer, step, row)
        batch = {name: values[row : row + 1] for name, values in source.batch_at(step).items()}
        memory = memory_in_use_BM(batch["mem_filled"], source.mem_len)
        targets = view.targets[None] if name.startswith("plm") else None
        relations = rank_relations(batch["perm_rank"], targets, memory)
        expected = relations.within(*document_bounds(batch["document_start"], targets)).visible_BTK()[0]
        content = view.content_sees(np.arange(source.data.seq_len))
        np.testing.assert_array_equal(content, expected[: len(content)])
        if targets is not None:
            np.testing.assert_array_equal(view.query_sees(view.targets), expected[len(content) :])
        several += view.document.max() > 1
        assert view.document.max() == len(np.unique(batch["document_start"]))
    assert several > 1
