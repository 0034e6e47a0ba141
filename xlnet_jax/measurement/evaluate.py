"""Measure and print the held-out loss of a checkpoint on any text (`measure_loss`), the likelihoods of whole texts
in several orders (`measure_likelihoods`), its accuracies on minimal pairs (`measure_accuracies`), or how well it
predicts the last symbols of records (`measure_next_items`)."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from data_pipelines.windows import resized, steps_per_block
from xlnet_jax.errors import InputError
from xlnet_jax.inference.orders import check_orders
from xlnet_jax.printing import counted, printing_until_unread, progress
from xlnet_jax.settings.common import CheckpointSettings, RecordingSettings, TextSourceSettings
from xlnet_jax.settings.config import Config, DataConfig, EvalConfig, MeshConfig
from xlnet_jax.settings.fields import at_least, check_bounds, flatten, setting
from xlnet_jax.settings.parser import with_keywords
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.storage.outputs import new_file
from xlnet_jax.storage.programs import keep_programs

if TYPE_CHECKING:
    import numpy as np

    from data_pipelines.corpus import Corpus, Manifest
    from data_pipelines.tokenizer import Tokenizer
    from xlnet_jax.checkpoints.native import PretrainingRun
    from xlnet_jax.checkpoints.pretrained import Pretrained
    from xlnet_jax.measurement.likelihood import Estimates
    from xlnet_jax.measurement.suites import Pair
    from xlnet_jax.training.evaluation import Measured

OnBatch = Callable[[int, int], None]
BATCH_SIZE = 8  # rows, for a checkpoint that no run of ours wrote
_OF_WINDOWS = ("max_windows", "objective", "clamp_len", "same_length", "data.", "mesh.")
_OF_TEXTS = ("max_texts", "seed")


@dataclass(frozen=True)
class EvaluateSettings(CheckpointSettings, TextSourceSettings, RecordingSettings):
    """Measure the held-out loss on a text."""

    text: tuple[str, ...] = ()
    """text to measure the loss on: files, globs, folders, URLs, tfds:NAME or hf:NAME; or a folder made by
    data_pipelines.prepare, whose validation split is read; none = the run's own held-out text"""
    orders: tuple[str, ...] = ()
    """measure the exact likelihood of whole texts in these orders: left-to-right, random:N and others of score, and
    bound:N beside them; a text file's texts end at blank lines; --data.seq-len is the longest segment"""
    suite: Literal["blimp"] | None = None
    """measure how often the acceptable sentence of a pair is likelier, in --orders (default: left-to-right, random:4
    and pseudo); --text names the suite's published files or, for blimp, hf:nyu-mll/blimp"""
    next_item: bool = False
    """measure at which rank the last symbol of each record is predicted, given all before it: hit rate, NDCG and MRR
    among all items and among 100 sampled ones, beside popularity and item-kNN of the run's training part"""
    max_texts: int | None = setting(None, at_least(1))
    """with --orders, --suite or --next-item: maximum number of texts, of pairs in a paradigm, or of records, taken
    evenly; None = all"""
    seed: int = 0
    """with --orders, --suite or --next-item: seed of the random orders, the bound's samples, the sampled items and the
    intervals"""
    max_windows: int | None = setting(None, at_least(1))
    """maximum number of windows to measure, in whole batches; None = as in the run, or 16,384 with --text"""
    objective: str | None = None
    """objective whose loss is measured; None = the objective that the checkpoint was trained with"""
    mem_len: int | None = None
    """memory: number of positions of earlier windows to attend to; None = as in training, or the paper's 384"""
    clamp_len: int | None = None
    """largest relative distance; larger ones are clamped to it; None = as in training"""
    same_length: bool = False
    """clm: every token sees exactly --mem-len earlier positions, even if it did not in training"""
    out: str | None = None
    """.json file to write the numbers to; None = only print them"""
    overwrite: bool = False
    """replace an existing file"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """compute type; None = the checkpoint's"""
    data: DataConfig = field(default_factory=DataConfig)
    """windows; the defaults are those of the run, or the paper's; other lengths scale with --data.seq-len"""
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def check(self) -> None:
        """Raise InputError for settings that cannot work, before anything is read."""
        check_bounds(self)
        for word in self.orders:
            check_orders([word])
        given = {"`next_item`": self.next_item, "`suite`": self.suite, "`orders`": self.orders}
        reader = next((name for name, value in given.items() if value), None)
        if self.next_item and (self.suite or self.orders):
            why = "measures next items: leave `next_item` out"
            raise InputError("suite" if self.suite else "orders", self.suite or " ".join(self.orders), why)
        settings = Resolution.of(self, EvaluateSettings(self.checkpoint))
        for name in sorted(each.python_name for each in flatten(self)):
            if reader and name.startswith(_OF_WINDOWS) and name != "data.seq_len":
                why = f"is for windows, but {reader} reads whole texts: leave one of them out"
                settings.refuse(name, InputError(name, "", why))
            if not reader and name in _OF_TEXTS:
                settings.refuse(name, InputError(name, "", "needs `orders`, `suite` or `next_item`"))
        if self.suite and not self.text:
            raise InputError("suite", self.suite, "needs `text`, the names of its files")
        if self.out and Path(self.out).suffix != ".json":
            raise InputError("out", self.out, ": give a name that ends in .json")


