"""Train a run from its newest checkpoint to its end: what stands around the loop."""

from typing import Any

from xlnet_jax.errors import is_out_of_memory
from xlnet_jax.training.loop import Loop
from xlnet_jax.training.run.checkpoint import Checkpoints
from xlnet_jax.training.run.interrupt import stop_after_step
from xlnet_jax.training.run.process import Process
from xlnet_jax.training.training_run import TrainingRun
from xlnet_jax.training.watch.metrics import read_records
from xlnet_jax.training.watch.watch import watching


def train(run: TrainingRun, checkpoints: Checkpoints, process: Process) -> tuple[int, int]:
    """Train until the end or a stop. Return the number of steps done, and the exit code: 0, or that of a stop.

    Raises OutOfMemory where a device or this machine has too little memory after all, and InputError where the workdir
    was moved.
    """
    try:
        return _train(run, checkpoints, process)
    except Exception as error:
        run.workdir.demand_in_place()
        if not is_out_of_memory(error):
            raise
        raise run.memory.refusal(run.workdir, error) from None


def _train(run: TrainingRun, checkpoints: Checkpoints, process: Process) -> tuple[int, int]:
    say = process.console.print
    with stop_after_step(process.is_command) as interrupt:
        state = checkpoints.restore(run.program.plan, say)
        if state is None:
            if run.weights:
                say(f"init        {run.weights.origin}")
            state = run.program.init_state(run.weights.params if run.weights else {})
        start = int(state.step)
        if start:
            say(f"resumed     at step {start} of {run.config.steps}")
        evaluations = _evaluations(run, process)
        if run.evaluation:
            run.evaluation.recall(evaluations, start)
        with watching(run, start, process) as watch:
            loop = Loop(run, checkpoints, interrupt, watch)
            done, stopped = loop.train(state, start, any(r["step"] == start for r in evaluations))
            checkpoints.wait()
    if stopped:
        say(f"stopped by {interrupt} with step {done} saved; the same command goes on from there")
    return done, interrupt.exit_code if stopped else 0


def _evaluations(run: TrainingRun, process: Process) -> list[dict[str, Any]]:
    """Broadcast the recorded evaluations from process 0, which owns metrics.jsonl: others may read it while it is being
    rewritten, and all must take the same decisions."""
    hosts, workdir = process.hosts, run.workdir
    records = read_records(workdir.metrics) if hosts.first else ()
    return hosts.gather(f"evaluated in {workdir.folder}", [r for r in records if r["split"] == "validation"])[0]
