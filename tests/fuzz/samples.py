"""Make a small, sound sample of every kind of file that the commands read; inputs.py says which command reads it."""

import contextlib
import gzip
import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BLOCK_LEN, VOCABULARY = 48, 50
SENTENCE = "the sea was calm at last and nobody knew why she smiled at him on a fine day"
NETWORK = {"num_layers": 1, "d_model": 8, "num_heads": 2, "d_head": 4, "d_ff": 8}
RUN = (
    "--model.num-layers 1 --model.d-model 8 --model.num-heads 1 --model.d-head 8 --model.d-ff 8 --model.mem-len 8 "
    "--model.vocab-size 50 --data.batch-size 2 --data.seq-len 16 --data.reuse-len 8 --data.perm-size 8 "
    "--data.num-predict 4 --data.windows-per-block 4 --optimizer.warmup-steps 1 --log.every-steps 1 "
    "--eval.max-windows 4 --eval.every-steps 4 --checkpoint.every-steps 2 --steps 2"
)
TUNED = (
    "--task classification --steps 2 --optimizer.warmup-steps 1 --data.batch-size 2 --data.seq-len 16 "
    "--data.buckets 16 --selection.every-steps 2 --checkpoint.every-steps 2 --log.every-steps 1"
)
CONTEXT = "The sea was calm at last. Nobody knew why."
OPTIONS = ["The sea", "Nobody", "She", "Him"]

WORDS = SENTENCE.split()
LINES = [" ".join((WORDS * 2)[i : i + 5]).capitalize() + "." for i in range(len(WORDS))] * 4
TEXT = "".join(f"{line}\n" + "\n" * (i % 4 == 3) for i, line in enumerate(LINES))  # a blank line divides documents
ROWS = [{"label": ("bad", "good")[i % 2], "text": line} for i, line in enumerate(LINES[:8])]
ASKED = {
    "id": "q1", "question": "Who knew?", "answers": [{"text": "Nobody", "answer_start": 26}], "is_impossible": False
}  # fmt: skip
RACE = {"id": "1", "article": CONTEXT, "questions": ["_ knew."], "options": [OPTIONS], "answers": ["B"]}


def json_lines(records: list[dict[str, str]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


TEXTS = {
    "text.txt": TEXT,
    "text.jsonl": json_lines([{"text": line} for line in LINES]),
    "prompts.txt": "The sea\n\nShe ___ at him\n",
    "few.txt": "The sea was calm.\nShe smiled at him.\n",
    "table.tsv": "label\ttext\n" + "".join("\t".join(row.values()) + "\n" for row in ROWS),
    "table.jsonl": json_lines(ROWS),
    "squad.json": json.dumps({"data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": [ASKED]}]}]}),
    "race.json": json.dumps(RACE),
    "entities.conll": "The O\nsea B-LOC\nwas O\ncalm O\n\nnobody O\nknew O\nAnna B-PER\n",
    "documents.jsonl": json_lines([{"_id": "1", "title": "The sea", "text": "was calm"}]),
    "documents.tsv": "2\tNobody knew why.\n",
    "queries.tsv": "7\tcalm sea\n8\tnobody\n",
    "qrels.txt": "7 0 1 2\n7 0 2 0\n8 0 2 1\n",
    "ranked.txt": "7 Q0 1 1 0.9 x\n7 Q0 2 2 0.4 x\n8 Q0 2 1 1e-3 x\n",
}
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
RECORDS = [{"gene": f"V{i % 3}", "residues": (RESIDUES * 2)[i % 20 : i % 20 + 4 + i % 7]} for i in range(120)]
TEXTS |= {
    "records.tsv": "gene\tresidues\n" + "".join("\t".join(record.values()) + "\n" for record in RECORDS),
    "records.csv": "user,item\n" + "".join(f"{i},{(i + k) % 9}\n" for i in range(80) for k in range(2 + i % 4)),
    "records.jsonl": json_lines(RECORDS),
    "records.fasta": "".join(f">p{i} OS={one['gene']}\n{one['residues']}\n" for i, one in enumerate(RECORDS)),
    "reference.fasta": f">reference\n{RESIDUES}\n",
    "variants.csv": "mutant,growth\nA1C,0.5\nC2A:E4Y,-1\nWT,0\n",
    "few_records.txt": "ACDEF\nGHIK\n",
    "record_prompts.txt": "ACD___GH\n\nACD\n___\n",
    "records.smi": "".join(f"C{'(=O)C' * (i % 4)}[NH+]{'c1ccccc1' * (i % 2)}Cl m{i}\n" for i in range(120)),
}