@dataclass(frozen=True)
class EvaluationResult:
    """What was measured, with its settings."""

    measured: Measured | Estimates
    config: Config
    report: str  # as it is printed


def evaluate(
    checkpoint: str | Path | EvaluateSettings,
    on_batch: OnBatch = lambda number, batches: None,
    **settings: Any,
) -> EvaluationResult:
    """Measure the held-out loss of a checkpoint on a text, with `orders` the likelihoods of whole texts, with `suite`
    its accuracies, or with `next_item` the ranks of last symbols, and write the numbers to `out`. The field `measured`
    of the result has them.

    checkpoint: its folder, or settings. on_batch: called before each batch with its number, from 1, and the number of
    batches. settings: fields of EvaluateSettings by name, such as text="other.txt" (none = the run's own held-out
    text), max_windows=64, or data={"seq_len": 256}, which changes the windows of the run. Raises InputError for
    settings, a text or a checkpoint that cannot work.
    """
    start = checkpoint if isinstance(checkpoint, EvaluateSettings) else EvaluateSettings(str(checkpoint))
    asked = with_keywords(start, settings)
    asked.check()
    with new_file(asked.out, asked.overwrite) if asked.out else contextlib.nullcontext() as file:
        found = _evaluate(asked, on_batch)
        if file:
            file.write_text(json.dumps(found.measured.numbers(), indent=2) + "\n")
    return found


@keep_programs()
def _evaluate(asked: EvaluateSettings, on_batch: OnBatch) -> EvaluationResult:
    from xlnet_jax.checkpoints.formats import load_with_tokenizer
    from xlnet_jax.checkpoints.native import PretrainingRun
    from xlnet_jax.checkpoints.pretrained import vocabulary_tokenizer

    run = PretrainingRun.of(asked.checkpoint)
    pretrained = load_with_tokenizer(asked.checkpoint, asked.tokenizer)
    vocabulary_tokenizer(pretrained)
    config = _config(asked, pretrained, run)
    if asked.dtype:
        pretrained = replace(pretrained, model=replace(pretrained.model, dtype=asked.dtype))
    of_texts = _measure_texts if asked.orders or asked.suite else _measure_windows
    measure = _measure_next_items if asked.next_item else of_texts
    measured, report = measure(asked, pretrained, run, config, on_batch)
    m = config.model
    title = f"checkpoint  {asked.checkpoint}: {m.num_layers} layers x {m.d_model}, {m.dtype}"
    return EvaluationResult(measured, config, "\n".join([title, *report]))


