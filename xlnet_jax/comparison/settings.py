"""Settings of a comparison: contenders, cost and tasks. Imports no jax."""

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from xlnet_jax.comparison.contenders import CONTENDERS
from xlnet_jax.errors import InputError
from xlnet_jax.objectives import presets
from xlnet_jax.settings import parser
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import above, at_least, identity_difference, operational, setting
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS, validate_finetuning
from xlnet_jax.training import machine

_OURS = ("task", "init", "train", "eval", "predict", "workdir", "tokenizer", "seeds", "seed", "tpu", "reinitialize")
"""Settings of finetuning that the comparison sets itself."""
_LATER = "what is pretrained here"


@dataclass(frozen=True)
class CompareConfig(Config):
    """A comparison. All contenders share the settings of pretraining, and each changes those that define it. Settings
    that count steps (optimizer.warmup-steps, optimizer.decay-steps, eval.every-steps) refer to a run of `steps`, and
    keep their share of each contender's steps."""

    objectives: tuple[str, ...] = operational(("plm", "mlm", "clm"), "common")
    """contenders, separated by commas or spaces: any --objective, or bert, dae-transformer-xl, plm-k7, plm-no-memory,
    plm-no-spans, plm-no-bidirectional, plm-next, vanilla, electra"""
    budget: float = setting(0.0, above(0, "give what each contender may cost, as 2e6"), "common")
    """cost of each pretraining, in the unit of --equal; each contender gets as many steps as fit"""
    equal: Literal["tokens", "operations"] = setting("tokens", "common")
    """unit in which all pretrainings cost the same: tokens in the windows that are read, or FLOPs of the einsums"""
    seeds: tuple[int, ...] = operational((0,), at_least(0), "common")
    """seeds; each is one pretraining of each contender and one finetuning of it on each task"""
    tasks: tuple[str, ...] = operational((), "common")
    """tasks that every pretrained network is finetuned on, as NAME=FOLDER, such as sst-2=glue/SST-2; the folder has the
    files to learn from and to be measured on by their published names, or train and dev"""
    finetune: tuple[str, ...] = operational((), "common")  # identity compares the resulting settings of each task
    """settings of finetuning, as steps=300 for all tasks or cola.steps=300 for one; else they are each task's own"""


def parse_comparison(argv: Sequence[str], prog: str, description: str) -> CompareConfig:
    """Return the comparison that a command line asks for. Raises InputError where it cannot be run."""
    settings = presets.parse_config_as(CompareConfig, argv, prog, description)
    names = [name for word in settings.objectives for name in word.split(",") if name]
    settings = replace(settings, objectives=tuple(names))
    for broken in _contradictions(settings):
        raise InputError(broken)
    finetune_configs(settings)
    if machine.place_of(settings):
        raise InputError("compare runs on one host: give each host contenders of its own, and its own `workdir`")
    return settings


def shared_config(settings: CompareConfig) -> Config:
    """Return the settings of pretraining that all contenders share."""
    return Config(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(Config)})


def task_folders(settings: CompareConfig) -> dict[str, str]:
    """Return the folder of each task's examples."""
    return {task: folder for task, _, folder in (word.partition("=") for word in settings.tasks)}


def finetune_configs(settings: CompareConfig) -> dict[str, FinetuneConfig]:
    """Return the settings of each task, without the checkpoint that it starts from and the folder of its runs. Raises
    InputError where they contradict each other, or name no examples."""
    found = {}
    for task, folder in task_folders(settings).items():
        train = _find_files(task, folder, ("train",))
        held_out = _find_files(task, folder, ("dev", "validation", "valid", "val"))
        words = [f"--{word}" for word in _words_of_task(task, settings)]
        try:
            config = parser.parse(FinetuneConfig, words, "", "", DEFAULTS[task]())
            if ours := config.given.intersection(_OURS):
                raise InputError(f"{', '.join(sorted(ours))}: a comparison sets it by itself; leave it out")
            found[task] = replace(config, train=train, eval=held_out, tpu=settings.tpu)
            validate_finetuning(replace(found[task], init=_LATER))
        except InputError as mistake:
            raise InputError(f"--finetune {task}: {mistake}") from None
    return found


