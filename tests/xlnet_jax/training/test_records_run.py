"""A run on records: from a table, FASTA or Python to a checkpoint, resumed to the bit, by every objective."""

import json
import re
import shlex

import numpy as np
import pytest

import xlnet_jax
from data_pipelines.corpus import Corpus
from data_pipelines.tokenizer import BOS, EOD, PAD, Tokenizer
from tests.xlnet_jax.training.tiny_run import assert_same, state_of
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError

FIELDS = ("v:word", "cdr3:protein", "j:word")
NETWORK = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_head": 8, "d_ff": 32}
USUAL = {"steps": 2, "model": NETWORK, "data": {"seq_len": 32, "batch_size": 8}}


def rows(count=160, seed=0):
    """Return [(v, cdr3, j)]."""
    rng = np.random.default_rng(seed)
    middles = ["".join(rng.choice([*"ASGT"], rng.integers(3, 9))) for _ in range(count)]
    return [(f"TRBV{rng.integers(4)}", f"C{middle}F", f"TRBJ{rng.integers(2)}") for middle in middles]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    file = tmp_path_factory.mktemp("records") / "receptors.tsv"
    lines = [f"{cdr3}\t{v}\t{j}\tdonor{i % 5}" for i, (v, cdr3, j) in enumerate(rows())]
    file.write_text("\n".join(["cdr3\tv\tj\tdonor", *lines]))
    for count in (1, 40):
        (file.parent / f"first-{count}.tsv").write_text("\n".join(["cdr3\tv\tj\tdonor", *lines[:count]]))
    return str(file)


def pretrain(folder, **settings):
    values = {
        name: {**USUAL.get(name, {}), **value} if isinstance(value, dict) else value for name, value in settings.items()
    }
    return xlnet_jax.pretrain(xlnet_jax.preset("demo", workdir=str(folder), **{**USUAL, **values}))


@pytest.mark.parametrize("objective", ["plm", "clm", "mlm", "mdlm"])
def test_every_objective_trains_on_records_and_prints_what_it_read(objective, table, tmp_path, capsys):
    result = pretrain(tmp_path / "run", corpus=table, fields=FIELDS, objective=objective)
    assert result.step == 2
    assert np.isfinite(result.metrics["loss"])
    out = capsys.readouterr().out
    of_fields = r"of 9\.\d symbols \(v 1, cdr3 7\.\d+, j 1\), at most 12"
    assert re.search(rf"records     1\d\d train and \d+ held out {of_fields}; padding \d+\.\d%", out)
    assert "that knows only the frequencies of symbols in each field" in out
    proposed = re.search(r"next\n +\w+ +python -m (.+)", out)[1].replace(str(tmp_path / "run"), "RUN")
    expected = "xlnet_jax.generate RUN ''"
    if objective == "mlm":
        expected = f"xlnet_jax.embed RUN --text {table} --per symbol --out vectors.parquet"
    assert proposed == expected


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        ("plm", r"records     (\d+\.\d+) nats per record, given the lengths of its fields"),
        ("clm", r"records     (\d+\.\d+) nats per record, with its length, by <eod>"),
        ("mlm", r"pseudo      perplexity (\d+\.\d+) per masked symbol: no likelihood follows"),
        ("mdlm", r"records     at most (\d+\.\d+) nats per record, given the lengths of its fields"),
    ],
)
def test_evaluate_speaks_of_symbols_and_records(objective, says, table, tmp_path):
    pretrain(tmp_path / "run", corpus=table, fields=FIELDS, objective=objective, steps=1)
    found = xlnet_jax.evaluate(str(tmp_path / "run"))
    content, numbers = found.measured.content, found.measured.numbers()
    corpus = Corpus(tmp_path / "run" / "corpus")
    assert content.documents == numbers["records"] == corpus.manifest.splits["validation"].documents
    assert content.pieces == numbers["symbols"] == sum(map(len, corpus.documents("validation")))
    number = float(re.search(says, found.report)[1])
    if objective != "mlm":
        assert number == pytest.approx(numbers["loss"] * numbers["targets"] / numbers["records"], abs=1e-4)
        assert numbers["targets"] == numbers["symbols"] + (objective == "clm") * numbers["records"]
    for words in ("per word", "per character", "per piece", "pieces", "document"):
        assert words not in found.report


def test_the_loss_of_a_causal_network_is_that_of_score_with_the_ends_of_records(table, tmp_path):
    """A single record, shorter than a window, is enough."""
    pretrain(tmp_path / "run", corpus=table, fields=FIELDS, objective="clm")
    for count in (1, 40):
        text = table.replace("receptors", f"first-{count}")
        loss = xlnet_jax.evaluate(str(tmp_path / "run"), text=(text,)).measured.loss
        scores = xlnet_jax.score_texts(xlnet_jax.load(tmp_path / "run"), ["\t".join(row) for row in rows()[:count]])
        symbols_and_ends = sum(len(score.pieces) for score in scores)
        assert loss == pytest.approx(-sum(score.log_likelihood for score in scores) / symbols_and_ends, abs=1e-4)