def print_evaluation(settings: EvaluateSettings) -> None:
    """Print the loss or the likelihoods of a checkpoint, in all units. Raises InputError as `evaluate` does."""
    with progress() as show:
        found = evaluate(settings, lambda number, batches: show(f"batch {number:,} of {batches:,}"))
    with printing_until_unread():
        print(found.report)


def _measure_windows(
    settings: EvaluateSettings, pretrained: Pretrained, run: PretrainingRun | None, config: Config, on_batch: OnBatch
) -> tuple[Measured, list[str]]:
    from xlnet_jax.training.evaluation import measure_loss
    from xlnet_jax.training.resolve import require_memory

    with _corpus(settings, config, pretrained, run) as (corpus, name):
        if settings.mem_len is not None:
            require_memory(corpus, config)
        counts_V, known = _count_pieces(corpus, run)
        measured = measure_loss(pretrained, corpus, config, counts_V, on_batch)
    return measured, _report(measured, config, name, corpus.manifest, known)


def _measure_texts(
    settings: EvaluateSettings, pretrained: Pretrained, run: PretrainingRun | None, config: Config, on_batch: OnBatch
) -> tuple[Estimates, list[str]]:
    from xlnet_jax.checkpoints.pretrained import on_device
    from xlnet_jax.inference.orders import LEFT_TO_RIGHT
    from xlnet_jax.inference.score import require_orders
    from xlnet_jax.measurement.likelihood import measure_likelihoods
    from xlnet_jax.measurement.suites import ORDERS, measure_accuracies

    words = settings.orders or ((LEFT_TO_RIGHT,) if pretrained.is_causal else ORDERS)
    tokenizer, model = require_orders(pretrained, words), on_device(pretrained, pretrained.model.dtype)
    how: dict[str, Any] = {"seed": settings.seed, "max_len": config.data.seq_len, "mem_len": config.model.mem_len}
    if settings.suite:
        name, pairs = _pairs(settings, settings.suite)
        measured = measure_accuracies(model, pairs, words, on_batch=on_batch, **how)
    else:
        name, texts = _whole_texts(settings, tokenizer, run)
        names, rows = zip(*texts, strict=True)
        measured = measure_likelihoods(model, rows, words, names=names, on_batch=on_batch, **how)
    segments = f"segments    {how['max_len']:,} pieces, memory {how['mem_len']:,}"
    return measured, [f"text        {name}", segments, *measured.report]


def _measure_next_items(
    settings: EvaluateSettings, pretrained: Pretrained, run: PretrainingRun | None, config: Config, on_batch: OnBatch
) -> tuple[Estimates, list[str]]:
    import numpy as np

    from xlnet_jax.checkpoints.pretrained import on_device
    from xlnet_jax.measurement.next_item import measure_next_items

    tokenizer = pretrained.require_tokenizer()
    if not (symbols := tokenizer.symbols):
        raise InputError("next_item", "", "is for records, but the checkpoint was trained on prose")
    name, texts = _whole_texts(settings, tokenizer, run)
    own = run.corpus() if run else None
    is_last_V = np.zeros(tokenizer.vocab_size, bool)
    is_last_V[symbols.ids_of(len(symbols.records.fields) - 1)] = True
    measured = measure_next_items(
        on_device(pretrained, pretrained.model.dtype), [ids_P for _, ids_P in texts],
        [*own.documents("train")] if own else None, is_last_V,
        seed=settings.seed, max_len=config.data.seq_len, on_batch=on_batch,
    )  # fmt: skip
    return measured, [f"text        {name}", *measured.report]


