"""Targets are drawn as the original draws them: exact rules on every row, and its distributions."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from data_pipelines.spans import draws_needed, sample_targets
from xlnet_jax.config import DataConfig

DATA = DataConfig()
PUNCTUATION = '!"#$%&"()*+,-./:;?@[\\]^_`{|}~'
FALSE_ALARM = 1e-4  # how often each comparison of two distributions fails though they are the same


def word_starts_of(reference):
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(reference / "data" / "spiece.model"))
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    return np.array([p.startswith(("▁", "<")) or p in PUNCTUATION for p in pieces])


def draw(starts, goal, *, is_reversed=False, seed=0):
    rows, length = starts.shape
    uniform = np.random.default_rng(seed).random((rows, draws_needed(length, DATA)))
    return sample_targets(starts, goal, uniform, np.full(rows, is_reversed), DATA)


def same_distribution(ours, theirs):
    """Two-sided: p-value of two histograms under one law; values seen less than ten times in both are put together."""
    ours, theirs = (np.asarray(h, np.float64) for h in (ours, theirs))
    common = ours + theirs >= 20
    table = np.array([np.append(h[common], h[~common].sum()) for h in (ours, theirs)])
    table = table[:, table.sum(0) > 0]
    return 1.0 if table.shape[1] < 2 else chi2_contingency(table).pvalue


def run_lengths(mask):
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    return np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]


@pytest.mark.parametrize(
    ("name", "length", "goal"), [("fwd_L32_g5", 32, 5), ("rev_L32_g5", 32, 5), ("fwd_L256_g43", 256, 43)]
)
def test_targets_are_distributed_as_the_originals(reference, name, length, goal):
    cases = np.load(reference / "data" / "sample_mask.npz")
    starts = word_starts_of(reference)[cases["stream"]]
    rows = 20_000
    is_reversed = name.startswith("rev")
    begins = np.random.default_rng(1).integers(0, len(starts) - length, rows)
    text = starts[begins[:, None] + np.arange(length)]
    # A reversed row hands its tokens over in its own reading order, as the original does.
    targets = draw(text[:, ::-1] if is_reversed else text, goal, is_reversed=is_reversed)
    assert (targets.sum(1) == goal).all()

    their_runs = cases[f"{name}/stats/run_len_hist"]
    runs = np.bincount(run_lengths(targets), minlength=len(their_runs))
    assert same_distribution(runs, their_runs) > FALSE_ALARM
    assert same_distribution(targets.sum(0), cases[f"{name}/stats/masked_count_per_pos"]) > FALSE_ALARM


def test_a_row_reaches_its_goal_where_no_word_starts():
    assert (draw(np.zeros((50, 32), bool), 5).sum(1) == 5).all()


def test_a_goal_as_long_as_the_text_makes_everything_a_target():
    assert draw(np.ones((50, 16), bool), 16).all()


def test_a_goal_of_none_leaves_the_text_alone():
    assert not draw(np.ones((50, 16), bool), 0).any()


def test_a_reversed_row_is_the_mirror_of_the_same_draws():
    starts = np.random.default_rng(2).random((64, 48)) < 0.6
    forwards, backwards = draw(starts, 8), draw(starts[:, ::-1], 8, is_reversed=True)
    np.testing.assert_array_equal(forwards, backwards[:, ::-1])