def test_a_run_that_resumes_ends_with_the_same_bits(table, tmp_path):
    steady = {"optimizer": {"schedule": "constant", "warmup_steps": 0}, "checkpoint": {"every_steps": 1}}
    settings = {"corpus": table, "fields": FIELDS, "data": {"field_order": ("together", "cdr3>v,j")}, **steady}
    pretrain(tmp_path / "straight", steps=5, **settings)
    pretrain(tmp_path / "resumed", steps=2, **settings)
    pretrain(tmp_path / "resumed", steps=5, **settings)
    assert_same(state_of(tmp_path / "straight", 5), state_of(tmp_path / "resumed", 5))


def test_sequences_from_python_train_like_those_of_a_file(table, tmp_path):
    sequences = [{"v": v, "cdr3": c, "j": j} for v, c, j in rows()]
    config = xlnet_jax.preset("demo", workdir=str(tmp_path / "python"), fields=FIELDS, **USUAL)
    of_python = xlnet_jax.pretrain(config, sequences=sequences)
    of_file = pretrain(tmp_path / "file", corpus=table, fields=FIELDS)
    assert of_python.metrics == of_file.metrics


def test_items_from_python_need_no_fields_and_no_files(tmp_path, capsys):
    rng = np.random.default_rng(0)
    sequences = [rng.integers(10, 30, rng.integers(3, 12)).tolist() for _ in range(80)]
    config = xlnet_jax.preset("demo", workdir=str(tmp_path / "items"), **USUAL)
    xlnet_jax.pretrain(config, sequences=sequences)
    assert "--fields symbols:item" in capsys.readouterr().out
    tokenizer = Tokenizer.load(tmp_path / "items" / "tokenizer")
    assert set(tokenizer.pieces[9:]) == {str(i) for i in range(10, 30)}


def test_fasta_needs_no_fields(tmp_path, capsys):
    file = tmp_path / "proteins.fasta"
    file.write_text("".join(f">p{i}\n{c}LLK\nMKV\n" for i, (_, c, _) in enumerate(rows())))
    pretrain(tmp_path / "run", corpus=str(file))
    assert "--fields sequence:protein (not none)" in capsys.readouterr().out
    dna = tmp_path / "dna.fa"
    dna.write_text("".join(f">p{i}\n{'ACGTTGA' * (1 + i % 3)}\n" for i in range(60)))
    pretrain(tmp_path / "dna", corpus=str(dna))
    assert Corpus(tmp_path / "dna" / "corpus").tokenizer.records.fields == ("sequence:dna",)


def test_records_with_one_value_in_a_column_are_held_out_together(table, tmp_path):
    pretrain(tmp_path / "run", corpus=table, fields=FIELDS, hold_out="donor", data={"validation_fraction": 0.25})
    corpus = Corpus(tmp_path / "run" / "corpus")
    of = {c: i % 5 for i, (_, c, _) in enumerate(rows())}
    donors = {}
    for split in ("train", "validation"):
        lines = [corpus.tokenizer.decode(ids) for ids in corpus.documents(split)]
        donors[split] = {of[line.split("\t")[1]] for line in lines}
    assert donors["validation"]
    assert donors["train"].isdisjoint(donors["validation"])


def test_the_last_symbols_are_held_out(tmp_path):
    sequences = [[str((i + place) % 10) for place in range(3 + i % 4)] for i in range(50)]
    config = xlnet_jax.preset("demo", workdir=str(tmp_path / "last"), hold_out="last", **USUAL)
    xlnet_jax.pretrain(config, sequences=sequences)
    corpus = Corpus(tmp_path / "last" / "corpus")
    split = {
        name: sorted(corpus.tokenizer.decode(d).split() for d in corpus.documents(name))
        for name in ("train", "validation")
    }
    assert split["validation"] == sorted(sequences)
    assert split["train"] == sorted(sequence[:-1] for sequence in sequences)


def test_long_records_continue_with_memory(tmp_path):
    sequences = [[*map(str, range(i % 7, i % 7 + 10 + 9 * (i % 9)))] for i in range(60)]
    config = xlnet_jax.preset(
        "demo", workdir=str(tmp_path / "long"), long="continue", steps=2, model={**NETWORK, "mem_len": 32},
        data={"seq_len": 32, "batch_size": 8, "windows_per_block": 4},
    )  # fmt: skip
    xlnet_jax.pretrain(config, sequences=sequences)
    stored = json.loads((tmp_path / "long" / "config.json").read_text())
    assert stored["data"]["reuse_len"] == stored["model"]["mem_len"] == 32
    tokens, _ = Corpus(tmp_path / "long" / "corpus").read("train", np.arange(1))
    assert tokens.shape[1] == 4 * 32 + 1
    assert {BOS, EOD, PAD} <= set(tokens.ravel().tolist())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"corpus": None, "fields": ("v:word", "cdr3:letters")}, "`fields` cdr3:letters: give NAME:LEVEL"),
        ({"corpus": None, "fields": ("v:word", "family:word")}, "has no column 'family'"),
        ({"corpus": None, "fields": FIELDS, "data": {"seq_len": 8}}, "give `long` cut or continue"),
        ({"corpus": None, "fields": FIELDS, "data": {"field_order": ("v>j",)}}, "v>j: give together, or name each"),
        ({"corpus": None, "fields": FIELDS, "data": {"bidirectional": True}}, "records: give False"),
        ({"data": {"targets": "all"}}, "needs `objective` plm and `data.num_predict` None"),
        ({"corpus": None, "fields": FIELDS, "objective": "prefix"}, "`objective` prefix does not read records"),
        ({"data": {"field_order": ("a>b",)}}, "needs records: give `fields`"),
    ],
)  # fmt: skip
def test_contradictions_end_in_one_line(settings, says, table, tmp_path):
    settings = {**settings, **({"corpus": table} if "corpus" in settings else {})}
    with pytest.raises(InputError) as error:
        pretrain(tmp_path / "run", **settings)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_prose_and_records_do_not_mix(table, tmp_path):
    config = xlnet_jax.preset("demo", corpus=table, fields=FIELDS, init="tiny", workdir=str(tmp_path / "run"))
    with pytest.raises(InputError, match="but the tokenizer of `init` tiny reads prose"):
        xlnet_jax.pretrain(config)


