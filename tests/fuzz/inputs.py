"""Kinds of input: the samples of each, which of their files are damaged, and the command that reads them."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.binary_forms import mutate, protobuf
from tests.fuzz.mutations import environment, words
from tests.fuzz.samples import COMPARED, RUN
from tests.fuzz.settings import flags_of

COMMAND_LINE = "command line"
SMALL_WINDOWS = "--data.batch-size 2 --data.reuse-len 8 --data.perm-size 8 --data.num-predict 4"
ENVIRONMENT = "environment"  # form that damages variables and no file
WHOLE = "whole"  # form of a file that `agrees` alone makes anew


@dataclass(frozen=True)
class Kind:
    """One kind of input. Names of files are relative to the folder of the samples, which is `in` for the command."""

    name: str
    command: str
    """module and its words; in/ holds the samples, out/ is where to write"""
    samples: str
    """files and folders that the command needs, divided by spaces"""
    damaged: str
    """files to damage, of which each example takes one: globs, divided by spaces; none = the command line"""
    form: str = "bytes"
    writes: str = ""
    """samples that the command may change, divided by spaces"""
    agrees: Callable[[Path, random.Random], None] = lambda folder, rng: None
    """called afterwards with the folder of the samples: makes what describes the damaged file agree with it"""
    needs: str = ""
    """library without which the command refuses sound samples too"""

    @property
    def module(self) -> str:
        return self.command.split()[0]

    @property
    def quick(self) -> bool:
        """True where the command compiles nothing."""
        return self.module.startswith("data_pipelines") or self.module == "xlnet_jax.convert"

    def words(self) -> list[str]:
        """Return the command line without its damage."""
        return self.command.split()[1:]

    def damage(self, folder: Path, rng: random.Random) -> tuple[list[str], str]:
        """Damage one file of the samples, or the command line. Return the command line, and what was done."""
        if self.form == ENVIRONMENT:
            return self.words(), environment(rng)
        if not self.damaged:
            found = words(self.words(), flags_of(self.module), rng)
            return found, "command line: " + " ".join(map(repr, found))[:500]
        files = sorted(file for glob in self.damaged.split() for file in folder.glob(glob) if file.is_file())
        damaged = rng.choice(files)
        done = f"{damaged.name} made anew" if self.form == WHOLE else mutate(damaged, self.form, rng)
        self.agrees(folder, rng)
        return self.words(), done


def _without_checksums(folder: Path, rng: random.Random) -> None:
    """Leave the checksums out, or make them anew: damage is then found by nothing else but the readers."""
    from xlnet_jax.storage.checksums import write_checksums

    for record in list(folder.rglob("checksums.json")):
        record.unlink()
        if rng.random() < 0.5 and not any(p.is_fifo() or p.is_symlink() for p in record.parent.rglob("*")):
            write_checksums(record.parent)


def _with_its_manifest(folder: Path, rng: random.Random) -> None:
    """Write a shard of other records, and a manifest that describes it."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from array_record.python.array_record_module import ArrayRecordWriter

    manifest = json.loads((folder / "corpus/manifest.json").read_text())
    split = manifest["splits"][rng.choice(("train", "validation"))]
    for shard in split["shards"]:
        file = folder / "corpus" / shard["name"]
        with ArrayRecordDataSource([str(file)]) as source:
            found = [bytes(source[i]) for i in range(len(source))]
        at, same_size = rng.randrange(len(found)), rng.random() < 0.5
        found[at] = rng.randbytes(len(found[at])) if same_size else protobuf(found[at], rng)
        if rng.random() < 0.2:
            found = found[:at]
        file.unlink()
        writer = ArrayRecordWriter(str(file), "group_size:1")
        for record in found:
            writer.write(record)
        writer.close()
        content = file.read_bytes()
        shard.update(num_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    (folder / "corpus/manifest.json").write_text(json.dumps(manifest))


def _kinds() -> Iterator[Kind]:
    prepare = (
        "data_pipelines.prepare --tokenizer in/tokenizer --out out/corpus --block-len 48 --validation-fraction 0.2"
    )
    inspect = "data_pipelines.inspect in/corpus --data.seq-len 16 --out out/window.png"
    encode = "data_pipelines.tokenizer encode in/tokenizer --file in/"
    convert, to = "xlnet_jax.convert", "out/converted --to hf"
    predict = "xlnet_jax.finetune --workdir out/run --data.batch-size 2 --data.seq-len 16 --data.buckets 16 --init in/"
    resume = f"xlnet_jax.train {' '.join(RUN)} --corpus in/text.txt --workdir in/run"
    # ---- text ----
    yield Kind("text", f"{prepare} --source in/text.txt", "tokenizer text.txt", "text.txt", "text")
    for end in ("gz", "xz", "zst", "bz2"):
        yield Kind(f"text.{end}", f"{encode}text.txt.{end}", f"tokenizer text.txt.{end}", "text.txt.*", end)
    yield Kind(
        "text of JSON lines", f"{prepare} --source in/text.jsonl", "tokenizer text.jsonl", "text.jsonl", "json lines"
    )
    yield Kind(
        "text of Parquet", f"{prepare} --source in/text.parquet", "tokenizer text.parquet", "text.parquet", "parquet"
    )
    # ---- tokenizers ----
    show = "data_pipelines.tokenizer show in/tokenizer"
    yield Kind("tokenizer_settings.json", show, "tokenizer", "tokenizer/tokenizer_settings.json", "json")
    yield Kind("spiece.model", f"{encode}few.txt", "tokenizer few.txt", "tokenizer/spiece.model", "protobuf")
    for folder in ("fast", "bytes"):
        name = f"tokenizer.json ({folder})"
        words = f"data_pipelines.tokenizer encode in/{folder} --file in/few.txt"
        yield Kind(name, words, f"{folder} few.txt", f"{folder}/tokenizer.json", "json")
    words = "data_pipelines.tokenizer encode in/unigram --file in/few.txt"
    yield Kind("Precompiled normalizer", words, "unigram few.txt", "unigram/tokenizer.json", "charsmap")
    words = "data_pipelines.tokenizer encode in/bert --file in/few.txt"
    yield Kind("vocab.txt", words, "bert few.txt", "bert/vocab.txt", "text")
    yield Kind("tokenizer_config.json", words, "bert few.txt", "bert/tokenizer_config.json", "json")
    # ---- corpora ----
    words = f"{prepare} --source in/text.txt".replace("out/corpus", "in/halfway/corpus")
    halfway = {"samples": "tokenizer text.txt halfway", "writes": "halfway"}
    yield Kind("interrupted prepare: parts", words, damaged="halfway/.*/work/*/*.npz", form="npz", **halfway)
    files = "halfway/.*/finished/*.json halfway/.*/work/lists/*.json"
    yield Kind("interrupted prepare: JSON", words, damaged=files, form="json", **halfway)
    yield Kind("manifest.json", inspect, "corpus", "corpus/manifest.json", "json")
    yield Kind("shard", inspect, "corpus", "corpus/*array_record*")
    yield Kind("shard and manifest", inspect, "corpus", "corpus/manifest.json", WHOLE, agrees=_with_its_manifest)
    yield Kind("tokenizer of a corpus", inspect, "corpus", "corpus/tokenizer/*")
    evaluate = "xlnet_jax.evaluate in/native --data.batch-size 2 --data.seq-len 16 --text in/corpus"
    yield Kind("unigram_counts.npy", evaluate, "native corpus", "corpus/unigram_counts.npy", "npy")
    for file in ("dataset_info", "features"):
        yield Kind(f"TFDS: {file}.json", f"{prepare} --source in/tfds", "tokenizer tfds", f"tfds/{file}.json", "json")
    yield Kind("TFDS: shard", f"{prepare} --source in/tfds", "tokenizer tfds", "tfds/*.tfrecord*", "records")
    # ---- checkpoints ----
    yield Kind("Hugging Face: config.json", f"{convert} in/hf {to}", "hf", "hf/config.json", "json")
    yield Kind("Hugging Face: tokenizer_config", f"{convert} in/hf {to}", "hf", "hf/tokenizer_config.json", "json")
    yield Kind("model.safetensors", f"{convert} in/hf {to}", "hf", "hf/model.safetensors", "safetensors")
    yield Kind("safetensors index", f"{convert} in/hf-shards {to}", "hf-shards", "hf-shards/*.index.json", "json")
    yield Kind("pytorch_model.bin", f"{convert} in/torch {to}", "torch", "torch/pytorch_model.bin", "torch")
    yield Kind("BERT: config.json", f"{convert} in/hf-bert {to}", "hf-bert", "hf-bert/config.json", "json")
    yield Kind("BERT: tokenizer", f"{convert} in/hf-bert {to}", "hf-bert", "hf-bert/tokenizer*.json", "json")
    yield Kind("TF1: xlnet_config.json", f"{convert} in/tf1 {to}", "tf1", "tf1/xlnet_config.json", "json")
    yield Kind("TF1: index", f"{convert} in/tf1 {to}", "tf1", "tf1/*.index")
    yield Kind("TF1: data", f"{convert} in/tf1 {to}", "tf1", "tf1/*.data-*")
    native = {"agrees": _without_checksums}
    yield Kind("native: config", f"{convert} in/native {to}", "native", "native/config/metadata", "json", **native)
    yield Kind("native: Orbax's JSON", f"{convert} in/native {to}", "native", "native/params/_*", "json", **native)
    yield Kind("native: Orbax's arrays", f"{convert} in/native {to}", "native", "native/params/**/*", **native)
    yield Kind("native: thresholds", f"{convert} in/native {to}", "native", "native/thresholds.json", "json", **native)
    files = "native-zarr/params/*/.zarray native-zarr/params/_*"
    yield Kind("native: zarr", f"{convert} in/native-zarr {to}", "native-zarr", files, "json")
    yield Kind("checksums.json", f"{convert} in/native {to}", "native", "native/checksums.json", "json")
    yield Kind("results.json", f"{convert} in/tuned {to}", "tuned", "tuned/results.json", "json")
    # ---- runs ----
    run = {"samples": "run text.txt", "writes": "run"}
    yield Kind(
        "run: config.json", "data_pipelines.inspect in/run --out out/window.png", "run", "run/config.json", "json"
    )
    yield Kind("run: config.json, resumed", resume, damaged="run/config.json", form="json", **run)
    yield Kind("run: text.json", resume, damaged="run/text.json", form="json", **run)
    yield Kind("run: metrics.jsonl", resume, damaged="run/metrics.jsonl", form="json lines", **run)
    words = "xlnet_jax.score in/run --sentences sea --max-len 24"
    yield Kind("run: settings of a checkpoint", words, "run", "run/checkpoints/2/config/metadata", "json", **native)
    yield Kind("run: checkpoint", resume, damaged="run/checkpoints/2/**/*", agrees=_without_checksums, **run)
    tuned = "xlnet_jax.finetune --task classification --init in/tuned --workdir out/run --predict in/few.txt"
    tuned = f"{tuned} --columns.no-header --columns.text 0"
    yield Kind("tuned: config", tuned, "tuned few.txt", "tuned/checkpoints/2/config/metadata", "json", **native)
    words = f"{resume.replace('in/run', 'out/run')} --config in/settings.json"
    yield Kind("settings of --config", words, "settings.json text.txt", "settings.json", "json")
    # ---- examples ----
    for end, form in {"tsv": "text", "csv": "text", "jsonl": "json lines", "parquet": "parquet"}.items():
        file = f"table.{end}"
        words = f"{predict}tuned --task classification --eval in/{file}"
        yield Kind(f"table: {end}", words, f"tuned {file}", file, form)
    for task, file in {"squad2": "squad.json", "cmrc2018": "cmrc.json"}.items():
        words = f"{predict}answering --task {task} --eval in/{file} --qa.max-query-len 4"
        yield Kind(f"questions: {task}", words, f"answering {file}", file, "json")
    for task, file in {"race": "race.json", "dream": "dream.json", "multiple_choice": "choices.jsonl"}.items():
        form = "json lines" if file.endswith("l") else "json"
        words = f"{predict}choosing --task {task} --choice.max-qa-len 8 --eval in/{file}"
        yield Kind(f"choices: {task}", words, f"choosing {file}", file, form)
    words = f"{predict}tagging --task ner --eval in/entities.conll"
    yield Kind("entities", words, "tagging entities.conll", "entities.conll", "text")
    files = "documents.jsonl documents.tsv queries.tsv qrels.txt ranked.txt smart.txt"
    rank = f"{predict}ranking --task ranking --ranking.queries in/queries.tsv --ranking.max-query-len 4"
    rank = f"{rank} --ranking.unknown skip --eval in/qrels.txt --ranking.others 0"
    words = f"{rank} --ranking.documents in/smart.txt"
    yield Kind("ranking: SMART", words, f"ranking {files}", "smart.txt", "text")
    words = f"{rank} --ranking.documents in/documents.jsonl in/documents.tsv --ranking.candidates in/ranked.txt"
    yield Kind("ranking: documents", words, f"ranking {files}", "documents.jsonl", "json lines")
    yield Kind("ranking: tables", words, f"ranking {files}", "documents.tsv queries.tsv qrels.txt ranked.txt", "text")
    # ---- texts ----
    words = "xlnet_jax.generate in/native --prompt-file in/prompts.txt --max-new-tokens 2"
    yield Kind("prompts", words, "native prompts.txt", "prompts.txt", "text")
    words = "xlnet_jax.score in/native --out out/scores.jsonl --max-len 24 --texts in/"
    yield Kind("sentences", f"{words}few.txt", "native few.txt", "few.txt", "text")
    words = "xlnet_jax.embed in/native --out out/vectors.parquet --seq-len 16 --id-field id --text in/text."
    yield Kind("texts with ids: JSON lines", f"{words}jsonl", "native text.jsonl", "text.jsonl", "json lines")
    yield Kind("texts with ids: Parquet", f"{words}parquet", "native text.parquet", "text.parquet", "parquet")
    # ---- comparisons ----
    compare = f"xlnet_jax.compare {' '.join(COMPARED)} --corpus in/text.txt --workdir in/compared"
    compared = {"samples": "compared tasks text.txt", "writes": "compared"}
    files = "compared/*.json compared/clm/*/*/*.json"
    yield Kind("comparison: JSON", compare, damaged=files, form="json", **compared)
    files = "compared/clm/*/*/metrics.jsonl"
    yield Kind("comparison: metrics.jsonl", compare, damaged=files, form="json lines", **compared)
    yield Kind("comparison: examples", compare, damaged="tasks/*.tsv", form="text", **compared)
    recl = "xlnet_jax.recl in/compared/clm/seed-0/pretrained --step 4 --longest 8 --tokens 20"
    files = "compared/clm/*/pretrained/*.json compared/corpus/manifest.json"
    yield Kind("recl: run", recl, "compared text.txt", files, "json")
    yield Kind("recl: text", f"{recl} --text in/text.txt", "compared text.txt", "text.txt", "text")
    # ---- files of settings ----
    train = "--source in/text.txt --out out/tokenizer --vocab-size 50"
    new = f"xlnet_jax.train {' '.join(RUN)} --corpus in/text.txt --workdir out/run"
    encode, tune = f"{encode}few.txt", f"{predict}tuned --task classification --predict in/table.tsv"
    plan = f"xlnet_jax.plan {' '.join(RUN)} --topology v5e-1"
    lines = {
        "tokenizer train": (f"data_pipelines.tokenizer train {train}", "text.txt", "tokenizer-train"),
        "tokenizer show": (show, "tokenizer", "tokenizer-show"),
        "tokenizer encode": (encode, "tokenizer few.txt", "tokenizer-encode"),
        "prepare": (f"{prepare} --source in/text.txt", "tokenizer text.txt", "prepare-preparesettings"),
        "inspect": (inspect, "corpus", "inspect-inspectsettings"),
        "train": (new, "text.txt", "train-config"),
        "finetune": (tune, "tuned table.tsv", "finetune-finetuneconfig"),
        "convert": ("xlnet_jax.convert in/native out/converted --to hf", "native", "convert-convertsettings"),
        "evaluate": (f"{evaluate} --max-windows 2", "native corpus", "evaluate-evaluatesettings"),
        "score": ("xlnet_jax.score in/native --max-len 24 --texts in/few.txt", "native few.txt", "score-scoresettings"),
        "embed": (
            "xlnet_jax.embed in/native --out out/v.npy --seq-len 16 --text in/few.txt", "native few.txt",
            "embed-embedsettings",
        ),
        "attention": (
            "xlnet_jax.attention in/native --text sea --out out/attention.html", "native",
            "attention-attentionsettings",
        ),
        "factorize": (
            "xlnet_jax.factorize in/native --text sea --targets sea", "native", "factorize-factorizesettings",
        ),
        "generate": (
            "xlnet_jax.generate in/native --prompt sea --max-new-tokens 2", "native", "generate-generatesettings",
        ),
        "recl": (f"{recl} --text in/text.txt", "compared text.txt", "recl-reclsettings"),
        "plan": (plan, "", "plan-planconfig"),
        "compare": (compare.replace("in/compared", "out/compared"), "tasks text.txt", "compare-compareconfig"),
    }  # fmt: skip
    needs = {"plan": "libtpu"}
    for name, (command, samples, settings) in lines.items():
        file = f"settings/{settings}.json"
        layout = SMALL_WINDOWS if name in ("inspect", "evaluate") else ""
        words = f"{command} {layout} --config in/{file}"
        yield Kind(f"--config: {name}", words, f"{samples} settings", file, "json", needs=needs.get(name, ""))
    # ---- command lines ----
    for name, (command, samples, _) in lines.items():
        yield Kind(f"{COMMAND_LINE}: {name}", command, samples, "", needs=needs.get(name, ""))
    yield Kind(f"{COMMAND_LINE}: any", f"xlnet_jax {inspect.removeprefix('data_pipelines.')}", "corpus", "")
    # ---- the environment ----
    yield Kind("environment: train", lines["train"][0], lines["train"][1], "", ENVIRONMENT)
    # ---- notebooks ----
    cell = "tests.fuzz.cells"
    yield Kind("notebook: picture", f"{cell} picture", "run", "run/metrics.jsonl", "json lines")
    yield Kind("notebook: gaps in a run", f"{cell} fill-in", "run few.txt", "run/**/*", **native)
    yield Kind("notebook: gaps in a text", f"{cell} fill-in", "run few.txt", "few.txt", "text")
    yield Kind("notebook: paragraphs", f"{cell} paragraphs", "text.txt.gz", "text.txt.gz", "gz")
    yield Kind("notebook: pretraining", f"{cell} pretrain", "text.txt", "text.txt", "text")
    yield Kind("notebook: batches", f"{cell} batches", "native corpus", "corpus/**/*")
    yield Kind("notebook: finetuning", f"{cell} finetune", "native table.jsonl", "table.jsonl", "json lines")
    yield Kind("notebook: predictions", f"{cell} predict", "tuned", "tuned/**/*", **native)


KINDS = {kind.name: kind for kind in _kinds()}
"""All kinds by their names."""
