"""A pretraining run, from text to curves.

Each stage is written atomically and found again, so the same command resumes after any interruption.
"""

from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from data_pipelines.batches import BatchSource
from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import MODEL_FILE, TOKENIZER_JSON, Tokenizer
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.objectives.build import objective_of
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.objectives.rules import validate
from xlnet_jax.plots.curves import draw_curves
from xlnet_jax.settings.config import Config, DistributedConfig
from xlnet_jax.settings.keywords import with_plain_paths
from xlnet_jax.settings.plain import from_dict, to_dict
from xlnet_jax.storage.files import name_on_disk
from xlnet_jax.training import sharding
from xlnet_jax.training.attention import chosen, settled
from xlnet_jax.training.fit import Memory, cap_memory, keep_fit
from xlnet_jax.training.folder import folder_of
from xlnet_jax.training.heldout.heldout import HeldOutLoss, held_out_source, relative_to_unigram
from xlnet_jax.training.heldout.unigram import unigram_line, unknown_share
from xlnet_jax.training.initial import InitialWeights, begin_from, params_of, tokenizer_of
from xlnet_jax.training.kernel_check import Windows
from xlnet_jax.training.program import AbstractBatch, Program, batch_of_windows
from xlnet_jax.training.proposal import (
    command_for_other_text,
    command_of,
    conversion_of,
    defaults_of,
    finetuning_of,
    larger,
    longer,
)
from xlnet_jax.training.run.checkpoint import Checkpoints
from xlnet_jax.training.run.compile_cache import programs_kept_in
from xlnet_jax.training.run.hosts import connect
from xlnet_jax.training.run.process import Process
from xlnet_jax.training.run.workdir import Workdir
from xlnet_jax.training.step import make_eval_step
from xlnet_jax.training.text import Text
from xlnet_jax.training.train import train
from xlnet_jax.training.training_run import Numbers, TrainingRun
from xlnet_jax.training.watch.metrics import read_records
from xlnet_jax.training.watch.speed import speed


def pretrain(config: Config, *, is_command: bool = False) -> int:
    """Train to config.steps. Return 0, or the exit code of a run that was stopped with its state saved.

    The run is in this process, or in one process on each host where config.distributed, the environment or the platform
    says so (hosts.connect). is_command: the process does nothing but this run, and a second signal ends it at once.
    Raises InputError where settings contradict each other, the text or the workdir.
    """
    config = with_plain_paths(config)
    with connect(config) as hosts:
        config = replace(config, distributed=DistributedConfig())
        return _run(config, Process.begin(config, hosts, is_command))


def run_pretraining(config: Config) -> int:
    """Pretrain as the command does; return the exit code."""
    return pretrain(config, is_command=True)


def _run(config: Config, process: Process) -> int:
    """Train. Process 0 prepares what the others read, and writes everything but the checkpoints alone."""
    hosts = process.hosts
    prepared = _prepare(config, process.console) if hosts.first else None
    told = hosts.gather("prepared", prepared.told() if prepared else None)[0]
    prepared = prepared or _Prepared.find(told)
    hosts.demand_same("another corpus", {"SHA-256 of its manifest": prepared.corpus.manifest.sha256[:12]})
    with closing(prepared.workdir), programs_kept_in(str(prepared.workdir.compiled)):
        run = _build(prepared, process)
        data = {"manifest_sha256": prepared.corpus.manifest.sha256}
        workdir, steps_per_block = run.workdir, run.batches.steps_per_block
        with Checkpoints(
            workdir.checkpoints, run.config, workdir.tokenizer, steps_per_block, data, hosts=hosts
        ) as checkpoints:
            done, exit_code = train(run, checkpoints, process)
        if hosts.first and exit_code == 0:
            _report(run, done, process.console)
    return exit_code


@dataclass(frozen=True)
class _Prepared:
    """Result of the preparation: process 0 makes it, the others find it."""

    config: Config
    start: Pretrained | None
    corpus: Corpus
    tokenizer: Tokenizer
    workdir: Workdir

    def told(self) -> dict[str, Any]:
        """Return what another process needs to find it, as JSON knows it."""
        return {
            "config": to_dict(self.config),
            "workdir": str(self.workdir.folder),
            "corpus": str(self.corpus.folder),
        }

    @classmethod
    def find(cls, told: dict[str, Any]) -> "_Prepared":
        """Read what process 0 has told of."""
        config, workdir = from_dict(Config, told["config"]), Workdir(told["workdir"])
        workdir.demand_shared()
        corpus = Corpus(told["corpus"])
        config, start = _begin(config, workdir)
        return cls(config, start, corpus, Tokenizer.load(workdir.tokenizer), workdir)


@dataclass(frozen=True)
class Pretraining(TrainingRun):
    """Training on windows of a corpus, measured by the loss on held-out text."""

    config: Config
    batches: BatchSource
    evaluation: HeldOutLoss

    def rates(self, seconds: float) -> Numbers:
        """Return seconds_per_step, tokens_per_second and, where the devices' peak is known, mfu."""
        return speed(self.config, seconds)

    def locate(self, batch: int) -> str:
        """Return seed, visit and window of a batch, and the command that draws it."""
        visit, window = divmod(batch, self.batches.steps_per_block)
        return (
            f"(seed {self.config.seed}, step {batch}, window {window} of visit {visit}): "
            f"python -m data_pipelines.inspect {self.workdir.folder} --step {batch}"
        )


