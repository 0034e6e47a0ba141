"""A pretraining run, from text to curves, and the commands that it proposes. Each stage writes its results atomically
and finds them again, so the same command resumes after any interruption.
"""

import functools
import shlex
from contextlib import closing
from typing import Any

import numpy as np
from rich.console import Console

from xlnet_jax.errors import InputError, OtherRun
from xlnet_jax.objectives.presets import PRESETS, defaults_of
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.plots.curves import draw_curves
from xlnet_jax.printing import without_secrets
from xlnet_jax.settings.config import Config, DistributedConfig
from xlnet_jax.settings.fields import differences, flags_that_give, with_plain_paths, with_values
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.storage.files import name_on_disk
from xlnet_jax.training.checkpoint import Checkpoints
from xlnet_jax.training.evaluation import (
    HeldOutLoss,
    count_windows,
    held_out_batches,
    relative_to_unigram,
    unigram_line,
    unknown_share,
)
from xlnet_jax.training.hosts import Process, connect
from xlnet_jax.training.initial import describe_origin, network_of, params_of
from xlnet_jax.training.loop import Run, train
from xlnet_jax.training.metrics import read_records, speed
from xlnet_jax.training.resolve import Resolved, folder_of, resolve
from xlnet_jax.training.step import make_eval_step
from xlnet_jax.training.workdir import Workdir

TRAIN = ("python", "-m", "xlnet_jax.train")
BEGIN = "She opened the letter and"
"""Beginning of a text that a model of English novels can continue"""


def propose_next(config: Config, folder: str, begin: str = BEGIN, needs_tiny: bool = False) -> dict[str, str]:
    """Return two commands that make use of a finished run, by what they do. For a run in a bucket, the command that
    copies it comes first.

    begin: text to continue. needs_tiny: propose to start from the weights of tiny, because a longer run would not help.
    """
    there, copy = name_on_disk(folder)
    if objective_named(config.objective).order:
        first = {"generate": ["python", "-m", "xlnet_jax.generate", there, begin]}
    else:
        finetune = ["python", "-m", "xlnet_jax.finetune", "--task", "classification", "--init", there]
        first = {"finetune": [*finetune, "--train", "mine.csv", "--eval", "dev.csv"]}
    if config.corpus and needs_tiny and not config.init and config.objective == Config().objective:
        from_tiny = [*TRAIN, "--init", "tiny", "--corpus", *config.corpus, "--workdir", f"{folder}-from-tiny"]
        second = {"from tiny": from_tiny}
    elif config.corpus:
        steps = 4 * config.steps
        longer = [*TRAIN, "--config", f"{there}/config.json", "--workdir", f"{folder}-longer", "--steps", str(steps)]
        if config.optimizer.decay_steps is not None and config.optimizer.decay_steps < steps:
            longer += ["--optimizer.decay-steps", "None"]  # after its schedule the learning rate is 0
        second = {"longer": longer}
    else:
        preset = [] if config.preset == Config().preset else ["--preset", config.preset]
        objective = [] if config.objective == PRESETS[config.preset]().objective else ["--objective", config.objective]
        second = {"your text": [*TRAIN, *preset, *objective, "--corpus", "my.txt"]}
    commands = {name: shlex.join(without_secrets(words)) for name, words in {**first, **second}.items()}
    return {"copy": copy, **commands} if copy else commands


def propose_instead(config: Config, workdir: Workdir) -> str:
    """Return a sentence with one command for these settings, if the workdir holds another run. The command starts from
    the weights of that run if they fit, and otherwise begins a new run."""
    folder, number = str(workdir.folder).rstrip("/"), 2
    while workdir.folder.with_name(f"{workdir.folder.name}-{number}").exists():
        number += 1
    usual, there = defaults_of(config), workdir.settings(Config)
    differing = {setting.python_name for setting, _ in differences(config, there)}
    fixed = differing & {"data.token_level", *network_of(there.model)}
    fits = workdir.has_checkpoints and config.objective == there.objective
    fits = fits and Resolution.of(config, usual).is_open(*fixed)
    changes = {"workdir": f"{folder}-{number}", "distributed": DistributedConfig()}
    changes |= {"init": folder, "tokenizer": None} if fits else {}
    plain = {"preset": Config().preset, "objective": PRESETS[config.preset]().objective}  # where nothing is given
    words = flags_that_give(with_values(config, changes), with_values(usual, plain))
    does = "this one goes on from its weights" if fits else "this one begins a new run"
    return f"{does}: {shlex.join([*TRAIN, *words])}"


