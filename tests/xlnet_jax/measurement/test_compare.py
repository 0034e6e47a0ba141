"""The whole command: two contenders, two seeds and a task, with table, picture and resumption."""

import json
import shutil
from types import SimpleNamespace

import pytest
from matplotlib.image import imread

from data_pipelines import sources, windows
from data_pipelines.corpus import Corpus
from tests.xlnet_jax.training.tiny_run import TINY
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import RESTART, InputError
from xlnet_jax.measurement import compare as comparison
from xlnet_jax.measurement.compare import show_summary, summarize
from xlnet_jax.settings.config import Config
from xlnet_jax.training.metrics import read_records
from xlnet_jax.training.workdir import Workdir

compare = COMMANDS["compare"]

# Without dropout, the programs of a seed are those of another, and so are those of finetuning: both have one network.
FINETUNE = (
    "steps=4 optimizer.warmup-steps=1 optimizer.learning-rate=0.02 data.batch-size=8 data.seq-len=16 data.buckets=16 "
    "selection.every-steps=4 model.dropout=0 model.attention-dropout=0"
).split()
STEPS = 6
NUMBERS = ("held_out_loss", "pair_loss", "sst-2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    with open(sources.embedded()[0]) as novels:
        (folder / "novel.txt").write_text("".join(line for line, _ in zip(novels, range(400), strict=False)))
    rows = [f"{text}\t{label}" for label, text in enumerate(("a dreadful rain", "a lovely walk"))] * 8
    for name in ("train", "dev"):
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


def words(folder, workdir, *more, contenders="plm-next,plm-no-spans", seeds=("0", "1"), task=None):
    return [
        *TINY, "--steps", "12", "--eval.every-steps", "6", "--checkpoint.every-steps", "12", "--objectives", contenders,
        "--budget", str(STEPS * 8 * 32), "--seeds", *seeds, "--corpus", str(folder / "novel.txt"),
        "--tasks", f"sst-2={task or folder}", "--finetune", *FINETUNE, "--workdir", str(workdir), *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def compared(folder, tmp_path_factory):
    """Folder of a comparison that nothing interrupted."""
    workdir = tmp_path_factory.mktemp("compared") / "comparison"
    assert compare.main(words(folder, workdir)) == 0
    return workdir


@pytest.fixture
def ran(monkeypatch):
    """Runs that a comparison starts; each of them stops at once."""
    ran = []

    def stop(config):
        ran.append(config.workdir)
        return SimpleNamespace(stopped="SIGTERM")

    monkeypatch.setattr(comparison, "pretrain", stop)
    monkeypatch.setattr(comparison, "finetune_as", lambda _, config: stop(config))
    return ran


def results(workdir):
    return json.loads((workdir / "results.json").read_text())


def test_results_are_those_of_the_runs(compared):
    found = results(compared)["contenders"]
    assert found.keys() == {"plm-next", "plm-no-spans"}
    for name, numbers in found.items():
        of_runs = {key: {} for key in NUMBERS}
        for seed in ("0", "1"):
            runs = compared / name / f"seed-{seed}"
            *_, last = (r for r in read_records(runs / "pretrained/metrics.jsonl") if r["split"] == "validation")
            assert last["step"] == numbers["updates"] == STEPS
            of_runs["held_out_loss"][seed] = last["loss"]
            of_runs["pair_loss"] |= {seed: last["pair_loss"]} if name == "plm-next" else {}
            of_runs["sst-2"][seed] = json.loads((runs / "sst-2/results.json").read_text())["metrics"]["accuracy"]
        for key, by_seed in of_runs.items():
            assert numbers.get(key, {}).get("seeds", {}) == by_seed
    # Seeds differ; text and tokenizer do not.
    assert all(len(set(numbers["held_out_loss"]["seeds"].values())) == 2 for numbers in found.values())
    for file in compared.glob("*/seed-*/*/config.json"):  # of pretraining and of finetuning
        assert json.loads(file.read_text())["seed"] == int(file.parts[-3].removeprefix("seed-"))
    for file in ("text.json", "tokenizer/spiece.model"):
        assert len({path.read_bytes() for path in compared.glob(f"*/seed-*/pretrained/{file}")}) == 1


def test_the_table_says_what_was_spent_and_learned(compared):
    table, found = (compared / "table.md").read_text(), results(compared)["contenders"]
    head, _, *rows = table.partition("\n\n")[0].splitlines()
    columns = (
        "contender | parameters | updates | tokens | operations | passes | held-out loss | pair loss | sst-2, accuracy"
    )
    assert head == f"| {columns} |"
    corpus = Corpus(compared / "corpus")
    assert rows.pop().startswith("| baseline |  |")
    for row, (name, numbers) in zip(rows, found.items(), strict=True):
        data = Workdir(compared / name / "seed-0/pretrained").settings(Config).data
        batches_of_all_blocks = corpus.num_blocks("train") // 8 * windows.steps_per_block(corpus.block_len, data)
        assert numbers["passes"] == STEPS / batches_of_all_blocks
        spent = [f"{numbers['parameters']:,}", "6", "1,536", f"{numbers['operations']:.3g}", f"{numbers['passes']:.2g}"]
        loss = show_summary(numbers["held_out_loss"])
        assert row.startswith(f"| {' | '.join([name, *spent, loss])} |")
    assert "Budget: 1,536 tokens each. Mean ± sample deviation over the seeds 0, 1." in table
    height, width, _ = imread(compared / "comparison.png").shape
    assert width > 2 * height, "a panel for losses and one for the task"


@pytest.mark.parametrize("missing", ["sst-2/results.json", "pretrained/curves.png"])
def test_a_run_that_has_not_ended_is_continued_and_its_exit_code_ends_the_comparison(
    compared, folder, tmp_path, ran, missing
):
    workdir = shutil.copytree(compared, tmp_path / "again")
    unfinished = workdir / "plm-no-spans/seed-0" / missing
    unfinished.unlink()
    assert compare.main(words(folder, workdir)) == RESTART
    assert ran == [str(unfinished.parent)]


def test_a_comparison_that_was_moved_half_way_goes_on(compared, folder, tmp_path):
    # Finetuning runs record where their weights lie. A command that has ended runs nothing again.
    before = results(compared)
    assert compare.main(words(folder, compared)) == 0
    moved = compared.rename(tmp_path / "moved")
    try:
        (moved / "plm-no-spans/seed-0/sst-2/results.json").unlink()
        assert compare.main(words(folder, moved)) == 0
        assert results(moved) == before
    finally:
        moved.rename(compared)


def test_contenders_and_seeds_can_be_added(compared, folder, tmp_path, ran):
    workdir = shutil.copytree(compared, tmp_path / "more")
    assert compare.main(words(folder, workdir, contenders="plm-no-spans,mlm", seeds=("1", "2"))) == RESTART
    assert ran == [f"{workdir}/mlm/seed-1/pretrained"]


@pytest.mark.parametrize(
    ("more", "difference"),
    [
        ("--model.d-ff 32", "model.d-ff: 16 there, 32 here"),
        ("--finetune steps=5", "--finetune sst-2 --steps: 4 there, 5 here"),
    ],
)
def test_another_setting_in_the_same_folder_is_refused_by_name(more, difference, compared, folder, tmp_path, ran):
    shutil.copy(compared / "config.json", tmp_path)
    with pytest.raises(InputError, match=f"holds a different comparison.*{difference}"):
        compare.main(words(folder, tmp_path, *more.split()))
    assert ran == []


def test_examples_that_cannot_be_read_are_refused_before_anything_is_learned(folder, tmp_path, ran):
    bad = tmp_path / "bad"
    bad.mkdir()
    for name in ("train", "dev"):
        (bad / f"{name}.tsv").write_text("sentence\tlabel\nfine\tperhaps\n")
    with pytest.raises(InputError, match="the label 'perhaps' is none of 0, 1, which sst-2 has"):
        compare.main(words(folder, tmp_path / "run", task=bad))
    assert not (tmp_path / "run").exists()


def test_one_seed_has_no_deviation():
    assert show_summary(summarize({3: 0.25})) == "0.250"
    assert show_summary(summarize({3: 0.25, 4: 0.75})) == "0.500 ± 0.354"
