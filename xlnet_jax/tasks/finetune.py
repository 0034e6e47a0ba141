"""Finetune from Python: settings by name, and examples as files or as rows."""

import hashlib
from dataclasses import replace
from typing import Any

from etils import epath

from xlnet_jax.errors import InputError
from xlnet_jax.settings.fields import flatten
from xlnet_jax.settings.parser import with_keywords
from xlnet_jax.storage.files import write_durably
from xlnet_jax.tasks.config import FinetuneConfig, folder_of
from xlnet_jax.tasks.defaults import DEFAULTS, make_task, validate_finetuning
from xlnet_jax.tasks.readers import json_lines_of, rows_of
from xlnet_jax.tasks.run import Result, run
from xlnet_jax.training.workdir import Workdir

ROLES = ("train", "eval", "predict")


def finetune(config: FinetuneConfig | None = None, **settings: Any) -> Result:
    """Finetune a checkpoint for a task, in this process and on all its devices; return the result.

    The same call resumes a run that was interrupted, and returns the result of a finished one. Without `train`, write
    the predictions of a finetuned checkpoint for the examples of `eval` and `predict`.

    config: all settings; each counts as given, but for those of the network that its weights bring. None = those of the
    `task`. settings: fields of FinetuneConfig by name, sections as dictionaries: task="sst-2", init="runs/mine",
    train="glue/SST-2", steps=200, optimizer={"learning_rate": 1e-4}. train, eval and predict name files, or are rows: a
    list of dictionaries or a table of pandas, written to WORKDIR/examples. Rows have the columns of the task; words and
    labels, lists of equal length, for labels of words; and for questions about a text question, context, and answers
    {"text": […], "answer_start": […]}, as SQuAD's have on the Hub.

    Raises InputError where settings contradict each other, the weights or the workdir, or an example cannot be read;
    KeyboardInterrupt where a signal stopped the run, its state saved.
    """
    if config is None:
        task = settings.get("task", FinetuneConfig().task)
        if task not in DEFAULTS:
            raise InputError(f"`task` {task} must be one of {', '.join(DEFAULTS)}")
        config = DEFAULTS[task]()
    else:
        given = {setting.name for setting in flatten(config) if not setting.has("weights")}
        if settings.get("epochs", config.epochs) is not None:
            given.remove("steps")  # which the epochs replace
        config = replace(config, given=frozenset(given))
    rows = {role: found for role in ROLES if (found := rows_of(settings.get(role))) is not None}
    config = with_keywords(config, settings | dict.fromkeys(rows, "rows"))
    validate_finetuning(config)
    config = replace(config, workdir=folder_of(config))
    if rows:
        config = with_keywords(config, _write_rows(config, rows))
    result, _ = run(config)
    if result is None:
        raise KeyboardInterrupt("the run was stopped with its state saved; the same call goes on")
    return result


def _write_rows(config: FinetuneConfig, rows: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Write the rows of each role to a file, named after their hash, and return its path. Raises InputError before
    anything is written where a row is not an example of the task."""
    task, folder = make_task(config), epath.Path(folder_of(config)) / "examples"
    contents = {}
    for role, of_role in rows.items():
        if not task.reads_rows:
            raise InputError(f"`{role}` holds rows, and `task` {config.task} reads files of its own form: name those")
        task.examples_of(of_role, role != "predict", f"`{role}`: row")
        contents[role] = json_lines_of(of_role)
    Workdir(folder_of(config)).make()
    folder.mkdir(exist_ok=True)
    paths = {
        role: folder / f"{role}-{hashlib.sha256(content).hexdigest()[:12]}.jsonl" for role, content in contents.items()
    }
    for role, path in paths.items():
        write_durably(path, contents[role])
    return {role: str(path) for role, path in paths.items()}
