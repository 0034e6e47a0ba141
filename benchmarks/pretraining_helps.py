"""Does pretraining help? A small XLNet pretrained on novels for some CPU minutes, then finetuned from those weights and
from random ones, the same way, on SST-2, CoLA, STS-B and a small SQuAD, by several seeds.

    python benchmarks/pretraining_helps.py --corpus NOVELS --data FOLDER [--tasks cola sts-b] [--seeds 0 1 2]

NOVELS is a text file; FOLDER has glue/SST-2, glue/CoLA and glue/STS-B as GLUE publishes them, and squad/train.json and
squad/dev.json in SQuAD's form. Everything runs by the commands a user gives, in --workdir; what is there already is not
run again, so tasks can be run one by one. Prints the table of all tasks that have been run, and draws curves.png.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PRETRAIN = """--preset demo --steps 6000 --model.vocab-size 8000 --model.num-layers 4 --model.d-model 192
    --model.num-heads 3 --model.d-ff 768 --model.init-std 0.06 --optimizer.learning-rate 1.5e-3
    --optimizer.warmup-steps 300 --eval.every-steps 1000 --eval.max-windows 512 --checkpoint.every-steps 500
    --log.every-steps 100""".split()
FINETUNE = "--model.dropout 0.1 --model.attention-dropout 0.1 --data.batch-size 32 --log.every-steps 50".split()
STARTS = {"random": ["--reinitialize"], "pretrained": []}
CPU_MINUTES = "cpu_minutes.json"


@dataclass(frozen=True)
class Task:
    """Row of the table."""

    name: str
    metric: str
    train: str
    dev: str
    settings: str


TASKS = (
    Task(
        "sst-2", "accuracy", "glue/SST-2/train.tsv", "glue/SST-2/dev.tsv",
        "--steps 600 --data.seq-len 32 --data.buckets 16 --optimizer.learning-rate 5e-4 --selection.every-steps 150",
    ),
    Task(
        "cola", "mcc", "glue/CoLA/train.tsv", "glue/CoLA/dev.tsv",
        "--steps 400 --data.seq-len 32 --data.buckets 16 --optimizer.learning-rate 3e-4 --selection.every-steps 100",
    ),
    Task(
        "sts-b", "average", "glue/STS-B/train.tsv", "glue/STS-B/dev.tsv",
        "--steps 400 --data.seq-len 64 --data.buckets 32 --optimizer.learning-rate 5e-4 --selection.every-steps 100",
    ),
    Task(
        "squad", "f1", "squad/train.json", "squad/dev.json",
        "--steps 200 --data.batch-size 16 --data.seq-len 192 --data.buckets 192 --qa.max-query-len 32 "
        "--optimizer.learning-rate 5e-4 --optimizer.layer-decay 1 --selection.every-steps 100",
    ),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=[t.name for t in TASKS], choices=[t.name for t in TASKS])
    parser.add_argument("--seeds", nargs="*", default=["0", "1", "2"])
    parser.add_argument("--workdir", type=Path, default=Path("runs/pretraining-helps"))
    given = parser.parse_args()
    pretrained = given.workdir / "pretrained"
    timed(pretrained, ["xlnet_jax.train", *PRETRAIN, "--corpus", given.corpus, "--workdir", str(pretrained)])
    for task in (t for t in TASKS if t.name in given.tasks):
        for start, settings in STARTS.items():
            workdir = given.workdir / task.name / start
            files = ["--train", str(given.data / task.train), "--eval", str(given.data / task.dev)]
            run = ["xlnet_jax.finetune", "--task", task.name, "--init", str(pretrained), *files, *FINETUNE]
            timed(
                workdir, [*run, *task.settings.split(), *settings, "--seeds", *given.seeds, "--workdir", str(workdir)]
            )
    report(given.workdir)


def timed(workdir: Path, words: list[str]) -> None:
    """Run a command to its end unless it has ended; record its CPU minutes, over all attempts."""
    note = workdir / CPU_MINUTES
    before = json.loads(note.read_text()) if note.exists() else {"minutes": 0.0, "done": False}
    if before["done"]:
        return
    used, environment = cpu_minutes(), os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    code = subprocess.run([sys.executable, "-m", *words], env=environment, check=False).returncode
    workdir.mkdir(parents=True, exist_ok=True)
    minutes = before["minutes"] + cpu_minutes() - used
    note.write_text(json.dumps({"minutes": minutes, "done": code == 0}))
    if code:
        sys.exit(code)


def cpu_minutes() -> float:
    """Return the CPU seconds of all processes that were started from here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) / 60


def report(folder: Path) -> None:
    """Print the table and draw the curves of the runs that are there."""
    ran = [t for t in TASKS if all((folder / t.name / start / "results.json").exists() for start in STARTS)]
    spent = json.loads((folder / "pretrained" / CPU_MINUTES).read_text())["minutes"]
    print(f"\npretraining: {spent:.0f} CPU minutes\n")
    print("| task | metric | from random weights | pretrained | difference | CPU minutes |\n|---|---|---|---|---|---|")
    for task in ran:
        results = {s: json.loads((folder / task.name / s / "results.json").read_text()) for s in STARTS}
        scale = 1 if task.name == "squad" else 100
        mean, deviation = ({s: scale * results[s][kind][task.metric] for s in STARTS} for kind in ("mean", "deviation"))
        minutes = sum(json.loads((folder / task.name / s / CPU_MINUTES).read_text())["minutes"] for s in STARTS)
        cells = [f"{mean[s]:.1f} ± {deviation[s]:.1f}" for s in STARTS]
        difference = mean["pretrained"] - mean["random"]
        print(f"| {task.name} | {task.metric} | {cells[0]} | {cells[1]} | {difference:+.1f} | {minutes:.0f} |")
    draw(folder, ran)


def draw(folder: Path, tasks: list[Task]) -> None:
    """Draw the metric over steps, one line a seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(tasks), 3.2), dpi=120, layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for start, color in zip(STARTS, ("tab:gray", "tab:blue"), strict=True):
            runs = sorted((folder / task.name / start).glob("**/metrics.jsonl"))
            for i, run in enumerate(runs):
                rows = [r for line in run.read_text().splitlines() if (r := json.loads(line))["split"] == "validation"]
                points = [(r["step"], r[task.metric]) for r in rows]
                axes.plot(*zip(*points, strict=True), color=color, lw=1, label=None if i else start)
        axes.set(title=f"{task.name}, {task.metric}", xlabel="updates")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(folder / "curves.png")


if __name__ == "__main__":
    main()
