"""The snippets of docs/tutorials.md compute what the code beside them computes, and every row of its tables points to
something that is there and runs."""

import doctest
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.docs.test_site import leads_nowhere
from xlnet_jax.__main__ import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "tutorials.md"
EXACT = ("content_mask", "query_mask", "seen", "read", "labels")
CLOSE = ("encoded", "attended", "shifted", "attn_prob", "h_next", "g_next")


ROWS = [
    row for row in re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", PAGE.read_text(), re.M) if row[0] != "tutorials describe"
]
DESCRIBED = """
seq2seq; RNN encoders; six steps; multi-head code; feed-forward; sinusoidal positions; where dropout is; Noam;
inverse square root; tied embeddings; embeddings times √width; encoder-decoder attention; pre-norm; 80/10/10;
next sentence prediction; BERT's heads; frozen features; ten static masks; dynamic masks; full sentences;
factorized embeddings; all layers share; share a part; sentence order; ELECTRA; GPT's objective;
GPT's published weights; ELMo; Al-Rfou's character model; four terms; memory; same length; clamped; AR:; AE:; m_t;
PLM:; two streams; segments A and B; corpora; 512 chips; 2,048 rows; 2.5 days; classification; question answering;
named entities; sentiment; translation; dialogue; recommendation; CLUE
"""
"""What well-known tutorials describe"""


@pytest.fixture(scope="module")
def ours():
    """Variables of the page after its doctests."""
    page = doctest.DocTestParser().get_doctest(PAGE.read_text(), {}, PAGE.name, None, 0)
    assert len(page.examples) >= 60
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(page, clear_globs=False).failed == 0
    return page.globs


@pytest.fixture(scope="module")
def theirs(ours):
    """Variables of the PyTorch snippets, which start from the arrays and sizes of the doctests, without the results."""
    pytest.importorskip("torch", reason="needs the extra [bench]: pip install -e '.[bench]'")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    given = {name: value for name, value in ours.items() if isinstance(value, np.ndarray | int)}
    variables = {name: value for name, value in given.items() if name not in EXACT + CLOSE}
    for block in blocks:
        if ">>>" not in block:
            exec(compile(block, PAGE.name, "exec"), variables)
    return variables


@pytest.mark.parametrize("topic", re.split(r";\s+", DESCRIBED.strip()))
def test_what_tutorials_describe_has_a_row(topic):
    assert any(topic in described for described, *_ in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_points_to_what_is_there_and_runs_or_gives_the_reason(row, ours):
    _, here, line = row
    if here == "—":
        assert re.fullmatch(r"Out of scope: .+\.", line)
        return
    (target,) = re.fullmatch(r"\[.+\]\((.+)\)", here).groups()
    assert not leads_nowhere(PAGE, target)
    (code,) = re.match(r"`([^`]+)`", line).groups()
    if code.startswith("xlnet-jax "):
        _, command, *words = shlex.split(code)
        COMMANDS[command].parse(words)
    else:
        assert eval(code, {**ours}) is not None


def test_our_code_prints_what_the_page_shows(ours):
    assert set(EXACT + CLOSE) <= set(ours)


@pytest.mark.parametrize("name", CLOSE)
def test_pytorch_computes_the_same_numbers(ours, theirs, name):
    assert np.ptp(ours[name]) > 0.1
    np.testing.assert_allclose(ours[name], np.asarray(theirs[name]), rtol=0, atol=1e-6)


def test_both_compute_the_same_learning_rates(ours, theirs):
    np.testing.assert_allclose(ours["rates"], theirs["rates"], rtol=1e-4)


@pytest.mark.parametrize("name", EXACT)
def test_pytorch_has_the_same_masks_and_tokens(ours, theirs, name):
    np.testing.assert_array_equal(ours[name], np.asarray(theirs[name]))


def test_targets_are_read_as_masks_random_tokens_and_themselves_in_the_shares_of_bert(ours):
    is_target, read, tokens = ours["is_target"], ours["read"], ours["tokens"]
    is_masked = read[is_target] == ours["mask"]
    is_changed = ~is_masked & (read[is_target] != tokens[is_target])
    assert (read[~is_target] == tokens[~is_target]).all()
    for drawn, share in ((is_target, 0.15), (is_masked, 0.8), (is_changed, 0.1)):
        assert abs(drawn.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(drawn))


def test_the_row_that_sees_no_key_is_nan_with_infinity_alone():
    torch = pytest.importorskip("torch", reason="needs the extra [bench]: pip install -e '.[bench]'")
    score, hidden = torch.ones(4), torch.ones(4).bool()
    assert score.masked_fill(hidden, float("-inf")).softmax(0).isnan().all()
    assert (score - 1e30 * hidden).softmax(0).tolist() == [0.25] * 4


def test_normalization_by_the_standard_deviation_is_not_layer_normalization(ours):
    torch = pytest.importorskip("torch", reason="needs the extra [bench]: pip install -e '.[bench]'")
    x = torch.tensor(ours["x"])
    standard = torch.nn.functional.layer_norm(x, (x.shape[-1],))
    annotated = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)
    assert (standard - annotated).abs().max() > 0.05
