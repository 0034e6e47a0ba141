"""Command lines: every setting by its dotted name, every mistake in one line with exit code 2."""

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from jax.errors import JaxRuntimeError

from data_pipelines.tokenizer.commands import Show, Train
from xlnet_jax import __main__ as command
from xlnet_jax.errors import CRASH, InputError, with_flags
from xlnet_jax.inference.embed import EmbedSettings
from xlnet_jax.inference.generate import GenerateSettings
from xlnet_jax.objectives import presets
from xlnet_jax.objectives.presets import PRESETS, demo, large
from xlnet_jax.objectives.records import OBJECTIVES
from xlnet_jax.settings import parser, transformers_names
from xlnet_jax.settings.fields import flatten, to_dict
from xlnet_jax.tasks.defaults import DEFAULTS
from xlnet_jax.training import machine


def parse(*argv):
    return presets.parse_config(argv, "train", "a description")


def test_settings_are_reached_by_their_dotted_names():
    config = parse(
        "--optimizer.learning-rate", "3e-4", "--data.targets", "words", "--steps", "5", "--steps", "7", "--tpu"
    )
    assert (config.optimizer.learning_rate, config.data.targets, config.steps, config.tpu) == (3e-4, "words", 7, True)
    data = parse("--data.num-predict", "None", "--data.weights", "0.7", "0.2", "0.1", "--data.span-unit", "word").data
    assert (data.num_predict, data.weights, data.span_unit) == (None, (0.7, 0.2, 0.1), "word")


