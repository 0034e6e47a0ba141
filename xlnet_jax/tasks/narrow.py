"""Settings from which a network narrower than those of the papers is finetuned: theirs teach it next to nothing.

benchmarks/narrow_start.py measures what each of them is worth.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.settings.fields import differences
from xlnet_jax.storage.reading import read_json
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.training.run.workdir import Workdir

WIDE = 768
"""width of the narrowest network that the settings of the papers are for"""
_TUNED_RATE, _TUNED_WIDTH = 1e-3, 128


def narrow_start(config: FinetuneConfig, source: Pretrained | FinetuneConfig) -> tuple[FinetuneConfig, str]:
    """Return the settings with those for a narrow network in place of the task's, as far as `rate_for_width` and
    `narrow_start` ask for it, and what has changed, for the user.

    A setting that differs from the task's was given by the user, and stays. source: the checkpoint that the run starts
    from, or the settings of the run that it resumes.

    - The learning rate is `learning_rate_of` the width.
    - Dropout is that of pretraining: the task's 0.1 holds a network back that has learned without. Labels of words keep
      the task's: their few sentences are read many times over.
    - The summary, for heads that read one, is that of the head which the checkpoint has, or else the mean of all hidden
      states: XLNet's pretraining asks nothing of <cls>, and a small network learns to gather a text there from many
      examples only. BERT's pretraining reads <cls>, so its networks keep the summary of the task.
    """
    if config.model.d_model >= WIDE:
        return config, ""
    own = DEFAULTS[config.task]()

    def unless_given(section: str, **values: Any) -> Any:
        given, tasks = getattr(config, section), getattr(own, section)
        taken = {name: value for name, value in values.items() if getattr(given, name) == getattr(tasks, name)}
        return replace(given, **taken)

    begun = config
    if config.rate_for_width:
        rate = learning_rate_of(config.task, config.model.d_model)
        begun = replace(begun, optimizer=unless_given("optimizer", learning_rate=rate))
    if config.narrow_start:
        begun = replace(begun, head=unless_given("head", summary=_summary(config, source)))
    if config.narrow_start and config.head.task != "token_classification":
        dropout = {name: getattr(source.model, name) for name in ("dropout", "attention_dropout")}
        begun = replace(begun, model=unless_given("model", **dropout))
    changed = ", ".join(f"{s.name} {_shown(s.value)} ({_shown(old)})" for s, old in differences(begun, config))
    return begun, changed


def learning_rate_of(task: str, width: int) -> float:
    """Return the learning rate that a task starts from: its own, or one for the width of a narrow network.

    Pretrained networks of 128 and 192 learn as well or better from 1e-3 than from 3e-4 on all tasks of
    benchmarks/measured/eight_tasks; above, the rate falls as one over the width, as muP (Yang et al. 2022, table 3) has
    it.
    """
    own = DEFAULTS[task]().optimizer.learning_rate
    return own if width >= WIDE else max(own, _TUNED_RATE * min(_TUNED_WIDTH / width, 1))


def as_begun(config: FinetuneConfig, workdirs: Iterable[Workdir]) -> FinetuneConfig:
    """Return the settings without `rate_for_width` or `narrow_start` where a run in these workdirs began without, as
    all did in earlier versions."""
    there = [workdir for workdir in workdirs if workdir.resumes(FinetuneConfig)]
    return replace(
        config,
        rate_for_width=config.rate_for_width and not any(_has_rate_of_task(w.settings(FinetuneConfig)) for w in there),
        narrow_start=config.narrow_start and all(read_json(w.config).get("narrow_start", False) for w in there),
    )


def _has_rate_of_task(config: FinetuneConfig) -> bool:
    start = DEFAULTS.get(config.task)  # settings in a file may name a task that is not known here
    return start is not None and config.optimizer.learning_rate == start().optimizer.learning_rate


def _summary(config: FinetuneConfig, source: Pretrained | FinetuneConfig) -> str:
    if not config.head.reads_summary or config.model.network != "xlnet":
        return config.head.summary
    return source.head.summary if source.head and source.head.reads_summary else "mean"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
