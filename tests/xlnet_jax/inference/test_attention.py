"""Attention weights are those that the network reads by, of the rows and keys that the text has; pictures hold their
numbers, and load nothing."""

import base64
import dataclasses
import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from tests.xlnet_jax.random_models import BERT, random_model
from xlnet_jax import InputError
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.inference.attention import MOST_PIECES, attention_weights
from xlnet_jax.plots.attention import UNIT, attention_page

command = COMMANDS["attention"]
TEXTS = ["The list of names is new", "Names"]
TEXT = TEXTS[0]


@pytest.fixture(scope="module")
def view(model):
    return attention_weights(model, [TEXT], [[5, 1]])


def test_each_row_sums_to_one_over_the_keys_of_its_text(model):
    found = attention_weights(model, TEXTS)
    assert found.query_ZBNPK is None
    assert found.pieces[0][-2:] == ["<sep>", "<cls>"]
    lengths = [len(pieces) for pieces in found.pieces]
    assert lengths[0] > lengths[1]
    assert found.content_ZBNLK.shape == (3, 2, 4, lengths[0], lengths[0])
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(found.content_ZBNLK[:, b, :, :length, :length].sum(-1), 1, rtol=1e-5)
        assert (found.content_ZBNLK[:, b, :, :length, :length] > 0).all()
        assert not found.content_ZBNLK[:, b, :, length:].any()
        assert not found.content_ZBNLK[:, b, :, :, length:].any()


def test_a_target_sees_the_context_and_the_targets_before_it(model):
    found = attention_weights(model, TEXTS, [[3, 0], [0]])
    length = len(found.pieces[0])
    assert found.query_ZBNPK.shape == (3, 2, 4, 2, length)
    assert found.targets == [[3, 0], [0]]
    context = np.ones(length, bool)
    context[[0, 3]] = False
    after_3 = context | (np.arange(length) == 3)
    for row, seen in zip(np.moveaxis(found.query_ZBNPK[:, 0], 2, 0), (context, after_3), strict=True):
        assert ((row > 0) == seen).all()
        np.testing.assert_allclose(row.sum(-1), 1, rtol=1e-5)
    assert not found.query_ZBNPK[:, 1, :, 1].any()  # the second text has one target
    content = found.content_ZBNLK[:, 0] > 0
    assert (content[:, :, 3] == after_3).all()
    assert content[:, :, 0].all()
    assert (content[:, :, 1] == context).all()


def test_every_network_shows_its_weights(causal, tokenizer):
    bert = random_model(dataclasses.replace(BERT, vocab_size=800), tokenizer=tokenizer)
    for network in (causal, bert):
        weights = attention_weights(network, TEXTS[:1]).content_ZBNLK[:, 0]
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
        assert (np.triu(weights, 1) == 0).all() == (network is causal)
    with pytest.raises(InputError, match="reads in one direction"):
        attention_weights(causal, TEXTS[:1], [[0]])


def test_texts_and_targets_that_do_not_fit_are_refused(model):
    for texts, targets, message in (
        ([], None, "must be a list of at least one text"),
        ([" "], None, "each must have pieces"),
        (TEXTS, [[0]], "`targets` has 1 lists of positions for 2 texts"),
        (TEXTS, [[0], [7]], "`targets` of text 1: give positions from 0 to 2, each once"),
        (TEXTS, [[0, 0], []], "`targets` of text 0: give positions from 0 to "),
    ):
        with pytest.raises(InputError, match=message):
            attention_weights(model, texts, targets)


