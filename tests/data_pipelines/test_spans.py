"""Targets are the original's, token for token, with its random numbers. Spans can count words."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from data_pipelines.targets import draws_needed, max_spans, place_spans, sample_spans
from xlnet_jax.settings.config import DataConfig

DATA = DataConfig()
WORDS = DataConfig(span_unit="word")
PUNCTUATION = '!"#$%&"()*+,-./:;?@[\\]^_`{|}~'
FALSE_ALARM = 1e-4  # probability that a comparison of two equal distributions fails
SETTINGS = ["fwd_L32_g5", "rev_L32_g5", "fwd_L32_g5_func", "rev_L32_g5_func", "fwd_L32_none", "fwd_L256_g43"]


def settings_of(name):
    """Return (length, goal, data) of a setting of the reference."""
    length, goal = (int(part[1:]) if part[1:].isdigit() else None for part in name.split("_")[1:3])
    return length, goal, dataclasses.replace(DATA, num_predict=goal)


def word_starts_of(reference):
    """Return which pieces start a word by the original's rule, bool [V]."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(reference / "data" / "spiece.model"))
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    return np.array([p.startswith(("▁", "<")) or p in PUNCTUATION for p in pieces])


def draw(starts, goal, *, is_reversed=False, seed=0, data=DATA):
    rows, length = starts.shape
    uniform = np.random.default_rng(seed).random((rows, draws_needed(length, data)))
    return sample_spans(starts, np.ones_like(starts), goal, uniform, np.full(rows, is_reversed), data)


def same_distribution(ours, theirs):
    """Return the p-value of two histograms having one distribution. Values counted less than 20 times in both together
    are merged."""
    ours, theirs = (np.asarray(h, np.float64) for h in (ours, theirs))
    common = ours + theirs >= 20
    table = np.array([np.append(h[common], h[~common].sum()) for h in (ours, theirs)])
    table = table[:, table.sum(0) > 0]
    return 1.0 if table.shape[1] < 2 else chi2_contingency(table).pvalue


def run_lengths(mask):
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    return np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]


def replay(starts, goal, seed, data):
    """Return uniforms for which our sampler draws what the original drew from this seed."""
    length, spans = len(starts), max_spans(len(starts), data)
    rng = np.random.RandomState(seed)
    uniform = np.zeros(draws_needed(length, data))
    weights = 1 / np.arange(1, data.span_max + 1)
    left = length if goal is None else goal
    state_after, context_behind = [rng.get_state()], [0]
    for i in range(spans):
        n = int(rng.choice(np.arange(1, data.span_max + 1), p=weights / weights.sum()))
        uniform[i] = (np.cumsum(np.insert(weights, 0, 0))[n - 1] + 0.5 / n) / weights.sum()
        n = max(1, min(n, left))
        context = n * data.mask_alpha // data.mask_beta
        before = rng.choice(context)
        uniform[spans + i] = (before + 0.5) / context
        context_behind.append(context - before)
        left -= n
        state_after.append(rng.get_state())
    if goal is None:
        return uniform
    # The original draws single tokens after its search for spans: after the first span that it could not place, or did
    # not try because it had reached the goal or the end of the text.
    begin, end = place_spans(starts[None], goal, uniform[None], data)
    placed = int((begin < end).sum())
    tried_another = (end - begin).sum() < goal and end.max() + context_behind[placed] < length
    rng.set_state(state_after[placed + tried_another])
    order = dict.fromkeys(rng.randint(length, size=50 * length).tolist())  # all tokens, in the order of their draws
    uniform[2 * spans + np.fromiter(order, int)] = np.arange(len(order)) / length
    return uniform


@pytest.mark.parametrize("name", SETTINGS)
def test_the_originals_random_numbers_give_the_originals_targets(reference, name):
    cases = np.load(reference / "data" / "sample_mask.npz")
    _, goal, data = settings_of(name)
    is_reversed = name.startswith("rev")
    starts = word_starts_of(reference)[cases[f"{name}/exact/seg"]]
    in_text_order = starts[:, ::-1] if is_reversed else starts
    uniform = [
        replay(*case, data) for case in zip(in_text_order, [goal] * 150, cases[f"{name}/exact/seed"], strict=True)
    ]
    targets = sample_spans(starts, np.ones_like(starts), goal, np.stack(uniform), np.full(150, is_reversed), data)
    np.testing.assert_array_equal(targets, cases[f"{name}/exact/mask"].astype(bool))