def _prepare(config: Config, console: Console) -> _Prepared:
    # ---- text -------------------------------------------------------------------------------------------------------
    text = Text.of(config)
    workdir = Workdir(folder_of(config))
    config, start = _begin(config, workdir)
    validate(config)
    # ---- tokenizer --------------------------------------------------------------------------------------------------
    given = text.demanded_tokenizer(config, tokenizer_of(start, config) if start else None)
    given = given or text.counted_tokenizer(config, workdir)
    if given:
        config = replace(config, model=replace(config.model, vocab_size=given.vocab_size))
    chosen(config, sharding.make_mesh(config))  # refuse what does not fit the devices before spending hours on a text
    workdir.claim(config)
    tokenizer = text.find_tokenizer(config, given, workdir)
    console.print(f"tokenizer   {tokenizer.vocab_size:,} pieces in {workdir.tokenizer}")
    # ---- corpus -----------------------------------------------------------------------------------------------------
    corpus = text.find_corpus(config, tokenizer, workdir)
    workdir.claim_text(corpus.manifest.made_from, corpus.manifest.origins)
    for split in ("train", "validation"):
        blocks = corpus.num_blocks(split)
        console.print(
            f"{split:11} {blocks:,} blocks of {corpus.block_len:,} tokens, {blocks * corpus.block_len:,} in all"
        )
    return _Prepared(config, start, corpus, tokenizer, workdir)


def _begin(config: Config, workdir: Workdir) -> tuple[Config, Pretrained | None]:
    before = workdir.resumes(Config)
    config = keep_fit(config, before)
    if not config.init:
        return config, None
    return begin_from(config.init, config, before, defaults_of(config))


def _build(prepared: _Prepared, process: Process) -> Pretraining:
    config, corpus, tokenizer, console = prepared.config, prepared.corpus, prepared.tokenizer, process.console
    # ---- batches, objective and state -------------------------------------------------------------------------------
    batches = BatchSource(
        corpus,
        "train",
        tokenizer.is_word_start,
        config.data,
        config.model.mem_len,
        config.seed,
        objective_named(config.objective).filling,
    )
    windows = Windows(config, batches)
    attention = settled(config, str(prepared.workdir.folder), process, windows).model.attention

    def build(config: Config) -> tuple[Program[Any], AbstractBatch]:
        computed = replace(config, model=replace(config.model, attention=attention))
        program = Program.of(computed, objective_of(computed))
        return program, batch_of_windows(config, program.mesh)

    config = cap_memory(config, build, prepared.workdir, process)
    program, batch = build(config)
    memory = Memory.of(program, batch, config, prepared.workdir, process)
    if not memory.fits:
        raise memory.refusal(prepared.workdir)
    weights = InitialWeights.of(config.init, *params_of(prepared.start, config)) if prepared.start else None
    # ---- evaluation -------------------------------------------------------------------------------------------------
    held_out_text = held_out_source(corpus, tokenizer, config)
    held_out = list(held_out_text.iterate(0, held_out_text.steps_per_epoch, program.rows))
    unigram_nats = unigram_line(corpus.unigram_counts, held_out, program.put)
    eval_step = make_eval_step(program.objective, program.plan, program.mesh, config.optimizer.accumulate)
    evaluation = HeldOutLoss(
        eval_step, held_out, program.empty_mems_ZBMD, program.put, unigram_nats, config.eval.every_steps
    )
    run = Pretraining(
        config, prepared.workdir, program, batches, evaluation, weights, memory, reference={"unigram": unigram_nats}
    )
    console.print(run.describe(f"{config.data.batch_size:,} rows of {config.data.seq_len} tokens"))
    there = corpus.num_blocks("validation") * held_out_text.steps_per_block
    if (read := held_out_text.windows_read) < there:
        console.print(
            f"held out    {read:,} of {there:,} windows, in blocks at even distances: eval.max-windows "
            f"{config.eval.max_windows:,}"
        )
    unknown = f"{unknown_share(config.model.vocab_size, held_out, program.put):.2%} of the held-out targets are <unk>"
    console.print(f"unknown     {corpus.unknown_share:.2%} of the training text and {unknown}")
    console.print(f"unigram     {unigram_nats:.3f} nats: the held-out loss of a model that knows only word frequencies")
    return run


def _report(run: Pretraining, step: int, console: Console) -> None:
    """Draw the curves, print where everything is, and propose what to run next."""
    config, workdir, unigram_nats = run.config, run.workdir, run.evaluation.unigram_nats
    records = list(read_records(workdir.metrics))
    objective = objective_named(config.objective)
    draw_curves(records, unigram_nats, workdir.curves, objective.name, objective.title)
    loss = [r["loss"] for r in records if r["split"] == "validation"][-1]
    model = next(file for file in workdir.tokenizer.iterdir() if file.name in (MODEL_FILE, TOKENIZER_JSON))
    folder = str(workdir.folder)
    there, copy = name_on_disk(folder)
    following = {
        "copy": copy,
        "finetune": finetuning_of(there),
        "convert": conversion_of(config, Tokenizer.load(workdir.tokenizer), there),
        "longer": command_of(longer(config, folder)),
        "larger": command_of(bigger) if (bigger := larger(config, str(workdir.tokenizer))) else None,
        "your text": command_for_other_text(config),
        "settings": "python -m xlnet_jax.train --help",
    }
    console.print(
        f"\nheld-out loss {loss:.3f} nats, {relative_to_unigram(loss, unigram_nats)}\n"
        f"  checkpoint   {workdir.checkpoints / str(step)}\n"
        f"  curves       {workdir.curves}\n"
        f"  tokenizer    {model}\n"
        f"  metrics      {workdir.metrics} and {workdir.tensorboard}\n"
        "next\n" + "\n".join(f"  {name:12} {command}" for name, command in following.items() if command)
    )
