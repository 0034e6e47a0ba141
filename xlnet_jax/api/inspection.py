"""One window of a corpus, as text and as a picture of which rows see which keys."""

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
from xlnet_jax.errors import InputError, flags_for
from xlnet_jax.objectives.presets import PRESETS, with_objective
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.objectives.rules import validate
from xlnet_jax.printing import Console, printing_colours, printing_until_unread
from xlnet_jax.settings.config import Config, DataConfig
from xlnet_jax.settings.fields import Given, give, given_in
from xlnet_jax.settings.keywords import with_plain_paths
from xlnet_jax.settings.plain import from_dict
from xlnet_jax.storage.files import demand_new_file
from xlnet_jax.storage.reading import read_versioned

if TYPE_CHECKING:
    from data_pipelines.inspect.window_view import WindowView

MAX_STEP = 2**31
COLUMNS = 120
"""width of what is printed where there is no terminal"""


@dataclass(frozen=True)
class InspectSettings:
    """Print a window of a batch, and draw which rows see which keys in it."""

    corpus: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")]
    """a prepared corpus, or the workdir of a run, whose settings are then used"""
    step: int = 0
    """number of the batch"""
    row: int = 0
    """row of the batch"""
    split: SplitName = "train"
    """part of the corpus"""
    seed: int | None = None
    """seed of the batches; None = the run's, or 0"""
    preset: str | None = None
    """settings of the window; None = the run's, or those that fit the blocks of the corpus"""
    objective: str | None = None
    """objective of the batches, by its name; None = the run's, or the preset's"""
    mem_len: int | None = None
    """positions of memory, as model.mem-len in training; None = as the other settings"""
    tokenizer: str | None = None
    """tokenizer that the corpus was made with; None = the one beside it"""
    around: int | None = None
    """position of the window that the picture enlarges; None = the end of the reused part"""
    out: str = "window.png"
    """file for the picture"""
    data: DataConfig = field(default_factory=DataConfig)
    """windows; where --data.seq-len is given alone, the lengths inside the window follow it"""
    given: Given = field(default=frozenset(), compare=False, repr=False)


@dataclass(frozen=True)
class Inspection:
    """A window of a corpus, and where it comes from."""

    view: WindowView
    corpus: Corpus
    config: Config
    origin: str  # of the settings
    pieces: int  # of the vocabulary
    picture: Path


@dataclass(frozen=True)
class _Place:
    """A prepared corpus, alone or in the workdir of a run."""

    folder: epath.Path
    corpus: Corpus
    tokenizer: epath.PathLike
    run: Config | None


def inspect_window(settings: InspectSettings) -> Inspection:
    """Draw the picture of a window, and return what the command prints about it.

    Settings of `data` that are given, or that differ from their defaults, change the windows of the run, or those that
    fit the corpus. Raises InputError for settings that cannot work.
    """
    settings = with_plain_paths(settings)
    out = _picture_path(settings.out)
    place = _find(epath.Path(settings.corpus), settings.tokenizer)
    tokenizer = _tokenizer(place)
    config, origin = _config(settings, place)
    _check_place(settings, config)
    from data_pipelines.batches import BatchSource
    from data_pipelines.inspect.window_view import view_window
    from xlnet_jax.plots.window import Window, draw_window

    source = BatchSource(
        place.corpus, settings.split, tokenizer.is_word_start, config.data, config.model.mem_len, config.seed,
        objective_named(config.objective).filling, config.eval.max_windows,
    )  # fmt: skip
    view = view_window(source, tokenizer, settings.step, settings.row)
    direction = "read backwards" if view.is_reversed else "read forwards"
    rows = f"step {settings.step}, row {settings.row}, {direction}"
    title = f"{place.corpus.folder}, {settings.split}, seed {config.seed}, {rows}"
    around = view.reuse_len if settings.around is None else settings.around
    draw_window(Window(**view.for_picture()), title, around, out)
    return Inspection(view, place.corpus, config, origin, tokenizer.vocab_size, out)


def print_window(settings: InspectSettings) -> None:
    """Draw the picture of a window, and print the window. Raises InputError as `inspect_window` does."""
    found = inspect_window(settings)
    from data_pipelines.inspect.window_text import describe

    corpus, config = found.corpus, found.config
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else COLUMNS)
    blocks = f"{corpus.num_blocks(settings.split):,} blocks of {corpus.block_len:,} tokens"
    with console.capture() as printed:
        console.print(f"corpus      {corpus.folder}: {settings.split}, {blocks}; {found.pieces:,} pieces")
        console.print(
            f"settings    {flags_for(found.origin)}; seed {config.seed}, {config.data.batch_size:,} rows a batch"
        )
        console.print(f"picture     {found.picture}")
        for part in describe(found.view):
            console.print(part)
    with printing_until_unread(), printing_colours():
        print("\n".join(line.rstrip() for line in printed.get().splitlines()))


