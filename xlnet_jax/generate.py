"""python -m xlnet_jax.generate: text that goes on from a prompt, or that fills its gaps (___)."""

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from xlnet_jax.api import command
from xlnet_jax.errors import InputError
from xlnet_jax.settings import cli

if TYPE_CHECKING:
    from xlnet_jax.inference.blanks import Blanks
    from xlnet_jax.inference.generation import Drawn, Generator


@dataclass(frozen=True)
class Generation:
    """What to generate from what."""

    checkpoint: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """a checkpoint with a tokenizer, of any format"""
    prompt: tuple[str, ...] = ()
    """texts to go on from, or to fill in where they have gaps (___); an empty one begins a document"""
    prompt_file: str | None = None
    """a file with a prompt a line; blank lines are left out"""
    prefix: str = ""
    """a document that the model reads before each prompt, and that is not printed: short prompts gain by it"""
    prefix_file: str | None = None
    """a file with that document"""
    gap_pieces: tuple[int, ...] = ()
    """pieces of a gap: one number for all, or one for each gap of a prompt; none = 1"""
    max_new_tokens: int = 100
    """pieces after a prompt without gaps, at the most"""
    num_samples: int = 1
    """texts for each prompt"""
    temperature: float = 1.0
    """divides the scores; 0 = the likeliest piece, always"""
    top_k: int = 0
    """choose among so many of the likeliest pieces; 0 = all"""
    top_p: float = 0.9
    """choose among the likeliest pieces that make up this probability together; 1 = all"""
    stop: tuple[str, ...] = ()
    """pieces that end a text besides <eod>, as '.'; they are printed"""
    context: int | None = None
    """newest positions that a piece sees; None = window and memory of pretraining, 512 where those are unknown"""
    batch_size: int = 8
    """texts that are generated together; what is drawn does not depend on it"""
    seed: int = 0
    """seed of the draws"""
    tokenizer: str | None = None
    """a SentencePiece model, where the checkpoint came without one"""
    json: bool = False
    """print a JSON object a text: prompt, text, pieces, log_probs (nats) and whether it came to its end"""


@command.naming_flags
def main(argv: Sequence[str]) -> int:
    """Prints the texts; returns the exit code."""
    args = cli.parse(Generation, argv, "python -m xlnet_jax.generate", __doc__ or "")
    _check(args)
    prompts, prefix = _prompts(args), _prefix(args)
    import jax

    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.inference.generation import Generator, Sampling

    sampling = Sampling(args.temperature, args.top_k, args.top_p)
    pretrained = load_with_tokenizer(args.checkpoint, args.tokenizer)
    generator = Generator(pretrained, sampling, args.context, args.stop)
    texts = [_blanks(generator, prompt, prefix, args) for prompt in prompts]
    for text in texts:
        generator.demand_room(text)
    rows = [(i, text) for i, text in enumerate(texts) for _ in range(args.num_samples)]
    for first in range(0, len(rows), args.batch_size):
        batch = rows[first : first + args.batch_size]
        drawn = generator.draw([text for _, text in batch], jax.random.key(args.seed), first)
        if len(rows) == 1 and not args.json:
            _print_as_it_grows(generator, rows[0][1], (row for (row,) in drawn))
            continue
        *_, last = drawn
        for i, (number, text), row in zip(itertools.count(first), batch, last, strict=False):
            _print(generator, text, row, args.json, prompts[number], last=i == len(rows) - 1)
    return 0


def _check(args: Generation) -> None:
    for name in ("max_new_tokens", "num_samples", "batch_size"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} {getattr(args, name)}: 1 at least")
    if any(pieces < 1 for pieces in args.gap_pieces):
        raise InputError(f"--gap-pieces {' '.join(map(str, args.gap_pieces))}: 1 at least")
    if not 0 <= args.seed < 2**32:
        raise InputError(f"--seed {args.seed} is no number from 0 to 2^32 - 1")


def _prompts(args: Generation) -> list[str]:
    prompts = list(args.prompt)
    if args.prompt_file is not None:
        prompts += [line for line in _read(args.prompt_file, "--prompt-file").splitlines() if line.strip()]
    if not prompts:
        raise InputError(
            "nothing to go on from: give --prompt TEXT or --prompt-file FILE; --prompt '' begins a document"
        )
    return prompts


def _prefix(args: Generation) -> str:
    if args.prefix_file is None:
        return args.prefix
    if args.prefix:
        raise InputError("--prefix and --prefix-file say the same twice: leave one out")
    return " ".join(_read(args.prefix_file, "--prefix-file").split())


def _read(name: str, flag: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{flag} {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{flag} {name} is not UTF-8") from None


def _blanks(generator: "Generator", prompt: str, prefix: str, args: Generation) -> "Blanks":
    from xlnet_jax.inference.blanks import GAP, continuation, infilling

    if args.gap_pieces or GAP.search(prompt):
        return infilling(generator.tokenizer, prompt, prefix, args.gap_pieces or (1,))
    return continuation(generator.tokenizer, prompt, prefix, args.max_new_tokens)


def _print_as_it_grows(generator: "Generator", text: "Blanks", drawn: Iterator["Drawn"]) -> None:
    from xlnet_jax.inference.blanks import fill

    shown = 0
    for row in drawn:
        # Gaps have text behind them, which cannot be printed before they are full.
        if row.is_done or text.is_open:
            whole = fill(generator.tokenizer, text, row.ids_T)
            print(whole[shown:], end="", flush=True)
            shown = len(whole)
    print()


def _print(generator: "Generator", text: "Blanks", row: "Drawn", as_json: bool, prompt: str, last: bool) -> None:
    from xlnet_jax.inference.blanks import fill

    whole = fill(generator.tokenizer, text, row.ids_T)
    if not as_json:
        print(whole if last else f"{whole}\n---", flush=True)
        return
    record = {
        "prompt": prompt,
        "text": whole,
        "pieces": [generator.tokenizer.pieces[i] for i in row.ids_T],
        "log_probs": [round(float(p), 4) for p in row.log_probs_T],
        "ended": row.is_stopped,
    }
    json.dump(record, sys.stdout, ensure_ascii=False)
    print(flush=True)


if __name__ == "__main__":
    command.run(main)
