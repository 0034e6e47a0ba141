"""Choose a run from the time, or the FLOPs, that it may take: network, vocabulary, batch and steps.

The law (`dial_law.py`) predicts the held-out loss of every network and vocabulary that the budget pays for, and the
best one is taken. Before the text is read, one step of a small network is timed to measure the speed of this machine.
Once tokenizer and corpus exist, a step of the chosen network is timed to set the number of steps. If steps then take
longer or shorter than measured, `Pace` changes their number while the run trains, from a checkpoint, as `train --steps`
of a resumed run does."""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from data_pipelines import windows
from data_pipelines.batches import BatchSource
from data_pipelines.corpus import Corpus
from xlnet_jax.costs import layer_parameters
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import defaults_of
from xlnet_jax.objectives.registry import step_flops
from xlnet_jax.settings.config import DIALS, Config
from xlnet_jax.settings.fields import differences, flatten, with_values
from xlnet_jax.settings.resolution import Resolution, Values
from xlnet_jax.storage.reading import read_versioned, write_versioned
from xlnet_jax.training import sharding, text_size
from xlnet_jax.training.attention import choose_attention
from xlnet_jax.training.dial_law import DialLaw, read_law, trigram_gain
from xlnet_jax.training.evaluation import held_out_batches, unigram_line
from xlnet_jax.training.loop import Callback, Loop
from xlnet_jax.training.metrics import clock
from xlnet_jax.training.selection import Numbers
from xlnet_jax.training.step import pretraining_program
from xlnet_jax.training.text_size import TextSize
from xlnet_jax.training.workdir import Workdir

NETWORKS = (
    (2, 64), (2, 96), (2, 128), (2, 160), (2, 192), (2, 256), (2, 320), (4, 384), (6, 448), (8, 512), (12, 768),
    (24, 1024),
)  # fmt: skip
"""layers and width. In short runs of narrow networks, more layers gained nothing (benchmarks/dial.py)"""
VOCABULARIES = (1_000, 2_000, 4_000, 8_000, 16_000)
PROBE = (2, 128, 2_000)
"""layers, width and vocabulary of the network that is measured before the choice"""
SEQ_LEN, D_HEAD, WINDOWS_PER_BLOCK = 128, 32, 8
ROWS_ON_CPU, ROWS_ON_ACCELERATOR, MOST_STEPS = 16, 128, 40_000
"""rows of a batch, which doubles until a run has at most so many steps"""
LEAST_STEPS = 200
MOST_PASSES, MOST_WEIGHTS = 20, 1
"""passes over the text, and weights in layers per token of it (but for the smallest network): more overfit it"""
PREPARATION = 1.5e-6
"""seconds that tokenizer and corpus take per character of the text, on two cores"""
MUON = 330
"""FLOPs of Muon's products in a layer of width 1 (`optimizer.muon_flops`); they grow with the cube of the width"""
MEASURED_SECONDS = 2.0
"""time to measure steps, after the first two"""
MOST_CHARACTERS = 400_000_000
"""a larger text is not counted further"""
AFTER_TRAINING = 5.0
"""seconds from the last evaluation to the end of the process, and before `Process.began`"""
EVALUATION = 0.4
"""share of the seconds of a step that a batch of an evaluation takes"""
EVALUATIONS, EVALUATED_WINDOWS = 4, 1_024
CHECKS, TOLERANCE, FEWEST_STEPS = (0.06, 0.3, 0.6, 0.8), 0.05, 5
"""shares of the steps after which a run compares its speed with the plan, the difference that changes the steps, and
the number of steps that are timed"""
HELD_OUT_CHARACTERS = 240_000
"""size of the held-out part, if that is from 5 to 10% of the text: a smaller one measures too coarsely"""
UNIT = {"minutes": 60.0, "hours": 3600.0}


