"""A pretraining run, from text to curves, and the commands that a finished run proposes. Each stage is written
atomically and found again, so the same command resumes after any interruption.
"""

import functools
import shlex
from contextlib import closing
from typing import Any

from rich.console import Console

from data_pipelines.tokenizer import MODEL_FILE, TOKENIZER_JSON, Tokenizer
from xlnet_jax.interop import hf_files
from xlnet_jax.interop.contents import Pretrained
from xlnet_jax.objectives.presets import PRESETS
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.plots.curves import draw_curves
from xlnet_jax.printing import without_secrets
from xlnet_jax.settings.config import Config, DistributedConfig
from xlnet_jax.settings.fields import marked, with_plain_paths, with_values
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
from xlnet_jax.training.initial import describe_origin, params_of
from xlnet_jax.training.loop import Run, train
from xlnet_jax.training.metrics import read_records, speed
from xlnet_jax.training.resolve import Resolved, folder_of, resolve
from xlnet_jax.training.step import make_eval_step
from xlnet_jax.training.workdir import Workdir

LARGER = {
    "demo": "small",
    "small": "base",
    "base": "large",
    "transformer-xl-wt103": "transformer-xl-wt103-large",
}
"""The preset with which a run of a preset goes on to a larger network."""


def propose_next(config: Config, folder: str, tokenizer: str) -> dict[str, str]:
    """Return commands that go on from a finished run, by what they do. tokenizer: its folder."""
    there, copy = name_on_disk(folder)
    objective = [] if config.objective == PRESETS[config.preset]().objective else ["--objective", config.objective]
    preset = [] if config.preset == Config().preset else ["--preset", config.preset]
    train, steps = ["python", "-m", "xlnet_jax.train"], 4 * config.steps
    longer = [*train, "--config", f"{there}/config.json", "--workdir", f"{folder}-longer", "--steps", str(steps)]
    if config.optimizer.decay_steps is not None and config.optimizer.decay_steps < steps:
        longer += ["--optimizer.decay-steps", "None"]  # after the end of its schedule a run learns nothing
    finetune = ["python", "-m", "xlnet_jax.finetune", "--task", "classification", "--init", there]
    commands = {"copy": copy, "finetune": shlex.join([*finetune, "--train", "mine.csv", "--eval", "dev.csv"])}
    if hf_files.can_hold(Pretrained(config.model, {}, config.objective, tokenizer=Tokenizer.load(tokenizer))):
        name = f"{there.rpartition('/')[2]}-hf"
        commands["convert"] = shlex.join(["python", "-m", "xlnet_jax.convert", there, name, "--to", "hf"])
    commands["longer"] = shlex.join(longer)
    if config.preset in LARGER:
        text = [word for name in marked(Config, "text") for word in _flag(config, name)]
        commands["larger"] = shlex.join(
            [*train, "--preset", LARGER[config.preset], *objective, "--tokenizer", tokenizer, *text]
        )
    commands["your text"] = shlex.join([*train, *preset, *objective, "--corpus", "my.txt"])
    commands["settings"] = shlex.join([*train, "--help"])
    return {name: command for name, command in commands.items() if command}


def _flag(config: Config, name: str) -> list[str]:
    """Return the words that give a setting its value; none for its default."""
    value = without_secrets(getattr(config, name))
    if value == getattr(Config(), name):
        return []
    return [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else [value])]


def pretrain(config: Config, *, is_command: bool = False) -> int:
    """Train to config.steps. Return 0, or the exit code of a run that was stopped with its state saved.

    The run is in this process, or in one process on each host where config.distributed, the environment or the platform
    says so (hosts.connect). is_command: the process does nothing but this run, and a second signal ends it at once.
    Raises InputError where settings contradict each other, the text or the workdir.
    """
    config = with_plain_paths(config)
    with connect(config, is_command) as process:
        return _run(with_values(config, {"distributed": DistributedConfig()}), process)


def run_pretraining(config: Config) -> int:
    """Pretrain as the command does; return the exit code."""
    return pretrain(config, is_command=True)


def _run(config: Config, process: Process) -> int:
    """Train. Process 0 prepares what the others read, and writes everything but the checkpoints alone."""
    with closing(Workdir(folder_of(config))) as workdir, workdir.keep_programs():
        resolved = resolve(config, workdir, process)
        run = _build(resolved, workdir, process)
        data = {"manifest_sha256": resolved.corpus.manifest.sha256}
        steps = resolved.batches.steps_per_block
        with Checkpoints(workdir.checkpoints, run.config, workdir.tokenizer, steps, data, process) as checkpoints:
            done, exit_code = train(run, checkpoints, process)
        if process.first and exit_code == 0:
            _report(run, resolved.config, done, process.console)
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
    there = corpus.num_blocks("validation") * batches.steps_per_block
    if (read := count_windows(held_out)) < there:
        console.print(
            f"held out    {read:,} of {there:,} windows, in blocks at even distances: eval.max-windows "
            f"{config.eval.max_windows:,}"
        )
    unknown = f"{unknown_share(config.model.vocab_size, held_out):.2%} of the held-out targets are <unk>"
    console.print(f"unknown     {corpus.unknown_share:.2%} of the training text and {unknown}")
    console.print(f"unigram     {unigram_nats:.3f} nats: the held-out loss of a model that knows only word frequencies")
    return run


def _report(run: Run, config: Config, step: int, console: Console) -> None:
    """Draw the curves, print where everything is, and propose what to run next."""
    workdir, unigram_nats = run.workdir, run.reference["unigram"]
    records = list(read_records(workdir.metrics))
    objective = objective_named(config.objective)
    draw_curves(records, unigram_nats, workdir.curves, objective.name, objective.title)
    loss = [r["loss"] for r in records if r["split"] == "validation"][-1]
    model = next(file for file in workdir.tokenizer.iterdir() if file.name in (MODEL_FILE, TOKENIZER_JSON))
    following = propose_next(config, str(workdir.folder).rstrip("/"), str(workdir.tokenizer))
    console.print(
        f"\nheld-out loss {loss:.3f} nats, {relative_to_unigram(loss, unigram_nats)}\n"
        f"  checkpoint   {workdir.checkpoints / str(step)}\n"
        f"  curves       {workdir.curves}\n"
        f"  tokenizer    {model}\n"
        f"  metrics      {workdir.metrics} and {workdir.tensorboard}\n"
        "next\n" + "\n".join(f"  {name:12} {command}" for name, command in following.items())
    )
