"""Kinds of input: the samples of each, which of their files are damaged, and the command that reads them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutations import damage_file, damage_words
from tests.fuzz.samples import RUN, TUNED

COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Kind:
    """One kind of input. Names of files are relative to the folder of the samples, which is `in` for the command."""

    name: str
    command: str
    """module and its words; in/ holds the samples, out/ is where to write"""
    samples: str
    """files and folders that the command needs, divided by spaces"""
    damaged: str = ""
    """files to damage, of which each example takes one: globs, divided by spaces; none = the command line"""
    form: str = "bytes"
    writes: str = ""
    """sample that the command may change"""

    @property
    def module(self) -> str:
        return self.command.split()[0]

    @property
    def quick(self) -> bool:
        """True where the command compiles nothing, and reads nothing of a run."""
        return self.module.startswith("data_pipelines") or (self.module.endswith("convert") and self.samples != "tuned")

    def damage(self, folder: Path, rng: random.Random) -> tuple[list[str], str]:
        """Damage one file of the samples, or the command line. Return the command line, and what was done."""
        words = self.command.split()[1:]
        if not self.damaged:
            found = damage_words(words, ["--seed", "--out", "--workdir", "--data.seq-len", "--json"], rng)
            return found, "command line: " + " ".join(map(repr, found))[:500]
        files = sorted(file for glob in self.damaged.split() for file in folder.glob(glob) if file.is_file())
        return words, damage_file(rng.choice(files), self.form, rng)


def _kinds() -> Iterator[Kind]:
    prepare = (
        "data_pipelines.prepare --tokenizer in/tokenizer --out out/corpus --block-len 48 --validation-fraction 0.2"
    )
    inspect = "data_pipelines.inspect in/corpus --data.seq-len 16 --out out/window.png"
    encode = "data_pipelines.tokenizer encode"
    convert, to = "xlnet_jax.convert in/", "out/converted --to hf"
    predict = "xlnet_jax.finetune --workdir out/run --data.batch-size 2 --data.seq-len 16 --data.buckets 16 --init in/"
    resume = f"xlnet_jax.train {RUN} --corpus in/text.txt --workdir in/run"
    # ---- text ----
    yield Kind("text", f"{prepare} --source in/text.txt", "tokenizer text.txt", "text.txt", "text")
    yield Kind("gzip", f"{encode} in/tokenizer --file in/text.txt.gz", "tokenizer text.txt.gz", "text.txt.gz", "gz")
    for end, form in (("jsonl", "json lines"), ("parquet", "bytes")):
        yield Kind(f"text.{end}", f"{prepare} --source in/text.{end}", f"tokenizer text.{end}", f"text.{end}", form)
    # ---- tokenizers ----
    show = "data_pipelines.tokenizer show in/tokenizer"
    yield Kind("tokenizer_settings.json", show, "tokenizer", "tokenizer/tokenizer_settings.json", "json")
    yield Kind(
        "spiece.model", f"{encode} in/tokenizer --file in/few.txt", "tokenizer few.txt", "tokenizer/spiece.model"
    )
    yield Kind("tokenizer.json", f"{encode} in/fast --file in/few.txt", "fast few.txt", "fast/tokenizer.json", "json")
    yield Kind("vocab.txt", f"{encode} in/bert --file in/few.txt", "bert few.txt", "bert/vocab.txt", "text")
    # ---- corpora ----
    yield Kind("manifest.json", inspect, "corpus", "corpus/manifest.json", "json")
    yield Kind("shard", inspect, "corpus", "corpus/*array_record*")
    evaluate = "xlnet_jax.evaluate in/native --data.batch-size 2 --data.seq-len 16 --text in/corpus"
    yield Kind("unigram_counts.npy", evaluate, "native corpus", "corpus/unigram_counts.npy", "npy")
    tfds = f"{prepare} --source in/tfds"
    yield Kind("TFDS: JSON", tfds, "tokenizer tfds", "tfds/*.json", "json")
    yield Kind("TFDS: shard", tfds, "tokenizer tfds", "tfds/*.tfrecord*")
    # ---- checkpoints ----
    yield Kind("Hugging Face: JSON", f"{convert}hf {to}", "hf", "hf/*.json", "json")
    yield Kind("model.safetensors", f"{convert}hf {to}", "hf", "hf/model.safetensors", "safetensors")
    yield Kind("TF1: settings", f"{convert}tf1 {to}", "tf1", "tf1/xlnet_config.json", "json")
    yield Kind("TF1: weights", f"{convert}tf1 {to}", "tf1", "tf1/*.index tf1/*.data-*")
    yield Kind("native: JSON", f"{convert}native {to}", "native", "native/config/metadata native/*.json", "json")
    yield Kind("native: arrays", f"{convert}native {to}", "native", "native/params/**/*")
    yield Kind("results.json", f"{convert}tuned {to}", "tuned", "tuned/results.json", "json")
    # ---- runs ----
    run = {"samples": "run text.txt", "writes": "run"}
    yield Kind("run: JSON", resume, damaged="run/config.json run/text.json", form="json", **run)
    yield Kind("run: metrics.jsonl", resume, damaged="run/metrics.jsonl", form="json lines", **run)
    yield Kind("run: checkpoint", resume, damaged="run/checkpoints/2/**/*", **run)
    settings = f"{resume.replace('in/run', 'out/run')} --config in/settings.json"
    yield Kind("settings of --config", settings, "settings.json text.txt", "settings.json", "json")
    # ---- examples ----
    for end, form in (("tsv", "text"), ("jsonl", "json lines")):
        file = f"table.{end}"
        yield Kind(
            f"table.{end}", f"{predict}tuned --task classification --eval in/{file}", f"tuned {file}", file, form
        )
    squad = f"{predict}answering --task squad2 --eval in/squad.json --qa.max-query-len 4"
    yield Kind("questions", squad, "answering squad.json", "squad.json", "json")
    race = f"{predict}choosing --task race --choice.max-qa-len 8 --eval in/race.json"
    yield Kind("choices", race, "choosing race.json", "race.json", "json")
    entities = f"{predict}tagging --task ner --eval in/entities.conll"
    yield Kind("entities", entities, "tagging entities.conll", "entities.conll", "text")
    ranking = (
        f"{predict}ranking --task ranking --ranking.queries in/queries.tsv --ranking.max-query-len 4 "
        "--eval in/qrels.txt --ranking.others 0 --ranking.candidates in/ranked.txt "
        "--ranking.documents in/documents.jsonl in/documents.tsv"
    )
    files = "documents.tsv queries.tsv qrels.txt ranked.txt"
    yield Kind("ranking", ranking, f"ranking documents.jsonl {files}", files, "text")
    # ---- texts ----
    generate = "xlnet_jax.generate in/native --prompt-file in/prompts.txt --max-new-tokens 2"
    yield Kind("prompts", generate, "native prompts.txt", "prompts.txt", "text")
    score = "xlnet_jax.score in/native --out out/scores.jsonl --max-len 24 --texts in/few.txt"
    yield Kind("sentences", score, "native few.txt", "few.txt", "text")
    embed = "xlnet_jax.embed in/native --out out/vectors.npy --seq-len 16 --text in/few.txt"
    # ---- command lines ----
    vocabulary = "data_pipelines.tokenizer train --source in/text.txt --out out/tokenizer --vocab-size 50"
    lines = {
        "tokenizer": (vocabulary, "text.txt"),
        "prepare": (f"{prepare} --source in/text.txt", "tokenizer text.txt"),
        "inspect": (inspect, "corpus"),
        "train": (f"xlnet_jax.train {RUN} --corpus in/text.txt --workdir out/run", "text.txt"),
        "finetune": (f"{predict}tuned {TUNED} --predict in/table.tsv", "tuned table.tsv"),
        "convert": (f"{convert}native {to}", "native"),
        "evaluate": (f"{evaluate} --max-windows 2", "native corpus"),
        "score": (score, "native few.txt"),
        "embed": (embed, "native few.txt"),
        "attention": ("xlnet_jax.attention in/native --text sea --out out/attention.html", "native"),
        "factorize": ("xlnet_jax.factorize in/native --text sea --targets sea", "native"),
        "generate": (generate, "native prompts.txt"),
        "recl": ("xlnet_jax.recl in/run --longest 8 --tokens 20 --text in/text.txt", "run text.txt"),
        "plan": (f"xlnet_jax.plan {RUN} --topology v5e-1", ""),
        "compare": (f"xlnet_jax.compare {RUN} --budget 9 --corpus in/text.txt --workdir out/compared", "text.txt"),
    }
    for name, (command, samples) in lines.items():
        yield Kind(f"{COMMAND_LINE}: {name}", command, samples)


KINDS = {kind.name: kind for kind in _kinds()}
"""All kinds by their names."""
