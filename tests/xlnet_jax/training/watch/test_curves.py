"""Picture of a run."""

import numpy as np
import pytest

from xlnet_jax.objectives.plm import PLM
from xlnet_jax.training.watch.curves import draw_curves, smoothed


@pytest.mark.parametrize("points", [0, 1, 50])
def test_a_run_of_any_length_gives_a_picture(tmp_path, points):
    records = [{"step": i, "split": split, "loss": 5.0} for i in range(points) for split in ("train", "validation")]
    draw_curves(records, 6.0, tmp_path / "curves.png", PLM)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["curves.png"]


def test_a_running_mean_keeps_a_constant_and_shrinks_noise():
    np.testing.assert_allclose(smoothed(np.full(9, 2.0)), 2.0)
    noise = np.random.default_rng(0).normal(size=500)
    assert smoothed(noise).std() < 0.5
    np.testing.assert_allclose(smoothed(np.array([1.0, 2.0])), 1.5)