def _pairs(settings: EvaluateSettings, suite: str) -> tuple[str, list[Pair]]:
    """Return the name of the suite's files, and its pairs: at most max_texts of each paradigm."""
    from data_pipelines import sources
    from data_pipelines.readers import TextFile
    from xlnet_jax.measurement.suites import FIELDS, Pair
    from xlnet_jax.tasks.classification.tables import read_table

    # A dataset without a configuration means the files of all.
    names = [re.sub(r"^hf:(?!//)([^/:@]+/[^/:@]+)$", r"hf://datasets/\1", name) for name in settings.text]
    found, paradigms = sources.find(names, settings), dict[str, list[Pair]]()
    for unit in (unit for source in found for unit in source.units):
        if not (isinstance(unit, TextFile) and unit.has_records):
            raise InputError("suite", suite, f": {unit.path} is neither JSON Lines nor Parquet")
        for record in read_table(unit.path):
            good, bad, paradigm, phenomenon = (record.get(field, str) for field in FIELDS[suite])
            paradigms.setdefault(paradigm, []).append(Pair(good, bad, paradigm, phenomenon, record.where))
    chosen = [of_one[i] for of_one in paradigms.values() for i in _evenly(len(of_one), settings.max_texts)]
    if not chosen:
        raise InputError("suite", suite, f": there are no pairs in {sources.name_of(found)}")
    return sources.name_of(found), chosen