def recipe(layers: int, width: int, vocab_size: int, batch_size: int, steps: int) -> Values:
    """Return the settings of a run with the recipe of the modern presets (`objectives/presets.py`): learning rates and
    initial sizes follow from the width."""
    init_std, heads = round(0.08 * (128 / width) ** 0.5, 4), max(width // D_HEAD, 1)
    rate = round(0.07 * init_std, 5)
    return {
        "steps": steps,
        "model.vocab_size": vocab_size, "model.num_layers": layers, "model.d_model": width, "model.num_heads": heads,
        "model.d_head": width // heads, "model.d_ff": 4 * width, "model.mem_len": 0, "model.init_std": init_std,
        "model.zero_init": True,
        "data.batch_size": batch_size, "data.seq_len": SEQ_LEN, "data.reuse_len": 0, "data.perm_size": SEQ_LEN,
        "data.num_predict": SEQ_LEN // 2, "data.mask_alpha": 2, "data.window": "sentences",
        "data.windows_per_block": WINDOWS_PER_BLOCK,
        "optimizer.method": "muon", "optimizer.learning_rate": rate, "optimizer.matrix_rate": round(0.02 / rate, 2),
        "optimizer.warmup_steps": steps // 20,
    }  # fmt: skip


def intervals(steps: int) -> Values:
    """Return the settings that count steps, and the size of an evaluation, for a run of so many."""
    quarter = -(-steps // EVALUATIONS)
    return {
        "optimizer.warmup_steps": steps // 20, "eval.every_steps": quarter, "checkpoint.every_steps": quarter,
        "log.every_steps": max(steps // 50, 1), "eval.max_windows": EVALUATED_WINDOWS,
    }  # fmt: skip


def share_to_hold_out(characters: float) -> float:
    """Return the share of a text that is held out."""
    return round(max(0.05, min(HELD_OUT_CHARACTERS / characters, 0.1)), 3)


# ---- the choice: functions of facts ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What a budget pays for."""

    layers: int
    width: int
    vocab_size: int
    batch_size: int
    steps: int
    nats: float
    """expected held-out loss on the law's texts, per character"""

    def config(self, start: Config) -> Config:
        """Return `start` with the sizes of the choice."""
        return with_values(start, recipe(self.layers, self.width, self.vocab_size, self.batch_size, self.steps))


def step_cost(config: Config) -> float:
    """Return the FLOPs of a step, with those of Muon's products if it uses Muon."""
    model, is_muon = config.model, config.optimizer.method == "muon"
    return step_flops(config) + is_muon * MUON * model.num_layers * model.d_model**3


def best_choice(
    law: DialLaw,
    characters: int,
    flops: float,
    networks: Sequence[tuple[int, int]] = NETWORKS,
    vocabularies: Sequence[int] = VOCABULARIES,
    rows: int = ROWS_ON_CPU,
) -> Choice | None:
    """Return the run with the lowest expected loss that reads a text of so many characters and costs so many FLOPs;
    None if they pay for fewer than `LEAST_STEPS` steps of every network."""
    found, start, smallest = [], Config(), min(width for _, width in networks)
    for layers, width in networks:
        for pieces in vocabularies:
            text = characters / law.of_vocabulary(pieces)[1]
            batch, config = rows, with_values(start, recipe(layers, width, pieces, rows, 1))
            a_row = step_flops(config) / rows
            while flops / (a_row * batch) > MOST_STEPS:
                batch *= 2
            steps = int(flops // (a_row * batch + MUON * layers * width**3))
            is_large = width > smallest and layer_parameters(config.model) > MOST_WEIGHTS * text
            if steps >= LEAST_STEPS and not is_large:
                read = min(steps * batch * windows.advance(config.data), MOST_PASSES * text)
                nats = law.nats_per_character(config.model, read, text)
                found.append(Choice(layers, width, pieces, batch, steps, nats))
    return min(found, key=lambda choice: choice.nats, default=None)


def steps_within(seconds: float, seconds_per_step: float, rows: int) -> int:
    """Return the steps that fit into this time with their evaluations, each of `EVALUATED_WINDOWS`."""
    evaluations = EVALUATIONS * EVALUATION * EVALUATED_WINDOWS / rows * seconds_per_step
    return int((seconds - evaluations) / seconds_per_step)


def changed_steps(
    done: int, steps: int, seconds: float, seconds_per_step: float, restart: float, most: int
) -> int | None:
    """Return the number of steps with which a run ends in time; None if it ends near enough with those it has.

    done: steps done. seconds: left for steps. restart: seconds that a change costs. most: steps of `MOST_PASSES`.
    """
    expected = min(done + seconds / seconds_per_step, most)
    if abs(expected / steps - 1) <= TOLERANCE:
        return None
    return max(int(expected - restart / seconds_per_step), done + 1)


# ---- measuring, and the two choices of a run -------------------------------------------------------------------------


def seconds_of(config: Config) -> float | None:
    """Return the seconds that the dial gives to a run; None if it has no dial, or one of FLOPs."""
    return getattr(config, config.dial) * UNIT[config.dial] if config.dial in UNIT else None


def measure_step(config: Config) -> tuple[float, float]:
    """Return the seconds of a training step on all devices, without input, and those of its compilation."""
    began = time.perf_counter()
    attention, _ = choose_attention(config, sharding.make_mesh(config))
    program, shapes = pretraining_program(config, attention)
    batch = {name: jax.device_put(jnp.zeros(a.shape, a.dtype), a.sharding) for name, a in shapes.items()}
    state = program.init_state({})
    for _ in range(2):
        state, metrics = program.train_step(state, batch)
    jax.block_until_ready(metrics)
    ready, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - ready < MEASURED_SECONDS:
        state, metrics = program.train_step(state, batch)
        jax.block_until_ready(metrics)
        count += 1
    return (time.perf_counter() - ready) / count, ready - began


@dataclass
class Dial:
    """The budget of a run, and what was chosen for it."""

    settings: Resolution[Config]
    began: float
    """time.time() at the start of the process"""
    console: Console

    def __post_init__(self) -> None:
        config = self.settings.config
        self.name, self.value = config.dial, float(getattr(config, config.dial))
        self.seconds = seconds_of(config)
        self.law, self.lines = read_law(), list[str]()
        self.expected = dict[str, float]()
        if jax.process_count() > 1:
            why = "measures one process: run the flags that it prints elsewhere, or give `steps`"
            raise InputError(self.name, f"{self.value:g}", why)

    def say(self, kind: str, line: str) -> None:
        self.lines.append(f"{kind:11} {line}")
        self.console.print(self.lines[-1])

    def left(self) -> float:
        """Return the seconds until the end of the budget, less those that a run needs after its last step."""
        return (self.seconds or 0.0) - (time.time() - self.began) - AFTER_TRAINING

    def choose_network(self, size: TextSize) -> None:
        """Choose network, vocabulary, batch and windows from the size of the text, and a first number of steps."""
        settings, rate, flops = self.settings, 0.0, self.value
        self.characters, config, rows = size.characters, settings.config, self._rows()
        if self.seconds:
            probed = with_values(config, {**recipe(*PROBE, rows, LEAST_STEPS), **self._dtype()})
            a_step, compilation = measure_step(probed)
            rate = step_cost(probed) / a_step
            self.say("dial", f"{rate / 1e9:,.0f} GFLOPs/s in a step of {PROBE[0]} x {PROBE[1]} on {_devices()}")
            flops = max(self.left() - 2 * compilation - PREPARATION * size.characters, 0.0) * rate
        networks = sorted({(self._given("num_layers", each[0]), self._given("d_model", each[1])) for each in NETWORKS})
        most = text_size.vocabulary_for(size, max(VOCABULARIES))["model.vocab_size"]
        is_open = text_size.leaves_vocabulary_open(settings)
        pieces = [n for n in VOCABULARIES if n <= most] or [most] if is_open else [config.model.vocab_size]
        choice = best_choice(self.law, size.characters, flops, networks, pieces, rows)
        if choice is None:
            smallest = min(step_cost(with_values(config, recipe(*n, pieces[0], rows, 1))) for n in networks)
            self._refuse(LEAST_STEPS * smallest / (rate or 1.0))
        values = recipe(choice.layers, choice.width, choice.vocab_size, choice.batch_size, choice.steps)
        if config.objective != Config().objective:  # its windows are its own
            values = {n: v for n, v in values.items() if not n.startswith("data.") or n == "data.batch_size"}
        settings.choose({**values, **self._dtype(), **intervals(choice.steps)})
        text_size.fit_windows(settings, size)
        settings.choose({"data.validation_fraction": share_to_hold_out(size.characters)})
        settings.choose(text_size.held_out_share(size, settings.config))

    def choose_steps(self, corpus: Corpus, workdir: Workdir) -> None:
        """Choose the number of steps by the time that is left, now that the text is prepared; print and keep what was
        chosen, and what is expected."""
        settings, config = self.settings, self.settings.config
        a_step, compilation = measure_step(config)
        if self.seconds:
            left = self.left() - compilation
            steps = steps_within(left, a_step, config.data.batch_size)
            if steps < LEAST_STEPS:
                self._refuse(a_step * LEAST_STEPS * 1.1 - left)
        else:
            steps = int(self.value // step_cost(config))
        an_epoch = (
            corpus.num_blocks("train")
            // config.data.batch_size
            * windows.steps_per_block(corpus.block_len, config.data)
        )
        if steps > (most := MOST_PASSES * an_epoch):
            self.say(
                "text", f"too short for more than {most:,} steps, {MOST_PASSES} passes, without overfitting: ends early"
            )
            steps = most
        settings.set({"steps": steps, **dict.fromkeys(UNIT | {"flops": 0})})
        settings.choose(intervals(steps))
        for line in self._describe(corpus, a_step):
            self.say(*line)
        workdir.write_settings(settings.config)
        content = {"lines": self.lines, "flags": self._flags(), **self.expected}
        write_versioned(workdir.choice, "run", content)

    def resume(self, before: Config, workdir: Workdir) -> None:
        """Choose what was chosen when the run began. before: its settings."""
        if not workdir.choice.exists():
            why = f": workdir {workdir.folder} holds a run with other settings: give these, or another `workdir`"
            raise InputError(self.name, f"{self.value:g}", why)
        kept = {s.python_name: s.value for s in flatten(before) if s.python_name not in DIALS}
        self.settings.choose({n: v for n, v in kept.items() if n not in ("corpus", "validation", "workdir")})
        self.settings.set(dict.fromkeys(DIALS))
        self.console.print("dial        the run continues with what was chosen when it began")

    def _describe(self, corpus: Corpus, a_step: float) -> Iterator[tuple[str, str]]:
        """Yield what was chosen and what is expected, and set `expected`."""
        config, law = self.settings.config, self.law
        model, data, text = config.model, config.data, corpus.num_blocks("train") * corpus.block_len
        read = config.steps * data.batch_size * windows.advance(data)
        yield (
            "chosen",
            f"{model.num_layers} layers x {model.d_model}, {model.vocab_size:,} pieces, {data.batch_size} rows, "
            f"{config.steps:,} steps of {a_step:.3f} s; they read the text {read / text:.2g} times",
        )
        yield "flags", " ".join(["python -m xlnet_jax.train", *self._flags()])
        held_out = held_out_batches(corpus, corpus.tokenizer, config)
        unigram = unigram_line(corpus.unigram_counts, held_out, corpus.tokenizer)
        of_trigrams = law.of_trigrams(*trigram_gain(corpus), model.vocab_size)
        self.expected = {"text_tokens": text, "unigram": unigram, "of_trigrams": of_trigrams}
        self.expected["expected_loss"] = loss = expected_loss(config, self.expected)
        a_piece = float(corpus.unigram_counts @ corpus.tokenizer.tables.characters) / corpus.unigram_counts.sum()
        seconds = time.time() - self.began + config.steps * a_step + AFTER_TRAINING
        missed = f"the law missed {len(law.errors)} runs by {max(law.errors):.2f} at most"
        at = f"held-out loss {loss:.2f} nats per piece, {loss / a_piece:.2f} per character, after {clock(seconds)}"
        yield "expected", f"{at}; {missed}"
        yield from (("law", line) for line in law.limits(config, read, text, of_trigrams))

    def _refuse(self, missing: float) -> NoReturn:
        """Raise InputError. missing: seconds that the budget lacks for the shortest run; of FLOPs, what it needs."""
        unit = UNIT.get(self.name)
        least = (self.value + math.ceil(10 * missing / unit) / 10) if unit else missing
        why = f"is too short to learn anything from this text on this machine: give about {least:.3g} or more"
        raise InputError(self.name, f"{self.value:g}", why)

    def _flags(self) -> list[str]:
        """Return the settings that differ from the preset, as words of a command line."""
        words = []
        for setting, _ in differences(self.settings.config, defaults_of(Config())):
            if setting.python_name == "workdir":
                continue
            is_bool = isinstance(setting.value, bool)
            words += (
                [f"--{setting.name}"] if is_bool else [f"--{setting.name}", *map(str, np.atleast_1d(setting.value))]
            )
        return words

    def _given(self, name: str, otherwise: int) -> int:
        is_open = self.settings.is_open(f"model.{name}")
        return otherwise if is_open else int(getattr(self.settings.config.model, name))

    def _rows(self) -> int:
        if not self.settings.is_open("data.batch_size"):
            return self.settings.config.data.batch_size
        return ROWS_ON_CPU if jax.default_backend() == "cpu" else ROWS_ON_ACCELERATOR

    def _dtype(self) -> Values:
        return {} if jax.default_backend() == "cpu" else {"model.dtype": "bfloat16"}


def _devices() -> str:
    devices = jax.devices()
    cores = f", {os.process_cpu_count() if hasattr(os, 'process_cpu_count') else len(os.sched_getaffinity(0))} cores"
    return f"{len(devices)} x {devices[0].device_kind}" + (cores if devices[0].platform == "cpu" else "")


def expected_loss(config: Config, text: Mapping[str, float]) -> float:
    """Return the held-out loss that the law expects of a run, in nats per piece. text: its tokens, unigram line and
    what trigrams gain, as choice.json has them."""
    read = config.steps * config.data.batch_size * windows.advance(config.data)
    model, facts = config.model, (text["text_tokens"], text["of_trigrams"])
    gain = read_law().gain(model.num_layers, layer_parameters(model), model.vocab_size, read, *facts)
    return text["unigram"] - gain


def change_choice(config: Config, workdir: Workdir, console: Console) -> None:
    """Print what a run with other steps than it began with is expected to reach, and keep it."""
    content = read_versioned(workdir.choice, "run")
    content["expected_loss"] = loss = expected_loss(config, content)
    line = (
        f"pace        {config.steps:,} steps end in time; now the expected held-out loss is {loss:.2f} nats per piece"
    )
    write_versioned(workdir.choice, "run", {**content, "lines": [*content["lines"], line]})
    console.print(line)


# ---- while the run trains --------------------------------------------------------------------------------------------


class Pace(Callback):
    """Ends a run that will not end in time, so that it continues with another number of steps."""

    def __init__(self, seconds: float):
        """seconds: of the whole run."""
        self.seconds = seconds
        self.steps: int | None = None
        """number of steps with which the run is to go on; None = it need not change"""
        self._mark, self._checks = (0, 0.0), list(CHECKS)

    def on_start(self, loop: Loop) -> None:
        """Measure the pace from here."""
        self._mark, self.steps = (loop.step, loop.times.updates), None

    def on_step(self, loop: Loop, step: int, numbers: Numbers) -> None:
        """Compare the pace with the plan, at `CHECKS`."""
        steps = loop.run.config.steps
        done, spent = step - self._mark[0], loop.times.updates - self._mark[1]
        if not self._checks or step < self._checks[0] * steps or done < FEWEST_STEPS or step >= steps:
            return
        self._checks = [share for share in self._checks if step < share * steps]
        evaluation = loop.run.evaluation
        assert evaluation
        a_step, still = spent / done, -(-steps // evaluation.every_steps) - step // evaluation.every_steps
        rows = loop.run.config.data.batch_size
        an_evaluation = EVALUATION * EVALUATED_WINDOWS / rows * a_step
        if evaluation.history:
            an_evaluation = loop.times.lost["evaluation"] / len(evaluation.history)
        left = self.seconds - loop.times.wall - AFTER_TRAINING - still * an_evaluation
        most = MOST_PASSES * cast(BatchSource, loop.run.batches).steps_per_epoch
        self.steps = changed_steps(step, steps, left, a_step, loop.run.memory.seconds, most)
        if self.steps:
            loop.stop()
