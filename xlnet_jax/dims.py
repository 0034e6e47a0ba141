"""The legend of dimension letters. Names in math code carry them as a suffix: hidden_BLD, scores_BNTK.

A  learned positions                       N  heads
B  batch                                   O  factorization orders
C  choices: labels, options, documents     P  predicted positions; positives
D  model width                             Q  candidates: pieces, texts
E  tokens of encoded text: a line, a part  R  relative distances (R = K + L)
F  feed-forward width                      S  tokens of a block
G  heads of all examples (G = B x N)       T  rows of both streams (T = L + P)
H  head width                              U  models that are compared
I  candidates for the start of an answer   V  vocabulary
J  candidates for its end                  W  words
K  keys (K = M + L; cached positions)      X  kinds of pieces
L  sequence (content rows)                 Y  sine or cosine frequencies (Y = D / 2)
M  memory                                  Z  layers
2  two directions, sines and cosines, or the same and another segment
3  the biases r_w, r_r, r_s
Batch comes first everywhere; the 2019 code is sequence first.
"""

from typing import TypeAlias

import numpy as np

WINDOW_SPECIALS = {"pairs": 3, "sentences": 2, "text": 0, "records": 0}
"""Number of special tokens at the end of a window, by its form: <sep> after A, <sep> and <cls> after B; <sep> and
<cls>; none."""

CLS_SEGMENT = 2
"""Segment of <cls>, which comes after A (0) and B (1)."""

Batch: TypeAlias = dict[str, np.ndarray]
"""One pretraining batch on the host, array by name. data_pipelines/objectives/__init__.py describes the arrays.

Without a number of targets (data.num_predict None) P is L: a slot for each position, with a weight above 0 at targets.
"""
