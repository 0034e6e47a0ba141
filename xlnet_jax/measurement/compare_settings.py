"""Settings of a comparison: contenders, cost and tasks. Does not import jax."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from xlnet_jax.errors import InputError
from xlnet_jax.measurement.contenders import CONTENDERS
from xlnet_jax.objectives import presets
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import above, at_least, identity_difference, operational, setting, shared_with
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS, validate_finetuning
from xlnet_jax.training import machine

_OURS = ("task", "init", "train", "eval", "predict", "workdir", "tokenizer", "seeds", "seed", "tpu", "reinitialize")
"""Settings of finetuning that the comparison sets itself."""
_LATER = "what is pretrained here"


@dataclass(frozen=True)
class CompareConfig(Config):
    """A comparison. All contenders share the settings of pretraining, except those that define a contender.
    --optimizer.warmup-steps, --optimizer.decay-steps and --eval.every-steps refer to a run of --steps, and are scaled
    to the steps of each contender."""

    objectives: tuple[str, ...] = operational(("plm", "mlm", "clm"), "common")
    """contenders, separated by commas or spaces: any --objective, or bert, dae-transformer-xl, plm-k7, plm-no-memory,
    plm-no-spans, plm-no-bidirectional, plm-next, plm-grouped, plm-blocks, vanilla, electra"""
    budget: float = setting(0.0, above(0, "give the cost of each contender, such as 2e6"), "common")
    """cost of each pretraining, in the unit of --equal; it decides how many steps a contender gets"""
    equal: Literal["tokens", "operations"] = setting("tokens", "common")
    """unit of --budget: tokens in the windows, or FLOPs of all einsums"""
    seeds: tuple[int, ...] = operational((0,), at_least(0), "common")
    """seeds; for each one, every contender is pretrained once and finetuned once per task"""
    tasks: tuple[str, ...] = operational((), "common")
    """tasks to finetune on, as NAME=FOLDER, such as sst-2=glue/SST-2; the files in the folder have their published
    names, or are called train and dev"""
    finetune: tuple[str, ...] = operational((), "common")  # identity compares the resulting settings of each task
    """settings of finetuning: steps=300 for all tasks, cola.steps=300 for one; the rest are defaults of the task"""


def parse_comparison(argv: Sequence[str], prog: str, description: str) -> CompareConfig:
    """Return the comparison of a command line. Raises InputError if it cannot be run."""
    settings = presets.parse_config_as(CompareConfig, argv, prog, description)
    names = [name for word in settings.objectives for name in word.split(",") if name]
    settings = replace(settings, objectives=tuple(names))
    for broken in _contradictions(settings):
        raise broken
    finetune_configs(settings)
    if machine.place_of(settings.tpu):
        raise InputError("compare runs on one host: give each host different `objectives` and its own `workdir`")
    return settings


def shared_config(settings: CompareConfig) -> Config:
    """Return the settings of pretraining that all contenders share."""
    return shared_with(Config, settings)


def task_folders(settings: CompareConfig) -> dict[str, str]:
    """Return the folder of each task's examples."""
    return {task: folder for task, _, folder in (word.partition("=") for word in settings.tasks)}


def finetune_configs(settings: CompareConfig) -> dict[str, FinetuneConfig]:
    """Return the finetuning settings of each task, without checkpoint and workdir. Raises InputError if they contradict
    each other or there are no examples."""
    found = {}
    for task, folder in task_folders(settings).items():
        train = _find_files(task, folder, ("train",))
        held_out = _find_files(task, folder, ("dev", "validation", "valid", "val"))
        words = [f"--{word}" for word in _words_of_task(task, settings)]
        try:
            config = parser.parse(FinetuneConfig, words, "", "", DEFAULTS[task]())
            resolution = Resolution.of(config)
            for name in _OURS:
                resolution.refuse(name, InputError(name, "", "is set by the comparison; leave it out"))
            resolution.set({"train": train, "eval": held_out, "tpu": settings.tpu})
            found[task] = resolution.config
            validate_finetuning(replace(found[task], init=_LATER))
        except InputError as mistake:
            raise InputError("finetune", task, f": {mistake}") from None
    return found


