"""The finetune command: training, choice of the checkpoint, results, resuming, and mistakes."""

import json
import math
import os
import shutil
import signal
import socket
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import xlnet_jax
from tests.xlnet_jax.tasks.conftest import finetune, words
from tests.xlnet_jax.training.run.test_hosts import Two
from xlnet_jax.errors import RESTART, InputError
from xlnet_jax.interop.weights import flatten
from xlnet_jax.settings.fields import identity_difference
from xlnet_jax.tasks.classification.task import TextTask
from xlnet_jax.tasks.config import FinetuneConfig, QuestionAnsweringConfig, RankingConfig, TaskDataConfig
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.tasks.prepare import prepare
from xlnet_jax.training.callbacks import ProgressBar
from xlnet_jax.training.metrics import read_records
from xlnet_jax.training.selection import Evaluation, Result
from xlnet_jax.training.workdir import Workdir

PREDICTED = "predictions/predict/predictions.tsv"


def records(workdir, split):
    return [r for r in read_records(workdir / "metrics.jsonl") if r["split"] == split]


def assert_predictions_agree(ours, theirs, atol):
    rows = [[line.split("\t") for line in (f / PREDICTED).read_text().splitlines()[1:]] for f in (ours, theirs)]
    ids_and_labels, numbers = ([[row[part] for row in of] for of in rows] for part in (slice(2), slice(2, None)))
    assert ids_and_labels[0] == ids_and_labels[1]
    np.testing.assert_allclose(*np.array(numbers, float), atol=atol)


def test_a_run_learns_and_leaves_checkpoint_scores_and_predictions(finetuned):
    result = json.loads((finetuned / "results.json").read_text())
    evaluated = {r["step"]: r["accuracy"] for r in records(finetuned, "validation")}
    assert evaluated.keys() == {4, 8, 12}
    assert max(evaluated.values()) >= 0.8
    best = min(step for step, value in evaluated.items() if value == max(evaluated.values()))
    assert result["checkpoint"] == f"checkpoints/{best}"
    assert result["metrics"]["accuracy"] == evaluated[best]
    assert result["baseline"]["metrics"]["accuracy"] == 0.5
    assert {r["baseline"] for r in records(finetuned, "validation")} == {0.5}
    assert len((finetuned / PREDICTED).read_text().splitlines()) == 11
    assert json.loads((finetuned / "predictions/eval/metrics.json").read_text()) == result["metrics"]
    for name in ("curves.png", "confusion.png"):
        assert (finetuned / name).read_bytes().startswith(b"\x89PNG")


def test_a_run_that_is_stopped_goes_on_bit_for_bit_without_its_source(
    finetuned, pretrained, table, tmp_path, monkeypatch
):
    on_step = ProgressBar.on_step
    argv = words(shutil.copytree(pretrained, tmp_path / "source"), table, tmp_path / "run")

    def stopped_after_five(bar, loop, step, numbers):
        on_step(bar, loop, step, numbers)
        if step == 5:  # while the next one runs
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.chdir(tmp_path)
    argv[argv.index("--workdir") + 1] = "run"  # results.json names checkpoints in it, however it is spelled
    with monkeypatch.context() as patch:
        patch.setattr(ProgressBar, "on_step", stopped_after_five)
        assert finetune.main(argv) == RESTART
    shutil.rmtree(tmp_path / "source")
    assert records(tmp_path / "run", "train")[-1]["step"] == 6
    assert finetune.main(argv) == 0
    ours, theirs = (flatten(xlnet_jax.load(f / "checkpoints" / "12").params) for f in (tmp_path / "run", finetuned))
    assert all(np.array_equal(ours[path], theirs[path]) for path in theirs)
    for name in ("results.json", PREDICTED):
        assert (tmp_path / "run" / name).read_text() == (finetuned / name).read_text()


def test_a_checkpoint_predicts_as_its_run_did_whatever_the_padding_the_buckets_and_the_devices(
    finetuned, table, tmp_path, capsys
):
    argv = f"--task classification --init {finetuned} --eval {table} --predict {table} --workdir {tmp_path / 'out'}"
    other = "--data.padding-side right --data.buckets 16 24 --mesh.fsdp 2 --mesh.tensor 2"
    assert finetune.main([*argv.split(), *other.split()]) == 0
    assert_predictions_agree(tmp_path / "out", finetuned, 2e-5)
    printed = capsys.readouterr().out
    assert 'baseline    0.5 accuracy: always answers "bad", the most frequent label of these examples' in printed
    assert ", 0.5 above the baseline 0.5\n" in printed
    assert str(tmp_path / "out" / "confusion.png") in printed


