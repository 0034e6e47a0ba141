"""Kinds of input: the samples of each, which of their files are damaged, and the command that reads them."""

import random
import re
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
    """module and its words; in/ holds the samples that it names, out/ is where to write"""
    damaged: str = ""
    """files to damage, of which each example takes one: globs, divided by spaces; none = the command line"""
    form: str = "bytes"
    writes: str = ""
    """sample that the command may change"""

    @property
    def module(self) -> str:
        return self.command.split()[0]

    @property
    def samples(self) -> list[str]:
        return re.findall(r"(?<= in/)[\w.]+", self.command)

    @property
    def quick(self) -> bool:
        """True where the command compiles nothing, and reads nothing of a run."""
        return self.module.startswith("data_pipelines") or (
            self.module.endswith("convert") and "in/tuned" not in self.command
        )

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
        "data_pipelines.prepare --tokenizer in/tokenizer --out out/corpus --block-len 48 --validation-fraction 0.2 "
        "--source in/"
    )
    inspect = "data_pipelines.inspect in/corpus --data.seq-len 16 --out out/window.png"
    encode = "data_pipelines.tokenizer encode --file in/few.txt in/"
    convert, to = "xlnet_jax.convert in/", "out/converted --to hf"
    predict = "xlnet_jax.finetune --workdir out/run --data.batch-size 2 --data.seq-len 16 --data.buckets 16 --init in/"
    resume = f"xlnet_jax.train {RUN} --corpus in/text.txt --workdir in/run"
    # ---- text ----
    yield Kind("text", f"{prepare}text.txt", "text.txt", "text")
    yield Kind("gzip", "data_pipelines.tokenizer encode in/tokenizer --file in/text.txt.gz", "text.txt.gz", "gz")
    yield Kind("text.jsonl", f"{prepare}text.jsonl", "text.jsonl", "json lines")
    yield Kind("text.parquet", f"{prepare}text.parquet", "text.parquet")
    # ---- records ----
    for end, form, fields in (
        ("tsv", "text", "gene:word residues:protein --hold-out gene"),
        ("csv", "text", "item:item --group-by user --hold-out last"),
        ("jsonl", "json lines", "residues:character gene:word --unknown count --min-count 2"),
        ("fasta", "text", "sequence:protein --hold-out OS --long cut"),
        ("smi", "text", "1:smiles --unknown count --long continue"),
        ("parquet", "bytes", "gene:word residues:/[A-M]+|./"),
    ):
        learn = f"data_pipelines.prepare --out out/corpus --block-len 25 --source in/records.{end} --fields {fields}"
        yield Kind(f"records.{end}", learn, f"records.{end}", form)
        yield Kind(f"{COMMAND_LINE}: --fields of {end}", learn)
    # ---- tokenizers ----
    settings = "tokenizer/tokenizer_settings.json"
    yield Kind("tokenizer_settings.json", "data_pipelines.tokenizer show in/tokenizer", settings, "json")
    yield Kind("spiece.model", f"{encode}tokenizer", "tokenizer/spiece.model")
    yield Kind("tokenizer.json", f"{encode}fast", "fast/tokenizer.json", "json")
    yield Kind("vocab.txt", f"{encode}bert", "bert/vocab.txt", "text")
    # ---- corpora ----
    yield Kind("manifest.json", inspect, "corpus/manifest.json", "json")
    yield Kind("shard", inspect, "corpus/*array_record*")
    evaluate = "xlnet_jax.evaluate in/native --data.batch-size 2 --data.seq-len 16 --text in/corpus"
    yield Kind("unigram_counts.npy", evaluate, "corpus/unigram_counts.npy", "npy")
    yield Kind("TFDS: JSON", f"{prepare}tfds", "tfds/*.json", "json")
    yield Kind("TFDS: shard", f"{prepare}tfds", "tfds/*.tfrecord*")
    # ---- checkpoints ----
    yield Kind("Hugging Face: JSON", f"{convert}hf {to}", "hf/*.json", "json")
    yield Kind("model.safetensors", f"{convert}hf {to}", "hf/model.safetensors", "safetensors")
    yield Kind("TF1: settings", f"{convert}tf1 {to}", "tf1/xlnet_config.json", "json")
    yield Kind("TF1: weights", f"{convert}tf1 {to}", "tf1/*.index tf1/*.data-*")
    yield Kind("native: JSON", f"{convert}native {to}", "native/config/metadata native/*.json", "json")
    yield Kind("native: arrays", f"{convert}native {to}", "native/params/**/*")
    yield Kind("results.json", f"{convert}tuned {to}", "tuned/results.json", "json")
    # ---- runs ----
    yield Kind("run: JSON", resume, "run/config.json run/text.json", "json", writes="run")
    yield Kind("run: metrics.jsonl", resume, "run/metrics.jsonl", "json lines", writes="run")
    yield Kind("run: checkpoint", resume, "run/checkpoints/2/**/*", writes="run")
    settings = f"{resume.replace('in/run', 'out/run')} --config in/settings.json"
    yield Kind("settings of --config", settings, "settings.json", "json")
    # ---- examples ----
    for file, form in (("table.tsv", "text"), ("table.jsonl", "json lines")):
        yield Kind(file, f"{predict}tuned --task classification --eval in/{file}", file, form)
    squad = f"{predict}answering --task squad2 --eval in/squad.json --data.max-query-len 4"
    yield Kind("questions", squad, "squad.json", "json")
    race = f"{predict}choosing --task race --data.max-query-len 8 --eval in/race.json"
    yield Kind("choices", race, "race.json", "json")
    yield Kind("entities", f"{predict}tagging --task ner --eval in/entities.conll", "entities.conll", "text")
    ranking = (
        f"{predict}ranking --task ranking --ranking.queries in/queries.tsv --data.max-query-len 4 "
        "--eval in/qrels.txt --ranking.others 0 --ranking.candidates in/ranked.txt "
        "--ranking.documents in/documents.jsonl in/documents.tsv"
    )
    yield Kind("ranking", ranking, "documents.tsv queries.tsv qrels.txt ranked.txt", "text")
    # ---- texts ----
    generate = "xlnet_jax.generate in/native --prompt-file in/prompts.txt --max-new-tokens 2"
    yield Kind("prompts", generate, "prompts.txt", "text")
    score = "xlnet_jax.score in/native --out out/scores.jsonl --max-len 24 --texts in/few.txt"
    yield Kind("sentences", score, "few.txt", "text")
    # ---- texts of records ----
    generate_records = "xlnet_jax.generate in/of_records --prompt-file in/record_prompts.txt --max-new-tokens 24"
    yield Kind("prompts of records", generate_records, "record_prompts.txt", "text")
    variants = (
        "xlnet_jax.score in/of_records --max-len 24 --out out/scores.tsv --reference in/reference.fasta "
        "--variants in/variants.csv --measured growth"
    )
    yield Kind("variants", variants, "variants.csv reference.fasta", "text")
    score_records = "xlnet_jax.score in/of_records --max-len 24 --out out/scores.jsonl --texts in/records.fasta"
    yield Kind("scores of records", score_records, "records.fasta", "text")
    read_symbols = "data_pipelines.tokenizer encode in/symbols --file in/few_records.txt"
    yield Kind("symbols.json", read_symbols, "symbols/symbols.json", "json")
    for name, command in (("generate", generate_records), ("score", variants)):
        yield Kind(f"{COMMAND_LINE}: {name} of records", command)
    # ---- command lines ----
    for command in (
        "data_pipelines.tokenizer train --source in/text.txt --out out/tokenizer --vocab-size 50",
        f"{prepare}text.txt",
        inspect,
        f"xlnet_jax.train {RUN} --corpus in/text.txt --workdir out/run",
        f"{predict}tuned {TUNED} --predict in/table.tsv",
        f"{convert}native {to}",
        f"{evaluate} --max-windows 2",
        score,
        "xlnet_jax.embed in/native --out out/vectors.npy --max-len 16 --text in/few.txt",
        "xlnet_jax.attention in/native --text sea --out out/attention.html",
        "xlnet_jax.factorize in/native --text sea --targets sea",
        generate,
        "xlnet_jax.recl in/run --longest 8 --tokens 20 --text in/text.txt",
        "xlnet_jax.doctor in/run",
        f"xlnet_jax.plan {RUN} --topology v5e-1",
        f"xlnet_jax.compare {RUN} --budget 9 --corpus in/text.txt --workdir out/compared",
    ):
        yield Kind(f"{COMMAND_LINE}: {command.split()[0].rpartition('.')[2]}", command)


KINDS = {kind.name: kind for kind in _kinds()}
"""All kinds by their names."""
