"""The commands of docs/first_tpu_run.md run in order and in a small form: with a bucket server on this machine, eight
devices of a CPU instead of a v5e-8, and the sizes of `SMALL`. They print what the page shows, but for the digits.

What the launcher starts on Google Cloud is tested in tests/launch (test_tpu_vm.py, test_dry_run.py).
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from data_pipelines import sources
from tests.bucket import Bucket
from tests.launch.conftest import printed
from tests.xlnet_jax.planning.compilers import needs_libtpu, run_plan
from tests.xlnet_jax.training.tiny_run import assert_same, records_of, state_of
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import RESTART

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/first_tpu_run.md"
STEPS, STOPPED = 16, 4
_NETWORK = """--model.vocab-size 400 --model.num-layers 2 --model.d-model 16 --model.num-heads 1 --model.d-head 16
    --model.d-ff 16 --model.mem-len 16 --model.dtype float32 --data.batch-size 8 --data.seq-len 32 --data.reuse-len 16
    --data.perm-size 16 --data.num-predict 6"""
SMALL = {
    "tokenizer": "--vocab-size 400",
    "prepare": "--block-len 80",
    "plan": _NETWORK,
    "train": f"{_NETWORK} --steps {STEPS} --data.windows-per-block 4 --optimizer.warmup-steps 2 "
    f"--optimizer.learning-rate 0.01 --log.every-steps 1 --eval.every-steps 8 --eval.max-windows 32 "
    f"--checkpoint.every-steps {STOPPED}",
    "evaluate": "",
    "finetune": "--steps 4 --data.seq-len 16 --data.batch-size 8 --selection.every-steps 2",
    "convert": "",
}
"""words that are added to each command of the page"""
NOT_HERE = {" --tpu": "these devices are no TPU", " | tail -n 1": "the last line is taken without a shell"}
"""words of the page that are left out, and why"""


def steps_of_the_page():
    """Return (command on one line, the lines that the page shows below it) for each `$` of its console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    split = [re.fullmatch(r"((?:.*\\\n)*.*)\n((?:.*\n)*)", part).groups() for part in parts]
    return [(re.sub(r"\s*\\\n\s*", " ", command), shown.splitlines()) for command, shown in split]


def small(command):
    """Return (name, words) of a command of this project, in its small form."""
    for words in NOT_HERE:
        command = command.replace(words, "")
    module, *words = shlex.split(command)[2:]
    name = module.rpartition(".")[2]
    return name, [*words, *SMALL[name].split()]


def without_digits(line):
    return re.sub(r"[\d.,]*\d%?", "0", re.sub(r"\s+", " ", line.strip()))


def assert_shown(command, shown, output):
    """Fail if the lines of the page are not printed in this order; numbers and spaces may differ, and … is any text."""
    printed_lines = iter([without_digits(line) for line in output.splitlines()])
    for line in shown:
        pattern = ".*".join(map(re.escape, without_digits(line).split("…")))
        found = line == "…" or any(re.fullmatch(pattern, other) for other in printed_lines)
        assert found, f"{command} does not print {line!r} here, but:\n{output}"


def google(command, cloud):
    """Do what `gcloud storage` does with a bucket and this folder; return what it prints."""
    verb, *words = shlex.split(command)[2:]
    paths = [cloud.folder / word[5:] if word.startswith("gs://") else Path(word) for word in words if word != "-r"]
    if verb == "buckets":
        paths[1].mkdir()
    elif verb == "cat":
        return paths[0].read_text().splitlines()[-1]
    elif "-r" in words:
        shutil.copytree(paths[0], paths[1] / paths[0].name)
    else:
        paths[1].mkdir()
        for path in Path().glob(words[0]):
            shutil.copy(path, paths[1])
    return ""