def make(folder: Path, quick: bool) -> None:
    """Write the samples into a new folder; those of runs, which take 20 seconds, only where `quick` is false. Needs a
    jax backend."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    (folder / "text.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    pq.write_table(pa.Table.from_pylist([{"text": line} for line in LINES]), folder / "text.parquet")
    pq.write_table(pa.Table.from_pylist(RECORDS), folder / "records.parquet")
    tokenizer = _write_tokenizers(folder)
    _write_corpora(folder, tokenizer)
    _write_checkpoints(folder, tokenizer)
    if not quick:
        _write_runs(folder)


def _write_tokenizers(folder: Path) -> Any:
    from data_pipelines.records import RecordFormat
    from data_pipelines.tokenizer import Tokenizer

    records = RecordFormat(("residues:protein",))
    Tokenizer.of_symbols([RESIDUES[:9], RESIDUES], records).save(folder / "symbols")
    tokenizer = Tokenizer.train(LINES, VOCABULARY, "english")
    tokenizer.save(folder / "tokenizer")
    letters = "abcdefghijklmnopqrstuvwxyz.,"
    special = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters)]
    (folder / "bert").mkdir()
    (folder / "bert" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    (folder / "bert" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    if find_spec("tokenizers"):
        from tokenizers import BertWordPieceTokenizer

        (folder / "fast").mkdir()
        BertWordPieceTokenizer(str(folder / "bert" / "vocab.txt")).save(str(folder / "fast" / "tokenizer.json"))
    return tokenizer


def _write_corpora(folder: Path, tokenizer: Any) -> None:
    """Write a prepared corpus, and what TFDS writes for texts with labels."""
    from data_pipelines import sources
    from data_pipelines.prepare.commands import prepare
    from tests.datasets import write_dataset

    text = sources.find([str(folder / "text.txt")])
    prepare(text, None, tokenizer, folder / "corpus", block_len=BLOCK_LEN, validation_fraction=0.2)
    rows = [{"text": line, "label": i % 2} for i, line in enumerate(LINES)]
    features = {"text": lambda of: of.Text(), "label": lambda of: of.ClassLabel(names=["bad", "good"])}
    write_dataset(folder / "tfds", "news", {"train": rows}, **features)


def _write_checkpoints(folder: Path, tokenizer: Any) -> None:
    import xlnet_jax
    from data_pipelines.tokenizer import Tokenizer
    from tests.xlnet_jax.random_models import random_model
    from xlnet_jax.settings.config import HeadConfig, ModelConfig

    config = ModelConfig(**NETWORK, vocab_size=tokenizer.vocab_size, mem_len=8, dropout=0.0, attention_dropout=0.0)
    model = random_model(config, None, tokenizer)
    for form in ("native", "hf", "tf1"):
        xlnet_jax.save(model, folder / form, form)
    symbols = Tokenizer.load(folder / "symbols")
    of_records = replace(config, vocab_size=symbols.vocab_size, mem_len=0, num_segments=2)
    xlnet_jax.save(random_model(of_records, None, symbols), folder / "of_records")
    heads = {
        "answering": HeadConfig("question_answering"),
        "choosing": HeadConfig("multiple_choice", 4),
        "tagging": HeadConfig("token_classification", 3, labels=("B-LOC", "B-PER", "O")),
        "ranking": HeadConfig("regression"),
    }
    without_memory = ModelConfig(**NETWORK, vocab_size=tokenizer.vocab_size, mem_len=0)
    for name, head in heads.items():
        xlnet_jax.save(random_model(without_memory, head, tokenizer), folder / name)


def _write_runs(folder: Path) -> None:
    from xlnet_jax.__main__ import COMMANDS

    with contextlib.chdir(folder):  # a run keeps the names of its files
        assert COMMANDS["train"].main(f"{RUN} --corpus text.txt --workdir run".split()) == 0
        tuning = f"{TUNED} --init native --train table.tsv --eval table.tsv --workdir tuned"
        assert COMMANDS["finetune"].main(tuning.split()) == 0
    for run in ("run", "tuned"):
        for unread in ("compiled", "tensorboard"):
            shutil.rmtree(folder / run / unread, ignore_errors=True)
    settings = json.loads((folder / "run" / "config.json").read_text())
    (folder / "settings.json").write_text(json.dumps({"steps": 2, "data.batch-size": 2, "model": settings["model"]}))
