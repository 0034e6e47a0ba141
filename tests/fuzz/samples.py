"""Make a small, sound sample of every kind of file that the commands read; inputs.py says which command reads it."""

import bz2
import contextlib
import gzip
import io
import itertools
import json
import lzma
import shutil
import tempfile
from collections.abc import Collection
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from tests.fuzz.settings import SETTINGS, kinds_of, written

BLOCK_LEN, VOCABULARY = 48, 50
WORDS = "the sea was calm at last and nobody knew why she smiled at him on a fine day"
NETWORK = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_head": 4, "d_ff": 8}
RUN = (
    "--model.num-layers 1 --model.d-model 8 --model.num-heads 1 --model.d-head 8 --model.d-ff 8 --model.mem-len 8 "
    "--model.vocab-size 50 --data.batch-size 2 --data.seq-len 16 --data.reuse-len 8 --data.perm-size 8 "
    "--data.num-predict 4 --data.windows-per-block 4 --optimizer.warmup-steps 1 --log.every-steps 1 "
    "--eval.max-windows 4 --eval.every-steps 4 --checkpoint.every-steps 2 --steps 2"
).split()
TUNED = (
    "--task classification --steps 2 --optimizer.warmup-steps 1 --data.batch-size 2 --data.seq-len 16 "
    "--data.buckets 16 --selection.every-steps 2 --checkpoint.every-steps 2 --log.every-steps 1"
).split()
COMPARED = [
    *RUN[:-2],
    *(
        "--objectives clm --budget 64 --tasks classification=in/tasks --finetune steps=2 optimizer.warmup-steps=1 "
        "data.batch-size=2 data.seq-len=16 data.buckets=16 selection.every-steps=2 log.every-steps=1"
    ).split(),
]
LABELS = ("bad", "good")
NER = "The O\nsea B-LOC\nwas O\ncalm O\n\nnobody O\nknew O\nAnna B-PER\n"


def make(folder: Path, names: Collection[str]) -> None:
    """Write the samples into a new folder, a comparison only where `names` has it. Takes about 20 seconds, and as many
    for the comparison; needs a jax backend."""
    folder.mkdir(parents=True)
    _texts(folder)
    tokenizer = _tokenizers(folder)
    _corpus(folder, tokenizer)
    _dataset(folder / "tfds")
    _examples(folder)
    _checkpoints(folder, tokenizer)
    _runs(folder)
    if "compared" in names:
        _comparison(folder)
    _settings(folder / "settings")


def lines() -> list[str]:
    """Return some lines of text; a blank one divides two documents."""
    words = WORDS.split()
    of_five = [" ".join((words * 2)[i : i + 5]).capitalize() + "." for i in range(len(words))]
    return list(itertools.chain.from_iterable([*of_five[i : i + 4], ""] for i in range(0, len(of_five), 4))) * 4


# ---- text -----------------------------------------------------------------------------------------------------------


def _texts(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from data_pipelines.opening import zstd

    text = "\n".join(lines()) + "\n"
    (folder / "text.txt").write_text(text)
    compress = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstd.compress, "bz2": bz2.compress}
    for end, function in compress.items():
        (folder / f"text.txt.{end}").write_bytes(function(text.encode()))
    records = [{"text": line, "id": f"n{i}", "other": i} for i, line in enumerate(filter(None, lines()))]
    (folder / "text.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    pq.write_table(pa.Table.from_pylist(records), folder / "text.parquet")
    (folder / "prompts.txt").write_text("The sea\n\nShe ___ at him\n")
    (folder / "few.txt").write_text("The sea was calm.\nShe smiled at him.\n")


def _tokenizers(folder: Path) -> Any:
    from data_pipelines.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(filter(None, lines()), VOCABULARY, "english")
    tokenizer.save(folder / "tokenizer")
    if tokenizers := optional("tokenizers"):
        _foreign_tokenizers(folder, tokenizers)
    return tokenizer


def _foreign_tokenizers(folder: Path, tokenizers: Any) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz.,"
    special = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters)]
    (folder / "bert").mkdir()
    (folder / "bert" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    (folder / "bert" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "model_max_length": 512}))
    (folder / "fast").mkdir()
    made = tokenizers.BertWordPieceTokenizer(str(folder / "bert" / "vocab.txt"))
    made.save(str(folder / "fast" / "tokenizer.json"))
    (folder / "bytes").mkdir()
    made = tokenizers.ByteLevelBPETokenizer()
    names = ["<s>", "<pad>", "</s>", "<unk>", "madeupword0000", "<mask>"]
    made.train_from_iterator(lines(), vocab_size=270, special_tokens=names, show_progress=False)
    made.save(str(folder / "bytes" / "tokenizer.json"))
    (folder / "unigram").mkdir()
    scored = [(piece, 0.0) for piece in names] + [(letter, -3.0) for letter in f"▁{letters}"] + [("sea", -4.0)]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(scored, unk_id=names.index("<unk>")))
    made.normalizer = tokenizers.normalizers.Precompiled(_charsmap())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.save(str(folder / "unigram" / "tokenizer.json"))


