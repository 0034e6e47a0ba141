"""An evaluation as lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from data_pipelines.windows import steps_per_block
from xlnet_jax.objectives.registry import objective_named

if TYPE_CHECKING:
    from xlnet_jax.api.evaluation import Evaluation
    from xlnet_jax.training.heldout.units import Measured


def report(evaluation: Evaluation) -> str:
    """Return the loss with its settings, its text, the unigram line, and its other units."""
    found, manifest = evaluation.measured, evaluation.manifest
    c, m, split = evaluation.config.data, evaluation.config.model, manifest.splits["validation"]
    dropped = f", {split.dropped_tokens:,} behind the last left out" if split.dropped_tokens else ""
    windows = split.blocks * steps_per_block(manifest.record.block_len, c)
    left_out = f"; max-windows leaves {windows - found.windows:,} out" if windows > found.windows else ""
    unknown, pieces = found.content.unknown, found.content.pieces
    side = f"{abs(found.unigram - found.loss):.4f} {'below' if found.loss < found.unigram else 'above'}"
    lines = [
        f"checkpoint  {evaluation.checkpoint}: {m.num_layers} layers x {m.d_model}, {m.dtype}",
        f"text        {evaluation.text}: {split.blocks:,} blocks of {manifest.record.block_len:,} tokens{dropped}",
        f"windows     {found.windows:,} of {c.seq_len} tokens, {c.batch_size} a batch, memory {m.mem_len}{left_out}",
        f"targets     {found.targets:,} pieces",
        f"unknown     {unknown / max(pieces, 1):.2%} of the pieces: {unknown:,} of {pieces:,} are <unk>",
        f"loss        {found.loss:.4f} nats a piece, {side} the unigram line",
        f"unigram     {found.unigram:.4f} nats a piece, by the frequencies of {evaluation.known}",
        *_units(found),
    ]
    others = found.besides
    if "pair_loss" in others:
        lines += [f"pairs       {others['pair_loss']:.4f} nats, {others['pair_accuracy']:.2%} right"]
    if "detection_loss" in others:
        lines += [
            f"detection   {others['detection_loss']:.4f} nats a token, {others['detection_accuracy']:.2%} right, where "
            f"{others['replaced_share']:.2%} are replaced: the loss above is the generator's"
        ]
    return "\n".join(lines)


def _units(found: Measured) -> Iterator[str]:
    """Yield the loss in the units that it has a meaning in."""
    if objective_named(found.objective).loss == "pseudo":
        yield f"pseudo      perplexity {found.perplexity:,.2f} a masked piece: no likelihood of the text follows"
        return
    of_words = ""
    if found.is_likelihood and found.word_perplexity is not None:
        of_words = f", {found.word_perplexity:,.2f} a word"
    of_bytes = f", {found.bits_per('bytes'):.4f} a byte" if found.is_likelihood else ""
    content = found.content
    per_piece, per_word = content.characters / content.pieces, content.pieces / max(content.words, 1)
    yield f"perplexity  {found.perplexity:,.2f} a piece{of_words}"
    yield (
        f"bits        {found.bits_per_piece:.4f} a piece, {found.bits_per('characters'):.4f} a character{of_bytes}, "
        f"{found.bits_per('words'):.4f} a word, at {per_piece:.2f} characters a piece and {per_word:.2f} pieces a word"
    )
    if found.is_likelihood:
        yield (
            f"counted     {content.pieces:,} pieces and {content.documents:,} ends of "
            f"documents: {content.characters:,} characters, {content.bytes:,} bytes, {content.words:,} words"
        )