def list_differences(ours: CompareConfig, theirs: CompareConfig) -> list[str]:
    """Return 'name: their value -> our value' for each setting in which the runs of two comparisons differ. Contenders,
    seeds and tasks may differ: their runs have folders of their own."""
    found = identity_difference(ours, theirs)
    of_ours, of_theirs = finetune_configs(ours), finetune_configs(theirs)
    for task in of_ours.keys() & of_theirs.keys():
        here, there = of_ours[task], of_theirs[task]
        found += [f"finetune {task}.{setting}" for setting in identity_difference(here, there)]
        # A finetuning run compares the resulting steps and examples, but a finished run is not compared again.
        for name, new, old in (
            (f"tasks {task}", task_folders(ours)[task], task_folders(theirs)[task]),
            (f"finetune {task}.epochs", here.epochs, there.epochs),
        ):
            found += [f"{name}: {old} there, {new} here"] if new != old else []
    return found


def _contradictions(settings: CompareConfig) -> Iterable[str]:
    folders = task_folders(settings)
    for flag, names, known in (("objectives", settings.objectives, CONTENDERS), ("tasks", folders, DEFAULTS)):
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
                yield f"--{flag} {name}: {hint}"
    for task, folder in folders.items():
        if not folder:
            yield f"--tasks {task} has no data: name the folder of its examples, as {task}=FOLDER"
        if task == "ranking":
            yield "--tasks ranking: its documents, queries and judgements are no folder of examples; finetune ranks"
    if settings.finetune and not folders:
        yield f"--finetune {' '.join(settings.finetune)}: there is nothing to finetune on; name --tasks"
    tasks = [word.partition("=")[0] for word in settings.tasks]
    for flag, values in (("objectives", settings.objectives), ("seeds", settings.seeds), ("tasks", tasks)):
        if len(set(values)) < len(values) or not (values or flag == "tasks"):
            yield f"--{flag} {' '.join(map(str, values))}: give one or more, each once"
    if settings.objective != Config().objective:
        yield (
            f"--objective {settings.objective}: compare starts from the settings of XLNet, as --preset demo, small, "
            "base or large have them, and --objectives names who is compared"
        )
    for flag, instead in (
        ("seed", "--seeds are those of the runs"),
        ("init", "every contender begins with weights of its own"),
        ("trace_steps", "trace one contender's run, by the settings that its config.json holds"),
    ):
        if getattr(settings, flag):
            yield f"--{flag} {getattr(settings, flag)}: {instead}"


def _words_of_task(task: str, settings: CompareConfig) -> list[str]:
    """Return the words of --finetune for a task: first those for all tasks, then its own, which win."""
    tasks = task_folders(settings)
    own = [word.removeprefix(f"{task}.") for word in settings.finetune if word.startswith(f"{task}.")]
    return [word for word in settings.finetune if word.partition(".")[0] not in tasks] + own


def _find_files(task: str, folder: str, stems: Sequence[str]) -> tuple[str, ...]:
    """Return the example files with these stems; the folder itself for tasks that find their own files in it."""
    if folder.startswith("tfds:"):
        return (folder,)
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise InputError(f"--tasks {task}={folder}: there is no such folder; it is to hold the task's examples")
    if DEFAULTS[task]().head.task in ("classification", "regression", "multilabel"):
        return (str(path),)
    there = {stem: [str(p) for p in sorted(path.iterdir()) if p.name.partition(".")[0] == stem] for stem in stems}
    for found in filter(None, there.values()):
        return tuple(found)
    raise InputError(f"--tasks {task}={folder}: no file there is called {' or '.join(f'{s}.*' for s in stems)}")
