"""report.html: what a pretraining run did, as one page: its curves, samples, attention, choices, data and settings."""

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
from etils import epath

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import first_line
from xlnet_jax.inference.attention import attention_weights
from xlnet_jax.interop.contents import Pretrained
from xlnet_jax.objectives.presets import PRESETS
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.plots.attention import draw_attention_png
from xlnet_jax.plots.curves import draw_curves
from xlnet_jax.plots.report import folded, lines, picture, report_page, samples_by_step, table
from xlnet_jax.printing import without_secrets
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import differences, flatten
from xlnet_jax.storage.files import write_durably
from xlnet_jax.training.loop import Run
from xlnet_jax.training.samples import on_one_device, why_not_on_one

PIECES = 20  # of the text whose attention is drawn
TARGETS = 3  # of these, which are predicted


def write_report(
    run: Run,
    records: Sequence[Mapping[str, Any]],
    summary: Iterable[str],
    said: Sequence[str],
    chosen: Sequence[str],
    following: Mapping[str, str],
    attention: Callable[[], bytes | None],
    say: Callable[[str], Any],
) -> dict[str, str]:
    """Draw the curves and write the page; return their paths by what they are. A picture is no reason to fail a run: an
    error is one line.

    said: lines about the run and its text. chosen: what was chosen for the user, and why. following: commands to go on
    with. attention: returns the picture of `attention_png`, or None.
    """
    config, workdir = cast(Config, run.config), run.workdir
    objective, places = objective_named(config.objective), dict[str, str]()
    try:
        draw_curves(records, run.reference["unigram"], workdir.curves, objective.name, objective.title)
        places["curves"] = str(workdir.curves)
        try:
            drawn = attention()
        except Exception as error:  # such as the memory of the device
            say(f"attention   not drawn: {first_line(error)}")
            drawn = None
        differing = {s.name: s.value for s, _ in differences(config, PRESETS[config.preset]())}
        everything = {setting.name: setting.value for setting in flatten(config)}
        sections = {
            "Loss": picture(workdir.curves.read_bytes(), "training and held-out loss by step"),
            "Samples of held-out text": samples_by_step(records),
            "Attention": picture(drawn, "attention of each layer and head") if drawn else "",
            "Chosen, and why": lines(without_secrets(list(chosen))),
            "Run and data": lines(without_secrets(list(said))),
            "Settings": table(_shown(differing)) + folded("all settings", table(_shown(everything))),
            "Next": lines(f"{name:10} {command}" for name, command in following.items()),
        }
        title = f"{workdir.folder.name}: {objective.title}"
        write_durably(workdir.report, report_page(title, summary, sections).encode(errors="replace"))
    except Exception as error:
        say(f"report      not written: {first_line(error)}")
    else:
        places["report"] = str(workdir.report)
    return places


def _shown(values: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as flags and their values in words."""
    values = without_secrets(dict(values))
    return {
        f"--{name}": " ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
        for name, value in values.items()
    }


def no_attention() -> None:
    """Draw nothing."""


def attention_png(config: Config, params: Any, tokenizer: Tokenizer, text: str) -> bytes | None:
    """Return a PNG of the attention weights of a text's first pieces. Where query rows predict, it shows those of
    pieces in its middle. None if the weights are divided among devices."""
    if why_not_on_one(params):
        return None
    model = dataclasses.replace(config.model, remat="none")
    pretrained = Pretrained(model, jax.tree.map(on_one_device, params), config.objective, tokenizer=tokenizer)
    pieces = tokenizer.encode_lines([text])[0][:PIECES]
    text, targets = tokenizer.decode(pieces), None
    if objective_named(config.objective).filling.stream == "query":
        middle = len(tokenizer.encode_lines([text])[0]) // 2
        targets = [list(range(middle, middle + TARGETS))]
    found = attention_weights(pretrained, [text], targets)
    with tempfile.TemporaryDirectory() as folder:
        file = epath.Path(folder) / "attention.png"
        draw_attention_png(found, text, f"{config.objective} at the end of the run", model.num_layers - 1, None, file)
        return file.read_bytes()
