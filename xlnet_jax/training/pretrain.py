"""A pretraining run, from text to curves, and the commands that it proposes. Each stage writes its results atomically
and finds them again, so the same command resumes after any interruption.
"""

import functools
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, cast

import flax.linen as nn
import numpy as np
import optax

from data_pipelines.corpus import Corpus
from data_pipelines.ids import IdCorpus
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.dims import Batch
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.language_model import LanguageModel, Objective, objective_of
from xlnet_jax.objectives.presets import PRESETS
from xlnet_jax.objectives.registry import batch_source, objective_named
from xlnet_jax.printing import counted, without_secrets
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import with_plain_paths
from xlnet_jax.storage.files import name_on_disk
from xlnet_jax.storage.reading import read_versioned
from xlnet_jax.training.attention import check_attention
from xlnet_jax.training.callbacks import usual_callbacks
from xlnet_jax.training.checkpoint import Checkpoints
from xlnet_jax.training.dial import Pace, change_choice, seconds_of
from xlnet_jax.training.evaluation import (
    count_windows,
    describe_losses,
    held_out_batches,
    mean_losses,
    relative_to_unigram,
    unigram_line,
    unknown_share,
)
from xlnet_jax.training.fit import build_fitting
from xlnet_jax.training.hosts import connect
from xlnet_jax.training.initial import describe_origin, params_of
from xlnet_jax.training.loop import Callback, Loop, Run, train
from xlnet_jax.training.metrics import read_records, speed
from xlnet_jax.training.report import attention_png, no_attention, write_report
from xlnet_jax.training.resolve import folder_of, resolve_text
from xlnet_jax.training.samples import sampling_of
from xlnet_jax.training.selection import Evaluation, Result
from xlnet_jax.training.step import Program, make_eval_step, pretraining_program
from xlnet_jax.training.stop import exit_code_of
from xlnet_jax.training.workdir import Workdir

TRAIN = ("python", "-m", "xlnet_jax.train")
BEGIN = "She opened the letter and"
"""Beginning of a text that a model of English novels can continue"""


def propose_next(config: Config, folder: str, begin: str = BEGIN, needs_tiny: bool = False) -> dict[str, str]:
    """Return two commands that make use of a finished run, by what they do, or one for records from Python. For a run
    in a bucket, the command that copies it comes first.

    begin: text to continue. needs_tiny: propose to start from the weights of tiny, because a longer run would not help.
    """
    there, copy = name_on_disk(folder)
    if objective_named(config.objective).order:
        first = {"generate": ["python", "-m", "xlnet_jax.generate", there, begin]}
    elif config.fields and config.corpus:
        vectors = ["--text", *config.corpus, "--per", "symbol", "--out", "vectors.parquet"]
        first = {"embed": ["python", "-m", "xlnet_jax.embed", there, *vectors]}
    elif config.fields:
        first = {"evaluate": ["python", "-m", "xlnet_jax.evaluate", there]}
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
    elif config.fields:
        second = {}
    else:
        preset = [] if config.preset == Config().preset else ["--preset", config.preset]
        objective = [] if config.objective == PRESETS[config.preset]().objective else ["--objective", config.objective]
        second = {"your text": [*TRAIN, *preset, *objective, "--corpus", "my.txt"]}
    commands = {name: shlex.join(without_secrets(words)) for name, words in {**first, **second}.items()}
    return {"copy": copy, **commands} if copy else commands


def pretrain(
    config: Config,
    *,
    callbacks: Sequence[Callback] = (),
    objective: Callable[[Config], Objective] | None = None,
    network: nn.Module | None = None,
    optimizer: optax.GradientTransformation | None = None,
    dataset: Mapping[str, Any] | None = None,
    sequences: Sequence[Any] | None = None,
) -> Result:
    """Train to config.steps, in this process and on all its devices; return the result.

    The same call resumes a run that was stopped, and returns the result of a finished one. A run has one process, or
    one on each host if the environment or the platform defines several (`machine.place_of`).

    callbacks: are called by process 0 while the run trains. objective: returns the loss of the final settings, as a
    subclass of `LanguageModel` does. network: flax module with the arguments and results of `XLNetLM`. optimizer: optax
    transformation, with its own learning rate. dataset: arrays of token ids by split, train and validation, in place of
    text; ids below 9 are special symbols. sequences: records in place of text: lists of items (strings or whole
    numbers), strings of characters, or {field: value}; config.fields says how to read them otherwise. The same call
    must pass them again to go on.

    Raises InputError if settings contradict each other, the text or the workdir.
    """
    if network is not None:
        if objective:
            raise InputError("network", "", "and `objective` both choose the network: leave one of them out")
        objective = functools.partial(LanguageModel, network=network)
    if dataset is not None and sequences is not None:
        raise InputError("sequences", "", "and `dataset` both take the place of text: leave one of them out")
    return _pretrain(config, False, callbacks, objective, optimizer, dataset, sequences)


