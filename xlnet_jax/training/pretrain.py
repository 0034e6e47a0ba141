"""A pretraining run, from text to curves. Every stage is finished atomically and found again, so that the same command
after any interruption goes on where it stood."""

import functools
import shlex
import time
from dataclasses import dataclass, replace
from socket import gethostname
from typing import Any

import jax
import optax
from rich.console import Console

from data_pipelines.batches import BatchSource
from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import MODEL_FILE, TOKENIZER_JSON, Tokenizer
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.build import PretrainingObjective, objective_of
from xlnet_jax.objectives.presets import PRESETS, with_objective
from xlnet_jax.objectives.rules import unread, validate
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import differences, marked
from xlnet_jax.settings.plain import from_dict, to_dict
from xlnet_jax.training import sharding
from xlnet_jax.training.heldout.heldout import HeldOutLoss, held_out_batches, relative_to_unigram
from xlnet_jax.training.heldout.unigram import unigram_line
from xlnet_jax.training.initial import begin_from, params_of, shown, tokenizer_of
from xlnet_jax.training.optimizer import make_optimizer
from xlnet_jax.training.run.checkpoint import Checkpoints
from xlnet_jax.training.run.compile_cache import programs_kept_in
from xlnet_jax.training.run.course import Course, introduction
from xlnet_jax.training.run.hosts import ALONE, Hosts
from xlnet_jax.training.run.workdir import Workdir
from xlnet_jax.training.state import StatePlan, TrainState, empty_mems_ZBMD, init_state, plan_state, with_params
from xlnet_jax.training.step import make_eval_step, make_train_step
from xlnet_jax.training.text import Text
from xlnet_jax.training.watch.curves import draw_curves
from xlnet_jax.training.watch.metrics import read_records
from xlnet_jax.training.watch.speed import speed
from xlnet_jax.training.watch.wandb import demand_wandb


@dataclass(frozen=True)
class _Run:
    """What is trained, and on what."""

    config: Config
    start_from: Pretrained | None
    corpus: Corpus
    tokenizer: Tokenizer
    workdir: Workdir

    def told(self) -> dict[str, Any]:
        return {
            "config": to_dict(self.config),
            "workdir": str(self.workdir.folder),
            "corpus": str(self.corpus.folder),
            "made_from": self.corpus.manifest.made_from,
        }


def pretrain(config: Config, hosts: Hosts = ALONE) -> int:
    """Trains to config.steps. Returns 0, or the exit code of a run that was stopped with its state saved.

    Of several processes, process 0 makes what the others read, and it alone writes what is not a checkpoint.
    """
    began = time.time()
    console = Console(soft_wrap=True, highlight=False, markup=False, quiet=not hosts.first)
    jax.devices()  # all processes find them together, and none before the others
    made = _prepare(config, console) if hosts.first else None
    told = hosts.gather("prepared", made.told() if made else None)[0]
    hosts.demand_shared(told["workdir"])
    run = made or _find_prepared(told)
    with programs_kept_in(str(run.workdir.compiled)):
        return _train(run, hosts, console, began)


def _prepare(config: Config, console: Console) -> _Run:
    if config.log.wandb:
        demand_wandb(config.log.wandb)
    # ---- text, tokenizer, corpus ------------------------------------------------------------------------------------
    text = Text.of(config)
    workdir = Workdir(config.workdir or _own_folder(text.name, config))
    start = None
    if config.init:
        config, start = begin_from(config.init, config, workdir.resumes(Config), _defaults(config).model)
        validate(config)
    given = text.demanded_tokenizer(config, tokenizer_of(start, config) if start else None)
    given = given or text.counted_tokenizer(config, workdir)
    if given:
        config = replace(config, model=replace(config.model, vocab_size=given.vocab_size))
    sharding.make_mesh(config)  # refused before hours go into a text
    workdir.claim(config)
    tokenizer = text.find_tokenizer(config, given, workdir)
    console.print(f"tokenizer   {tokenizer.vocab_size:,} pieces in {workdir.tokenizer}")
    corpus = text.find_corpus(config, tokenizer, workdir)
    workdir.claim_text(corpus.manifest.made_from)
    for split in ("train", "validation"):
        blocks = corpus.num_blocks(split)
        console.print(
            f"{split:11} {blocks:,} blocks of {corpus.block_len:,} tokens, {blocks * corpus.block_len:,} in all"
        )
    return _Run(config, start, corpus, tokenizer, workdir)


def _own_folder(text: str, config: Config) -> str:
    objective = "" if config.objective == PRESETS[config.preset]().objective else f"-{config.objective}"
    return f"runs/{text}-{config.preset}{objective}"


def _defaults(config: Config) -> Config:
    """What the settings are where nobody set them."""
    return with_objective(PRESETS[config.preset](), config.objective)


def _find_prepared(told: dict[str, Any]) -> _Run:
    config, workdir, corpus = from_dict(Config, told["config"]), Workdir(told["workdir"]), Corpus(told["corpus"])
    if corpus.manifest.made_from != told["made_from"]:
        raise InputError(f"corpus {corpus.folder} is another one on {gethostname()} than on the host of process 0")
    defaults = _defaults(config).model
    start = begin_from(config.init, config, workdir.resumes(Config), defaults)[1] if config.init else None
    return _Run(config, start, corpus, Tokenizer.load(workdir.tokenizer), workdir)