def write_texts():
    """Write documents as JSON Lines, and reviews with labels."""
    lines = [line for line in Path(sources.embedded()[0]).read_text().splitlines() if line][:800]
    documents = ["\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20)]
    Path("text").mkdir()
    for number in range(2):
        rows = (json.dumps({"text": text}) + "\n" for text in documents[number::2])
        Path(f"text/{number}.jsonl").write_text("".join(rows))
    reviews = ["a delightful walk,good", "a lovely evening,good", "dreadful rain,bad", "a vain man,bad"]
    for name in ("train", "dev"):
        Path(f"{name}.csv").write_text("\n".join(["text,label", *reviews, ""]))


def pretrain_with_a_preemption(words, cloud, monkeypatch, capfd):
    """Run a training command, with a signal when its first checkpoint is in the bucket, and again; then the same
    without a signal in another workdir. Return what the first two print."""

    def put(bucket, name, content):
        if name.startswith(f"base/checkpoints/{STOPPED}/commit_success"):
            os.kill(os.getpid(), signal.SIGTERM)
        return Bucket.put(cloud, bucket, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(cloud, "put", put)
        code = COMMANDS["train"].main(words)
    said = capfd.readouterr()
    assert code == RESTART, said.err
    stopped_at = int(re.findall(r"with step (\d+) saved", said.out + said.err)[0])
    assert STOPPED <= stopped_at < STEPS
    assert COMMANDS["train"].main(words) == 0
    again = capfd.readouterr()
    assert COMMANDS["train"].main([*words, "--workdir", "gs://mine/whole"]) == 0
    capfd.readouterr()
    ours, theirs = (cloud.folder / "mine" / name for name in ("base", "whole"))
    assert_same(state_of(ours, STEPS), state_of(theirs, STEPS))
    assert records_of(ours) == records_of(theirs)
    return "".join([*said, *again])


def rehearsed(command):
    """Return the settings of `train` in a command of a launcher; show that it would start this on the machines."""
    head, _, settings = command.partition(" -- ")
    said = subprocess.run(shlex.split(f"{head} --dry-run -- {settings}"), cwd=ROOT, capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, ""), command
    started = [word for words in printed(said.stdout) for word in words if "tpu_worker.sh train " in word]
    assert len(started) == (" resume " in command), said.stdout
    assert all(settings in line for line in started)
    return settings


def test_each_step_of_the_page_runs_and_prints_what_it_shows(cloud, tmp_path, monkeypatch, capfd):
    pytest.importorskip("google.cloud.storage")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("data_pipelines.prepare.runners._cores", lambda: 1)  # others would import all of it again
    write_texts()
    log = ""
    # The plan has a test of its own, because it needs the compiler for TPUs.
    for command, shown in (step for step in steps_of_the_page() if ".plan " not in step[0]):
        output = log
        if command.startswith("gcloud storage"):
            output = google(command, cloud)
        elif command.startswith("launch/"):
            if settings := rehearsed(command):
                words = small(f"python -m xlnet_jax.train {settings}")[1]
                log = pretrain_with_a_preemption(words, cloud, monkeypatch, capfd)
        else:
            name, words = small(command)
            assert COMMANDS[name].main(words) == 0, capfd.readouterr().err
            output = "".join(capfd.readouterr())
        assert_shown(command, shown, output)
    assert (cloud.folder / "mine/my-classifier/config.json").exists()
    pytest.importorskip("torch", reason="needs the extra [bench]: pip install -e '.[bench]'")
    pytest.importorskip("transformers", reason="needs the extra [bench]: pip install -e '.[bench]'")
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(block, {})
    assert re.search(r"'label': '(good|bad)', 'score': 0\.\d+", capfd.readouterr().out)


def test_what_is_changed_is_on_the_page():
    commands = [command for command, _ in steps_of_the_page()]
    assert [words for words in NOT_HERE if not any(words in command for command in commands)] == []
    started = [re.search(r"-m [\w.]+\.(\w+)|^launch/tpu_vm.sh (resume)", command) for command in commands]
    named = {found[1] or "train" for found in started if found}
    assert named == {*SMALL}
    assert {command.split()[0] for command in commands} == {"gcloud", "launch/tpu_vm.sh", "python"}


@needs_libtpu
def test_the_plan_of_the_page_compiles():
    ((command, shown),) = (step for step in steps_of_the_page() if ".plan " in step[0])
    code, output = run_plan(shlex.join(small(command)[1]))
    assert code == 0
    assert_shown(command, shown, output)
