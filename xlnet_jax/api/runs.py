"""Training runs: one process or one among several, finetuning from Python, and predictions for files."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.printing import without_secrets
from xlnet_jax.settings import cli
from xlnet_jax.settings.config import Config, DistributedConfig, RunConfig
from xlnet_jax.settings.config_file import CommandLine
from xlnet_jax.settings.fields import flatten
from xlnet_jax.settings.keywords import with_keywords
from xlnet_jax.storage.files import write_durably
from xlnet_jax.training.run import runtime, supervisor

if TYPE_CHECKING:
    from xlnet_jax.tasks.config import FinetuneConfig
    from xlnet_jax.training.run.hosts import Hosts

C = TypeVar("C", bound=RunConfig)
ROLES = ("train", "eval", "predict")


def run_pretraining(config: Config) -> int:
    """Pretrain as the command does; return the exit code."""
    from xlnet_jax.training.folder import folder_of

    return start(config, _load_pretrain, folder_of, ("xlnet_jax.train", *sys.argv[1:]))


def parse_finetuning(argv: Sequence[str], prog: str, description: str) -> "FinetuneConfig":
    """Return the settings of finetuning from a command line, starting from those of its --task. Raises InputError on
    words that cannot be read, and on settings that contradict each other; prints and exits on --help."""
    from xlnet_jax.tasks.config import FinetuneConfig
    from xlnet_jax.tasks.defaults import DEFAULTS
    from xlnet_jax.tasks.rules import validate_finetuning

    line = CommandLine.of(argv)
    default, origin = (
        cli.named_default(each, "--task", DEFAULTS, "classification") for each in (line, line.of_file_alone)
    )
    config = cli.parse(FinetuneConfig, line, prog, description, default, origin)
    cli.refuse_fixed(line)
    validate_finetuning(config)
    return config


def run_finetuning(config: "FinetuneConfig") -> int:
    """Finetune, evaluate and predict as the command does; return the exit code."""
    from xlnet_jax.tasks.config import folder_of

    return start(config, _load_finetune, folder_of, ("xlnet_jax.finetune", *sys.argv[1:]))


def _load_pretrain() -> "Callable[[Config, Hosts], int]":
    from xlnet_jax.training.pretrain import pretrain

    return pretrain


def _load_finetune() -> "Callable[[FinetuneConfig, Hosts], int]":
    from xlnet_jax.tasks.run import finetune

    return finetune


def start(
    config: C,
    load_run: "Callable[[], Callable[[C, Hosts], int]]",
    folder_of: Callable[[C], str],
    command: Sequence[str],
) -> int:
    """Take this process's place among the hosts of the run, then run; return the exit code.

    On several hosts the run is in a child process (training/run/supervisor.py).

    load_run: import and return `pretrain` or `finetune`, after the mistakes that are found without jax. folder_of: the
    folder of the run, in which hosts meet. command: module and arguments that begin the same run. Raises InputError
    where the place cannot be found, a host does not arrive or is lost, or there is no TPU and the settings demand one.
    """
    roll, bind = supervisor.given_roll() or (None, None)
    place = None if roll else runtime.place_of(config)
    names = runtime.host_names(config, place) if place else []
    config = replace(config, distributed=DistributedConfig())
    if place:
        settings = {name: without_secrets(value) for name, value, _ in flatten(config)}
        return supervisor.supervise(place, folder_of(config), settings, names, command)
    from xlnet_jax.training.run.hosts import joined

    run = load_run()
    with joined(roll, bind) as hosts:
        if config.tpu:
            runtime.demand_tpu()
        return run(config, hosts)


def preset(name: str = "demo", **settings: Any) -> Config:
    """Return the settings of a preset with some of them replaced, for `pretrain` or a training loop of one's own.

    settings: fields of Config by name, sections as dictionaries: corpus="my.txt", steps=200, data={"batch_size": 8}.
    As with the flags of `train`, the parts of a window follow data.seq_len where they are not given, and `objective`
    says where other settings start from. Raises InputError on a preset or a setting that does not exist, on a value out
    of its bounds, and on a setting that changes nothing.
    """
    from xlnet_jax.objectives.command_line import preset

    return preset(name, settings)


class Finetuned(NamedTuple):
    """Result of a finetuning run."""

    workdir: str
    """folder of the run: checkpoints, results.json, metrics.jsonl, predictions/"""
    checkpoint: str
    """folder of the checkpoint that is the result, for `load`: the best one, or the last where nothing was evaluated;
    of several seeds that of the best"""
    metric: str
    """metric by which it was chosen; "" where nothing was evaluated"""
    metrics: dict[str, float]
    """metrics of that checkpoint on the examples of `eval`; of several seeds their mean"""
    predictions: tuple[str, ...]
    """files of predictions"""


def finetune(config: "FinetuneConfig | None" = None, **settings: Any) -> Finetuned:
    """Finetune a checkpoint for a task, in this process and on all its devices; return the result.

    The same call resumes a run that was interrupted, and returns the result of a finished one.

    config: all settings; each counts as given, but for those of the network that its weights bring. None = those of the
    `task`. settings: fields of FinetuneConfig by name, sections as dictionaries: task="sst-2", init="runs/mine",
    train="glue/SST-2", steps=200, optimizer={"learning_rate": 1e-4}. train, eval and predict name files, or are rows: a
    list of dictionaries or a table of pandas (tasks/rows.py), written to WORKDIR/examples.

    Raises InputError where settings contradict each other, the weights or the workdir, or a file of examples cannot be
    read; KeyboardInterrupt where a signal stopped the run, its state saved.
    """
    from xlnet_jax.tasks.config import FinetuneConfig, folder_of
    from xlnet_jax.tasks.defaults import DEFAULTS
    from xlnet_jax.tasks.rows import file_of, rows_of
    from xlnet_jax.tasks.rules import validate_finetuning
    from xlnet_jax.training.run.workdir import Workdir

    if config is None:
        config = DEFAULTS[_known_task(settings.get("task", FinetuneConfig().task))]()
    else:
        given = {setting.name for setting in flatten(config) if not setting.has("weights")}
        if settings.get("epochs", config.epochs) is not None:
            given.remove("steps")  # which the epochs replace
        config = replace(config, given=frozenset(given))
    rows = {role: table for role in ROLES if (table := rows_of(settings.get(role))) is not None}
    config = with_keywords(config, settings | dict.fromkeys(rows, "rows"))
    examples = {role: file_of(table, role, config) for role, table in rows.items()}
    folder = epath.Path(folder_of(config)) / "examples"
    config = with_keywords(config, {role: str(folder / name) for role, (name, _) in examples.items()})
    if not config.train:
        raise InputError("`train` is missing: give examples to learn from; `predict` asks a finetuned checkpoint")
    validate_finetuning(config)
    workdir = folder_of(config)
    if examples:
        Workdir(workdir).make()
        folder.mkdir(exist_ok=True)
    for name, content in examples.values():
        write_durably(folder / name, content)
    from xlnet_jax.tasks.run import finetune

    if finetune(replace(config, workdir=workdir)):
        raise KeyboardInterrupt("the run was stopped with its state saved; the same call goes on")
    from xlnet_jax.tasks.results import read_results

    found = read_results(workdir)
    return Finetuned(workdir, found.checkpoint, found.metric, dict(found.metrics), found.predictions)


def predict_files(
    checkpoint: str | Path,
    examples: str | Path | Sequence[str | Path],
    task: str = "classification",
    workdir: str | Path | None = None,
) -> int:
    """Write what a finetuned checkpoint predicts for examples without labels; return the exit code.

    examples: files, globs or tfds:NAME, in the form that the task reads. workdir: folder to write to; None =
    runs/TASK-predictions. Raises InputError for a checkpoint of another task, and for files that cannot be read.
    """
    from xlnet_jax.tasks.defaults import DEFAULTS
    from xlnet_jax.tasks.run import finetune

    given = {"init": checkpoint, "predict": examples, "workdir": workdir}
    return finetune(with_keywords(DEFAULTS[_known_task(task)](), given))


def _known_task(task: str) -> str:
    from xlnet_jax.tasks.defaults import DEFAULTS

    if task not in DEFAULTS:
        raise InputError(f"`task` {task} must be one of {', '.join(DEFAULTS)}")
    return task
