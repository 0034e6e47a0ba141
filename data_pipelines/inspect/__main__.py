"""python -m data_pipelines.inspect: one window of a corpus, as text and as a picture of who sees whom."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from data_pipelines import windows
from data_pipelines.corpus import MANIFEST_FILE, Corpus, SplitName, is_corpus
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.api import command
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import PRESETS, with_objective
from xlnet_jax.objectives.registry import objective_named
from xlnet_jax.objectives.rules import validate
from xlnet_jax.settings import cli
from xlnet_jax.settings.config import Config, DataConfig
from xlnet_jax.settings.plain import from_dict

PROG = "python -m data_pipelines.inspect"
MAX_STEP = 2**31
COLUMNS = 120


@dataclass(frozen=True)
class Inspect:
    """Prints a window of a batch, and draws who sees whom in it."""

    corpus: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")]
    """a prepared corpus, or the workdir of a run, whose settings are then taken"""
    step: int = 0
    """which batch"""
    row: int = 0
    """which row of the batch"""
    split: SplitName = "train"
    """which text"""
    seed: int | None = None
    """seed of the batches; None = the run's, or 0"""
    preset: str | None = None
    """settings of the window; None = the run's, or such as fit the blocks of the corpus"""
    objective: str | None = None
    """objective of the batches, by its name; None = the run's, or the preset's"""
    mem_len: int | None = None
    """as model.mem-len of the training; None = as the other settings"""
    tokenizer: str | None = None
    """the tokenizer that the corpus was made with; None = the one beside it"""
    around: int | None = None
    """a position of the window that the picture enlarges; None = the end of the reused part"""
    out: str = "window.png"
    """the picture"""
    data: DataConfig = field(default_factory=DataConfig)
    """windows; where --data.seq-len is given alone, the lengths inside the window follow it"""