@pytest.mark.parametrize(
    ("more", "seq_len", "batch_size", "printed"),
    [
        ("--task sst-2 --columns.text sentence", 32, 8,
         "--data.batch-size 8 (not 128), --data.seq-len 32 (not 128), --data.buckets 32 (not none)"),
        # These are also what the task starts from.
        ("--data.seq-len 128 --data.batch-size 32", 128, 32, "--data.buckets 32 (not none)"),
    ],
)  # fmt: skip
def test_texts_are_read_as_the_checkpoint_was_finetuned_where_nothing_is_given(
    finetuned, table, tmp_path, capsys, monkeypatch, more, seq_len, batch_size, printed
):
    seen = []
    monkeypatch.setattr("xlnet_jax.tasks.finetune.read_splits", lambda config, *_: seen.append(config) or {})
    finetune.main(f"--init {finetuned} --predict {table} --workdir {tmp_path / 'out'} {more}".split())
    data = seen[0].data
    assert (data.seq_len, data.batch_size, data.buckets) == (seq_len, batch_size, (32,))
    lines = " ".join(capsys.readouterr().out.split())
    assert f"chosen {printed}, as in the checkpoint's finetuning for classification" in lines


@pytest.mark.slow
def test_two_processes_learn_and_predict_what_one_does(finetuned, pretrained, table, tmp_path):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    codes, errors = Two(
        port, *words(pretrained, table, tmp_path / "two"), programs=[["-m", "xlnet_jax.finetune"]] * 2
    ).end()
    assert codes == [0, 0], errors
    assert {path.name for path in (tmp_path / "two").glob("*.png")} == {"curves.png", "confusion.png"}
    two, one = (records(folder, "train") for folder in (tmp_path / "two", finetuned))
    np.testing.assert_allclose([r["loss"] for r in two], [r["loss"] for r in one], atol=1e-5)
    assert_predictions_agree(tmp_path / "two", finetuned, 1e-4)


def test_several_seeds_read_the_examples_once_and_give_the_best_checkpoint_with_mean_and_deviation_of_a_sample(
    pretrained, table, tmp_path, capsys, monkeypatch
):
    features, encoded = TextTask.features, []

    def counted(*args, training, **more):
        encoded.append(training)
        return features(*args, training=training, **more)

    def trained(prepared, workdir, process, callbacks):
        workdir.make()
        prepared.training_features(0)
        folder, metrics = str(workdir.folder), {"accuracy": {2: 0.25}.get(prepared.settings.config.seed, 0.75)}
        predictions = (f"{folder}/predictions/x",)
        checkpoint = f"{folder}/checkpoints/4"
        return Result(
            folder, checkpoint, 4, "accuracy", metrics, task="classification", predictions=predictions,
            baseline=prepared.baseline,
        )  # fmt: skip

    monkeypatch.setattr(TextTask, "features", counted)
    monkeypatch.setattr("xlnet_jax.tasks.finetune.finetune_seed", trained)
    assert finetune.main(words(pretrained, table, tmp_path / "run", "--seeds", "2", "4", "6", "--steps", "4")) == 0
    assert encoded.count(True) == 1  # for all epochs of all seeds
    result = json.loads((tmp_path / "run" / "results.json").read_text())
    assert result["checkpoint"] == "seed-4/checkpoints/4"  # the first of equals
    assert result["mean"]["accuracy"] == pytest.approx(1.75 / 3)
    assert result["deviation"]["accuracy"] == pytest.approx(math.sqrt(1 / 12))  # of a population: sqrt(1 / 18)
    assert result["seeds"]["4"]["predictions"] == ["predictions/x"]
    assert result["baseline"]["metrics"]["accuracy"] == 0.5
    printed = capsys.readouterr().out
    assert 'baseline    0.5 accuracy: always answers "bad", the most frequent label\n' in printed
    assert "0.5833 ± 0.29" in printed.partition("mean of the seeds:")[0]
    assert "not above the baseline beyond chance" in printed.partition("mean of the seeds:")[2]