def _evenly(count: int, most: int | None) -> list[int]:
    """Return the numbers of at most `most` of `count` things, evenly spaced."""
    return [i * count // most for i in range(most)] if most and most < count else list(range(count))


def _whole_texts(
    settings: EvaluateSettings, tokenizer: Tokenizer, run: PretrainingRun | None
) -> tuple[str, list[tuple[str, np.ndarray]]]:
    """Return the name of the text, and (name, token ids, int32 [P]) of its documents that have pieces, at most
    max_texts."""
    from data_pipelines import sources
    from data_pipelines.faults import Faults

    corpus = _prepared(settings, run)
    if corpus:
        corpus.require(tokenizer, "the checkpoint's")
        name, encoded = str(corpus.folder), [*corpus.documents("validation", whole=settings.next_item)]
        names = [f"document {i} of {name}" for i in range(len(encoded))]
    else:
        of_text = sources.find(settings.text, settings, "validation", tokenizer.records)
        records, faults = [*sources.read_texts(of_text, "document")], Faults()
        tokenizer.require_known((record.text for record in records), "the text")
        encoded = tokenizer.encode_lines([record.text for record in records])
        name, names = sources.name_of(of_text), [record.where for record in records]
        faults.watch(records, [len(ids_P) > 0 for ids_P in encoded])
        faults.keep("no part in the means")
    if not (texts := [(where, ids_P) for where, ids_P in zip(names, encoded, strict=True) if len(ids_P)]):
        raise InputError(f"text {name}: no text in it")
    return name, [texts[i] for i in _evenly(len(texts), settings.max_texts)]


def _config(asked: EvaluateSettings, pretrained: Pretrained, run: PretrainingRun | None) -> Config:
    """Return the settings of the run, or the paper's, with the changes that were given.

    The original's windows are twice as long as the part that becomes memory (512 and 256). Where a checkpoint has only
    that length, as `reuse_len` in Hugging Face's configuration, the windows are twice as long too.
    """
    from xlnet_jax.checkpoints.native import trained_mem_len
    from xlnet_jax.objectives.presets import lengths_of, with_objective

    objective = asked.objective or (run.config.objective if run else pretrained.objective)
    papers = DataConfig(batch_size=BATCH_SIZE)
    if pretrained.reuse_len:
        papers = resized(papers, 2 * pretrained.reuse_len)
    base = with_objective(run.config if run else Config(data=papers), objective)
    start = Config(
        objective=objective, data=base.data, rtd=base.rtd, mesh=asked.mesh, eval=base.eval, model=pretrained.model
    )
    settings = Resolution(start).give(asked, EvaluateSettings(asked.checkpoint), "data")
    mem_len, seq_len = trained_mem_len(pretrained, run), max(settings.config.data.seq_len, 1)
    if seq_len != base.data.seq_len:
        settings.choose(lengths_of(resized(base.data, seq_len)))
        mem_len = mem_len * seq_len // base.data.seq_len
    data, model = settings.config.data, settings.config.model
    carried = data.reuse_len * (data.windows_per_block - 1)
    usual = EvalConfig() if asked.text else base.eval  # in training, a run measures only a few windows of its text
    settings.set(
        {
            "eval.max_windows": asked.max_windows or usual.max_windows,
            "model.mem_len": min(mem_len, carried) if asked.mem_len is None else asked.mem_len,
            "model.clamp_len": model.clamp_len if asked.clamp_len is None else asked.clamp_len,
            "model.same_length": model.same_length or asked.same_length,
        }
    )
    return settings.final()


@contextlib.contextmanager
def _corpus(
    settings: EvaluateSettings, config: Config, pretrained: Pretrained, run: PretrainingRun | None
) -> Iterator[tuple[Corpus, str]]:
    """Yield the text as a corpus, and its name."""
    from data_pipelines import sources
    from data_pipelines.prepare.commands import prepare
    from data_pipelines.prepare.packing import RecordWindows
    from data_pipelines.windows import block_len

    if corpus := _prepared(settings, run):
        yield corpus, str(corpus.folder)
    else:
        assert pretrained.tokenizer
        data, records = config.data, None
        if pretrained.tokenizer.records:
            records = RecordWindows(data.seq_len, data.windows_per_block, run.config.long if run else "refuse")
        found = sources.find(settings.text, settings, "validation", pretrained.tokenizer.records)
        with tempfile.TemporaryDirectory() as folder:
            corpus = prepare(
                (), found, pretrained.tokenizer, Path(folder) / "corpus", block_len=block_len(data),
                validation_fraction=0, records=records,
            )  # fmt: skip
            yield corpus, sources.name_of(found)


def _prepared(settings: EvaluateSettings, run: PretrainingRun | None) -> Corpus | None:
    """Return the prepared corpus that `text` names, or the run's own without `text`; None if `text` is plain text."""
    from data_pipelines.corpus import Corpus, is_corpus

    prepared = [name for name in settings.text if is_corpus(name)]
    if prepared and len(settings.text) > 1:
        raise InputError("text", prepared[0], "is a prepared corpus: it stands alone")
    if settings.text:
        return Corpus(prepared[0]) if prepared else None
    if run and (own := run.corpus()):
        return own
    raise InputError("text", "", "names no text, and there is no corpus beside the checkpoint: give `text`")


def _count_pieces(corpus: Corpus, run: PretrainingRun | None) -> tuple[np.ndarray, str]:
    """Return the counts of all pieces in the text that the unigram line is computed from, and the name of that text."""
    with contextlib.suppress(InputError):  # if the run's corpus is damaged, another text can still be measured
        if run and (own := run.corpus()) and len(own.unigram_counts) == corpus.manifest.vocab_size:
            return own.unigram_counts, "the run's training text"
    made_from = corpus.manifest.made_from
    alone = made_from.get("validation") and made_from["validation"] == made_from.get("train")
    return corpus.unigram_counts, "this text itself" if alone else "the corpus' training text"


def _report(found: Measured, config: Config, text: str, manifest: Manifest, known: str) -> list[str]:
    """Return the loss with its settings, its text, the unigram line, and its other units. known: text that the
    frequencies of the unigram line come from."""
    c, m, split = config.data, config.model, manifest.splits["validation"]
    dropped = f", {split.dropped_tokens:,} after the last left out" if split.dropped_tokens else ""
    windows = split.blocks * steps_per_block(manifest.record.block_len, c)
    left_out = f"; max-windows leaves {windows - found.windows:,} out" if windows > found.windows else ""
    unknown, pieces, kind = found.content.unknown, found.content.pieces, "piece"
    targets, by_field = f"{found.targets:,} pieces", ""
    if found.content.are_records:
        kind, by_field = "symbol", " in each field"
        ends = " and their <eod>" if found.targets > pieces else ""
        targets = f"{found.targets:,}, in {counted(found.content.documents, 'record')} of {pieces:,} symbols{ends}"
    side = f"{abs(found.unigram - found.loss):.4f} {'below' if found.loss < found.unigram else 'above'}"
    lines = [
        f"text        {text}: {counted(split.blocks, 'block')} of {manifest.record.block_len:,} tokens{dropped}",
        f"windows     {found.windows:,} of {c.seq_len} tokens, {c.batch_size} per batch, memory {m.mem_len}{left_out}",
        f"targets     {targets}",
        f"unknown     {found.content.unknown_share:.2%} of the {kind}s: {unknown:,} of {pieces:,} are <unk>",
        f"loss        {found.loss:.4f} nats per {kind}, {side} the unigram line",
        f"unigram     {found.unigram:.4f} nats per {kind}, by the frequencies{by_field} of {known}",
        *(_units_of_records(found) if found.content.are_records else _units(found)),
    ]
    others = found.besides
    if "pair_loss" in others:
        lines += [f"pairs       {others['pair_loss']:.4f} nats, {others['pair_accuracy']:.2%} right"]
    if "detection_loss" in others:
        lines += [
            f"detection   {others['detection_loss']:.4f} nats per token, {others['detection_accuracy']:.2%} right, "
            f"where {others['replaced_share']:.2%} are replaced: the loss above is the generator's"
        ]
    if found.content.are_records:
        return lines
    compare = "perplexity per piece between models with one tokenizer only; else bits per character, at equal <unk>"
    return [*lines, f"compare     {compare}"]


def _units_of_records(found: Measured) -> Iterator[str]:
    """Yield lines with the loss of records in all units that apply."""
    from xlnet_jax.objectives.registry import objective_named

    numbers, objective = found.numbers(), objective_named(found.objective)
    if "pseudo_perplexity" in numbers:
        yield f"pseudo      perplexity {numbers['pseudo_perplexity']:,.2f} per masked symbol: no likelihood follows"
        return
    yield f"perplexity  {numbers['perplexity']:,.2f} per target"
    if "nats_per_record" in numbers:
        most = "at most " if objective.loss == "bound" else ""
        given = "with its length, by <eod>" if objective.loss == "likelihood" else "given the lengths of its fields"
        yield f"records     {most}{numbers['nats_per_record']:.4f} nats per record, {given}"


def _units(found: Measured) -> Iterator[str]:
    """Yield lines with the loss in all units that apply."""
    from xlnet_jax.objectives.registry import objective_named

    numbers, content = found.numbers(), found.content
    if "pseudo_perplexity" in numbers:
        perplexity = numbers["pseudo_perplexity"]
        yield f"pseudo      perplexity {perplexity:,.2f} per masked piece: no likelihood of the text follows"
        return
    is_likelihood = "word_perplexity" in numbers
    of_words = f", {numbers['word_perplexity']:,.2f} per word" if numbers.get("word_perplexity") is not None else ""
    of_bytes = f", {numbers['bits_per_byte']:.4f} per byte" if is_likelihood else ""
    per_piece, per_word = content.characters / content.pieces, content.pieces / max(content.words, 1)
    most = "at most " if objective_named(found.objective).loss == "bound" else ""
    yield f"perplexity  {most}{numbers['perplexity']:,.2f} per piece{of_words}"
    yield (
        f"bits        {most}{numbers['bits_per_piece']:.4f} per piece, {numbers['bits_per_character']:.4f} per "
        f"character{of_bytes}, {numbers['bits_per_word']:.4f} per word, at {per_piece:.2f} characters per piece and "
        f"{per_word:.2f} pieces per word"
    )
    if is_likelihood:
        yield (
            f"counted     {content.pieces:,} pieces and {content.documents:,} ends of "
            f"documents: {content.characters:,} characters, {content.bytes:,} bytes, {content.words:,} words"
        )