def data_of(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def test_the_numbers_in_the_page_are_those_of_the_function(view):
    assert [view.pieces[0][i] for i in view.targets[0]] == ["▁new", "▁list"]  # in the order in which they are named
    data = data_of(attention_page(view, TEXT, "a model", 1, None))
    assert data["pieces"] == view.pieces[0]
    assert data["targets"] == view.targets[0]
    assert (data["layer"], data["head"]) == (1, 4)  # the mean comes behind the heads
    for name, weights in (("content", view.content_ZBNLK), ("query", view.query_ZBNPK)):
        there = np.frombuffer(base64.b64decode(data[name]), "<u2").reshape(weights.shape)
        np.testing.assert_allclose(there / UNIT, weights, atol=1 / UNIT)
        np.testing.assert_array_equal(there == 0, weights == 0)  # 0 says that a row may not see a key


def test_nothing_in_the_page_comes_from_elsewhere_and_no_text_becomes_markup(view):
    evil = "</script><script src=https://a.b/c.js></script><!-- {{data}} &amp;"
    evil_view = view._replace(pieces=[[evil, *view.pieces[0][1:]]])
    page = attention_page(evil_view, evil, evil, 0, 0)
    data = data_of(page)
    assert data["pieces"][0] == data["text"] == data["origin"] == evil
    page = page.replace(json.dumps(data["pieces"]), "")
    assert page.count("</script>") == 2
    own = attention_page(view, TEXT, "a model", 0, 0)
    assert not re.search(r"https?:|\bsrc=|\bhref=|@import|url\(|fetch\(", own)
    assert "default-src 'none'" in own


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_a_browser_shows_the_weights_of_the_row_that_is_hovered(view, tmp_path):
    page = attention_page(view, TEXT, "a model", 2, 3)
    hover = """<script>
document.querySelector('[data-stream=query] button:nth-child(%d)').dispatchEvent(new PointerEvent('pointerenter'));
</script></body>"""
    position = view.targets[0][1]
    (tmp_path / "page.html").write_text(page.replace("</body>", hover % (position + 1)))
    argv = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
    shown = subprocess.run(
        [*argv, "--dump-dom", f"file://{tmp_path}/page.html"], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    rows = {"content": view.content_ZBNLK[2, 0, 3, position], "query": view.query_ZBNPK[2, 0, 3, 1]}
    for stream, row in rows.items():
        line = re.search(rf'data-stream="{stream}">(.*?)</div>', shown)[1]
        numbers = re.findall(r"<small>(.*?)</small>", line)
        assert [n == "–" for n in numbers] == (row == 0).tolist()
        np.testing.assert_allclose([float(n.replace("–", "0")) for n in numbers], 100 * row, atol=0.51)
        assert re.findall(r"<button[^>]*>(.*?)<small>", line)[0] == html.escape(view.pieces[0][0])
    assert "query stream: ▁list attends to" in shown


@pytest.mark.parametrize(("targets", "more"), [([], []), (["new", "list"], ["--layer", "1", "--head", "2"])])
def test_the_command_writes_a_page_and_a_picture(checkpoint, tmp_path, targets, more, capsys):
    argv = [str(checkpoint), "--text", TEXT, "--targets", *targets, *more]
    for name in ("page.html", "picture.PNG"):
        assert command.main([*argv, "--out", str(tmp_path / name)]) == 0
        assert str(tmp_path / name) in capsys.readouterr().out
    data = data_of((tmp_path / "page.html").read_text())
    assert [data["pieces"][i] for i in data["targets"]] == [f"▁{word}" for word in targets]
    assert (data["query"] is None) == (not targets)
    assert (tmp_path / "picture.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("--text names --out a.pdf", r"--out a\.pdf must end in \.html, for a web page, or \.png, for a picture"),
        ("--text names --layer 3", r"--layer 3 does not exist: the network has 3, from 0 to 2"),
        ("--text names --targets list", r"'list' does not match whole pieces of the text, which reads: ▁name"),
        ("--text names --targets names names", r"give positions from 0 to 0, each once"),
        (f"--text {'names,' * 70}", rf"--text has \d+ pieces, but a picture shows at most {MOST_PIECES}: shorten it"),
    ],
)
def test_mistakes_are_named(checkpoint, tmp_path, monkeypatch, more, line):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=line):
        command.main([str(checkpoint), *more.split()])
    assert not list(tmp_path.iterdir())
