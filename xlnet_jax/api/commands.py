"""Functions that print for commands; each moves into the room of the work that it prints, together with that work."""

import itertools
import json
import time
from collections.abc import Sequence

from etils import epath

from xlnet_jax.api.attention import AttentionSettings, draw_attention
from xlnet_jax.api.effective_context import ReclSettings
from xlnet_jax.api.embedding import EmbedSettings, embed_files
from xlnet_jax.api.factorizations import FactorizeSettings, factorize_text
from xlnet_jax.api.generation import GenerateSettings, drawn_texts, grow
from xlnet_jax.api.preparation import CheckSettings, PrepareSettings, check_corpus, prepare_corpus, report
from xlnet_jax.printing import Console, progress
from xlnet_jax.settings import cli


def attention(settings: AttentionSettings) -> None:
    """Write the file and print its name."""
    path = draw_attention(
        settings.checkpoint, settings.text, settings.targets, settings.out, layer=settings.layer, head=settings.head,
        tokenizer=settings.tokenizer,
    )  # fmt: skip
    about = "page, which any browser opens" if path.suffix.lower() == ".html" else "picture"
    print(f"{path}  {about}, {path.stat().st_size / 1000:,.0f} kB")


def embed(settings: EmbedSettings) -> None:
    """Write the vectors."""
    with progress() as show:
        count, width = embed_files(settings, lambda done: show(f"{done:,} texts"))
    print(f"{settings.out}: {count:,} x {width:,}, {settings.pooling} of layer {settings.layer}")


def factorize(settings: FactorizeSettings) -> None:
    """Print the table."""
    found = factorize_text(settings)
    from rich.table import Table

    title = f"log p of {settings.targets} in: {settings.text}"
    table = Table("", "independent (BERT)", "dependent (XLNet)", title=title)
    for piece, alone, given in zip(found.pieces, found.independent_P, found.dependent_P, strict=True):
        table.add_row(piece, f"{alone:.3f}", f"{given:.3f}")
    table.add_section()
    table.add_row("together", f"{found.independent_P.sum():.3f}", f"{found.dependent_P.sum():.3f}")
    Console().print(table)


def generate(settings: GenerateSettings) -> None:
    """Print the texts."""
    if len(settings.prompts()) == settings.num_samples == 1 and not settings.json:
        for part in itertools.chain(grow(settings), ["\n"]):
            print(part, end="", flush=True)
        return
    for i, text in enumerate(drawn_texts(settings)):
        if settings.json:
            record = {
                "prompt": text.prompt,
                "text": text.text,
                "pieces": text.pieces,
                "log_probs": [round(float(p), 4) for p in text.log_probs],
                "ended": text.ended,
            }
            print(json.dumps(record, ensure_ascii=False), flush=True)
        else:
            print(f"---\n{text.text}" if i else text.text, flush=True)


def recl(settings: ReclSettings) -> None:
    """Print the table."""
    from rich.table import Table

    from xlnet_jax.api import effective_context

    with progress() as show:
        found = effective_context.recl(settings, lambda length: show(f"context of {length} of {settings.longest}"))
    step = settings.step
    print(
        f"{found.tokens:,} pieces of {found.text}, with {step}, {2 * step}, … {settings.lengths[-1]} before each: the "
        f"context from which {step} more gain less than {settings.threshold:g}"
    )
    table = Table("RECL, in pieces", *(f"r = {share:g}" for share in found.by_share))
    for name, *lengths in zip(settings.checkpoints, *found.by_share.values(), strict=True):
        table.add_row(name, *(f"{'>= ' if is_bound else ''}{length}" for length, is_bound in lengths))
    Console().print(table)


CHECK = "python -m data_pipelines.prepare: compare every shard of a corpus with the checksums of its manifest."


def parse_preparation(argv: Sequence[str], prog: str, description: str) -> PrepareSettings | CheckSettings:
    """Return the settings of `prepare`, or of `prepare --check`. Raises InputError; prints and exits on --help."""
    if any(word.partition("=")[0] == "--check" for word in argv):
        return cli.parse(CheckSettings, argv, prog, CHECK)
    return cli.parse(PrepareSettings, argv, prog, description)


def prepare(settings: PrepareSettings | CheckSettings) -> None:
    """Prepare a corpus and describe it, or check one."""
    if isinstance(settings, CheckSettings):
        print(check_corpus(settings))
        return
    begin = time.monotonic()
    was_there = epath.Path(settings.out).expanduser().exists()
    with progress() as show:
        corpus = prepare_corpus(settings, lambda done: show(f"{done:,} files written"))
    print("\n".join(report(corpus, None if was_there else time.monotonic() - begin)))
