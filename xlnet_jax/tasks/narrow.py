"""Settings from which a network narrower than those of the papers is finetuned: with those it learns next to nothing.

benchmarks/narrow_start.py measures the gain from each of them.
"""

from dataclasses import replace
from typing import Any

from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.settings.fields import differences, given_in
from xlnet_jax.tasks.config import FinetuneConfig
from xlnet_jax.tasks.defaults import DEFAULTS

WIDE = 768
"""width of the narrowest network that the settings of the papers are for"""
_TUNED_RATE, _TUNED_WIDTH = 1e-3, 128


def narrow_start(config: FinetuneConfig, source: Pretrained | FinetuneConfig) -> tuple[FinetuneConfig, str]:
    """Return the settings with those for a narrow network in place of the task's, where `narrow_start` asks for it, and
    what has changed, for the user. A setting that was given stays.

    source: the checkpoint that the run starts from, or the settings of the run that it resumes.

    - The learning rate is `learning_rate_of` the width.
    - Dropout is that of pretraining: the task's 0.1 holds a network back that has learned without. Labels of words keep
      the task's: their few sentences are read many times over.
    - The summary, for heads that read one, is that of the head which the checkpoint has, or else the mean of all hidden
      states: XLNet's pretraining asks nothing of <cls>, and a small network learns to gather a text there from many
      examples only. BERT's pretraining reads <cls>, so its networks keep the summary of the task.
    """
    if config.model.d_model >= WIDE or not config.narrow_start:
        return config, ""
    values: dict[str, dict[str, Any]] = {
        "optimizer": {"learning_rate": learning_rate_of(config.task, config.model.d_model)},
        "head": {"summary": _summary(config, source)},
    }
    if config.head.task != "token_classification":
        values["model"] = {name: getattr(source.model, name) for name in ("dropout", "attention_dropout")}
    given, begun = given_in(config, DEFAULTS[config.task]()), config
    for section, of_section in values.items():
        free = {name: v for name, v in of_section.items() if f"{section}.{name.replace('_', '-')}" not in given}
        begun = replace(begun, **{section: replace(getattr(begun, section), **free)})
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


def _summary(config: FinetuneConfig, source: Pretrained | FinetuneConfig) -> str:
    if not config.head.reads_summary or config.model.network != "xlnet":
        return config.head.summary
    return source.head.summary if source.head and source.head.reads_summary else "mean"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
