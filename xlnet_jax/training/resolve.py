"""Resolve the settings of a pretraining run once, before it begins: its folder, the weights that it starts from, and
its text, a prepared corpus or text that is made into a tokenizer and a corpus in the workdir.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etils import epath

from data_pipelines import sources, windows
from data_pipelines.corpus import TOKENIZER_FOLDER, Corpus, Manifest, is_corpus
from data_pipelines.formats import BEGINNING
from data_pipelines.ids import IdCorpus
from data_pipelines.prepare.commands import prepare
from data_pipelines.prepare.packing import RecordWindows
from data_pipelines.readers import kind_of, open_text
from data_pipelines.record_files import FASTA, MemoryRecords, fields_of
from data_pipelines.records import RecordFormat
from data_pipelines.sources import Source
from data_pipelines.tokenizer import SYMBOLS_JSON, Normalization, Tokenizer, TokenizerSettings, VocabularyTooLarge
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import PRESETS, defaults_of, windows_of_records
from xlnet_jax.objectives.registry import validate
from xlnet_jax.printing import counted
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import from_dict, to_dict
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.storage.outputs import drop_leftovers
from xlnet_jax.training import sharding, text_size
from xlnet_jax.training.attention import choose_attention
from xlnet_jax.training.dial import MOST_CHARACTERS, Dial
from xlnet_jax.training.fit import keep_fit
from xlnet_jax.training.hosts import Process
from xlnet_jax.training.initial import begin_from, tokenizer_of
from xlnet_jax.training.workdir import Workdir


def folder_of(config: Config, text: str | None = None) -> str:
    """Return `workdir`, or a name made from text, preset and objective. text: its name; None = from the settings."""
    if config.workdir:
        return config.workdir
    objective = "" if config.objective == PRESETS[config.preset]().objective else f"-{config.objective}"
    return f"runs/{text or name_of_text(config)}-{config.preset}{objective}"


def name_of_text(config: Config) -> str:
    """Return a short name of the text, for use in file names."""
    return "+".join(map(sources.describe, config.corpus)) or "austen"


@dataclass(frozen=True)
class Text:
    """Text that the settings `corpus` and `validation` name."""

    name: str  # short, for use in file names
    prepared: Corpus | None
    train: list[Source]
    validation: list[Source] | None  # None = held out from train

    @classmethod
    def of(cls, config: Config, sequences: Sequence[Any] | None = None) -> "Text":
        """Find the text: that of the settings, or records from Python. Raises InputError if a name has no text, or a
        prepared corpus is mixed with other text."""
        records = RecordFormat.of(config)
        if sequences is not None:
            if config.corpus or config.validation:
                name = "corpus" if config.corpus else "validation"
                raise InputError(name, getattr(config, name)[0], ": `sequences` takes its place; leave one of them out")
            assert records
            unit = MemoryRecords(sequences, records)
            return cls("sequences", None, [Source("sequences", "sequences", (unit,))], None)
        names, validation = config.corpus, config.validation
        name = name_of_text(config)
        prepared = [corpus for corpus in names if is_corpus(corpus)]
        if prepared and (len(names) > 1 or validation):
            raise InputError(
                "corpus",
                prepared[0],
                "is a prepared corpus with its own held-out part: give no other text with it; to mix texts, "
                "prepare them together, and give `data.weights`",
            )
        if prepared:
            return cls(name, Corpus(prepared[0]), [], None)
        if not names:
            novels = sources.embedded()
            names, validation = novels[:1], validation or novels[1:]
        train = sources.find(names, config, records=records)
        held_out = sources.find(validation, config, "validation", records) if validation else None
        sources.require_distinct(train, held_out or ())
        return cls(name, None, train, held_out)

    def required_tokenizer(self, settings: Resolution[Config], of_weights: Tokenizer | None) -> Tokenizer | None:
        """Return the tokenizer that the run must use: of its initial weights, of the setting `tokenizer`, or of a
        prepared corpus; None if the run trains one.

        Raises InputError if two of them differ, or if one has another data.token_level or model.vocab_size than the
        settings.
        """
        config = settings.config
        known = of_weights or self._named_tokenizer(config)
        origin = f"`init` {config.init}" if of_weights else f"`tokenizer` {config.tokenizer}"
        if self.prepared is not None:
            if known:
                self.prepared.require(known, str(config.init if of_weights else config.tokenizer))
            known, origin = self.prepared.tokenizer, f"`corpus` {config.corpus[0]}"
        level = config.data.token_level
        if known and level not in ("piece", known.settings.token_level):
            raise InputError(
                "data.token_level",
                level,
                f": the tokenizer of {origin} is already trained, at level {known.settings.token_level}; leave one of "
                "the two out",
            )
        if known and (known.records.fields if known.records else ()) != config.fields:
            reads = f"records of {' '.join(known.records.fields)}" if known.records else "prose"
            text = "the text is records" if config.fields else "there are none, so the text is prose"
            raise InputError(
                "fields", " ".join(config.fields), f": {text}, but the tokenizer of {origin} reads {reads}"
            )
        if known:
            settings.require(
                {"model.vocab_size": known.vocab_size},
                lambda has: f"the tokenizer of {origin} has {has:,} pieces; leave it out, or give {has}",
            )
        return known

    def choose_sizes(self, settings: Resolution[Config], before: Config | None) -> None:
        """Choose what follows from the size of the text. before: settings of the run that resumes."""
        config = settings.config
        is_demo, is_open = config.preset == "demo", text_size.leaves_vocabulary_open(settings)
        if self.prepared or not (is_demo or is_open):
            return
        if not is_demo and before:  # reading a large text again takes minutes
            settings.choose({"model.vocab_size": before.model.vocab_size})
            return
        text_size.choose_sizes(settings, self.size(config, text_size.enough_characters(config)))

    def size(self, config: Config, most: int) -> text_size.TextSize:
        """Return the size of the text. most: characters after which a source is large."""
        if self.prepared:
            tables, counts = self.prepared.tokenizer.tables, self.prepared.unigram_counts
            return text_size.TextSize((int(counts @ tables.characters),), (), 0)
        return text_size.TextSize.of(self.train, self.validation, most, RecordFormat.of(config))

    def counted_tokenizer(self, config: Config, workdir: Workdir, is_chosen: bool = False) -> Tokenizer | None:
        """Return the tokenizer whose vocabulary size is known only after training it: words, characters, bytes, and
        pieces if their number was chosen from the size of the text (is_chosen) and may be too large. A run that resumes
        has it already. None for other pieces."""
        if config.data.token_level == "piece" and not is_chosen and not config.fields:
            return None
        goes_on = workdir.has_checkpoints and workdir.tokenizer.exists()
        return Tokenizer.load(workdir.tokenizer) if goes_on else self._train_tokenizer(config, is_chosen)

    def _named_tokenizer(self, config: Config) -> Tokenizer | None:
        if config.tokenizer is None:
            return None

        def suited() -> TokenizerSettings:
            return TokenizerSettings.usual_for(self._normalization(config))

        return Tokenizer.load(config.tokenizer, TokenizerSettings if self.prepared else suited)

    def _normalization(self, config: Config) -> Normalization:
        """Return the normalization of the settings; for auto choose it from the text and print it."""
        if config.data.normalization != "auto":
            return config.data.normalization
        if config.data.token_level == "byte":
            return "none"
        return sources.choose_normalization(self.train)

    def _train_tokenizer(self, config: Config, may_shrink: bool = False) -> Tokenizer:
        if records := RecordFormat.of(config):
            lines, holds_out_last = sources.read_lines(self.train), config.hold_out == "last"
            return Tokenizer.of_symbols(lines, records, config.min_count, holds_out_last)
        size, level, normalization = config.model.vocab_size, config.data.token_level, self._normalization(config)
        try:
            return Tokenizer.train(sources.read_lines(self.train), size, normalization, token_level=level)
        except InputError as error:
            if may_shrink and isinstance(error, VocabularyTooLarge):
                return Tokenizer.train(sources.read_lines(self.train), error.largest, normalization, token_level=level)
            raise InputError("model.vocab_size", error.value, error.why) if error.why else error from None

    def find_tokenizer(self, config: Config, given: Tokenizer | None, workdir: Workdir) -> Tokenizer:
        """Return the tokenizer in the workdir. If there is none, save the given one there, or train one on the text.

        Raises InputError if the workdir has another tokenizer than the given one.
        """
        if workdir.tokenizer.exists():
            drop_leftovers(workdir.tokenizer)
            there = Tokenizer.load(workdir.tokenizer)
            if given and given.sha256 != there.sha256:
                name = config.tokenizer or config.init or self.name
                raise InputError(
                    f"workdir {workdir.folder} holds another run (its tokenizer is not {name}): give `tokenizer` "
                    f"{workdir.tokenizer}, or another `workdir`"
                )
            return there
        tokenizer = given or self._train_tokenizer(config)
        tokenizer.save(workdir.tokenizer)
        return tokenizer

    def find_corpus(self, config: Config, tokenizer: Tokenizer, workdir: Workdir) -> Corpus:
        """Return the prepared corpus, or the one in the workdir, which is made if it does not exist."""
        if self.prepared:
            require_memory(self.prepared, config)
            return self.prepared
        data = config.data
        return prepare(
            self.train,
            self.validation,
            tokenizer,
            workdir.corpus,
            block_len=windows.block_len(data),
            validation_fraction=data.validation_fraction,
            records=RecordWindows(data.seq_len, data.windows_per_block, config.long) if config.fields else None,
            holds_out_last=config.hold_out == "last",
        )


def require_memory(corpus: Corpus, config: Config) -> None:
    """Raise InputError if the blocks of a corpus are too short to ever fill the memory."""
    held = windows.steps_per_block(corpus.block_len, config.data)
    carried = (held - 1) * config.data.reuse_len
    if held > 0 and config.model.mem_len > carried:
        raise InputError(
            "model.mem_len",
            config.model.mem_len,
            f"can never be filled: blocks of corpus {corpus.folder} have {corpus.block_len} tokens, which give {held} "
            f"windows and at most {carried} positions of memory; lower it, or prepare blocks of "
            f"{windows.block_len(config.data)} tokens",
        )


def choose_records(settings: Resolution[Config], of_weights: Tokenizer | None, sequences: Sequence[Any] | None) -> None:
    """Choose `fields`, and the windows that follow from them, if a tokenizer, records from Python or the format of the
    text decide them."""
    config = settings.config
    tokenizer, why = of_weights, f"the tokenizer of `init` {config.init} reads records"
    if len(config.corpus) == 1 and is_corpus(config.corpus[0]):
        folder = epath.Path(config.corpus[0]).expanduser()
        if made := Manifest.load(folder).made_from.get("records"):
            tokenizer, why = Tokenizer.load(folder / TOKENIZER_FOLDER), "the corpus has records"
            settings.require(
                {"data.seq_len": made["seq_len"], "long": made["long"]},
                lambda has: f"the windows of corpus {config.corpus[0]} were made with {has}; leave it out",
            )
    elif config.tokenizer and (epath.Path(config.tokenizer).expanduser() / SYMBOLS_JSON).exists():
        tokenizer, why = Tokenizer.load(config.tokenizer), f"the tokenizer {config.tokenizer} reads records"
    records = tokenizer.records if tokenizer else None
    if records is None and sequences is not None:
        records, why = RecordFormat(fields_of(sequences)), "the text is sequences from Python"
    elif records is None and config.corpus and all(kind_of(name) in FASTA for name in config.corpus):
        records, why = RecordFormat((_field_of_fasta(config.corpus[0]),)), "the text is FASTA"
    if records and not config.fields:
        settings.choose({"fields": records.fields}, why)
        settings.choose({"group_by": records.group_by, "unknown": records.unknown})
        settings.choose(windows_of_records(settings.config, settings.config.long))
    if not settings.config.fields:
        for name in ("group_by", "unknown", "min_count", "hold_out", "long"):
            settings.refuse(name, InputError(name, "", "has no effect on prose: give `fields`, or leave it out"))


def _field_of_fasta(path: str) -> str:
    """Return the field of a FASTA file: dna if its first sequences have no other letters, else protein."""
    with open_text(path) as file:
        letters = re.sub(rb"(?m)^[>;].*$|\s", b"", file.read(BEGINNING)).upper()
    return f"sequence:{'protein' if letters.strip(b'ACGTUN') else 'dna'}"


# ---- the run ---------------------------------------------------------------------------------------------------------


_Prepared = tuple[Pretrained | None, Corpus | IdCorpus, Tokenizer | None]
"""Weights that a run starts from (None = random ones, or it resumes), its text, and its tokenizer (None = of ids)"""


def resolve_text(
    config: Config,
    workdir: Workdir,
    process: Process,
    dataset: Mapping[str, Any] | None,
    sequences: Sequence[Any] | None = None,
) -> tuple[Resolution[Config], _Prepared]:
    """Resolve what the settings leave open, up to the text, in this order: what the run chose when it began, the
    network of initial weights, sizes for a small text, the tokenizer and its vocabulary, the corpus.

    Process 0 claims the workdir and prepares what the others read. Raises InputError if settings contradict each other,
    the devices, the weights, the text or the workdir.
    """
    settings, shared = Resolution.of(config, defaults_of(config)), None
    if process.first:
        workdir.lock()
        if dataset is None:
            found = _prepare(settings, workdir, process, sequences)
        else:
            found = _claim_ids(settings, workdir, dataset)
        shared = {"config": to_dict(settings.config), "corpus": str(found[1].folder)}
    shared = process.gather("prepared", shared)[0]
    if not process.first:
        settings = Resolution(from_dict(Config, shared["config"]))
        found = _find(settings, shared["corpus"], workdir, dataset)
    process.require_same("another corpus", {"SHA-256 of its manifest": found[1].manifest.sha256})
    return settings, found


def _prepare(
    settings: Resolution[Config], workdir: Workdir, process: Process, sequences: Sequence[Any] | None
) -> _Prepared:
    console = process.console
    # ---- a run that resumes, and weights ----------------------------------------------------------------------------
    before = workdir.resumes(Config)
    keep_fit(settings, before)
    start = begin_from(settings, before) if settings.config.init else None
    # ---- text -------------------------------------------------------------------------------------------------------
    choose_records(settings, tokenizer_of(start, settings.config) if start else None, sequences)
    text = Text.of(settings.config, sequences)
    # ---- sizes for a small text, or for a time ----------------------------------------------------------------------
    most = settings.config.model.vocab_size
    dial = Dial(settings, process.began, console) if settings.config.dial else None
    if dial and before:
        dial.resume(before, workdir)
    elif dial:
        dial.choose_network(text.size(settings.config, MOST_CHARACTERS))
    else:
        text.choose_sizes(settings, before)
    if before:  # whose steps may change, and its curve not
        settings.choose({"optimizer.warmup_steps": before.optimizer.warmup_steps})
    for line in settings.log:
        console.print(line)
    validate(settings.config)
    # ---- tokenizer --------------------------------------------------------------------------------------------------
    known = text.required_tokenizer(settings, tokenizer_of(start, settings.config) if start else None)
    is_chosen = settings.config.model.vocab_size != most
    if known is None and (known := text.counted_tokenizer(settings.config, workdir, is_chosen)):
        settings.set({"model.vocab_size": known.vocab_size})
    # Refuse settings that do not fit the devices before spending hours on a text.
    config = settings.final()
    choose_attention(config, sharding.make_mesh(config))
    workdir.claim(config)
    tokenizer = text.find_tokenizer(config, known, workdir)
    console.print(f"tokenizer   {tokenizer.vocab_size:,} pieces in {workdir.tokenizer}")
    # ---- corpus -----------------------------------------------------------------------------------------------------
    corpus = text.find_corpus(config, tokenizer, workdir)
    workdir.claim_text(corpus.manifest.made_from, corpus.manifest.origins)
    for split in ("train", "validation"):
        count = corpus.num_blocks(split)
        blocks = f"{counted(count, 'block')} of {corpus.block_len:,} tokens"
        console.print(f"{split:11} {blocks}, {count * corpus.block_len:,} in all")
    if dial and not before:
        dial.choose_steps(corpus, workdir)
    return start, corpus, tokenizer


def _claim_ids(settings: Resolution[Config], workdir: Workdir, dataset: Mapping[str, Any]) -> _Prepared:
    for name in ("corpus", "validation", "tokenizer", "init"):
        if getattr(settings.config, name):
            raise InputError(name, getattr(settings.config, name), ": `dataset` takes its place; leave one of them out")
    if before := workdir.resumes(Config):
        keep_fit(settings, before)
        settings.choose({"optimizer.warmup_steps": before.optimizer.warmup_steps})
    config = settings.final()
    validate(config)
    corpus = _read_ids(dataset, config)
    choose_attention(config, sharding.make_mesh(config))
    workdir.claim(config)
    workdir.claim_text(corpus.manifest.made_from, {})
    return None, corpus, None


def _read_ids(dataset: Mapping[str, Any], config: Config) -> IdCorpus:
    return IdCorpus(dataset, windows.block_len(config.data), config.model.vocab_size)


def _find(settings: Resolution[Config], corpus: str, workdir: Workdir, dataset: Mapping[str, Any] | None) -> _Prepared:
    """Read what process 0 prepared."""
    workdir.require_shared()
    if dataset is not None:
        return None, _read_ids(dataset, settings.config), None
    start = begin_from(settings, workdir.resumes(Config)) if settings.config.init else None
    return start, Corpus(corpus), Tokenizer.load(workdir.tokenizer)
