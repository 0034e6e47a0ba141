"""Show one window of a corpus, as text and as a picture of which tokens each row of the network may see."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from etils import epath

from data_pipelines import windows
from data_pipelines.corpus import MANIFEST_FILE, Corpus, SplitName, is_corpus
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError, with_flags
from xlnet_jax.objectives.presets import PRESETS, lengths_of, with_objective
from xlnet_jax.objectives.registry import batch_source, validate
from xlnet_jax.printing import Console, counted, printing_colors, printing_until_unread
from xlnet_jax.settings.common import RecordingSettings
from xlnet_jax.settings.config import Config, DataConfig
from xlnet_jax.settings.fields import (
    at_least,
    check_bounds,
    from_dict,
    setting,
    with_plain_paths,
)
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.storage.outputs import new_file
from xlnet_jax.storage.reading import read_versioned

if TYPE_CHECKING:
    from data_pipelines.inspect.window import WindowView

CONFIG = "config.json"
COLUMNS = 120
"""width of the output where there is no terminal"""


@dataclass(frozen=True)
class InspectSettings(RecordingSettings):
    """Print a window of a batch, and draw which tokens each row of the network may see."""

    corpus: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")]
    """a prepared corpus, or the workdir of a run, to use its settings"""
    step: int = setting(0, at_least(0))
    """number of the batch"""
    row: int = setting(0, at_least(0))
    """row of the batch"""
    split: SplitName = "train"
    """part of the corpus"""
    seed: int | None = None
    """seed of the batches; None = the run's, or 0"""
    preset: str | None = None
    """settings of the window; None = the run's, or settings that fit the blocks of the corpus"""
    objective: str | None = None
    """objective of the batches; None = the run's, or the preset's"""
    mem_len: int | None = None
    """length of the memory, in positions, as --model.mem-len in training; None = from the other settings"""
    tokenizer: str | None = None
    """tokenizer of the corpus; None = the one in the corpus or the workdir"""
    around: int | None = setting(None, at_least(0))
    """position around which a long window is enlarged; None = the end of the reused part"""
    out: str = "window.png"
    """file of the picture, a PNG"""
    data: DataConfig = field(default_factory=DataConfig)
    """windows; if only --data.seq-len is given, the lengths inside the window change in proportion"""


@dataclass(frozen=True)
class Inspection:
    """A window of a corpus, and where it comes from."""

    view: WindowView
    corpus: Corpus
    config: Config
    origin: str  # of the settings
    picture: Path


def inspect_window(settings: InspectSettings) -> Inspection:
    """Draw the picture of a window, and return what the command prints about it.

    Settings of `data` that are given, or that differ from their defaults, replace those of the run, or those that fit
    the corpus. Raises InputError for settings that cannot work.
    """
    settings = with_plain_paths(settings)
    check_bounds(settings)
    out = Path(settings.out)
    if out.suffix.lower() != ".png":
        raise InputError("out", out, "must end in .png: the picture is a PNG")
    with new_file(out, overwrite=True) as file:
        return _inspect(settings, file)


def _inspect(settings: InspectSettings, file: Path) -> Inspection:
    corpus, run = _find(epath.Path(settings.corpus))
    tokenizer = _tokenizer(settings, corpus)
    config, origin = _config(settings, corpus, run)
    if settings.row >= config.data.batch_size:
        last = config.data.batch_size - 1
        raise InputError("row", settings.row, f"must be from 0 to {last}, or give a larger `data.batch_size`")
    around = config.data.reuse_len if settings.around is None else settings.around
    if settings.around is not None and around >= config.data.seq_len:
        raise InputError("around", around, f"must be a position of the window, from 0 to {config.data.seq_len - 1}")
    from data_pipelines.inspect.window import view_window
    from xlnet_jax.plots.window import draw_window

    source = batch_source(corpus, tokenizer, config, settings.split, config.eval.max_windows)
    view = view_window(source, tokenizer, settings.step, settings.row)
    direction = "read backwards" if view.is_reversed else "read forwards"
    rows = f"step {settings.step}, row {settings.row}, {direction}"
    draw_window(view, f"{corpus.folder}, {settings.split}, seed {config.seed}, {rows}", around, file)
    return Inspection(view, corpus, config, origin, Path(settings.out))


