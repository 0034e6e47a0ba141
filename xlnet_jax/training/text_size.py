"""Choose settings from the size of the text, unless the user gave them.

With every preset a small text gets a smaller vocabulary. With the demo preset, if its sizes would give too few blocks,
it also gets shorter blocks and windows, smaller batches, a larger held-out share and fewer steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from data_pipelines import sources, windows
from data_pipelines.records import RecordFormat
from data_pipelines.sources import Source
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import LENGTHS, lengths_of_window
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.resolution import Resolution, Values

PIECES_PER_ROOT = 3.5
"""Pieces of a vocabulary = this x the square root of the characters: 32,000 pieces from 84 million characters on."""
BESIDE_CHARACTERS = 100
"""Least number of pieces besides the text's single characters, the special symbols included"""
CHARACTERS_PER_TOKEN = {"piece": 4, "word": 6, "character": 1, "byte": 1}
"""A cautious estimate, by token level: English has 4 characters per piece with 4,000 pieces, and fewer with less"""
EPOCHS = 30
"""Passes over a small text: 300 lines of a novel have their lowest held-out loss after about as many"""
FRAME = 2
"""Special tokens of a record: <s> and <eod>"""
LEAST_BLOCKS, LEAST_STEPS, MOST_HELD_OUT = 4, 100, 0.2
SIZES = (
    (16, 128, 16),
    (8, 128, 16),
    (4, 128, 16),
    (4, 128, 8),
    (2, 128, 8),
    (2, 64, 8),
    (2, 32, 8),
    (2, 32, 4),
    (2, 32, 2),
)
"""data.windows-per-block, data.seq-len and data.batch-size of the demo preset, for smaller and smaller texts"""
WINDOWS = ("model.mem_len", "data.seq_len", "data.windows_per_block", *(f"data.{name}" for name in LENGTHS))
"""Settings of the windows: if the user gives one of them, the others stay too"""


@dataclass(frozen=True)
class TextSize:
    """Size of a text, up to a number of characters; of records, of symbols with `<s>` and `<eod>`."""

    train: tuple[int, ...]
    """characters of each source"""
    validation: tuple[int, ...]
    """characters of each held-out source; () = a part of the training text is held out"""
    alphabet: int
    """number of different characters"""
    unit: str = "characters"

    @classmethod
    def of(
        cls,
        train: Sequence[Source],
        validation: Sequence[Source] | None,
        most: int,
        records: RecordFormat | None = None,
    ) -> "TextSize":
        """Count a text. most: number of characters after which a source is large, and is read no further. records: how
        to read it; None = prose."""
        alphabet: set[str] = set()

        def count(source: Source) -> int:
            number = 0
            for line in filter(None, sources.read_lines([source])):
                number += records.count_symbols(line) + FRAME if records else len(line)
                alphabet.update(line)
                if number >= most:
                    break
            return number

        sizes = tuple(map(count, train)), tuple(map(count, validation or ()))
        return cls(*sizes, len(alphabet), "symbols" if records else "characters")

    @property
    def characters(self) -> int:
        return sum(self.train)


def enough_characters(config: Config) -> int:
    """Return the number of characters from which on a text keeps these settings."""
    a_block = windows.block_len(config.data) * _characters_per_token(config)
    return max(math.ceil((config.model.vocab_size / PIECES_PER_ROOT) ** 2), 2 * config.data.batch_size * a_block)


def leaves_vocabulary_open(settings: Resolution[Config]) -> bool:
    """Return True if neither a setting nor weights nor a tokenizer determine the size of the vocabulary."""
    config = settings.config
    is_known = config.fields or config.tokenizer or config.init or not settings.is_open("model.vocab_size")
    return config.data.token_level == "piece" and not is_known


def choose_sizes(settings: Resolution[Config], size: TextSize) -> None:
    """Choose what the size of the text suggests.

    Raises InputError if the text is too small for the smallest windows of the demo preset.
    """
    why = f"the text has {size.characters:,} {size.unit}"
    if leaves_vocabulary_open(settings):
        settings.choose(vocabulary_for(size, settings.config.model.vocab_size), why)
    if settings.config.preset != "demo":
        return
    usual = settings.config
    fit_windows(settings, size, why)
    if settings.config != usual:
        settings.choose(held_out_share(size, settings.config), why)
        if steps := settings.choose(steps_for(size, settings.config), why):
            settings.choose(intervals_of(**steps))