def test_a_prepared_corpus_brings_its_fields_and_windows(table, tmp_path):
    settings = xlnet_jax.PrepareSettings(source=(table,), fields=FIELDS, block_len=33, out=str(tmp_path / "corpus"))
    corpus = xlnet_jax.prepare_corpus(settings)
    data = {"batch_size": 8, "field_order": ("v,j>cdr3", "together")}
    result = pretrain(tmp_path / "run", corpus=str(tmp_path / "corpus"), data=data)
    assert result.step == 2
    assert json.loads((tmp_path / "run" / "config.json").read_text())["fields"] == list(FIELDS)
    with pytest.raises(InputError, match=r"`data.seq_len` 16: the windows of corpus .* were made with 32"):
        pretrain(tmp_path / "other", corpus=str(tmp_path / "corpus"), data={**data, "seq_len": 16})
    assert corpus.manifest.splits["train"].documents + corpus.manifest.splits["validation"].documents == len(rows())


@pytest.mark.parametrize(("name", "value"), [("hold_out", "last"), ("group_by", "user"), ("long", "cut")])
def test_settings_of_records_are_refused_for_prose(name, value, tmp_path):
    with pytest.raises(InputError, match=f"`{name}` has no effect on prose: give `fields`, or leave it out"):
        xlnet_jax.pretrain(xlnet_jax.preset("demo", workdir=str(tmp_path / "run"), **{name: value}))


def test_one_thing_says_what_is_held_out(table, tmp_path):
    with pytest.raises(InputError, match="`hold_out` last with `validation`: both say what is held out"):
        pretrain(tmp_path / "run", corpus=table, validation=table.replace("receptors", "first-40"), fields=FIELDS,
                 hold_out="last")  # fmt: skip


def test_prepare_counts_records_and_proposes_a_command_that_trains(table, tmp_path, capsys):
    words = ["--source", table, "--fields", *FIELDS, "--block-len", "33", "--out", str(tmp_path / "corpus")]
    assert COMMANDS["prepare"].main(words) == 0
    out = capsys.readouterr().out
    assert "pieces, symbols of v:word cdr3:protein j:word\n" in out
    assert re.search(r"train +\d+ blocks of 33 from 1\d\d records, ", out)
    assert "document" not in out
    proposed = shlex.split(out.split("next")[1])
    assert proposed[2:] == ["xlnet_jax.train", "--corpus", str(tmp_path / "corpus"), "--data.seq-len", "32"]
    sizes = {f"--model.{name.replace('_', '-')}": str(size) for name, size in NETWORK.items()}
    rest = [word for pair in sizes.items() for word in pair]
    more = ["--steps", "1", "--data.batch-size", "8", "--workdir", str(tmp_path / "run")]
    assert COMMANDS["train"].main([*proposed[3:], *more, *rest]) == 0


def test_a_network_of_proteins_is_finetuned_to_labels(tmp_path):
    (tmp_path / "proteins.fasta").write_text("".join(f">p{i}\n{c}LLK\n" for i, (_, c, _) in enumerate(rows())))
    pretrain(tmp_path / "run", corpus=str(tmp_path / "proteins.fasta"))
    table = "".join(f"{c},{'long' if len(c) > 7 else 'short'}\n" for _, c, _ in rows(16))
    (tmp_path / "labels.csv").write_text(f"text,label\n{table}")
    small = {"batch_size": 8, "seq_len": 32, "buckets": (32,)}
    result = xlnet_jax.finetune(
        task="classification", init=str(tmp_path / "run"), train=str(tmp_path / "labels.csv"),
        workdir=str(tmp_path / "tuned"), steps=2, data=small,
    )  # fmt: skip
    model = xlnet_jax.load(result.checkpoint)
    (prediction,) = model.predict(["CASSF"])
    assert prediction.value in ("long", "short")
    ids, mask, _ = model.tokenize(["CASSF"])
    pieces = [model.tokenizer.pieces[i] for i in ids[0][mask[0] > 0]]
    assert pieces == [*"CASSF", "<sep>", "<cls>"]
