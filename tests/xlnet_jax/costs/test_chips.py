"""Chips by the names that jax gives to their devices."""

import pytest

from xlnet_jax.costs import CHIPS, chip_of, peak_flops


def test_a_device_of_a_chip_with_two_has_half_of_its_peak():
    assert peak_flops("TPU v3") == 123e12 / 2
    assert peak_flops("TPU v5 lite") == 197e12


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H200 MIG 1g.18gb", ""])
def test_nothing_is_made_up_of_a_device_that_is_not_known(kind):
    assert chip_of(kind) is None
    assert peak_flops(kind) is None


def test_no_two_chips_share_a_name():
    kinds = [kind for chip in CHIPS for kind in chip.device_kinds]
    assert len(set(kinds)) == len(kinds)
    assert len({chip.name for chip in CHIPS}) == len(CHIPS)


def test_the_clock_of_a_tpu_times_its_multipliers_is_its_peak():
    arrays = {"v2": 1, "v3": 2, "v4": 8, "v5e": 4, "v5p": 8, "v6e": 16, "v7": 16}  # of 128 x 128, in a device
    tpus = {chip.name: chip for chip in CHIPS if chip.clock}
    assert set(tpus) == set(arrays)
    for name, chip in tpus.items():
        assert 2 * 128**2 * arrays[name] * chip.clock == pytest.approx(chip.flops / chip.devices, rel=0.005)