@dataclass(frozen=True)
class Place:
    """What CORPUS names."""

    folder: Path
    corpus: Corpus
    tokenizer: Path
    run: Config | None


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Prints the window, writes the picture; returns the exit code."""
    options = cli.parse(Inspect, argv, PROG, __doc__ or "")
    out = _picture_path(options.out)
    place = _find(Path(options.corpus), options.tokenizer)
    tokenizer = _tokenizer(place)
    config, origin, options = _settings(options, argv, place)
    _check_place(options, config)

    from rich.console import Console

    from data_pipelines.batches import BatchSource
    from data_pipelines.inspect.window_picture import draw_window
    from data_pipelines.inspect.window_text import describe
    from data_pipelines.inspect.window_view import view_window

    source = BatchSource(
        place.corpus, options.split, tokenizer.is_word_start, config.data, config.model.mem_len, config.seed,
        objective_named(config.objective).filling,
    )  # fmt: skip
    view = view_window(source, tokenizer, options.step, options.row)
    title = f"{place.corpus.folder}, {options.split}, seed {config.seed}"
    draw_window(view, title, view.reuse_len if options.around is None else options.around, out)

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else COLUMNS)
    blocks = f"{place.corpus.num_blocks(options.split):,} blocks of {place.corpus.block_len:,} tokens"
    with console.capture() as printed:
        console.print(f"corpus      {place.corpus.folder}: {options.split}, {blocks}; {tokenizer.vocab_size:,} pieces")
        console.print(f"settings    {origin}; seed {config.seed}, {config.data.batch_size:,} rows a batch")
        console.print(f"picture     {out}")
        for part in describe(view):
            console.print(part)
    with command.printing():
        print("\n".join(line.rstrip() for line in printed.get().splitlines()))
    return 0


def _find(folder: Path, tokenizer: str | None) -> Place:
    run, corpus = None, folder
    if not (folder / MANIFEST_FILE).is_file() and (folder / "config.json").is_file():
        corpus = folder / "corpus"
        try:
            run = from_dict(Config, json.loads((folder / "config.json").read_text()))
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{folder / 'config.json'} is not the settings of a run: {error}") from None
        # One that was prepared before stands elsewhere.
        corpus = next((Path(name) for name in run.corpus if is_corpus(name)), corpus)
    if not (corpus / MANIFEST_FILE).is_file():
        raise InputError(
            f"corpus {folder}: neither a prepared corpus nor the workdir of a run: there is no "
            f"{corpus / MANIFEST_FILE}; give what python -m data_pipelines.prepare wrote, or runs/..."
        )
    beside = (corpus / "tokenizer", folder / "tokenizer")
    found = Path(tokenizer) if tokenizer else next((path for path in beside if path.is_dir()), None)
    if found is None:
        raise InputError(f"corpus {corpus}: there is no tokenizer in it; name the one it was made with by --tokenizer")
    return Place(folder, Corpus(corpus), found, run)


def _tokenizer(place: Place) -> Tokenizer:
    tokenizer = Tokenizer.load(place.tokenizer)
    if tokenizer.sha256 != place.corpus.manifest.made_from["tokenizer"]:
        raise InputError(
            f"tokenizer {place.tokenizer}: corpus {place.corpus.folder} was made with another; give that one by "
            "--tokenizer"
        )
    return tokenizer


def _settings(options: Inspect, argv: Sequence[str], place: Place) -> tuple[Config, str, Inspect]:
    """The settings, where they are from, and the command line read once more with them as its defaults."""

    def read(base: Config) -> Inspect:
        return cli.parse(Inspect, argv, PROG, __doc__ or "", replace(options, data=base.data))

    base, origin = _base(options.preset, options.objective, place)
    given = read(base)
    if (seq_len := given.data.seq_len) != base.data.seq_len:
        base = _resized(base, max(seq_len, 1), place.corpus.block_len)
        origin += f", with windows of {seq_len} tokens"
        given = read(base)
    if given.data != base.data:
        origin += ", changed by --data"
    config = replace(
        base,
        data=given.data,
        seed=base.seed if options.seed is None else options.seed,
        model=replace(base.model, mem_len=base.model.mem_len if options.mem_len is None else options.mem_len),
    )
    validate(config)
    return config, origin, given


def _base(preset: str | None, objective: str | None, place: Place) -> tuple[Config, str]:
    def starting(name: str) -> Config:
        config = PRESETS[name]()
        return with_objective(config, objective or config.objective)

    block_len = place.corpus.block_len
    if preset is not None:
        if preset not in PRESETS:
            raise InputError(f"--preset {preset}: there is {', '.join(PRESETS)}")
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
    """The same for windows of another length, in the paper's proportions."""
    mem_len = config.model.mem_len * seq_len // config.data.seq_len
    config = replace(config, data=windows.resized(config.data, seq_len), model=replace(config.model, mem_len=mem_len))
    return _with_blocks(config, block_len)


def _with_blocks(config: Config, block_len: int) -> Config:
    """The same with as many windows as these blocks hold, and memory that they can fill."""
    fitting = max(windows.steps_per_block(block_len, config.data), 1)
    mem_len = min(config.model.mem_len, config.data.reuse_len * (fitting - 1))
    data = replace(config.data, windows_per_block=fitting)
    return replace(config, data=data, model=replace(config.model, mem_len=mem_len))


def _check_place(options: Inspect, config: Config) -> None:
    if not 0 <= options.step < MAX_STEP:
        raise InputError(f"step {options.step} must be in [0, 2^31)")
    if not 0 <= options.row < config.data.batch_size:
        raise InputError(
            f"row {options.row}: a batch has the rows 0 to {config.data.batch_size - 1}; --data.batch-size gives more"
        )
    if options.around is not None and not 0 <= options.around < config.data.seq_len:
        raise InputError(f"around {options.around}: a window has the positions 0 to {config.data.seq_len - 1}")


def _picture_path(name: str) -> Path:
    path = Path(name)
    if path.suffix.lower() != ".png":
        raise InputError(f"out {name}: the picture is a PNG; give a name that ends in .png")
    if path.is_dir():
        raise InputError(f"out {name} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise InputError(f"out {name}: there is no folder {path.parent}; make it, or give another name")
    return path


if __name__ == "__main__":
    command.run(main)
