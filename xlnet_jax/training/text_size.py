"""Choose settings from the size of the text, unless the user gave them.

With every preset a small text gets a smaller vocabulary. With the demo preset, if its sizes would give too few blocks,
it also gets shorter blocks and windows, smaller batches, a larger held-out share and fewer steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from data_pipelines import sources, windows
from data_pipelines.sources import Source
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import LENGTHS, defaults_of, following
from xlnet_jax.settings.config import Config, DataConfig
from xlnet_jax.settings.fields import differences, given_in, with_values

PIECES_PER_ROOT = 3.5
"""Pieces of a vocabulary = this x the square root of the characters: 32,000 pieces from 84 million characters on."""
BESIDE_CHARACTERS = 100
"""Least number of pieces besides the text's single characters, the special symbols included"""
CHARACTERS_PER_TOKEN = {"piece": 4, "word": 6, "character": 1, "byte": 1}
"""A cautious estimate, by token level: English has 4 characters per piece with 4,000 pieces, and fewer with less"""
EPOCHS = 30
"""Passes over a small text: 300 lines of a novel have their lowest held-out loss after about as many"""
LEAST_BLOCKS, LEAST_STEPS, MOST_HELD_OUT = 4, 100, 0.2
WINDOWS = ("model.mem-len", "data.seq-len", "data.windows-per-block", *(f"data.{n.replace('_', '-')}" for n in LENGTHS))
SHOWN = ("model.vocab-size", *WINDOWS[:3], "data.batch-size", "data.validation-fraction", "steps")


@dataclass(frozen=True)
class TextSize:
    """Size of a text, up to a number of characters."""

    train: tuple[int, ...]
    """characters of each source"""
    validation: tuple[int, ...]
    """characters of each held-out source; () = a part of the training text is held out"""
    alphabet: int
    """number of different characters"""

    @classmethod
    def of(cls, train: Sequence[Source], validation: Sequence[Source] | None, most: int) -> "TextSize":
        """Count a text. most: number of characters after which a source is large, and is read no further."""
        alphabet: set[str] = set()

        def count(source: Source) -> int:
            number = 0
            for line in sources.read_lines([source]):
                number += len(line)
                alphabet.update(line)
                if number >= most:
                    break
            return number

        return cls(tuple(map(count, train)), tuple(map(count, validation or ())), len(alphabet))

    @property
    def characters(self) -> int:
        return sum(self.train)


def enough_characters(config: Config) -> int:
    """Return the number of characters from which on a text keeps these settings."""
    a_block = windows.block_len(config.data) * CHARACTERS_PER_TOKEN[config.data.token_level]
    return max(math.ceil((config.model.vocab_size / PIECES_PER_ROOT) ** 2), 2 * config.data.batch_size * a_block)


def leaves_vocabulary_open(config: Config) -> bool:
    """Return True if neither a setting nor weights nor a tokenizer determine the size of the vocabulary."""
    is_given = config.tokenizer or config.init or "model.vocab-size" in given_in(config, defaults_of(config))
    return config.data.token_level == "piece" and not is_given


def suit(config: Config, size: TextSize) -> Config:
    """Return the settings with those that nobody gave as the size of the text suggests.

    Raises InputError if the text is too small for the smallest windows of the demo preset.
    """
    usual = defaults_of(config)
    given = given_in(config, usual)
    if leaves_vocabulary_open(config):
        pieces = max(
            10 * math.ceil(PIECES_PER_ROOT * math.sqrt(size.characters) / 10), size.alphabet + BESIDE_CHARACTERS
        )
        config = with_values(config, {"model.vocab_size": min(pieces, config.model.vocab_size)})
    if config.preset == "demo":
        config = _suit_demo(config, usual, size, given)
    return config


def _suit_demo(config: Config, usual: Config, size: TextSize, given: frozenset[str]) -> Config:
    per_token = CHARACTERS_PER_TOKEN[config.data.token_level]

    def blocks(data: DataConfig) -> list[int]:
        """Number of blocks in each source, before a part is held out."""
        length = windows.block_len(data) * per_token
        return [*(n // length for n in size.train), *(2 * n // length for n in size.validation)]

    def is_enough(config: Config) -> bool:
        found = blocks(config.data)
        return min(found) >= 2 and sum(found[: len(size.train)]) >= 2 * config.data.batch_size

    smaller: list[Callable[[Config], Config]] = []
    if given.isdisjoint(WINDOWS):
        smaller += [lambda c: with_values(c, {"data.windows_per_block": 8})]
        smaller += [lambda c: with_values(c, {"data.windows_per_block": 4})]
    if "data.batch-size" not in given:
        smaller += [lambda c: with_values(c, {"data.batch_size": 8})]
    if given.isdisjoint(WINDOWS):
        smaller += [lambda c: with_values(c, {"data.windows_per_block": 2})]
        smaller += [lambda c: _with_windows(c, usual, 64), lambda c: _with_windows(c, usual, 32)]
    if "data.batch-size" not in given:  # a batch has no more rows than there are blocks
        smaller += [lambda c: with_values(c, {"data.batch_size": 4}), lambda c: with_values(c, {"data.batch_size": 2})]
    suited = config
    for change in smaller:
        if not is_enough(suited):
            suited = change(suited)
    found = sum(blocks(suited.data)[: len(size.train)])
    if given.isdisjoint(WINDOWS) and (min(blocks(suited.data)) < 2 or found < LEAST_BLOCKS):
        least = 100 * math.ceil(LEAST_BLOCKS * windows.block_len(suited.data) * per_token / 100)
        raise InputError(
            f"the text has {size.characters:,} characters, too few to train on and to hold a part out: give about "
            f"{least:,} or more; python -m xlnet_jax.train trains on the novels that come with the package"
        )
    if suited == config:
        return config
    changed: dict[str, Any] = {}
    if not size.validation and "data.validation-fraction" not in given:
        share = min(max(LEAST_BLOCKS / found, config.data.validation_fraction), MOST_HELD_OUT)
        changed["data.validation_fraction"] = round(share, 2)
    if "steps" not in given:
        a_step = suited.data.batch_size * windows.advance(suited.data) * per_token
        steps = min(max(10 * round(EPOCHS * size.characters / a_step / 10), LEAST_STEPS), config.steps)
        follow = {
            "optimizer.warmup_steps": steps // 10,
            "eval.every_steps": steps // 4,
            "checkpoint.every_steps": steps // 4,
            "log.every_steps": steps // 50 or 1,
        }
        changed |= {"steps": steps}
        changed |= {name: value for name, value in follow.items() if name.replace("_", "-") not in given}
    return with_values(suited, changed)


def _with_windows(config: Config, usual: Config, seq_len: int) -> Config:
    """Return the settings for shorter windows, with memory in proportion."""
    mem_len = usual.model.mem_len * seq_len // usual.data.seq_len
    return following(with_values(config, {"data.seq_len": seq_len, "model.mem_len": mem_len}), usual, ())


def describe(suited: Config, config: Config, size: TextSize) -> str:
    """Return the settings that were chosen, as flags, in one line; "" for none."""
    names = {setting.name: setting.value for setting, _ in differences(suited, config)}
    flags = " ".join(f"--{name} {names[name]}" for name in SHOWN if name in names)
    return f"chosen      {flags}, as the text has {size.characters:,} characters" if flags else ""
