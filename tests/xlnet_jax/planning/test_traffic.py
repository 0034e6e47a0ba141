"""Bytes that a scheduled program moves, counted in a small program written out here."""

import pytest

from xlnet_jax.planning.hlo import parse
from xlnet_jax.planning.traffic import Collective, collectives, memory_bytes

PROGRAM = """\
HloModule step, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%a, %b)
}

%one_layer (all: bf16[24,8,128], i: s32[]) -> bf16[8,128] {
  %all = bf16[24,8,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %i.1 = s32[]{:T(256)} parameter(1)
  %zero = s32[]{:T(256)} constant(0)
  %slice.1 = bf16[1,8,128]{2,1,0:T(8,128)(2,1)} dynamic-slice(%all, %i.1, %zero, %zero), dynamic_slice_sizes={1,8,128}
  ROOT %bitcast.1 = bf16[8,128]{1,0:T(8,128)(2,1)} bitcast(%slice.1)
}

%keep (kept: f32[24,8,128], new: bf16[8,128], i: s32[]) -> f32[24,8,128] {
  %kept = f32[24,8,128]{2,1,0:T(8,128)} parameter(0)
  %new = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(1)
  %i.2 = s32[]{:T(256)} parameter(2)
  %zero.2 = s32[]{:T(256)} constant(0)
  %convert.2 = f32[1,8,128]{2,1,0:T(8,128)} convert(%new)
  ROOT %update.2 = f32[24,8,128]{2,1,0:T(8,128)} dynamic-update-slice(%kept, %convert.2, %i.2, %zero.2, %zero.2)
}

%all-reduce-scatter.1 (whole: f32[64]) -> f32[8] {
  %whole = f32[64]{0:T(256)} parameter(0)
  %all-reduce.3 = f32[64]{0:T(256)} all-reduce(%whole), replica_groups={{0,1,2,3,4,5,6,7},{8,9,10,11,12,13,14,15}}, to_apply=%sum
  %zero.3 = s32[]{:T(256)} constant(0)
  ROOT %part = f32[8]{0:T(256)} dynamic-slice(%all-reduce.3, %zero.3), dynamic_slice_sizes={8}
}

%body (state: (s32[], bf16[24,8,128], f32[24,8,128])) -> (s32[], bf16[24,8,128], f32[24,8,128]) {
  %state = (s32[]{:T(256)}, bf16[24,8,128]{2,1,0:T(8,128)(2,1)}, f32[24,8,128]{2,1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(256)} get-tuple-element(%state), index=0
  %weights = bf16[24,8,128]{2,1,0:T(8,128)(2,1)} get-tuple-element(%state), index=1
  %rows = f32[24,8,128]{2,1,0:T(8,128)} get-tuple-element(%state), index=2
  %layer = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(%weights, %i), kind=kLoop, calls=%one_layer
  %near = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} copy(%layer)
  %gradient = bf16[8,128]{1,0:T(8,128)(2,1)} all-reduce(%near), replica_groups=mesh['x'=4,'y'=4], device_ids=([4,4]T(1,0)) {'x'}, to_apply=%sum
  %written = f32[24,8,128]{2,1,0:T(8,128)} fusion(%rows, %gradient, %i), kind=kLoop, calls=%keep
  %one = s32[]{:T(256)} constant(1)
  %next = s32[]{:T(256)} add(%i, %one)
  ROOT %state.2 = (s32[]{:T(256)}, bf16[24,8,128]{2,1,0:T(8,128)(2,1)}, f32[24,8,128]{2,1,0:T(8,128)}) tuple(%next, %weights, %written)
}

%condition (state.3: (s32[], bf16[24,8,128], f32[24,8,128])) -> pred[] {
  %layers = s32[]{:T(256)} constant(24)
  %state.3 = (s32[]{:T(256)}, bf16[24,8,128]{2,1,0:T(8,128)(2,1)}, f32[24,8,128]{2,1,0:T(8,128)}) parameter(0)
  %i.3 = s32[]{:T(256)} get-tuple-element(%state.3), index=0
  ROOT %less = pred[]{:T(1024)} compare(%i.3, %layers), direction=LT
}

ENTRY %main (weights.9: bf16[24,8,128], rows.9: f32[24,8,128], whole.9: f32[64]) -> f32[24,8,128] {
  %weights.9 = bf16[24,8,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %rows.9 = f32[24,8,128]{2,1,0:T(8,128)} parameter(1)
  %whole.9 = f32[64]{0:T(256)} parameter(2)
  %start = s32[]{:T(256)S(1)} constant(0)
  %begin = (s32[]{:T(256)}, bf16[24,8,128]{2,1,0:T(8,128)(2,1)}, /*index=2*/f32[24,8,128]{2,1,0:T(8,128)}) tuple(%start, %weights.9, %rows.9)
  %loop = (s32[]{:T(256)}, bf16[24,8,128]{2,1,0:T(8,128)(2,1)}, /*index=2*/f32[24,8,128]{2,1,0:T(8,128)}) while(%begin), condition=%condition, body=%body
  %scattered = f32[8]{0:T(256)} fusion(%whole.9), kind=kCustom, calls=%all-reduce-scatter.1
  ROOT %done = f32[24,8,128]{2,1,0:T(8,128)} get-tuple-element(%loop), index=2
}
"""  # noqa: E501
LAYER, NUMBER = 8 * 128, 4


def test_exchanges_count_as_often_as_their_loop_turns():
    assert collectives(parse(PROGRAM), 16) == [
        Collective("all-reduce", 24, 2 * LAYER, 4),
        Collective("reduce-scatter", 1, 4 * 64, 8),
    ]


def test_a_ring_sends_what_no_exchange_can_do_without():
    assert Collective("all-reduce", 3, 800, 4).sent == pytest.approx(3 * 2 * 800 * 3 / 4)
    assert Collective("all-gather", 3, 800, 4).sent == pytest.approx(3 * 800 * 3 / 4)
    assert Collective("collective-permute", 3, 800, 2).sent == 3 * 800


def test_memory_counts_parts_of_buffers_and_leaves_out_what_stays_near():
    turn = (
        2 * LAYER + NUMBER + 2 * LAYER  # one layer's weights and the counter are read, the layer written
        + 2 * LAYER  # read into faster memory
        + 2 * LAYER  # what the exchange writes
        + 2 * LAYER + NUMBER + 4 * LAYER  # read back, and its place of the kept rows written: the others stay
        + 3 * NUMBER  # the counter's next
    )  # fmt: skip
    assert memory_bytes(parse(PROGRAM)) == 24 * turn + 4 * 64 + 4 * 8