def _find(folder: epath.Path, tokenizer: str | None) -> _Place:
    run, corpus = None, folder
    if not (folder / MANIFEST_FILE).is_file() and (folder / "config.json").is_file():
        corpus = folder / "corpus"
        try:
            run = from_dict(Config, read_versioned(folder / "config.json", "run"))
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{folder / 'config.json'} is not the settings of a run: {error}") from None
        # A corpus that was prepared before the run lies elsewhere.
        corpus = next((epath.Path(name) for name in run.corpus if is_corpus(name)), corpus)
    if not (corpus / MANIFEST_FILE).is_file():
        raise InputError(
            f"corpus {folder}: neither a prepared corpus nor the workdir of a run: there is no "
            f"{corpus / MANIFEST_FILE}; give what python -m data_pipelines.prepare wrote, or runs/..."
        )
    beside = (corpus / "tokenizer", folder / "tokenizer")
    found = tokenizer or next((path for path in beside if path.is_dir()), None)
    if found is None:
        raise InputError(f"corpus {corpus}: there is no tokenizer in it; name the one it was made with by `tokenizer`")
    return _Place(folder, Corpus(corpus), found, run)


def _tokenizer(place: _Place) -> Tokenizer:
    tokenizer = Tokenizer.load(place.tokenizer)
    if tokenizer.sha256 != place.corpus.manifest.made_from["tokenizer"]:
        raise InputError(
            f"tokenizer {place.tokenizer}: corpus {place.corpus.folder} was made with another; give that one by "
            "`tokenizer`"
        )
    return tokenizer


def _config(settings: InspectSettings, place: _Place) -> tuple[Config, str]:
    """Return the settings, and where they come from."""
    base, origin = _base(settings.preset, settings.objective, place)
    given = given_in(settings, InspectSettings(settings.corpus))
    data = give(base.data, settings.data, given, "data.")
    if data.seq_len != base.data.seq_len:
        base = _resized(base, max(data.seq_len, 1), place.corpus.block_len)
        origin += f", with windows of {data.seq_len} tokens"
        data = give(base.data, settings.data, given, "data.")
    if data != base.data:
        origin += ", changed by `data`"
    config = replace(
        base,
        data=data,
        seed=base.seed if settings.seed is None else settings.seed,
        model=replace(base.model, mem_len=base.model.mem_len if settings.mem_len is None else settings.mem_len),
    )
    validate(config)
    return config, origin


def _base(preset: str | None, objective: str | None, place: _Place) -> tuple[Config, str]:
    def starting(name: str) -> Config:
        config = PRESETS[name]()
        return with_objective(config, objective or config.objective)

    block_len = place.corpus.block_len
    if preset is not None:
        if preset not in PRESETS:
            raise InputError(f"`preset` {preset}: there is {', '.join(PRESETS)}")
        return starting(preset), f"of the preset {preset}"
    if place.run:
        origin = f"of the run {place.folder}"
        if objective in (None, place.run.objective):
            return place.run, origin
        return _with_blocks(with_objective(place.run, objective), block_len), f"{origin}, as {objective}"
    for name in ("demo", "small", "base"):
        if windows.block_len(PRESETS[name]().data) == block_len:
            return _with_blocks(starting(name), block_len), f"of the preset {name}, whose blocks are as long"
    fitted = (_resized(starting("demo"), n, block_len) for n in (512, 256, 128, 64, 32))
    config = next((c for c in fitted if c.data.windows_per_block > 1), None)
    return config or _resized(starting("demo"), 16, block_len), "fitted to the length of the blocks"


def _resized(config: Config, seq_len: int, block_len: int) -> Config:
    """Return the settings for windows of another length, in the paper's proportions."""
    mem_len = config.model.mem_len * seq_len // config.data.seq_len
    config = replace(config, data=windows.resized(config.data, seq_len), model=replace(config.model, mem_len=mem_len))
    return _with_blocks(config, block_len)


def _with_blocks(config: Config, block_len: int) -> Config:
    """Return the settings with as many windows as these blocks hold, and memory that they can fill."""
    fitting = max(windows.steps_per_block(block_len, config.data), 1)
    mem_len = min(config.model.mem_len, config.data.reuse_len * (fitting - 1))
    data = replace(config.data, windows_per_block=fitting)
    return replace(config, data=data, model=replace(config.model, mem_len=mem_len))


def _check_place(settings: InspectSettings, config: Config) -> None:
    if not 0 <= settings.step < MAX_STEP:
        raise InputError(f"step {settings.step} must be in [0, 2^31)")
    if not 0 <= settings.row < config.data.batch_size:
        raise InputError(
            f"row {settings.row}: a batch has the rows 0 to {config.data.batch_size - 1}; `data.batch_size` gives more"
        )
    if settings.around is not None and not 0 <= settings.around < config.data.seq_len:
        raise InputError(f"around {settings.around}: a window has the positions 0 to {config.data.seq_len - 1}")


def _picture_path(name: str) -> Path:
    path = Path(name)
    if path.suffix.lower() != ".png":
        raise InputError(f"out {name}: the picture is a PNG; give a name that ends in .png")
    demand_new_file(path, overwrite=True)
    return path
