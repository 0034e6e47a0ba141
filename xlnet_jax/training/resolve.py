"""Resolve the settings of a pretraining run, once, before it begins."""

import functools
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from data_pipelines.batches import BatchSource
from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.checkpoints.pretrained import Pretrained
from xlnet_jax.objectives.language_model import inputs_of
from xlnet_jax.objectives.presets import defaults_of
from xlnet_jax.objectives.registry import objective_named, validate
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.fields import with_values
from xlnet_jax.settings.files import from_dict, to_dict
from xlnet_jax.training import sharding
from xlnet_jax.training.attention import check_attention, choose_attention, last_windows
from xlnet_jax.training.fit import Memory, build_fitting, keep_fit
from xlnet_jax.training.hosts import Process
from xlnet_jax.training.initial import begin_from, tokenizer_of
from xlnet_jax.training.step import Program, pretraining_program
from xlnet_jax.training.text import Text
from xlnet_jax.training.workdir import Workdir


@dataclass(frozen=True)
class Resolved:
    """Settings of a pretraining run that are not changed any more, and the things that they name."""

    config: Config
    start: Pretrained | None
    """None = all weights are drawn at random, or the run resumes"""
    corpus: Corpus
    tokenizer: Tokenizer
    batches: BatchSource
    program: Program[Any]
    memory: Memory


def resolve(config: Config, workdir: Workdir, process: Process) -> Resolved:
    """Resolve what the settings leave open: the network of initial weights, the tokenizer and its vocabulary, the text,
    the attention implementation and, with `auto_fit`, what a step needs to fit the devices; and compile the step.

    Process 0 claims the workdir and prepares there what the others read. Raises InputError where settings contradict
    each other, the devices, the weights, the text or the workdir, and OutOfMemory where a step does not fit.
    """
    prepared = _prepare(config, workdir, process.console) if process.hosts.first else None
    shared = None
    if prepared:
        config, _, corpus, _ = prepared
        shared = {"config": to_dict(config), "corpus": str(corpus.folder)}
    shared = process.hosts.gather("prepared", shared)[0]
    config, start, corpus, tokenizer = prepared or _find(shared, workdir)
    process.hosts.demand_same("another corpus", {"SHA-256 of its manifest": corpus.manifest.sha256})
    batches = BatchSource(
        corpus, "train", tokenizer.is_word_start, config.data, config.model.mem_len, config.seed,
        objective_named(config.objective).filling,
    )  # fmt: skip
    attention = check_attention(config, process, lambda: inputs_of(last_windows(config, batches), config)[0])
    build = functools.partial(pretraining_program, attention=attention)
    config, program, memory = build_fitting(config, build, workdir, process)
    return Resolved(config, start, corpus, tokenizer, batches, program, memory)


def _prepare(config: Config, workdir: Workdir, console: Console) -> tuple[Config, Pretrained | None, Corpus, Tokenizer]:
    # ---- text and weights -------------------------------------------------------------------------------------------
    text = Text.of(config)
    config, start = _begin(config, workdir)
    validate(config)
    # ---- tokenizer --------------------------------------------------------------------------------------------------
    known = text.demanded_tokenizer(config, tokenizer_of(start, config) if start else None)
    known = known or text.counted_tokenizer(config, workdir)
    if known:
        config = with_values(config, {"model.vocab_size": known.vocab_size})
    # Refuse what does not fit the devices before spending hours on a text.
    choose_attention(config, sharding.make_mesh(config))
    workdir.claim(config)
    tokenizer = text.find_tokenizer(config, known, workdir)
    console.print(f"tokenizer   {tokenizer.vocab_size:,} pieces in {workdir.tokenizer}")
    # ---- corpus -----------------------------------------------------------------------------------------------------
    corpus = text.find_corpus(config, tokenizer, workdir)
    workdir.claim_text(corpus.manifest.made_from, corpus.manifest.origins)
    for split in ("train", "validation"):
        blocks = corpus.num_blocks(split)
        console.print(
            f"{split:11} {blocks:,} blocks of {corpus.block_len:,} tokens, {blocks * corpus.block_len:,} in all"
        )
    return config, start, corpus, tokenizer


def _find(shared: dict[str, Any], workdir: Workdir) -> tuple[Config, Pretrained | None, Corpus, Tokenizer]:
    """Read what process 0 has prepared."""
    workdir.demand_shared()
    config, corpus = from_dict(Config, shared["config"]), Corpus(shared["corpus"])
    config, start = _begin(config, workdir)
    return config, start, corpus, Tokenizer.load(workdir.tokenizer)


def _begin(config: Config, workdir: Workdir) -> tuple[Config, Pretrained | None]:
    before = workdir.resumes(Config)
    config = keep_fit(config, before)
    if not config.init:
        return config, None
    return begin_from(config.init, config, before, defaults_of(config))