def run_pretraining(config: Config) -> int:
    """Pretrain as the command does; return the exit code."""
    return exit_code_of(_pretrain(config, is_command=True).stopped)


def _pretrain(
    config: Config,
    is_command: bool,
    callbacks: Sequence[Callback] = (),
    objective: Callable[[Config], Objective] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    dataset: Mapping[str, Any] | None = None,
    sequences: Sequence[Any] | None = None,
) -> Result:
    config = with_plain_paths(config)
    own_text = "ids" if dataset is not None else "sequences" if sequences is not None else None
    workdir = Workdir(folder_of(config, own_text))
    with connect(config, is_command) as process, closing(workdir), workdir.keep_programs():
        # ---- text and tokenizer -------------------------------------------------------------------------------------
        pace = [Pace(seconds)] if (seconds := seconds_of(config)) and not workdir.has_checkpoints else []
        settings, (start, corpus, tokenizer) = resolve_text(config, workdir, process, dataset, sequences)
        batches = batch_source(corpus, tokenizer, settings.config)
        # ---- program ------------------------------------------------------------------------------------------------
        build = functools.partial(
            pretraining_program,
            attention=check_attention(settings.config, process),
            make_objective=objective or objective_of,
            optimizer=optimizer,
        )
        program, memory = build_fitting(settings, build, workdir, process)
        config = settings.final()
        # ---- weights ------------------------------------------------------------------------------------------------
        params, origin = dict[str, Any](), ""
        if start:
            params, drawn = params_of(start, program.objective)
            origin = describe_origin(config.init, drawn)
        # ---- evaluation ---------------------------------------------------------------------------------------------
        held_out = held_out_batches(corpus, tokenizer, config)
        unigram_nats = unigram_line(corpus.unigram_counts, held_out, tokenizer)
        # ---- loop ---------------------------------------------------------------------------------------------------
        block = batches.steps_per_block
        run = Run(
            config, workdir, program, batches, _evaluation(program, held_out, unigram_nats), params, origin, memory,
            rates=functools.partial(speed, config),
            locate=functools.partial(_locate, config, workdir, block),
            callbacks=[*usual_callbacks(workdir, config.log.wandb, process.console), *pace, *callbacks],
            draw=sampling_of(config, program, corpus, None if objective else tokenizer, process.console.print),
            reference={"unigram": unigram_nats},
        )  # fmt: skip
        is_usual = settings.is_open("steps", "preset", "objective", "init") and not (
            config.fields or workdir.choice.exists()
        )
        said = list[str]()

        def say(line: str) -> None:
            said.append(line)
            process.console.print(line)

        _describe(run, corpus, tokenizer, block, held_out, say, is_usual)
        own = " ".join(name for name, value in (("objective", objective), ("optimizer", optimizer)) if value)
        data = {"manifest_sha256": corpus.manifest.sha256, **({"own": own} if own else {})}
        while True:
            saved = Checkpoints(
                workdir.checkpoints, config, workdir.tokenizer, block, data, process, cast(Evaluation, run.evaluation)
            )
            with saved:
                loop = train(run, saved, process)
            steps = next((each.steps for each in pace if each.steps), None)
            if steps is None:
                break
            settings.set({"steps": steps})
            program, memory = build_fitting(settings, build, workdir, process)
            config = settings.final()
            workdir.write_settings(config)
            change_choice(config, workdir, process.console)
            evaluation = _evaluation(program, held_out, unigram_nats)
            run = replace(run, config=config, program=program, memory=memory, evaluation=evaluation)
        if process.first:
            _report(loop, corpus, None if own else tokenizer, (said, settings.log))
        return loop.result()


def _evaluation(program: Program[Any], held_out: Sequence[Batch], unigram_nats: float) -> Evaluation:
    """Return how a run evaluates."""
    config = program.config
    assert isinstance(config, Config)
    eval_step = make_eval_step(program.objective, program.plan, program.mesh, config.optimizer.accumulate)
    return Evaluation(
        config.eval.every_steps,
        functools.partial(mean_losses, program, eval_step, held_out),
        functools.partial(describe_losses, unigram_nats),
        "loss",
        is_better_high=False,
        patience=config.selection.patience,
    )


def _locate(config: Config, workdir: Workdir, steps_per_block: int, batch: int) -> str:
    """Return the place of a batch, and the command that shows it."""
    visit, window = divmod(batch, steps_per_block)
    return (
        f"(seed {config.seed}, step {batch}, window {window} of visit {visit}): "
        f"python -m data_pipelines.inspect {workdir.folder} --step {batch}"
    )