def list_differences(ours: CompareConfig, theirs: CompareConfig) -> list[str]:
    """Return a line for each setting in which two comparisons differ. Contenders, seeds and tasks may differ, because
    their runs have separate folders."""
    found = identity_difference(ours, theirs)
    of_ours, of_theirs = finetune_configs(ours), finetune_configs(theirs)
    for task in of_ours.keys() & of_theirs.keys():
        here, there = of_ours[task], of_theirs[task]
        found += [f"`finetune` {task} {setting}" for setting in identity_difference(here, there)]
        # A finetuning run checks its steps and examples, but a finished run is skipped without that check.
        for name, new, old in (
            (f"`tasks` {task}", task_folders(ours)[task], task_folders(theirs)[task]),
            (f"`finetune` {task} `epochs`", here.epochs, there.epochs),
        ):
            found += [f"{name}: {old} there, {new} here"] if new != old else []
    return found


def _contradictions(settings: CompareConfig) -> Iterable[InputError]:
    folders = task_folders(settings)
    for argument, names, known in (("objectives", settings.objectives, CONTENDERS), ("tasks", folders, DEFAULTS)):
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else f"give some of {', '.join(known)}"
                yield InputError(argument, name, f": {hint}")
    if settings.dial:
        yield InputError(settings.dial, "", "is for train; give `budget`")
    if settings.selection.patience:
        why = ": each contender trains for the whole budget; leave it at 0"
        yield InputError("selection.patience", settings.selection.patience, why)
    for task, folder in folders.items():
        if not folder:
            yield InputError("tasks", task, f"has no data: give the folder of its examples, as {task}=FOLDER")
        if task == "ranking":
            why = ": compare cannot read documents, queries and judgements; use xlnet_jax.finetune"
            yield InputError("tasks", "ranking", why)
    if settings.finetune and not folders:
        yield InputError("finetune", settings.finetune, ": there are no tasks to finetune on; give `tasks`")
    tasks = [word.partition("=")[0] for word in settings.tasks]
    for name, values in (("objectives", settings.objectives), ("seeds", settings.seeds), ("tasks", tasks)):
        if len(set(values)) < len(values) or not (values or name == "tasks"):
            yield InputError(name, values, ": give at least one, and none twice")
    if settings.objective != Config().objective:
        why = (
            ": compare starts from a preset of XLNet (`preset` demo, small, base or large); name what to compare with "
            "`objectives`"
        )
        yield InputError("objective", settings.objective, why)
    for name, instead in (
        ("seed", "give `seeds` instead"),
        ("init", "every contender starts from random weights; leave it out"),
        ("trace_steps", "trace the run of one contender, with the settings in its config.json"),
    ):
        if given := getattr(settings, name):
            yield InputError(name, given, f": {instead}")


def _words_of_task(task: str, settings: CompareConfig) -> list[str]:
    """Return the words of --finetune for a task: first those for all tasks, then its own, which override them."""
    tasks = task_folders(settings)
    own = [word.removeprefix(f"{task}.") for word in settings.finetune if word.startswith(f"{task}.")]
    return [word for word in settings.finetune if word.partition(".")[0] not in tasks] + own


def _find_files(task: str, folder: str, stems: Sequence[str]) -> tuple[str, ...]:
    """Return the example files with these stems, or the folder for tasks that find their files in it."""
    if folder.startswith("tfds:"):
        return (folder,)
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise InputError("tasks", f"{task}={folder}", ": there is no such folder; give that of the task's examples")
    if DEFAULTS[task]().head.task in ("classification", "regression", "multilabel"):
        return (str(path),)
    there = {stem: [str(p) for p in sorted(path.iterdir()) if p.name.partition(".")[0] == stem] for stem in stems}
    for found in filter(None, there.values()):
        return tuple(found)
    names = " or ".join(f"{stem}.*" for stem in stems)
    raise InputError("tasks", f"{task}={folder}", f": no file there is called {names}")