def test_a_run_ends_early_when_nothing_gets_better(pretrained, table, tmp_path, monkeypatch, capsys):
    # The second evaluation is the best, and later ones are as good at most: the first of equals stays.
    add, calls = Evaluation.add, []

    def add_no_better(evaluation, step, numbers):
        calls.append(step)
        numbers[evaluation.metric] = {4: 0.1, 12: 0.2}.get(step, 0.5)  # which is recorded too
        add(evaluation, step, numbers)

    monkeypatch.setattr(Evaluation, "add", add_no_better)
    more = ("--steps", "40", "--selection.patience", "2", "--checkpoint.every-steps", "1000")
    assert finetune.main(words(pretrained, table, tmp_path / "run", *more)) == 0
    assert calls == [4, 8, 12, 16]
    assert json.loads((tmp_path / "run" / "results.json").read_text())["step"] == 8
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == ["16", "8"]
    out = capsys.readouterr().out
    assert finetune.main(words(pretrained, table, tmp_path / "run", *more)) == 0
    assert calls == [4, 8, 12, 16]  # it is known to have ended
    assert "randomly initialized: logits, summary" in out
    assert f"xlnet_jax.finetune --task classification --init {tmp_path / 'run'} --predict FILES" in out
    assert f"xlnet_jax.load('{tmp_path / 'run'}').predict([...])" in out


def test_epochs_stand_for_steps_and_warmup_keeps_its_share(pretrained, tmp_path):
    (tmp_path / "x.tsv").write_text("sentence1\tsentence2\tscore\n" + "a walk\tthe days\t1.5\n" * 20)
    data = TaskDataConfig(batch_size=8, seq_len=16)
    config = replace(DEFAULTS["sts-b"](), init=str(pretrained), train=(str(tmp_path / "x.tsv"),), data=data, epochs=2.0)
    config = prepare(config, 0, [Workdir(tmp_path / "run")], Console(quiet=True)).settings.final()
    assert config.steps == 6
    assert config.optimizer.warmup_steps == round(120 * 6 / 1200)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("--task sst2", r"--task sst2: there is mnli, .*sst-2"),
        ("--head.task regression", r"--head.task is no flag: a preset, a task or a checkpoint decides it"),
        ("--model.num-layers 3", r"model\.num-layers 3: the weights of --init .* have \d"),
        ("--seed 3", r"seed 3: .* give --seeds 3"),
        ("--mesh.context 2", r"mesh\.context 2: only the windows of pretraining are divided; leave it at 1"),
        ("--columns.label sentiment", r"'sentiment', only 'label', 'text'"),
    ],
)
def test_mistakes_are_named_before_anything_is_learned(more, line, pretrained, table, tmp_path):
    with pytest.raises(InputError, match=line):
        finetune.main(words(pretrained, table, tmp_path / "run", *more.split()))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_run_goes_on_with_more_seeds_and_other_ways_of_measuring():
    before, qa, ranking = FinetuneConfig(), QuestionAnsweringConfig(n_best=20), RankingConfig(cutoff=10)
    after = replace(before, seeds=(0, 1), epochs=3.0, qa=qa, ranking=ranking)
    assert identity_difference(after, before) == []
    assert identity_difference(replace(after, seed=1), before) == ["`seed`: 0 there, 1 here"]


def test_a_checkpoint_with_the_wrong_head_is_named_with_the_one_it_has(pretrained, finetuned, table, tmp_path):
    with pytest.raises(InputError, match="has vocabulary scores, and --task rte needs a head for classification"):
        finetune.main(["--task", "rte", "--init", str(pretrained), "--predict", str(table)])
    with pytest.raises(InputError, match="has a head for classification, and --task ner needs a head for token_class"):
        finetune.main(["--task", "ner", "--init", str(finetuned), "--predict", str(table)])


def test_workdirs_of_other_runs_are_refused_and_left_alone(finetuned, pretrained, table, tmp_path):
    before = (finetuned / "results.json").read_text()
    (tmp_path / "pretrained" / "checkpoints" / "1" / "params").mkdir(parents=True)
    (tmp_path / "pretrained" / "config.json").write_text('{"format_version": 1, "corpus": ["novels"], "steps": 1}')
    (tmp_path / "seeds" / "seed-1").mkdir(parents=True)
    (tmp_path / "seeds" / "seed-1" / "config.json").touch()
    predicting = ["--init", str(finetuned), "--predict", str(table), "--workdir", str(finetuned)]
    for argv, message in (
        (words(pretrained, table, finetuned, "--optimizer.learning-rate", "0.1"),
         r"holds another run \(--optimizer\.learning-rate: 0\.02 there, 0\.1 here\)"),
        (words(pretrained, table, finetuned, "--seeds", "0", "1"),
         "holds a run, with results of its own: give several seeds a --workdir"),
        (predicting, "holds a run, with results of its own: give predictions another --workdir"),
        (words(pretrained, table, tmp_path / "pretrained"),
         r"config\.json does not hold settings of a run of this kind \(.*corpus.*\): give another"),
        (words(pretrained, table, tmp_path / "seeds"), "holds the runs of several seeds: give one seed a --workdir of"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            finetune.main(argv)
    assert (finetuned / "results.json").read_text() == before
