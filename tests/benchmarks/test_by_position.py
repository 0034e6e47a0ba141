"""Losses by position add up to the loss of the run."""

import numpy as np
import pytest

from benchmarks.by_position import measured
from data_pipelines import sources
from tests.xlnet_jax.training.tiny_run import arguments, records_of
from xlnet_jax import train
from xlnet_jax.checkpoints.run import Run


def test_losses_of_all_positions_are_the_loss_of_the_run(tmp_path):
    workdir = tmp_path / "run"
    assert train.main(arguments(sources.embedded()[1], workdir)) == 0
    run, last = Run.of(workdir), records_of(workdir)[-1]
    found = measured(workdir, run.config.eval.max_windows)
    assert found.loss.sum() / found.targets.sum() == pytest.approx(last["loss"], abs=1e-5)
    length = run.config.data.seq_len
    assert len(found.targets) == length
    assert (found.seen <= found.targets * (length - 1)).all()
    # Targets of the first part, which becomes memory, see that part alone; those of the second see both.
    seen = np.divide(found.seen, found.targets, out=np.zeros(length), where=found.targets > 0)
    first, second = seen[: run.config.data.reuse_len], seen[run.config.data.reuse_len :]
    assert 0 < first.max() < run.config.data.reuse_len < second.max() < length
    assert np.count_nonzero(found.targets) > length / 2