texts = st.tuples(st.integers(1, 60), st.floats(0, 1), st.integers(0, 2**31), st.booleans())
shapes = st.tuples(st.integers(1, 7), st.integers(1, 8), st.integers(1, 3), st.one_of(st.none(), st.integers(0, 60)))


@settings(deadline=None)  # a busy machine is no error
@given(texts, shapes, st.sampled_from(["piece", "word"]))
def test_spans_are_whole_units_from_a_word_start_inside_the_text_and_the_goal(text, shape, unit):
    length, density, seed, is_reversed = text
    span_max, alpha, beta, goal = shape
    goal = None if goal is None else min(goal, length)
    data = DataConfig(num_predict=goal, span_unit=unit, span_max=span_max, mask_alpha=max(alpha, beta), mask_beta=beta)
    rng = np.random.default_rng(seed)
    starts = rng.random((8, length)) < density
    uniform = rng.random((8, draws_needed(length, data)))
    begin, end = place_spans(starts, goal, uniform, data)
    for b in range(8):
        spans = [(i, j) for i, j in zip(begin[b], end[b], strict=True) if i < j]
        assert spans == sorted(spans)
        assert all(j <= k for (_, j), (k, _) in itertools.pairwise(spans))
        for i, j in spans:
            assert starts[b, i]
            assert j < length
            assert (starts[b, i:j].sum() if unit == "word" else j - i) <= span_max
            assert unit == "piece" or starts[b, j]
        assert sum(j - i for i, j in spans) <= (length if goal is None else goal)
    starts = starts[:, ::-1] if is_reversed else starts
    targets = sample_spans(starts, np.ones_like(starts), goal, uniform, np.full(8, is_reversed), data)
    if goal is None:
        assert (targets.sum(1) == (end - begin).sum(1)).all()
    else:
        assert (targets.sum(1) == goal).all()


def one_row(starts, goal, lengths, befores, data):
    """Place the spans of one row, from their lengths in units and the tokens of context before each."""
    starts = np.array([[c == "w" for c in starts]])
    spans = max_spans(starts.shape[1], data)
    weights = 1 / np.arange(1, data.span_max + 1)
    uniform = np.zeros((1, draws_needed(starts.shape[1], data)))
    for i, (n, before) in enumerate(zip(lengths, befores, strict=True)):
        uniform[0, i] = (weights[: n - 1].sum() + 0.5 * weights[n - 1]) / weights.sum()
        uniform[0, spans + i] = (before + 0.5) * data.mask_beta / (n * data.mask_alpha)
    begin, end = place_spans(starts, goal, uniform, data)
    return [(int(i), int(j)) for i, j in zip(begin[0], end[0], strict=True) if i < j]


def test_a_span_of_words_ends_where_the_next_word_starts():
    text = "w.w.ww" + "..w..w" + "ww.www" + "w.w.ww"  # words begin at 0, 2, 4, 5, 8, 11, ...
    assert one_row(text, 20, [2], [0], WORDS)[0] == (0, 4)
    assert one_row(text, 20, [3], [1], WORDS)[0] == (2, 8)
    assert one_row(text, 20, [2], [0], DATA)[0] == (0, 2)


def test_the_context_of_words_counts_tokens():
    text = "w." * 40
    # Two words ask for 12 tokens: 3 before, moved on to the word at 4, and 9 behind their end at 8.
    assert one_row(text, 40, [2, 1], [3, 0], WORDS)[:2] == [(4, 8), (18, 20)]


def test_words_that_do_not_fit_into_the_goal_end_the_search_and_single_tokens_top_it_up():
    text = "w...." * 8
    assert one_row(text, 4, [1], [0], WORDS) == []
    assert one_row(text, 7, [1, 1], [0, 0], WORDS) == [(0, 5)]
    targets = draw(np.array([[c == "w" for c in text]] * 500), 7, data=WORDS)
    assert (targets.sum(1) == 7).all()
    assert (run_lengths(targets) < 7).any()