def pretrain(config: Config, *, is_command: bool = False) -> int:
    """Train to config.steps. Return 0, or the exit code of a run that was stopped after saving its state.

    A run has one process, or one on each host if config.distributed, the environment or the platform defines several
    (hosts.connect). is_command: this process does nothing else, and a second signal ends it at once. Raises InputError
    if settings contradict each other, the text or the workdir.
    """
    config = with_plain_paths(config)
    with connect(config, is_command) as process:
        return _run(config, process)


def run_pretraining(config: Config) -> int:
    """Pretrain as the command does; return the exit code."""
    return pretrain(config, is_command=True)


def _run(config: Config, process: Process) -> int:
    """Train. Process 0 prepares what the others read, and writes everything except the checkpoints."""
    with closing(Workdir(folder_of(config))) as workdir, workdir.keep_programs():
        try:
            resolved = resolve(config, workdir, process)
        except OtherRun as refusal:
            raise InputError(f"{refusal}; {propose_instead(config, workdir)}") from None
        run = _build(resolved, workdir, process)
        data = {"manifest_sha256": resolved.corpus.manifest.sha256}
        steps = resolved.batches.steps_per_block
        with Checkpoints(workdir.checkpoints, run.config, workdir.tokenizer, steps, data, process) as checkpoints:
            done, exit_code = train(run, checkpoints, process)
        if process.first and exit_code == 0:
            _report(run, resolved, done, process.console)
    return exit_code


def _build(resolved: Resolved, workdir: Workdir, process: Process) -> Run:
    config, corpus, batches, console = resolved.config, resolved.corpus, resolved.batches, process.console
    # ---- program and weights ----------------------------------------------------------------------------------------
    program, params, origin = resolved.program, dict[str, Any](), ""
    if resolved.start:
        params, drawn = params_of(resolved.start, config)
        origin = describe_origin(config.init, drawn)
    # ---- evaluation -------------------------------------------------------------------------------------------------
    held_out = held_out_batches(corpus, resolved.tokenizer, config)
    unigram_nats = unigram_line(corpus.unigram_counts, held_out)
    eval_step = make_eval_step(program.objective, program.plan, program.mesh, config.optimizer.accumulate)
    evaluation = HeldOutLoss(program, eval_step, held_out, unigram_nats, config.eval.every_steps)

    def locate(batch: int) -> str:
        visit, window = divmod(batch, batches.steps_per_block)
        return (
            f"(seed {config.seed}, step {batch}, window {window} of visit {visit}): "
            f"python -m data_pipelines.inspect {workdir.folder} --step {batch}"
        )

    rates = functools.partial(speed, config)
    reference = {"unigram": unigram_nats}
    run = Run(config, workdir, program, batches, evaluation, params, origin, resolved.memory, rates, locate, reference)
    console.print(run.describe(f"{config.data.batch_size:,} rows of {config.data.seq_len} tokens"))
    an_epoch = max(corpus.num_blocks("train") * batches.steps_per_block // config.data.batch_size, 1)
    console.print(f"steps       {config.steps:,}, {config.steps / an_epoch:,.1f} epochs of {an_epoch:,}")
    there = corpus.num_blocks("validation") * batches.steps_per_block
    if (read := count_windows(held_out)) < there:
        console.print(
            f"held out    {read:,} of {there:,} windows, in blocks at even distances: --eval.max-windows "
            f"{config.eval.max_windows:,}"
        )
    unknown = f"{unknown_share(config.model.vocab_size, held_out):.2%} of the held-out targets are <unk>"
    console.print(f"unknown     {corpus.unknown_share:.2%} of the training text and {unknown}")
    console.print(f"unigram     {unigram_nats:.3f} nats: the held-out loss of a model that knows only word frequencies")
    return run


def _report(run: Run, resolved: Resolved, step: int, console: Console) -> None:
    """Draw the curves, print the result and where it is, and propose two commands."""
    config, tokenizer = resolved.config, resolved.tokenizer
    workdir, unigram_nats = run.workdir, run.reference["unigram"]
    records = list(read_records(workdir.metrics))
    objective = objective_named(config.objective)
    draw_curves(records, unigram_nats, workdir.curves, objective.name, objective.title)
    loss = [r["loss"] for r in records if r["split"] == "validation"][-1]
    begin = tokenizer.decode(resolved.corpus.read("validation", np.zeros(1, int))[0][0, :8]) if config.corpus else BEGIN
    needs_tiny = loss >= unigram_nats and tokenizer.settings.normalization == "english"  # tiny knows English alone
    following = propose_next(config, str(workdir.folder).rstrip("/"), begin, needs_tiny)
    console.print(
        f"\nheld-out loss {loss:.3f} nats, {relative_to_unigram(loss, unigram_nats)}\n"
        f"  checkpoint   {workdir.checkpoints / str(step)}\n"
        f"  curves       {workdir.curves}\n"
        "next\n" + "\n".join(f"  {name:12} {command}" for name, command in following.items())
    )
