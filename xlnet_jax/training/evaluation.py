"""Held-out loss: during training, and of any checkpoint on any text, with the same windows, masks, targets and memory.
Also its units, and the unigram line: the loss of a model that knows only the frequencies of pieces.
"""

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from data_pipelines.corpus import Corpus
from data_pipelines.ids import IdCorpus
from data_pipelines.tokenizer import BOS, CLS, EOD, EOP, PAD, SEP, SPECIAL_PIECES, UNK, Tokenizer
from xlnet_jax.checkpoints.pretrained import Pretrained, vocabulary_tokenizer
from xlnet_jax.dims import Batch
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.language_model import objective_of
from xlnet_jax.objectives.registry import batch_source, objective_named, validate
from xlnet_jax.settings.config import Config
from xlnet_jax.training import sharding
from xlnet_jax.training.initial import params_of
from xlnet_jax.training.selection import Numbers
from xlnet_jax.training.step import EvalStep, Program, empty_mems_ZBMD, make_eval_step


@dataclass(frozen=True)
class Content:
    """Size of a text in pieces and other units, after the tokenizer's normalization."""

    pieces: int
    characters: int  # with spaces; a line end counts as a space, an unknown piece as one character
    bytes: int  # these characters in UTF-8
    words: int  # pieces that begin with a space; with word-level tokenizers, unknown pieces too
    unknown: int  # <unk> pieces
    documents: int  # ends of documents, not counted above; of records, their number
    are_records: bool = False

    @property
    def unknown_share(self) -> float:
        """Share of <unk> among the pieces, 0 to 1."""
        return self.unknown / max(self.pieces, 1)