def _train(run: _Run, hosts: Hosts, console: Console, began: float) -> int:
    config, corpus, workdir = run.config, run.corpus, run.workdir
    # ---- batches ----------------------------------------------------------------------------------------------------
    mesh = sharding.make_mesh(config)
    put = sharding.batch_to_mesh(mesh, config.data.batch_size)
    rows = sharding.process_rows(mesh, config.data.batch_size)

    train = BatchSource(
        corpus, "train", run.tokenizer.is_word_start, config.data, config.model.mem_len, config.seed, config.objective
    )
    held_out = held_out_batches(corpus, run.tokenizer, config, rows)
    unigram_nats = unigram_line(corpus.unigram_counts, held_out, put)

    # ---- model ------------------------------------------------------------------------------------------------------
    objective, tx = objective_of(config), make_optimizer(config.optimizer, config.steps)
    plan = plan_state(objective, tx, mesh)
    empty_mems = functools.partial(empty_mems_ZBMD, plan)
    eval_step = make_eval_step(objective, plan, mesh)
    evaluation = HeldOutLoss(eval_step, held_out, empty_mems, put, unigram_nats, config.eval.every_steps)
    batch = f"{config.data.batch_size:,} rows of {config.data.seq_len} tokens"
    console.print(introduction(config, plan, mesh, len(rows), batch))
    console.print(f"unigram     {unigram_nats:.3f} nats: the held-out loss of a model that knows only word frequencies")

    # ---- state, and training to its end -----------------------------------------------------------------------------
    reference = {"unigram": unigram_nats}
    course = Course(
        config,
        workdir,
        plan,
        lambda: _first_state(config, run.start_from, objective, tx, plan, console),
        make_train_step(config, objective, tx, plan, mesh),
        lambda start: train.iterate(start, config.steps, rows),
        put,
        evaluation,
        reference,
        functools.partial(speed, config),
        functools.partial(_point_to, config, workdir, train.steps_per_block),
    )
    data = {"manifest_sha256": corpus.manifest.sha256}
    with Checkpoints(workdir.checkpoints, config, workdir.tokenizer, train.steps_per_block, data) as checkpoints:
        done, exit_code = course.follow(checkpoints, hosts, console, began)
    if hosts.first and exit_code == 0:
        _close(config, workdir, done, unigram_nats, console)
    return exit_code


def _first_state(
    config: Config,
    start_from: Pretrained | None,
    objective: PretrainingObjective,
    tx: optax.GradientTransformation,
    plan: StatePlan,
    console: Console,
) -> TrainState:
    state = init_state(config.seed, objective, tx, plan)
    if start_from is None:
        return state
    params, drawn = params_of(start_from, config)
    afresh = f"; drawn afresh, as it lacks them: {', '.join(drawn)}" if drawn else ""
    console.print(f"init        weights of {shown(config.init)}{afresh}")
    return with_params(state, params, plan)


def _point_to(config: Config, workdir: Workdir, steps_per_block: int, batch: int) -> str:
    visit, window = divmod(batch, steps_per_block)
    return (
        f"(seed {config.seed}, step {batch}, window {window} of visit {visit}): python -m data_pipelines.inspect "
        f"{workdir.folder} --step {batch}"
    )


def _close(config: Config, workdir: Workdir, step: int, unigram_nats: float, console: Console) -> None:
    records = list(read_records(workdir.metrics))
    draw_curves(records, unigram_nats, workdir.curves, config.objective)
    loss = [r["loss"] for r in records if r["split"] == "validation"][-1]
    text: Any = {name: getattr(config, name) for name in marked(Config, "text")}
    larger = {"demo": "small", "small": "base", "base": "large"}.get(config.preset, config.preset)
    bigger = with_objective(PRESETS[larger](), config.objective)
    other = f"--objective {config.objective} " if config.objective != "plm" else ""
    model = next(file for file in workdir.tokenizer.iterdir() if file.name in (MODEL_FILE, TOKENIZER_JSON))
    console.print(
        f"\nheld-out loss {loss:.3f} nats, {relative_to_unigram(loss, unigram_nats)}\n"
        f"  checkpoint   {workdir.checkpoints / str(step)}\n"
        f"  curves       {workdir.curves}\n"
        f"  tokenizer    {model}\n"
        f"  metrics      {workdir.metrics} and {workdir.tensorboard}\n"
        "next\n"
        f"  longer       {_command(replace(config, steps=4 * config.steps, workdir=f'{workdir.folder}-longer'))}\n"
        f"  larger       {_command(replace(bigger, **text, tokenizer=str(workdir.tokenizer)))}\n"
        f"  your text    python -m xlnet_jax.train {other}--corpus my.txt\n"
        "  settings     python -m xlnet_jax.train --help"
    )


def _command(config: Config) -> str:
    """The command line of these settings: the preset, the objective, and what differs from them and is read."""
    passed_over = {name for name, _ in unread(config)}
    words = ["python", "-m", "xlnet_jax.train", "--preset", config.preset]
    if config.objective != PRESETS[config.preset]().objective:
        words += ["--objective", config.objective]
    for setting, _ in differences(config, _defaults(config)):
        name, value = setting.name, setting.value
        # Weights bring their network along, and a tokenizer of the user's own its vocabulary.
        brought = (config.init and setting.has("weights")) or (name == "model.vocab-size" and config.tokenizer)
        if name in passed_over or brought:
            continue
        if isinstance(value, bool):
            group, dot, last = name.rpartition(".")
            words += [f"--{group}{dot}{'' if value else 'no-'}{last}"]
        else:
            words += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(words)
