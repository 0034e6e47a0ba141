"""Time generation here and in Hugging Face's generate (PyTorch, eager), in turns: python benchmarks/generate.py

Needs `pip install torch transformers`; without them only the second table is printed. Both sides have the same random
float32 weights and continue one text greedily by the same number of tokens. Hugging Face's side runs with its memory
(`use_mems`, which avoids recomputing everything), and with --recomputing also without. Times include reading the text,
but not loading and compilation. The second table has our time per token in texts that are longer than the context. The
third fills a long gap, one or several tokens per pass, in turns: with cached keys and values, or by reading the whole
text again in each pass. --tables selects.
"""

import argparse
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

import xlnet_jax
from data_pipelines.tokenizer import EOD, PAD, SPECIAL_PIECES
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.inference.passes import CHUNK
from xlnet_jax.inference.requests import GenerateSettings, Kind, Request, continue_ids
from xlnet_jax.inference.sampler import Sampler
from xlnet_jax.interop.weights import initial_params
from xlnet_jax.models.decoding import prefill, prepare
from xlnet_jax.objectives.presets import PRESETS
from xlnet_jax.settings.config import ModelConfig

PROMPT = 50
CORES = len(os.sched_getaffinity(0))
MULTIPLES = 1, 2, 4, 8
TABLES = "compared", "growing", "filled"
OURS, THEIRS, RECOMPUTING = "xlnet_jax", "Hugging Face", "Hugging Face, use_mems=False"


def random_model(config: ModelConfig) -> Pretrained:
    """Return random weights without a tokenizer, which never generate the end of a text."""
    config = dataclasses.replace(config, dtype="float32")
    params = jax.tree.map(np.array, initial_params(config, None))
    params["output_bias"][EOD] = -1e9
    return Pretrained(config, params, "plm")


def sampler_of(model: Pretrained, **settings: Any) -> Sampler:
    """Return a greedy sampler for a network, whose tokenizer is not used."""
    pieces = [*SPECIAL_PIECES, *map(str, range(model.model.vocab_size - len(SPECIAL_PIECES)))]
    tables = SimpleNamespace(has_space=np.zeros(len(pieces), bool))
    tokenizer = cast(Any, SimpleNamespace(pieces=pieces, vocab_size=len(pieces), tables=tables))
    return Sampler(
        dataclasses.replace(model, tokenizer=tokenizer),
        GenerateSettings("random", temperature=0.0, repetition_penalty=1.0, **settings),
    )


def our_draws(model: Pretrained, ids: np.ndarray, context: int) -> Callable[[int], Iterator[int]]:
    """Return a function that draws a number of pieces, and yields the count after every chunk."""
    sampler = sampler_of(model, context=context)

    def draws(new: int) -> Iterator[int]:
        request = continue_ids(ids, new)
        for _ in sampler.draw([request], jax.random.key(0)):
            yield len(request.ids_P)

    return draws


def our_side(model: Pretrained, ids: np.ndarray, context: int) -> Callable[[int], None]:
    """Return a function that draws a number of pieces."""
    draws = our_draws(model, ids, context)

    def draw(new: int) -> None:
        assert max(draws(new)) == new

    return draw


def their_side(model: Pretrained, ids: np.ndarray, use_mems: bool) -> Callable[[int], None]:
    """Return a function that draws a number of pieces with transformers."""
    import torch
    from transformers import XLNetLMHeadModel, logging

    logging.set_verbosity_error()
    torch.set_num_threads(CORES)
    with tempfile.TemporaryDirectory() as folder:
        # Without a limit, memory holds the whole text, as in the released models.
        unlimited = dataclasses.replace(model, model=dataclasses.replace(model.model, mem_len=0))
        xlnet_jax.save(unlimited, f"{folder}/hf", "hf")
        theirs = cast(Any, XLNetLMHeadModel.from_pretrained(f"{folder}/hf")).eval()

    def generate(new: int) -> None:
        given = torch.from_numpy(ids[None].astype(np.int64))
        made = theirs.generate(given, max_new_tokens=new, do_sample=False, eos_token_id=None, use_mems=use_mems)
        assert made.shape[1] == len(ids) + new

    return generate


def seconds(run: Callable[[int], None], new: int) -> float:
    start = time.perf_counter()
    run(new)
    return time.perf_counter() - start


def compare(model: Pretrained, ids: np.ndarray, given: argparse.Namespace) -> None:
    sides = {OURS: our_side(model, ids, given.context), THEIRS: their_side(model, ids, use_mems=True)}
    if given.recomputing:
        sides[RECOMPUTING] = their_side(model, ids, use_mems=False)
    for run in sides.values():
        run(2)  # compiles
    turns = [{name: seconds(run, given.new) for name, run in sides.items()} for _ in range(given.pairs)]
    medians = {name: statistics.median(turn[name] for turn in turns) for name in sides}
    print(f"\n{f'{given.new} tokens behind {len(ids)}':30}{'seconds':>9}{'ms/token':>10}{'ratio':>8}")
    for name, median in medians.items():
        print(f"{name:30}{median:9.2f}{1e3 * median / given.new:10.1f}{median / medians[OURS]:8.2f}", flush=True)


