"""Show one window of a corpus, as text and as a picture of which tokens each row of the network may see."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from etils import epath

from data_pipelines import windows
from data_pipelines.corpus import MANIFEST_FILE, Corpus, SplitName, is_corpus
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError, with_flags
from xlnet_jax.objectives.presets import PRESETS, with_objective
from xlnet_jax.objectives.registry import batch_source, validate
from xlnet_jax.printing import Console, printing_colors, printing_until_unread
from xlnet_jax.settings.config import Config, DataConfig
from xlnet_jax.settings.fields import (
    Given,
    at_least,
    check_bounds,
    from_dict,
    give,
    given_in,
    setting,
    with_plain_paths,
)
from xlnet_jax.storage.outputs import new_file
from xlnet_jax.storage.reading import read_versioned

if TYPE_CHECKING:
    from data_pipelines.inspect import WindowView

CONFIG = "config.json"
COLUMNS = 120
"""width of the output where there is no terminal"""


@dataclass(frozen=True)
class InspectSettings:
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
    given: Given = field(default=frozenset(), compare=False, repr=False)


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
    from data_pipelines.inspect import view_window
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
    from data_pipelines.inspect import describe

    corpus, config = found.corpus, found.config
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else COLUMNS)
    blocks = f"{corpus.num_blocks(settings.split):,} blocks of {corpus.block_len:,} tokens"
    with console.capture() as printed:
        console.print(f"corpus      {corpus.folder}: {settings.split}, {blocks}; {corpus.manifest.vocab_size:,} pieces")
        console.print(
            f"settings    {with_flags(found.origin)}; seed {config.seed}, {config.data.batch_size:,} rows a batch"
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
    corpus.demand(tokenizer, str(path))
    return tokenizer


def _config(settings: InspectSettings, corpus: Corpus, run: Config | None) -> tuple[Config, str]:
    """Return the settings, and where they come from."""
    config, origin = _start(settings, corpus.block_len, run)
    if settings.objective and settings.objective != config.objective:
        config = with_objective(config, settings.objective)
        origin += f", as {settings.objective}"
    given = given_in(settings, InspectSettings(settings.corpus))
    data = give(config.data, settings.data, given, "data.")
    if data.seq_len != config.data.seq_len:
        config = _resize(config, max(data.seq_len, 1))
        origin += f", with windows of {data.seq_len} tokens"
        data = give(config.data, settings.data, given, "data.")
    if data != config.data:
        origin += ", changed by `data`"
    # These blocks may be too short to fill the memory: use only what they fill.
    fitting = max(windows.steps_per_block(corpus.block_len, data), 1)
    mem_len = min(config.model.mem_len, data.reuse_len * (fitting - 1))
    config = replace(
        config,
        data=replace(data, windows_per_block=fitting),
        seed=config.seed if settings.seed is None else settings.seed,
        model=replace(config.model, mem_len=mem_len if settings.mem_len is None else settings.mem_len),
    )
    validate(config)
    return config, origin


def _start(settings: InspectSettings, block_len: int, run: Config | None) -> tuple[Config, str]:
    """Return the settings of the given preset, of the run, or of a preset that fits the blocks."""
    if settings.preset is not None:
        if settings.preset not in PRESETS:
            raise InputError("preset", settings.preset, f"must be one of {', '.join(PRESETS)}")
        return PRESETS[settings.preset](), f"of the preset {settings.preset}"
    if run:
        return run, f"of the run {settings.corpus}"
    for name in ("demo", "small", "base"):
        if windows.block_len((config := PRESETS[name]()).data) == block_len:
            return config, f"of the preset {name}, whose blocks have this length"
    # A block of twice as many tokens holds three windows.
    fitting = [seq_len for seq_len in (512, 256, 128, 64, 32) if 2 * seq_len <= block_len]
    return _resize(PRESETS["demo"](), fitting[0] if fitting else 16), "fitted to the length of the blocks"


def _resize(config: Config, seq_len: int) -> Config:
    """Return the settings for windows of another length, in the paper's proportions."""
    mem_len = config.model.mem_len * seq_len // config.data.seq_len
    return replace(config, data=windows.resized(config.data, seq_len), model=replace(config.model, mem_len=mem_len))