@pytest.mark.parametrize("argv", [["--corpus", "a", "b"], ["--corpus", "a", "--seed", "1", "--corpus=b"]])
def test_several_texts_are_named_together_or_one_by_one(argv):
    assert parse(*argv).corpus == ("a", "b")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--learnin-rate", "3"], "unknown setting --learnin-rate: did you mean --optimizer.learning-rate?"),
        (
            ["--model.activation", "relu"],
            "--model.activation is no flag: a preset, a task or a checkpoint",
        ),
        (["--adam_beta1", "0.8"], "--adam_beta1 is optimizer.beta1 here, in the file of --config"),
        (["--qqqqqq=3"], "unknown setting --qqqqqq: --help-all lists them all"),
        (["my.txt"], "my.txt has no flag in front: did you mean --corpus my.txt?"),
        (
            ["--objective", "mml"],
            f"--objective mml: there is {', '.join(record.name for record in OBJECTIVES)}: did you mean mlm?",
        ),
        (["--preset", "huge"], "--preset huge: there is demo, small, base, long, large, large_v1"),
        (["--steps", "many"], '--steps needs a whole number, such as 1000; it is "many"'),
        (["--steps", "1e3"], '--steps needs a whole number, such as 1000; it is "1e3"'),
        (["--steps="], '--steps needs a whole number, such as 1000; it is ""'),
        (["--steps", "--tpu"], "--steps needs a whole number, such as 1000; it has no value"),
        (["--optimizer.learning_rate=fast"], '--optimizer.learning-rate needs a number, such as 0.001; it is "fast"'),
        (
            ["--optimizer.decay-steps", "x"],
            '--optimizer.decay-steps needs a whole number or None, such as 1000; it is "x"',
        ),
        (["--data.weights", "1", "a"], '--data.weights needs a list, each a number, such as 0.001; it is "a"'),
        (["--model.dtype", "fp16"], '--model.dtype needs one of float32, bfloat16; it is "fp16"'),
        (
            ["--data.pack", "false"],
            "--data.pack takes no value, such as false: give --data.pack alone, or --data.no-pack",
        ),
        (["--lr", "3"], "--lr is --optimizer.learning-rate here"),
        (["--output_dir=runs/mine"], "--output_dir is --workdir here"),
        (["--fp16"], "--fp16 is --model.dtype bfloat16 here"),
        (["--epochs", "3"], "--epochs counts epochs; this command counts steps: set --steps"),
        (["--data.perm-size", "48"], "data.perm-size 48 must divide both parts of the window"),
        (["--config", "no.json"], "no.json is missing"),
        (["--config", "--steps", "3"], "--config needs the name of a JSON file"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(argv, message):
    with pytest.raises(InputError) as mistake:
        parse(*argv)
    assert message in with_flags(str(mistake.value))
    assert "\n" not in str(mistake.value)
    assert "│" not in str(mistake.value)


def test_every_hint_from_transformers_names_a_setting_that_a_command_has():
    kinds = [PRESETS["demo"](), DEFAULTS["classification"](), GenerateSettings("tiny")]
    known = {setting.name: setting.hint for kind in kinds for setting in flatten(kind)}
    flags = [flag for flags in transformers_names.FLAGS.values() for flag in flags]
    advised = re.findall(r"--([\w.-]+)", " ".join(transformers_names.ADVICE.values()))
    flags += [flag for flag in advised if flag not in ("to", "push")]  # of convert
    for name, _, value in (flag.partition(" ") for flag in flags):
        assert name in known
        assert not value or parser._can_be(value, known[name])


def test_every_training_argument_on_the_page_about_transformers_has_a_hint():
    page = (Path(__file__).parents[3] / "docs" / "from_transformers.md").read_text()
    table = page[page.index("TrainingArguments") :].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = [name.replace("_", "-") for row in rows for name in re.findall(r"`([a-z0-9_]+)`", row)]
    known = {setting.name for kind in (PRESETS["demo"](), DEFAULTS["classification"]()) for setting in flatten(kind)}
    assert len(names) > 20
    assert [n for n in names if n not in known and not transformers_names.hint_from_transformers(n, known)] == []


def test_the_hint_fits_the_command():
    assert transformers_names.hint_from_transformers("num-train-epochs", ["steps", "epochs"]) == "is --epochs here"
    assert "counts steps" in transformers_names.hint_from_transformers("num-train-epochs", ["steps"])


def test_a_prompt_may_follow_the_checkpoint():
    def prompts(*argv):
        return parser.parse(GenerateSettings, argv, "generate", "").prompt

    assert prompts("tiny", "Hello", "--seed", "3") == prompts("tiny", "--prompt", "Hello") == ("Hello",)
    assert prompts("tiny", "Hello", "and", "--prompt", "more") == ("Hello", "and", "more")
    with pytest.raises(InputError, match=r"Hello has no flag in front: did you mean --prompt Hello\?"):
        prompts("tiny", "--seed", "3", "Hello")


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write run.json into the current folder: text as it is, settings as a run writes them."""
    monkeypatch.chdir(tmp_path)

    def write(content):
        text = content if isinstance(content, str) else json.dumps(to_dict(content))
        Path("run.json").write_text(text)
        return ["--config", "run.json"]

    return write


FEW = '{"preset": "large", "steps": 7, "corpus": "a.txt", "data": {"batch_size": 4}, "optimizer.learning-rate": 1}'


def test_settings_are_read_from_a_file_over_its_preset_and_flags_replace_them(written):
    read = parse(*written(FEW))
    assert (read.steps, read.corpus, read.optimizer.learning_rate) == (7, ("a.txt",), 1.0)
    assert read.data == replace(large().data, batch_size=4)
    assert read.model == large().model
    flags = parse(*"--steps 9 --config=run.json --data.batch-size 5 --corpus b c --preset demo".split())
    assert (flags.steps, flags.corpus, flags.optimizer.learning_rate) == (9, ("b", "c"), 1.0)
    assert (flags.preset, flags.data, flags.model) == ("demo", replace(demo().data, batch_size=5), demo().model)


@pytest.mark.parametrize("preset", ["large", "vanilla"])
def test_the_file_of_a_run_starts_the_run_anew(written, preset):
    run = replace(PRESETS[preset](), corpus=("a", "b"), steps=12)
    assert parse(*written(run)) == run
    resumed = replace(run, init="runs/other", model=replace(run.model, num_layers=3))  # the weights bring the sizes
    assert parse(*written(resumed)).init == "runs/other"


@pytest.mark.parametrize("other", [["--objective", "mlm"], ["--preset", "small"]])
def test_only_what_a_run_changed_is_taken_over_to_another_objective_or_preset(written, other):
    changes = ["--steps", "12", "--data.batch-size", "4"]
    assert parse(*written(parse(*changes)), *other) == parse(*other, *changes)


def test_the_file_of_a_finetuning_run_starts_the_run_anew(written):
    run = replace(DEFAULTS["squad"](), init="runs/mine", train=("a.tsv",), seeds=(2, 3), seed=3, objective="mlm")
    finetune = command.COMMANDS["finetune"].parse
    assert finetune(written(run)) == run
    assert finetune([*written(run), "--epochs", "2"]) == replace(run, epochs=2.0)


def test_a_file_gives_what_a_command_demands_and_flags_replace_that_too(written):
    file = written('{"checkpoint": "runs/mine", "text": ["a", "b"], "out": "v.npy", "layer": 3}')
    read = parser.parse(EmbedSettings, file, "", "")
    assert read == EmbedSettings(checkpoint="runs/mine", text=("a", "b"), out="v.npy", layer=3)
    assert parser.parse(EmbedSettings, ["runs/other", *file], "", "") == replace(read, checkpoint="runs/other")
    trained = parser.parse(Train | Show, ["train", *written('{"source": "a", "out": "t"}')], "", "")
    assert trained == Train(source=("a",), out="t")
    with pytest.raises(InputError, match="--out"):
        parser.parse(EmbedSettings, written('{"checkpoint": "runs/mine", "text": "a"}'), "", "")


UNREAD = {
    '{"data.mask_share": 0.5}': "data.mask-share has no effect: --objective plm replaces no tokens; leave it out",
    '{"objective": "clm", "data.targets": "words"}': "data.targets has no effect: --objective clm predicts every",
    '{"objective": "mlm", "data.group_sizes": [4]}': "data.group-sizes has no effect: --objective mlm predicts all tar",
    '{"objective": "mlm", "data.bound-weights": true}': "data.bound-weights has no effect: --objective mlm masks no",
    '{"objective": "mdlm", "data.mask-share": 0.5}': "data.mask-share has no effect: --objective mdlm masks all its t",
    '{"objective": "mdlm", "data.targets": "words"}': "data.targets has no effect: --objective mdlm predicts every tok",
    '{"objective": "mlm", "data.span-max": 3}': "data.span-max has no effect: it is for spans, and --data.targets i",
    '{"model.max-positions": 64}': "model.max-positions has no effect: it is for learned positions, and --model",
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model": {"num_leyers": 3}}', "run.json: model.num_leyers is not a setting: did you mean model.num_layers?"),
        ('{"qqqqqq": 3}', "run.json: qqqqqq is not a setting: docs/settings.md lists them all"),
        ('{"steps": "many"}', 'run.json: steps "many": give a whole number'),
        ('{"optimizer.decay_steps": 1.5}', "run.json: optimizer.decay_steps 1.5: give a whole number or null"),
        ('{"preset": "huge"}', "run.json: preset huge: there is demo"),
        ('{"steps": 0}', "--steps 0 must be at least 1"),
        ('{"steps": 3', "run.json is damaged: "),
        *UNREAD.items(),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_it(written, content, message):
    with pytest.raises(InputError) as mistake:
        parse(*written(content))
    assert message in with_flags(str(mistake.value))
    assert "\n" not in str(mistake.value)


def raising(error):
    """A command that ends in an error."""

    def main(_):
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("a\n  corpus"), 2, "error: a corpus\n"),
        (RuntimeError("HTTP 401\n\t reading gs://b/x"), 2, "error: HTTP 401 reading gs://b/x: check the name, the"),
        (RuntimeError("HTTP 503 writing gs://b/x"), 1, "error: HTTP 503 writing gs://b/x: check the name, the network"),
        (KeyboardInterrupt(), 130, "stopped at once; the same command continues"),
        (UnicodeEncodeError("utf-8", "\udce9", 0, 1, "surrogate"), 2, "error: a name or a text in the command line is"),
        (MemoryError(), 2, "error: out of memory (MemoryError): use smaller batches"),
        (OSError(24, "Too many open files", "x"), 2, "error: [Errno 24] Too many open files: 'x': raise the limit, as"),
        (RuntimeError("mkstemp: Too many open files"), 2, "error: mkstemp: Too many open files: raise the limit, as"),
    ],
)
def test_what_a_user_can_mend_and_a_network_ends_in_one_line(capsys, monkeypatch, error, code, line):
    monkeypatch.setattr(os, "_exit", sys.exit)  # else an OSError would end the tests
    with pytest.raises(SystemExit) as stop:
        command.run(raising(error))
    assert stop.value.code == code
    written = capsys.readouterr().err
    assert written.startswith(line)
    assert written.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EBADF, "Bad file descriptor"),
        JaxRuntimeError("INTERNAL: a bug"),
        RuntimeError("RESOURCE_EXHAUSTED: a quota of another service"),
    ],
)
def test_other_errors_keep_their_trace(error):
    with pytest.raises(type(error)) as raised:
        command.run(raising(error))
    assert raised.value is error


def ended(does):
    """Run a command in a process of its own that prints "noise" at its exit, and return how it ended."""
    script = f"""
import atexit, sys
from xlnet_jax import __main__ as command
def main(_): {does}
atexit.register(lambda: print("noise", file=sys.stderr))
command.run(main)"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        ("OSError(28, 'No space left on device', 'runs/x')", 2, "cannot write runs/x: No space left on device; what"),
        ("OSError(5, 'Input/output error', 'runs/x')", CRASH, "the disk of runs/x fails: Input/output error; what was"),
    ],
)
def test_a_disk_that_fails_ends_in_one_line_and_nothing_after_it(error, code, line):
    done = ended(f"raise {error}")
    assert done.returncode == code  # launchers start the command again where the disk itself fails
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1