def fit_windows(settings: Resolution[Config], size: TextSize, why: str = "") -> None:
    """Choose shorter blocks and windows and smaller batches if the text has too few blocks of those in the settings.

    Raises InputError if the text is too small for the smallest windows.
    """
    usual = settings.config
    settings.choose_first(
        (sizes_of_windows(usual, *row) for row in SIZES),
        lambda config: _is_enough(config, size),
        why,
        follow=lambda config: lengths_of_window(usual, config.data.seq_len),
        together=WINDOWS,
    )
    require_enough(settings.config, size)


def vocabulary_for(size: TextSize, most: int) -> Values:
    """Return the number of pieces for a text: room for each of its characters, and at most `most`."""
    pieces = 10 * math.ceil(PIECES_PER_ROOT * math.sqrt(size.characters) / 10)
    return {"model.vocab_size": min(max(pieces, size.alphabet + BESIDE_CHARACTERS), most)}


def sizes_of_windows(usual: Config, windows_per_block: int, seq_len: int, batch_size: int) -> Values:
    """Return the settings of a row of `SIZES`, with memory in proportion to the windows."""
    return {
        "model.mem_len": usual.model.mem_len * seq_len // usual.data.seq_len,
        "data.seq_len": seq_len,
        "data.windows_per_block": min(windows_per_block, usual.data.windows_per_block),
        "data.batch_size": batch_size if batch_size < SIZES[0][2] else usual.data.batch_size,
    }


def _characters_per_token(config: Config) -> int:
    return 1 if config.fields else CHARACTERS_PER_TOKEN[config.data.token_level]


def _blocks(config: Config, size: TextSize) -> tuple[list[int], list[int]]:
    """Return the number of blocks in each source to train on, before a part is held out, and in each held-out one."""
    length = windows.block_len(config.data) * _characters_per_token(config)
    return [number // length for number in size.train], [2 * number // length for number in size.validation]


def _is_enough(config: Config, size: TextSize) -> bool:
    """Return True if the text has enough blocks, of each source and for the batches."""
    train, held_out = _blocks(config, size)
    return min(train + held_out) >= 2 and sum(train) >= max(2 * config.data.batch_size, LEAST_BLOCKS)


def require_enough(config: Config, size: TextSize) -> None:
    """Raise InputError if the text has too few blocks of the smallest windows."""
    train, held_out = _blocks(config, size)
    is_smallest = (config.data.windows_per_block, config.data.seq_len) == SIZES[-1][:2]
    if is_smallest and (min(train + held_out) < 2 or sum(train) < LEAST_BLOCKS):
        a_block = windows.block_len(config.data) * _characters_per_token(config)
        raise InputError(
            f"the text has {size.characters:,} {size.unit}, too few to train on and to hold a part out: give about "
            f"{100 * math.ceil(LEAST_BLOCKS * a_block / 100):,} or more; python -m xlnet_jax.train trains on the "
            "novels that come with the package"
        )


def held_out_share(size: TextSize, config: Config) -> Values:
    """Return the share to hold out of a small text, of which a few blocks must be held out."""
    if size.validation:
        return {}
    share = max(LEAST_BLOCKS / max(sum(_blocks(config, size)[0]), 1), config.data.validation_fraction)
    return {"data.validation_fraction": round(min(share, MOST_HELD_OUT), 2)}


def steps_for(size: TextSize, config: Config) -> Values:
    """Return the number of steps that read a small text `EPOCHS` times."""
    a_step = config.data.batch_size * windows.advance(config.data) * _characters_per_token(config)
    return {"steps": min(max(10 * round(EPOCHS * size.characters / a_step / 10), LEAST_STEPS), config.steps)}


def intervals_of(steps: int) -> Values:
    """Return the settings that count steps, for a run of so many."""
    return {
        "optimizer.warmup_steps": steps // 10,
        "eval.every_steps": steps // 4,
        "checkpoint.every_steps": steps // 4,
        "log.every_steps": steps // 50 or 1,
    }