def print_window(settings: InspectSettings) -> None:
    """Draw the picture of a window, and print the window. Raises InputError as `inspect_window` does."""
    found = inspect_window(settings)
    from data_pipelines.inspect.window import describe

    corpus, config = found.corpus, found.config
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else COLUMNS)
    blocks = f"{counted(corpus.num_blocks(settings.split), 'block')} of {corpus.block_len:,} tokens"
    with console.capture() as printed:
        console.print(f"corpus      {corpus.folder}: {settings.split}, {blocks}; {corpus.manifest.vocab_size:,} pieces")
        console.print(
            f"settings    {with_flags(found.origin)}; seed {config.seed}, "
            f"{counted(config.data.batch_size, 'row')} per batch"
        )
        console.print(f"picture     {found.picture}")
        for part in describe(found.view):
            console.print(part)
    with printing_until_unread(), printing_colors():
        print("\n".join(line.rstrip() for line in printed.get().splitlines()))


def _find(folder: epath.Path) -> tuple[Corpus, Config | None]:
    """Return the corpus in a folder, with the settings of the run whose workdir it is."""
    run, corpus = None, folder
    if not (folder / MANIFEST_FILE).is_file() and (folder / CONFIG).is_file():
        run = from_dict(Config, read_versioned(folder / CONFIG, "run"))
        # A corpus that was prepared separately is in another folder.
        corpus = next((epath.Path(name) for name in run.corpus if is_corpus(name)), folder / "corpus")
    if not (corpus / MANIFEST_FILE).is_file():
        raise InputError(
            f"corpus {folder} is neither a prepared corpus nor the workdir of a run: there is no "
            f"{corpus / MANIFEST_FILE}; give a folder that python -m data_pipelines.prepare wrote, or runs/..."
        )
    return Corpus(corpus), run


def _tokenizer(settings: InspectSettings, corpus: Corpus) -> Tokenizer:
    beside = (epath.Path(folder) / "tokenizer" for folder in (corpus.folder, settings.corpus))
    path = settings.tokenizer or next((path for path in beside if path.is_dir()), None)
    if path is None:
        raise InputError(f"corpus {corpus.folder} has no tokenizer: give the one it was made with as `tokenizer`")
    tokenizer = Tokenizer.load(path)
    corpus.require(tokenizer, str(path))
    return tokenizer


def _config(asked: InspectSettings, corpus: Corpus, run: Config | None) -> tuple[Config, str]:
    """Return the settings, and where they come from."""
    config, origin = _start(asked, corpus.block_len, run)
    if asked.objective and asked.objective != config.objective:
        config = with_objective(config, asked.objective)
        origin += f", as {asked.objective}"
    settings = Resolution(config).give(asked, InspectSettings(asked.corpus), "data")
    if (seq_len := settings.config.data.seq_len) != config.data.seq_len:
        settings.choose(_lengths(config, seq_len))
        origin += f", with windows of {seq_len} tokens"
    if settings.config.data != windows.resized(config.data, max(seq_len, 1)):
        origin += ", changed by `data`"
    # These blocks may be too short to fill the memory: use only what they fill.
    data, model = settings.config.data, settings.config.model
    fitting = max(windows.steps_per_block(corpus.block_len, data), 1)
    mem_len = min(model.mem_len, data.reuse_len * (fitting - 1)) if asked.mem_len is None else asked.mem_len
    settings.set({"data.windows_per_block": fitting, "model.mem_len": mem_len})
    settings.set({"seed": config.seed if asked.seed is None else asked.seed})
    validate(settings.config)
    return settings.final(), origin


def _start(asked: InspectSettings, block_len: int, run: Config | None) -> tuple[Config, str]:
    """Return the settings of the given preset, of the run, or of a preset that fits the blocks."""
    if asked.preset is not None:
        if asked.preset not in PRESETS:
            raise InputError("preset", asked.preset, f"must be one of {', '.join(PRESETS)}")
        return PRESETS[asked.preset](), f"of the preset {asked.preset}"
    if run:
        return run, f"of the run {asked.corpus}"
    for name in ("demo", "small", "base"):
        if windows.block_len((config := PRESETS[name]()).data) == block_len:
            return config, f"of the preset {name}, whose blocks have this length"
    # A block of twice as many tokens holds three windows.
    fitting = [seq_len for seq_len in (512, 256, 128, 64, 32) if 2 * seq_len <= block_len]
    settings = Resolution(PRESETS["demo"]())
    seq_len = fitting[0] if fitting else 16
    settings.set({"data.seq_len": seq_len} | _lengths(settings.config, seq_len))
    return settings.final(), "fitted to the length of the blocks"


def _lengths(config: Config, seq_len: int) -> dict[str, Any]:
    """Return the lengths inside windows of another length, and that of the memory, in the paper's proportions."""
    mem_len = config.model.mem_len * max(seq_len, 1) // config.data.seq_len
    return {**lengths_of(windows.resized(config.data, max(seq_len, 1))), "model.mem_len": mem_len}