def _charsmap() -> bytes:
    """Return the table of SentencePiece's default normalizer."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    into, model = io.BytesIO(), sentencepiece_model_pb2.ModelProto()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()), model_writer=into, vocab_size=40, hard_vocab_limit=False, minloglevel=2
    )
    model.ParseFromString(into.getvalue())
    return bytes(model.normalizer_spec.precompiled_charsmap)


def _corpus(folder: Path, tokenizer: Any) -> None:
    from data_pipelines import sources
    from data_pipelines.prepare import prepare

    text = sources.find([str(folder / "text.txt")])
    prepare(text, None, tokenizer, folder / "corpus", block_len=BLOCK_LEN, validation_fraction=0.2)

    (folder / "halfway").mkdir()
    stop = mock.patch("data_pipelines.prepare.writing.write_tfds_metadata", side_effect=KeyboardInterrupt)
    with stop, contextlib.suppress(KeyboardInterrupt):
        prepare(text, None, tokenizer, folder / "halfway/corpus", block_len=BLOCK_LEN, validation_fraction=0.2)


def _dataset(folder: Path) -> None:
    """Write what TFDS writes for texts with labels."""
    import tensorflow_datasets as tfds

    from xlnet_jax.storage.quiet_tensorflow import tensorflow

    folder.mkdir()
    features = tfds.features.FeaturesDict(
        {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=list(LABELS))}
    )
    rows = [{"text": line, "label": i % 2} for i, line in enumerate(filter(None, lines()))]
    with tensorflow().io.TFRecordWriter(str(folder / "news-train.tfrecord-00000-of-00001")) as shard:
        for row in rows:
            shard.write(features.serialize_example(row))
    template = tfds.core.ShardedFileTemplate(data_dir=folder, dataset_name="news", filetype_suffix="tfrecord")
    split = tfds.core.SplitInfo(name="train", shard_lengths=[len(rows)], num_bytes=1, filename_template=template)
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=features, split_infos=[split], filename_template=template, check_data=False
    )


# ---- examples of tasks ----------------------------------------------------------------------------------------------


def _examples(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"label": LABELS[i % 2], "text": line} for i, line in enumerate(filter(None, lines()[:9]))]
    for end, between in (("tsv", "\t"), ("csv", ",")):
        table = [between.join(row.values()) for row in ({"label": "label", "text": "text"}, *rows)]
        (folder / f"table.{end}").write_text("\n".join(table) + "\n")
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), folder / "table.parquet")
    (folder / "tasks").mkdir()
    for name in ("train", "dev"):
        shutil.copy(folder / "table.tsv", folder / "tasks" / f"{name}.tsv")
    context = "The sea was calm at last. Nobody knew why."
    answers = [{"text": "Nobody", "answer_start": 26}]
    asked = [{"id": "q1", "question": "Who knew?", "answers": answers, "is_impossible": False}]
    _write(folder / "squad.json", {"data": [{"title": "t", "paragraphs": [{"context": context, "qas": asked}]}]})
    asked = [{"query_id": "q1", "query_text": "Who knew?", "answers": ["Nobody"]}]
    _write(folder / "cmrc.json", [{"context_id": "c", "context_text": context, "qas": asked}])
    options = ["The sea", "Nobody", "She", "Him"]
    race = {"id": "high1.txt", "article": context, "questions": ["_ knew."], "options": [options], "answers": ["B"]}
    _write(folder / "race.json", race)
    dream = {"question": "Who knew?", "choice": options[:3], "answer": "Nobody"}
    _write(folder / "dream.json", [[["M: The sea was calm.", "W: Nobody knew."], [dream], "4-1"]])
    (folder / "choices.jsonl").write_text(
        json.dumps({"context": context, "question": "Who?", "options": options, "answer": "B", "id": 7}) + "\n"
    )
    (folder / "entities.conll").write_text(NER)
    (folder / "smart.txt").write_text(".I 1\n.T\nThe sea\n.W\nThe sea was calm.\n.I 2\n.W\nNobody knew why.\n")
    (folder / "documents.jsonl").write_text('{"_id": "1", "title": "The sea", "text": "was calm"}\n')
    (folder / "documents.tsv").write_text("2\tNobody knew why.\n")
    (folder / "queries.tsv").write_text("7\tcalm sea\n8\tnobody\n")
    (folder / "qrels.txt").write_text("7 0 1 2\n7 0 2 0\n8 0 2 1\n")
    (folder / "ranked.txt").write_text("7 Q0 1 1 0.9 x\n7 Q0 2 2 0.4 x\n8 Q0 2 1 1e-3 x\n")


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content))


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def _checkpoints(folder: Path, tokenizer: Any) -> None:
    import safetensors.numpy

    import xlnet_jax
    from data_pipelines.tokenizer import Tokenizer
    from tests.xlnet_jax.random_models import random_model
    from xlnet_jax.settings.config import HeadConfig, ModelConfig

    config = ModelConfig(**NETWORK, vocab_size=tokenizer.vocab_size, mem_len=8, dropout=0.0, attention_dropout=0.0)
    model = replace(random_model(config, None, tokenizer), thresholds={"qa.null_threshold": -1.25})
    for form in ("native", "hf", "tf1"):
        xlnet_jax.save(model, folder / form, form)
    _as_zarr(folder / "native", folder / "native-zarr")
    shutil.copytree(folder / "hf", folder / "hf-shards")
    whole = folder / "hf-shards" / "model.safetensors"
    tensors = safetensors.numpy.load_file(whole)
    whole.unlink()
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in shards.items():
        safetensors.numpy.save_file({n: tensors[n] for n in part}, folder / "hf-shards" / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    _write(folder / "hf-shards" / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    if torch := optional("torch"):
        shutil.copytree(folder / "hf", folder / "torch", ignore=shutil.ignore_patterns("*.safetensors"))
        torch.save({n: torch.from_numpy(a.copy()) for n, a in tensors.items()}, folder / "torch" / "pytorch_model.bin")
    if (folder / "bert").exists():
        bert = Tokenizer.load(folder / "bert")
        learned = ModelConfig(
            **NETWORK, vocab_size=bert.vocab_size, mem_len=0, positions="learned", max_positions=32,
            activation="gelu_erf", num_segments=2,
        )  # fmt: skip
        xlnet_jax.save(random_model(learned, None, bert), folder / "hf-bert", "hf")
    heads = {
        "answering": HeadConfig("question_answering"),
        "choosing": HeadConfig("multiple_choice", 4),
        "tagging": HeadConfig("token_classification", 3, labels=("B-LOC", "B-PER", "O")),
        "ranking": HeadConfig("regression"),
    }
    for name, head in heads.items():
        xlnet_jax.save(
            random_model(ModelConfig(**NETWORK, vocab_size=VOCABULARY, mem_len=0), head, tokenizer), folder / name
        )


def _as_zarr(source: Path, folder: Path) -> None:
    """Write a checkpoint with a folder for each array, as Orbax does when asked, in place of one database."""
    import orbax.checkpoint as ocp

    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("params", "checksums.json"))
    arrays = ocp.PyTreeCheckpointer().restore((source / "params").absolute())
    ocp.PyTreeCheckpointer(use_ocdbt=False).save((folder / "params").absolute(), arrays)


def optional(library: str) -> Any:
    """Return a library that commands need for some files only; None where it is not installed, or hidden from tests."""
    try:
        return import_module(library)
    except ImportError:
        return None


def _runs(folder: Path) -> None:
    train, finetune = import_module("xlnet_jax.train"), import_module("xlnet_jax.finetune")
    with contextlib.chdir(folder):  # a run keeps the names of its files
        assert train.main([*RUN, "--corpus", "text.txt", "--workdir", "run"]) == 0
        files = "--init native --train table.tsv --eval table.tsv --workdir tuned".split()
        assert finetune.main([*TUNED, *files]) == 0
    for run in ("run", "tuned"):
        for unread in ("compiled", "tensorboard"):
            shutil.rmtree(folder / run / unread, ignore_errors=True)
    settings = json.loads((folder / "run" / "config.json").read_text())
    _write(folder / "settings.json", {"steps": 2, "data.batch-size": 2, "model": settings["model"]})


def _comparison(folder: Path) -> None:
    """Compare one contender, with the names that its files have for the commands: below in/."""
    with tempfile.TemporaryDirectory() as box, contextlib.chdir(box):
        Path("in").symlink_to(folder)
        words = [*COMPARED, "--corpus", "in/text.txt", "--workdir", "in/compared"]
        assert import_module("xlnet_jax.compare").main(words) == 0
    for unread in ("compiled", "tensorboard"):
        for found in list((folder / "compared").rglob(unread)):
            shutil.rmtree(found)


def _settings(folder: Path) -> None:
    """Write a file of --config for each command."""
    folder.mkdir()
    for module in SETTINGS:
        for kind in kinds_of(module):
            _write(folder / f"{module.rpartition('.')[2]}-{kind.__name__.lower()}.json", written(kind))