def test_the_limit_of_open_files_is_raised_as_far_as_the_shell_allows():
    done = subprocess.run(
        ["bash", "-c", f"ulimit -S -n 40; exec {sys.executable} -m xlnet_jax --version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_that_really_runs_out_ends_in_one_line_that_says_what_to_lower():
    done = ended("import jax; jax.numpy.ones(2**44).sum().block_until_ready()")
    assert done.returncode == 2
    assert re.fullmatch(r"error: out of memory \(.*\): use smaller batches .*\nnoise\n", done.stderr), done.stderr


# Three dials are three flags, as a time is given in minutes or hours; one of them is for everybody.
@pytest.mark.parametrize(("words", "most"), [(["--help-all"], 88 + 1), (["--preset", "large", "--help"], 26 + 1)])
def test_help_shows_the_settings_that_people_use_and_help_all_all_flags(capsys, words, most):
    with pytest.raises(SystemExit) as stop:
        parse(*words)
    assert stop.value.code == 0
    text = capsys.readouterr().out
    shown = re.findall(r"^\W+ --([\w.-]+)", text, re.MULTILINE)
    assert shown[0] == "corpus"
    assert most / 2 < len(shown) <= most
    assert "model.activation" not in shown
    assert "--config FILE" in text
    assert text.index("train --corpus my.txt") < text.index("--corpus [")
    if "--help" in words:
        assert "--help-all lists the others" in text
        assert "(default: 8192)" in " ".join(re.findall(r"[^\s│]+", text))  # of the preset


def test_demanding_a_tpu_where_there_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    with pytest.raises(InputError, match=r"`tpu`: no TPU here, jax sees cpu only"):
        machine.require_tpu()


WORKERS = {
    "instance/attributes/worker-network-endpoints": "uid:8470:10.0.0.1,uid:8470:10.0.0.2,uid:8470:10.0.0.3",
    "instance/attributes/tpu-env": "ACCELERATOR_TYPE: 'v6e-12'\nMEGASCALE_NUM_SLICES: '2'\n",
}


@pytest.mark.parametrize(
    ("environment", "workers"),
    [
        ({"TPU_WORKER_HOSTNAMES": "localhost", "MEGASCALE_NUM_SLICES": "1"}, 1),
        ({"TPU_WORKER_HOSTNAMES": "t0,t1", "MEGASCALE_NUM_SLICES": "3"}, 6),
        ({}, 6),
    ],
)
def test_workers_are_those_that_the_platform_or_its_metadata_server_names(monkeypatch, environment, workers):
    monkeypatch.setattr(machine, "metadata", WORKERS.get)
    for name in ("TPU_WORKER_HOSTNAMES", "MEGASCALE_NUM_SLICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert machine.worker_count() == workers


def test_importing_the_trainer_loads_no_tensorflow_and_asks_for_no_device():
    script = (
        "import xlnet_jax.training.loop, xlnet_jax.training.step, xlnet_jax.models.xlnet, xlnet_jax.training.pretrain\n"
        "import sys; assert 'tensorflow' not in sys.modules\n"
        "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized()"
    )
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's tunables are Linux's")
@pytest.mark.parametrize("given", [None, "glibc.malloc.perturb=0"])
def test_the_command_starts_anew_with_huge_pages_and_keeps_its_arguments(given):
    script = """
import os, sys
from xlnet_jax.training import machine
machine.start_with_huge_pages()
print(os.environ["GLIBC_TUNABLES"], sys.argv[1:])"""
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    environment |= {"GLIBC_TUNABLES": given} if given else {}
    command = [sys.executable, "-c", script, "a b", "c"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{given or machine.HUGE_PAGES} ['a b', 'c']"


def test_short_commands_compile_quickly_unless_jax_may_find_another_device(monkeypatch):
    given = "--xla_force_host_platform_device_count=2"
    monkeypatch.setenv("XLA_FLAGS", given)
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setattr(machine, "find_spec", lambda name: name == "libtpu")
    machine.compile_quickly()
    assert os.environ["XLA_FLAGS"] == given
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    machine.compile_quickly()
    ours, flags = "--xla_backend_optimization_level=1", os.environ["XLA_FLAGS"].split()
    assert ours in flags
    assert flags[-1] == given  # the last flag of a name counts
    command = [sys.executable, "-c", "import jax; print(jax.device_count())"]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "2"
    )  # XLA has the flags
