"""The snippets of docs/tutorials.md compute what the code beside them computes."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorials.md"
EXACT = ("content_mask", "query_mask", "seen", "read", "labels")
CLOSE = ("encoded", "attended", "shifted", "attn_prob", "h_next", "g_next")


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


def test_our_code_prints_what_the_page_shows(ours):
    assert set(EXACT + CLOSE) <= set(ours)


@pytest.mark.parametrize("name", CLOSE)
def test_pytorch_computes_the_same_numbers(ours, theirs, name):
    assert np.ptp(ours[name]) > 0.1
    np.testing.assert_allclose(ours[name], np.asarray(theirs[name]), rtol=0, atol=1e-6)


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