def grow(model: Pretrained, ids: np.ndarray, context: int, rounds: int) -> None:
    """Print medians over the chunks of one long text, which is drawn several times."""
    draws = our_draws(model, ids, context)
    list(draws(CHUNK + 2))  # compiles
    took: dict[int, list[float]] = {multiple: [] for multiple in MULTIPLES}
    for _ in range(rounds):
        before, drawn = time.perf_counter(), 0
        for count in draws(MULTIPLES[-1] * context):
            now = time.perf_counter()
            if count - drawn == CHUNK:  # leaves out the chunk that includes reading the text
                took[next(m for m in MULTIPLES if count <= m * context + 1)].append((now - before) / CHUNK)
            before, drawn = now, count
    print(f"\n{f'context of {context}, drawn so far':30}{'ms/token':>9}")
    for multiple, seconds_each in took.items():
        print(f"{f'up to {multiple * context}':30}{1e3 * statistics.median(seconds_each):9.2f}")


def gap_text(ids: np.ndarray, gap: int) -> Request:
    """Return these ids, a gap, and these ids again."""
    targets = np.arange(len(ids), len(ids) + gap, dtype=np.int32)
    whole = np.concatenate([ids, np.full(gap, PAD, np.int32), ids])
    return Request("", ("", "", ""), whole, targets, np.full(gap, Kind.INNER), np.zeros(gap, np.int32))


def cached(model: Pretrained, text: Request, context: int, order: Any, parallel: int) -> Callable[[int], None]:
    """Return a function that fills the gap."""
    sampler = sampler_of(model, context=context, order=order, parallel=parallel)

    def draw(passes: int) -> None:
        for _ in sampler.draw([text], jax.random.key(0)):
            pass
        assert len(text.ids_P) == len(text.targets_P)
        assert text.passes_P.max() == passes - 1

    return draw


def uncached(model: Pretrained, text: Request, context: int, parallel: int) -> Callable[[int], None]:
    """Return a function that fills the gap from left to right, and reads the whole text in each pass."""
    params, _ = prepare(model.model, model.params, context, True)
    length = 1 << (len(text.ids_L) - 1).bit_length()

    @jax.jit
    def read(params: Any, ids_BL: jnp.ndarray, target_BP: jnp.ndarray) -> jnp.ndarray:
        return prefill(model.model, params, ids_BL, target_BP, context)[1].argmax(-1)

    def draw(passes: int) -> None:
        ids_L = np.pad(text.ids_L, (0, length - len(text.ids_L)), constant_values=PAD)
        for begin in range(0, passes * parallel, parallel):
            group = text.targets_P[begin : begin + parallel]
            ids_L[group] = read(params, ids_L[None], group[None])[0]

    return draw


def fill_gap(model: Pretrained, ids: np.ndarray, given: argparse.Namespace) -> None:
    """Print medians of the tokens per second, in turns. The gap must be a multiple of 16."""
    text = gap_text(ids, given.gap)
    sides = {
        f"{label}, {parallel} per pass": (cached(model, text, given.context, order, parallel), given.gap // parallel)
        for label, order, parallel in [
            ("left", "left", 1), ("left", "left", 4), ("left", "left", 16), ("confidence", "confidence", 16),
        ]
    }  # fmt: skip
    sides["left, 16 per pass, uncached"] = uncached(model, text, given.context, 16), given.gap // 16
    for run, passes in sides.values():
        run(passes)  # compiles
    turns = [{name: seconds(*side) for name, side in sides.items()} for _ in range(given.pairs)]
    medians = {name: statistics.median(turn[name] for turn in turns) for name in sides}
    slowest = medians["left, 1 per pass"]
    print(f"{f'gap of {given.gap} tokens':30}{'passes':>8}{'tokens/s':>10}{'ratio':>8}")
    for name, median in medians.items():
        print(f"{name:30}{sides[name][1]:8}{given.gap / median:10.1f}{slowest / median:8.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--preset", choices=PRESETS, default="base", help="size of the network")
    parser.add_argument("--new", type=int, default=100, help="number of tokens to generate")
    parser.add_argument("--context", type=int, default=512, help="positions of our context")
    parser.add_argument("--pairs", type=int, default=3, help="turns of each side")
    parser.add_argument("--recomputing", action="store_true", help="also measure Hugging Face without memory")
    parser.add_argument("--growing", choices=PRESETS, default="small", help="size of the network in the second table")
    parser.add_argument("--growing-context", type=int, default=128, help="positions of its context")
    parser.add_argument("--gap", type=int, default=256, help="tokens of the gap in the third table")
    parser.add_argument("--filling", nargs="+", default=["tiny", "base"], help="networks of the third table")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES, help="tables to print")
    given = parser.parse_args()
    ids = np.random.default_rng(0).integers(len(SPECIAL_PIECES), 4_000, PROMPT, dtype=np.int32)
    if "compared" in given.tables and find_spec("torch") and find_spec("transformers"):
        model = random_model(PRESETS[given.preset]().model)
        print(f"{given.preset}: {model.model.num_layers} layers of {model.model.d_model}, {CORES} cores")
        compare(model, ids, given)
    elif "compared" in given.tables:
        print("no torch or transformers: nothing to compare with")
    if "growing" in given.tables:
        model = random_model(PRESETS[given.growing]().model)
        print(f"\n{given.growing}: {model.model.num_layers} layers of {model.model.d_model}")
        grow(model, ids, given.growing_context, given.pairs)
    for name in given.filling if "filled" in given.tables else ():
        model = xlnet_jax.load(name) if name == "tiny" else random_model(PRESETS[name]().model)
        model = dataclasses.replace(model, model=dataclasses.replace(model.model, dtype="float32"))
        print(f"\n{name}: {model.model.num_layers} layers of {model.model.d_model}, {CORES} cores")
        fill_gap(model, ids, given)


if __name__ == "__main__":
    main()