def _describe(
    run: Run,
    corpus: Corpus | IdCorpus,
    tokenizer: Tokenizer | None,
    windows_per_block: int,
    held_out: Sequence[Batch],
    say: Callable[[str], None],
    is_usual: bool,
) -> None:
    """Print the sizes of the run and of its text. is_usual: the user chose neither preset nor steps."""
    config = run.config
    assert isinstance(config, Config)
    say(run.describe(f"{config.data.batch_size:,} rows of {config.data.seq_len} tokens"))
    an_epoch = max(corpus.num_blocks("train") * windows_per_block // config.data.batch_size, 1)
    say(f"steps       {config.steps:,}, {config.steps / an_epoch:,.1f} epochs of {an_epoch:,}")
    if config.steps < an_epoch and config.corpus and is_usual:
        command = shlex.join(without_secrets([*TRAIN, "--corpus", *config.corpus, "--minutes", "30"]))
        say(
            f"            that reads {config.steps / an_epoch:.1%} of the text; "
            f"--minutes chooses sizes for a given time: {command}"
        )
    there = corpus.num_blocks("validation") * windows_per_block
    if (read := count_windows(held_out)) < there:
        say(
            f"held out    {read:,} of {there:,} windows, in blocks at even distances: --eval.max-windows "
            f"{config.eval.max_windows:,}"
        )
    known = "word frequencies"
    if tokenizer and tokenizer.symbols:
        known = "the frequencies of symbols in each field"
        splits = corpus.manifest.splits
        filled = sum(split.tokens + split.documents for split in splits.values())  # one <s> in each record
        room = sum(split.blocks for split in splits.values()) * (corpus.block_len - 1)
        say(
            f"records     {splits['train'].documents:,} train and {splits['validation'].documents:,} held out "
            f"{tokenizer.symbols.describe_lengths()}; padding {1 - filled / room:.1%}"
        )
    unknown = f"{unknown_share(tokenizer, held_out):.2%} of the held-out targets are <unk>"
    say(f"unknown     {corpus.unknown_share:.2%} of the training text and {unknown}")
    unigram_nats = run.reference["unigram"]
    say(f"unigram     {unigram_nats:.3f} nats: the held-out loss of a model that knows only {known}")


def _report(
    loop: Loop, corpus: Corpus | IdCorpus, tokenizer: Tokenizer | None, told: tuple[Sequence[str], Sequence[str]]
) -> None:
    """Draw the curves and the report, print the result and where it is, and propose two commands. After an interrupt,
    only draw. tokenizer: None = no command reads the checkpoint, as with ids or an objective of one's own. told: lines
    about the run, and about what was chosen."""
    run, result, console = loop.run, loop.result(), loop.process.console
    config = run.config
    assert isinstance(config, Config)
    workdir, unigram_nats = run.workdir, run.reference["unigram"]
    records = list(read_records(workdir.metrics))
    loss = next((r["loss"] for r in reversed(records) if r["split"] == "validation"), math.inf)
    following: dict[str, str] = {}
    attention: Callable[[], bytes | None] = no_attention
    if tokenizer:
        first = corpus.read("validation", np.zeros(1, int))[0][0]
        begin = tokenizer.decode(first[:8]) if config.corpus else BEGIN
        begin = "" if tokenizer.records else begin  # a new record
        needs_tiny = loss >= unigram_nats and tokenizer.settings.normalization == "english"  # tiny knows English alone
        following = propose_next(config, str(workdir.folder).rstrip("/"), begin, needs_tiny)
        text = next((r["before"] + r["held_out"] + r["after"] for r in records if r["split"] == "sample"), None)
        if not loop.is_interrupted:
            text = text or tokenizer.decode(first)
            attention = functools.partial(attention_png, config, loop.state.params, tokenizer, text)
    places = {"checkpoint": result.last_checkpoint}
    if result.step != result.steps:
        best = result.metrics[result.metric]
        places["best"] = f"{result.checkpoint}, with a held-out {result.metric} of {best:.3f}"
    ended = f"ended at step {result.steps:,} of {config.steps:,} by {result.stopped}" if result.stopped else ""
    measured = f"held-out loss {loss:.3f} nats, {relative_to_unigram(loss, unigram_nats)}" if loss < math.inf else ""
    said, chosen = told
    expected = ""
    if workdir.choice.exists():
        choice = read_versioned(workdir.choice, "run")
        chosen = [*choice["lines"], *chosen]
        expected = f"expected: {choice['expected_loss']:.3f}" * bool(measured)
    summary = [line for line in (ended, measured, expected) if line]
    said = [*said, f"text        {', '.join(corpus.manifest.sources)}"]
    for split, numbers in corpus.manifest.splits.items():
        said.append(f"{split:11} {numbers.tokens:,} tokens of {counted(numbers.documents, 'document')}")
    if tokenizer:
        said.append(f"tokenizer   {tokenizer.vocab_size:,} pieces, normalization {tokenizer.settings.normalization}")
    places |= write_report(run, records, summary, said, chosen, following, attention, console.print)
    if loop.is_interrupted:
        return
    lines = [f"  {name:12} {place}" for name, place in places.items()]
    lines += ["next"] * bool(following) + [f"  {name:12} {command}" for name, command in following.items()]
    console.print("\n".join(["", *summary, *lines]))