@dataclass(frozen=True)
class Measured:
    """Loss on some windows, and the size of their text: of the predicted text if the loss is a likelihood, otherwise of
    the whole windows.

    In a likelihood or a bound, an end of a document counts as one word and one character, like `<eos>` in
    Transformer-XL's code.
    """

    objective: str
    loss: float  # nats per target
    targets: int  # sum of their weights; for a bound, all pieces of the windows
    unigram: float  # nats per target of a model that knows only the frequencies of pieces
    windows: int
    content: Content
    besides: dict[str, float]  # other measures, by the names of `mean_losses`

    def numbers(self) -> dict[str, Any]:
        """Return every number by its name, with perplexities and bits.

        Bits per unit of the text are bits per piece x pieces / units. Masked pieces are predicted at once from the rest
        of the text, so their loss is not the likelihood of a text. word_perplexity: exp(nats of the whole text / its
        words), comparable between vocabularies (Dai et al. 2019, table 1); None if it overflows, as in scripts without
        spaces, where a line counts as one word.
        """
        plain = asdict(self)
        found = {**plain.pop("content"), **plain.pop("besides"), **plain}
        found["unknown_share"] = self.content.unknown_share
        if found.pop("are_records"):
            return self._of_records(found)
        record, bits = objective_named(self.objective), self.loss / math.log(2)
        if record.loss == "pseudo":
            return found | {"pseudo_perplexity": math.exp(self.loss)}
        pieces, ends = (self.targets, self.content.documents) if record.is_of_text else (self.content.pieces, 0)
        found |= {"perplexity": math.exp(self.loss), "bits_per_piece": bits}
        for unit in ("character", "byte", "word"):
            found[f"bits_per_{unit}"] = bits * pieces / max(found[f"{unit}s"] + ends, 1)
        if record.is_of_text:
            of_word = found["bits_per_word"]
            found["word_perplexity"] = 2.0**of_word if of_word < sys.float_info.max_exp else None
        return found

    def _of_records(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the numbers without units of prose, and the nats per record if all of its symbols are targets."""
        for name in ("characters", "bytes", "words"):
            del found[name]
        found |= {"symbols": found.pop("pieces"), "records": (records := found.pop("documents"))}
        if objective_named(self.objective).loss == "pseudo":
            return found | {"pseudo_perplexity": math.exp(self.loss)}
        found["perplexity"] = math.exp(self.loss)
        if self.targets >= self.content.pieces and records:
            found["nats_per_record"] = self.loss * self.targets / records
        return found


def content_of(batches: Sequence[Batch], tokenizer: Tokenizer, objective: str) -> Content:
    """Count the text that these batches predict if the loss is a likelihood, otherwise the text in their windows,
    without <sep> and <cls>."""
    record = objective_named(objective)
    counts_V = np.zeros(tokenizer.vocab_size, np.int64)
    for batch in batches:
        ids = batch["target_ids"][batch["target_weights"] > 0] if record.loss == "likelihood" else _text_ids(batch)
        counts_V += np.bincount(ids.ravel(), minlength=tokenizer.vocab_size)
    documents, are_records = int(counts_V[[EOD, EOP]].sum()), tokenizer.records is not None
    counts_V[[SEP, CLS, BOS, PAD]] = 0
    if are_records:
        documents = sum(int((batch["input_ids"][batch["row_weights"] > 0] == BOS).sum()) for batch in batches)
        counts_V[EOD] = 0
    tables = tokenizer.tables
    return Content(
        int(counts_V.sum()) - (documents if record.is_of_text and not are_records else 0),
        int(counts_V @ tables.characters),
        int(counts_V @ tables.bytes),
        int(counts_V @ tables.has_space),
        int(counts_V[tokenizer.unknown_ids].sum()),
        documents,
        are_records,
    )


def _text_ids(batch: Batch) -> np.ndarray:
    """Return the pieces of the windows, with the original pieces at masked targets."""
    ids = batch["input_ids"].copy()
    if "target_positions" in batch:
        row, slot = np.nonzero(batch["target_weights"])
        ids[row, batch["target_positions"][row, slot]] = batch["target_ids"][row, slot]
    return ids[batch["row_weights"] > 0]


def unigram_line(counts_V: np.ndarray, batches: Sequence[Batch], tokenizer: Tokenizer | None) -> float:
    """Return the cross-entropy of the batches' targets under the frequencies of a text, in nats per target. In records,
    a target is one of the symbols of its field. tokenizer: None = of ids."""
    if tokenizer is None or tokenizer.records is None:
        return _mean_over_targets(-np.log(frequencies_V(counts_V)), batches)
    field_V, nats_V = tokenizer.field_of_V.copy(), np.zeros(len(counts_V))
    special_V = np.arange(len(counts_V)) < len(SPECIAL_PIECES)
    special_V[UNK] = False
    field_V[special_V] = -1
    if any((batch["target_ids"][batch["target_weights"] > 0] == EOD).any() for batch in batches):
        field_V[EOD] = field_V.max()  # the end of a record is predicted like a symbol of its last field
    for field in range(field_V.max() + 1):
        nats_V[field_V == field] = -np.log(frequencies_V(counts_V[field_V == field]))
    return _mean_over_targets(nats_V, batches)


def unknown_share(tokenizer: Tokenizer | None, batches: Sequence[Batch]) -> float:
    """Return the share of `<unk>` among the targets of the batches. tokenizer: None = of ids."""
    if tokenizer is None:
        return 0.0
    return _mean_over_targets(np.isin(np.arange(tokenizer.vocab_size), tokenizer.unknown_ids), batches)


def frequencies_V(counts_V: np.ndarray) -> np.ndarray:
    """Return the frequency of each piece, estimated from its count in a text (Witten and Bell 1991, method C).

    In a text of N tokens with T of the V pieces, it is (count + T / V) / (N + T). If the text has all pieces, this is
    add-one smoothing; in a short text, missing pieces get little.
    """
    kinds = np.count_nonzero(counts_V)
    return (counts_V + kinds / len(counts_V)) / (counts_V.sum() + kinds)


def _mean_over_targets(values_V: np.ndarray, batches: Sequence[Batch]) -> float:
    total = sum(float((values_V[batch["target_ids"]] * batch["target_weights"]).sum()) for batch in batches)
    return total / max(sum(float(batch["target_weights"].sum()) for batch in batches), 1.0)


def mean_losses(
    program: Program[Any], step: EvalStep, batches: Sequence[Batch], params: Any, is_stopped: Callable[[], bool]
) -> Numbers | None:
    """Return the loss, in nats per target over all batches, and other means over rows: pair_loss (nats) and
    pair_accuracy, or detection_loss (nats per token), detection_accuracy and replaced_share. Return None if
    `is_stopped`, which is called before each batch, returns True. Each process computes its own rows."""
    mems_ZBMD, sums = empty_mems_ZBMD(program.plan.mems_ZBMD), cast(Any, None)
    for batch in batches:
        if is_stopped():
            return None
        jax.block_until_ready(sums)  # stay at most one batch ahead of the device, so that a stop is quick
        on_mesh = program.put({name: array[program.rows] for name, array in batch.items()})
        scored = step(params, on_mesh, mems_ZBMD)
        mems_ZBMD = scored.new_mems_ZBMD
        of_rows = {**scored.row_losses, **scored.row_measures}
        of_batch = scored.loss_sum, scored.weight_sum, of_rows, on_mesh["row_weights"].sum()
        sums = of_batch if sums is None else jax.tree.map(jnp.add, sums, of_batch)
    loss_sum, weight_sum, of_rows, rows = sums
    return {"loss": float(loss_sum / weight_sum)} | {name: float(s / rows) for name, s in of_rows.items()}


def describe_losses(unigram_nats: float, numbers: Numbers) -> str:
    """Return the numbers as printed: 'loss 5.608, 0.512 below the unigram line 6.120', followed by '; pairs 0.650,
    61.2% right' or '; detection 0.410, 87.1% right, 12.9% replaced' if the objective has them."""
    besides = ""
    if "pair_loss" in numbers:
        besides = f"; pairs {numbers['pair_loss']:.3f}, {numbers['pair_accuracy']:.1%} right"
    if "detection_loss" in numbers:
        besides = f"; detection {numbers['detection_loss']:.3f}, {numbers['detection_accuracy']:.1%} right"
        besides += f", {numbers['replaced_share']:.1%} replaced"
    return f"loss {numbers['loss']:.3f}, {relative_to_unigram(numbers['loss'], unigram_nats)}{besides}"


def held_out_batches(corpus: Corpus | IdCorpus, tokenizer: Tokenizer | None, config: Config) -> list[Batch]:
    """Return the batches of an evaluation: all blocks once, up to eval.max_windows."""
    source = batch_source(corpus, tokenizer, config, "validation", config.eval.max_windows)
    return list(map(source.batch_at, range(source.steps_per_epoch)))  # `iterate` would load TensorFlow


def count_windows(batches: Sequence[Batch]) -> int:
    """Return the number of windows in the batches of an evaluation, without empty rows."""
    return int(sum(batch["row_weights"].sum() for batch in batches))


def relative_to_unigram(loss: float, unigram_nats: float) -> str:
    """Return e.g. '0.512 below the unigram line 6.120'."""
    side = "below" if loss < unigram_nats else "above"
    return f"{abs(unigram_nats - loss):.3f} {side} the unigram line {unigram_nats:.3f}"


AT_EVALUATION = ("mem_len", "clamp_len", "same_length")
"""Network settings that an evaluation may change, because parameters do not depend on them."""


def measure_loss(
    pretrained: Pretrained,
    corpus: Corpus,
    config: Config,
    unigram_counts: np.ndarray,
    on_batch: Callable[[int, int], None] = lambda number, batches: None,
) -> Measured:
    """Return the loss of a checkpoint on the validation split of a corpus.

    config: its objective, data, eval and mesh are used, and AT_EVALUATION of its network. unigram_counts: int64 [V],
    the counts of pieces for the unigram line. on_batch: called before each batch with its number, from 1, and the
    number of batches. Raises InputError if the settings contradict each other, or the corpus or the checkpoint does not
    fit.
    """
    tokenizer = vocabulary_tokenizer(pretrained)
    corpus.require(tokenizer, "the checkpoint's")
    seen = {name: getattr(config.model, name) for name in AT_EVALUATION}
    config = replace(config, model=replace(pretrained.model, **seen))
    validate(config)
    program = Program.of(config, objective_of(config))
    batches = held_out_batches(corpus, tokenizer, config)
    unigram = unigram_line(unigram_counts, batches, tokenizer)
    params, missing = params_of(pretrained, program.objective)
    if missing:
        raise InputError(
            f"the checkpoint has no {', '.join(missing)}: it was trained with another objective, or without "
            "`data.pair_loss`; evaluate with the objective it was trained on"
        )
    eval_step, counted = make_eval_step(program.objective, program.plan, program.mesh), itertools.count(1)

    def is_stopped() -> bool:
        on_batch(next(counted), len(batches))
        return False

    on_mesh = sharding.from_host(params, sharding.shardings_of(program.plan.params))
    numbers = mean_losses(program, eval_step, batches, on_mesh, is_stopped)
    assert numbers is not None
    return Measured(
        config.objective,
        numbers["loss"],
        round(sum(float(batch["target_weights"].sum()) for batch in batches)),
        unigram,
        count_windows(batches),
        content_of(batches, tokenizer, config.objective),
        {name: number for name, number in numbers.items() if name != "loss"},
    )
