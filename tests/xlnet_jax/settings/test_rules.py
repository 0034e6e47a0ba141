"""Settings that contradict each other are refused before any work, by a line that says which and the rule."""

import re

import pytest

from xlnet_jax.errors import InputError, with_flags
from xlnet_jax.objectives.presets import PRESETS, with_objective
from xlnet_jax.objectives.registry import validate
from xlnet_jax.settings.fields import with_values

CONTRADICTIONS = [
    ({"data.perm_size": 48}, "data.perm-size 48 must divide both parts of the window: --data.reuse-len 64 and .* ="),
    ({"data.seq_len": 64}, r"data.seq-len 64 is too short for --data.reuse-len 64: .* it must be at least 69"),
    ({"data.reuse_len": 0}, "model.mem-len 64 needs --data.reuse-len above 0: only reused parts become memory"),
    ({"data.num_predict": 130}, "data.num-predict 130 is too many: each part of .* gets 65 targets, .* at most 128"),
    (
        {"data.window": "text", "data.reuse_len": 128, "data.num_predict": 129},
        "data.num-predict 129 is more than the 128 tokens of text in a window",
    ),
    ({"data.group_sizes": ()}, "data.group-sizes has no size: give at least one, such as 1"),
    ({"data.group_sizes": (4, 0)}, "data.group-sizes 0 must be at least 1"),
    ({"data.group_sizes": (1, 23)}, "group-sizes 23 is more than the targets of a window: .* --data.num-predict 22"),
    ({"data.group_sizes": (129,), "data.num_predict": None}, "group-sizes 129 is more .* at most --data.seq-len 128"),
    ({"data.pack": True}, "data.pack with --data.window pairs: .* give --data.window sentences or text"),
    ({"data.pack": True, "data.window": "text", "data.emit": "dense"}, "data.pack with --data.emit dense: perm_mask"),
    ({"data.weights": (0.7, 0.2)}, "data.weights 0.7 0.2 sum to 0.9, not 1"),
    (
        {"data.static_masks": 10},
        "data.static-masks 10 with --data.masking dynamic: that draws new masks in every epoch",
    ),
    ({"data.mask_beta": 7}, "data.mask-alpha 6 must be at least --data.mask-beta 7"),
    ({"data.window": "sentences", "data.pair_loss": "order"}, "order with --data.window sentences: there"),
    ({"data.mask_share": 0.9, "data.random_share": 0.2}, "data.mask-share 0.9 .*random-share 0.2 must be at most 1"),
    ({"model.num_segments": 1}, "model.num-segments 1 with --model.positions relative: .* 2, or 0 for none"),
    ({"model.same_length": True}, r"model.same-length with --model.attn-type bi: it works only with causal"),
    ({"model.mem_len": 1000}, r"model.mem-len 1000 can never be filled: .* x --data.reuse-len = 960 positions"),
    ({"model.attn_type": "uni"}, "plm with --model.attn-type uni: tokens must see both sides; give bi"),
    ({"optimizer.decay_steps": 50}, "optimizer.decay-steps 50 must be above --optimizer.warmup-steps 100"),
    (
        {"optimizer.schedule": "inverse_sqrt", "optimizer.warmup_steps": 0},
        "optimizer.warmup-steps 0 with --optimizer.schedule inverse_sqrt: its rate falls as sqrt",
    ),
    ({"optimizer.profile": "paper2019"}, "optimizer.method muon with --optimizer.profile paper2019: .* give adamw"),
    (
        {"optimizer.profile": "paper2019", "optimizer.method": "adamw"},
        "optimizer.matrix-rate 3.6 with --optimizer.profile paper2019: that has one rate; give 1",
    ),
]
OF_OBJECTIVES = [
    ("demo", "mlm", {"data.emit": "dense"}, "mlm with --data.emit dense: a target_mapping is for the query stream"),
    ("demo", "mlm", {"data.profile": "tf2"}, "mlm with --data.profile tf2: the profile orders <sep> and <cls>"),
    ("demo", "mlm", {"data.mask_share": 0.0, "data.random_share": 0.0}, "the network would see, and copy, every"),
    ("demo", "mlm", {"data.num_predict": 126}, "data.num-predict 126 is more than the 125 tokens of text in a window"),
    ("demo", "clm", {"data.pair_loss": "next"}, "data.pair-loss next with --data.window text: there is no segment B"),
    ("demo", "clm", {"data.bidirectional": True}, "clm with --data.bidirectional: reversed rows would learn right"),
    ("demo", "clm", {"data.window": "pairs"}, "clm with --data.window pairs: it reads running text without seg"),
    ("demo", "clm", {"data.num_predict": 22}, "clm with --data.num-predict 22: every position predicts; give None"),
    ("demo", "clm", {"data.masking": "static"}, "clm with --data.masking static: it masks nothing"),
    ("demo", "clm", {"data.reuse_len": 64}, "clm with --data.reuse-len 64 in windows of 128: .* predicted twice; give"),
    ("demo", "clm", {"model.attn_type": "bi"}, "clm with --model.attn-type bi: tokens must not see what they"),
    ("demo", "clm", {"model.num_segments": 2}, "clm with --model.num-segments 2: its windows have no segments A"),
    ("demo", "prefix", {"data.pack": True}, "prefix with --data.pack: only one document of a window would have a"),
    ("demo", "mdlm", {"data.reuse_len": 128, "model.mem_len": 64}, "mdlm with --model.mem-len 64: memory would hold m"),
    ("demo", "mdlm", {"data.window": "pairs"}, "mdlm with --data.window pairs: it reads running text without segments"),
    ("demo", "mdlm", {"data.num_predict": 22}, "mdlm with --data.num-predict 22: every position predicts; give None"),
    ("demo", "mdlm", {"data.emit": "dense"}, "mdlm with --data.emit dense: a target_mapping is for the query stream"),
    ("demo", "rtd", {"model.positions": "relative"}, "rtd with --model.positions relative: give --objective plm or"),
    ("demo", "rtd", {"data.pair_loss": "next"}, "rtd with --data.pair-loss next: it classifies tokens, not pairs"),
    ("demo", "rtd", {"rtd.generator_share": 0.003}, "rtd.generator-share 0.003 of --model.d-model 128 leaves a gener"),
    ("vanilla", "clm", {"model.same_length": True}, "model.same-length with --model.mem-len 0: .* only itself"),
    ("bert-base", "plm", {}, "plm with --model.positions learned: give --objective mlm or rtd or mdlm, or .* with rel"),
    ("bert-base", "clm", {}, "clm with --model.positions learned: .* a preset with relative or sinusoidal"),
    ("bert-base", "mlm", {"data.bidirectional": True}, "data.bidirectional with --model.positions learned: learned"),
    ("vanilla", "rtd", {}, "learned with --model.attn-type uni: BERT's encoder attends to the whole window"),
    ("vanilla", "clm", {"model.mem_len": 64}, "model.mem-len 64 with --model.positions sinusoidal: absolute positions"),
    ("bert-base", "mlm", {"data.seq_len": 513}, "data.seq-len 513 is more than the 512 positions of"),
    ("roberta-base", "mlm", {"model.max_positions": 513}, "data.seq-len 512 is more than the 511 positions of"),
    ("bert-base", "mlm", {"model.norm": "pre"}, "learned with --model.norm pre: BERT's encoder normalizes after every"),
    ("bert-base", "mlm", {"model.clamp_len": 9}, "model.clamp-len 9 with --model.positions learned: only relative"),
]


@pytest.mark.parametrize(
    ("preset", "objective", "changes", "message"),
    [*(("demo", "plm", *row) for row in CONTRADICTIONS), *OF_OBJECTIVES],
)
def test_a_contradiction_names_its_settings_and_the_reason(preset, objective, changes, message):
    with pytest.raises(InputError) as mistake:
        validate(with_values(with_objective(PRESETS[preset](), objective), changes))
    assert re.search(message, with_flags(str(mistake.value))), str(mistake.value)
    assert "\n" not in str(mistake.value)
