"""python -m xlnet_jax: list the commands; python -m xlnet_jax COMMAND … runs one.

`xlnet-jax`, which is installed with the package, is the same program. A command is an entry of COMMANDS: it reads its
settings and calls the function that does the work. A mistake that the user can fix ends in one line and exit code 2
(errors.py lists the codes).
"""

if __name__ == "__main__":  # before any other import
    from xlnet_jax.storage.import_path import leave_current_folder

    leave_current_folder()

import contextlib
import difflib
import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xlnet_jax import __version__
from xlnet_jax.errors import (
    CRASH,
    FAILING,
    INTERRUPTED,
    UNREAD,
    USER_ERROR,
    InputError,
    exit_code,
    first_line,
    is_out_of_memory,
    with_flags,
)
from xlnet_jax.printing import is_reader_gone, print_safely, without_secrets
from xlnet_jax.storage.import_path import keep_children_out
from xlnet_jax.storage.programs import keep_programs
from xlnet_jax.storage.quiet import keep_tensorflow_quiet

Main = Callable[[Sequence[str]], int]
PROGRAM = "xlnet-jax"
LONGEST_LINE = 1200  # characters of a message: names in files have any length
OPEN_FILES = 4096
TOO_MANY_FILES = "Too many open files"  # in errors of Python and of libraries
_JAX_VARIABLE = re.compile(r"for JAX flag (jax_\w+)|for environment '(JAX_\w+)|known backends.*(JAX_PLATFORMS)")
"""Environment variable in an error of jax's settings"""


Loaded = tuple[Any, Callable[[Any], int | None], Callable[[Sequence[str], str, str], Any] | None]
"""Dataclass of the settings, or a union of several, from which the first word selects one; function that takes the
settings, prints, and returns an exit code, or None for 0; and function that reads the settings from (argv, prog,
description), or None = flags override the defaults of the dataclass"""


@dataclass(frozen=True)
class Command:
    """A command: its settings and the function that does its work."""

    name: str
    about: str
    """what it does, in one line, for the list of commands and --help"""
    load: Callable[[], Loaded]
    """import what it needs, so that --help and mistakes on the command line load neither jax nor TensorFlow"""
    is_training: bool = False
    """restart with huge pages (`machine.start_with_huge_pages`)"""
    is_brief: bool = False
    """its programs run for seconds: they are compiled quickly (`machine.compile_quickly`) and kept for the next call"""

    @property
    def module(self) -> str:
        """Module that `python -m` runs."""
        package = "data_pipelines" if self.name in ("inspect", "prepare", "tokenizer") else "xlnet_jax"
        return f"{package}.{self.name}"

    def parse(self, argv: Sequence[str]) -> Any:
        """Return the settings. Raises InputError for words that it cannot read; prints and exits on --help."""
        started_as = os.path.basename(sys.argv[0])
        prog = f"{PROGRAM} {self.name}" if started_as == PROGRAM else f"python -m {self.module}"
        description = f"{prog}: {self.about}"
        kind, _, read = self.load()
        if read:
            return read(argv, prog, description)
        from xlnet_jax.settings import parser

        return parser.parse(kind, argv, prog, description)

    def main(self, argv: Sequence[str]) -> int:
        """Do the work and print; return the exit code. InputErrors name settings as flags."""
        try:
            settings, (_, work, _) = self.parse(argv), self.load()
            with keep_programs() if self.is_brief else contextlib.nullcontext():
                return work(settings) or 0
        except InputError as mistake:
            mistake.name, mistake.why = with_flags(str(mistake)), ""
            raise

    def run(self) -> None:
        """Run the command with the words of this process and exit."""
        if self.is_training or self.is_brief:
            from xlnet_jax.training import machine

            (machine.start_with_huge_pages if self.is_training else machine.compile_quickly)()
        run(self.main)


COMMANDS: dict[str, Command] = {}
"""All commands, by name, in the order in which they are listed"""


def _command(name: str, about: str, **marks: bool) -> Callable[[Callable[[], Loaded]], None]:
    """Add the command that the decorated function loads to COMMANDS."""

    def add(load: Callable[[], Loaded]) -> None:
        COMMANDS[name] = Command(name, about, load, **marks)

    return add


@_command("train", "pretrain XLNet on text.", is_training=True)
def _train() -> Loaded:
    from xlnet_jax.objectives.presets import parse_config
    from xlnet_jax.settings.config import Config

    def work(settings: Config) -> int | None:
        from xlnet_jax.training.pretrain import run_pretraining

        return run_pretraining(settings)

    return Config, work, parse_config


@_command(
    "finetune",
    "finetune a checkpoint for a task: classification, question answering, tagging, multiple choice, ranking.",
    is_training=True,
)
def _finetune() -> Loaded:
    from xlnet_jax.tasks.config import FinetuneConfig
    from xlnet_jax.tasks.defaults import parse_finetuning

    def work(settings: FinetuneConfig) -> int | None:
        from xlnet_jax.tasks.finetune import run_finetuning

        return run_finetuning(settings)

    return FinetuneConfig, work, parse_finetuning


@_command(
    "compare",
    "compare objectives and their ablations under equal conditions, as in the paper's Table 6.",
    is_training=True,
)
def _compare() -> Loaded:
    from xlnet_jax.measurement.compare_settings import CompareConfig, parse_comparison

    def work(settings: CompareConfig) -> int | None:
        from xlnet_jax.measurement.compare import compare

        return compare(settings)

    return CompareConfig, work, parse_comparison


@_command("plan", "predict whether a run fits TPUs or GPUs, and how long it takes; this needs only a CPU.")
def _plan() -> Loaded:
    from xlnet_jax.planning.settings import PlanConfig, parse_plan, print_plans

    return PlanConfig, print_plans, parse_plan


@_command("evaluate", "measure the loss and perplexity of a checkpoint on any text.")
def _evaluate() -> Loaded:
    from xlnet_jax.measurement.evaluate import EvaluateSettings, print_evaluation

    return EvaluateSettings, print_evaluation, None


@_command(
    "score", "compute the log-likelihood of sentences, with one or several orders of their pieces.", is_brief=True
)
def _score() -> Loaded:
    from xlnet_jax.inference.score import ScoreSettings, print_scores
    from xlnet_jax.inference.variants import print_variants

    def work(settings: ScoreSettings) -> None:
        of_variants = settings.reference or settings.variants or settings.measured
        print_variants(settings) if of_variants else print_scores(settings)

    return ScoreSettings, work, None


@_command("embed", "compute vectors of sentences or documents, as .npy or Parquet.", is_brief=True)
def _embed() -> Loaded:
    from xlnet_jax.inference.embed import EmbedSettings, print_embedding

    return EmbedSettings, print_embedding, None


@_command("generate", "generate text that continues a prompt or fills its gaps (___).", is_brief=True)
def _generate() -> Loaded:
    from xlnet_jax.inference.generate import print_texts
    from xlnet_jax.inference.requests import GenerateSettings

    return GenerateSettings, print_texts, None


@_command("play", "try a model on a local page, or serve it as JSON: fill gaps, score texts, predict.", is_brief=True)
def _play() -> Loaded:
    from xlnet_jax.serving.play import PlaySettings, serve

    return PlaySettings, serve, None


@_command("recl", "measure relative effective context length: how much context causal checkpoints make use of.")
def _recl() -> Loaded:
    from xlnet_jax.measurement.recl import ReclSettings, print_recl

    return ReclSettings, print_recl, None


@_command("factorize", "compare predicting words together with predicting each word alone.", is_brief=True)
def _factorize() -> Loaded:
    from xlnet_jax.measurement.factorize import FactorizeSettings, print_factorizations

    return FactorizeSettings, print_factorizations, None


@_command(
    "attention", "show the attention weights of a text, by layer and head, as a page or a picture.", is_brief=True
)
def _attention() -> Loaded:
    from xlnet_jax.inference.attention import AttentionSettings, print_attention

    return AttentionSettings, print_attention, None


@_command(
    "convert",
    "convert checkpoints between the formats of the 2019 code, Hugging Face and this project; export finetuned "
    "models to StableHLO.",
)
def _convert() -> Loaded:
    from xlnet_jax.tasks.convert import ConvertSettings, print_conversion

    return ConvertSettings, print_conversion, None


@_command("doctor", "find damage in a workdir, a checkpoint or a corpus: compare every file with its checksum.")
def _doctor() -> Loaded:
    from xlnet_jax.tasks.doctor import DoctorSettings, print_findings

    return DoctorSettings, print_findings, None


@_command("tokenizer", "train a tokenizer, adapt or describe one, or encode text with it.")
def _tokenizer() -> Loaded:
    from data_pipelines.tokenizer.commands import TokenizerCommand, print_tokenizer

    return TokenizerCommand, print_tokenizer, None


@_command("prepare", "make a corpus of token blocks from text, once for all training runs.")
def _prepare() -> Loaded:
    from data_pipelines.prepare.commands import PrepareSettings, print_corpus

    return PrepareSettings, print_corpus, None


@_command("inspect", "show one window of a corpus as text, and as a picture of its attention masks.")
def _inspect() -> Loaded:
    from xlnet_jax.objectives.inspect import InspectSettings, print_window

    return InspectSettings, print_window, None


def main(argv: Sequence[str]) -> int:
    """List the commands, or run the one that the first word names. Return the exit code."""
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help"):
        print("xlnet-jax COMMAND, python -m xlnet_jax COMMAND or python -m MODULE; each has --help; also --version\n")
        for name, command in COMMANDS.items():
            print(f"  {name:10} {command.module:26} {command.about}")
        return 0
    if name == "--version":
        print(f"xlnet_jax {__version__}")
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(COMMANDS)}"
        raise InputError(f"no command is called {name}: {hint}")
    sys.argv[1:] = rest
    COMMANDS[name].run()  # ends this process
    return 0


def console() -> None:
    """Run the program `xlnet-jax` and exit."""
    run(main)


def run(main: Main) -> None:
    """Call `main` with the arguments of this process and exit. A mistake of the user ends in one line and exit code 2,
    never in a stack trace.

    If the reader of the output has ended, as in `… | head`, the command ends silently, --help with exit code 0, others
    with UNREAD.
    """
    sys.unraisablehook = _report
    print_safely()
    keep_children_out()
    keep_tensorflow_quiet()  # paths in the cloud load it, in worker processes too
    code: int | str | None
    try:
        try:
            _allow_open_files()
            code = main(sys.argv[1:])
        except SystemExit as stop:  # --help
            code = stop.code
        sys.stdout.flush()
    except BrokenPipeError:
        if not is_reader_gone():  # the pipe or socket of something else
            raise
        code = 0 if {"-h", "--help"}.intersection(sys.argv) else UNREAD
    except KeyboardInterrupt:
        print("stopped at once; the same command continues from the last save", file=sys.stderr)
        code = INTERRUPTED
    except Exception as error:
        line, code = _explain(error)
        if line is None:
            raise
        line = " ".join(without_secrets(line).split())
        half = LONGEST_LINE // 2
        print("error:", line if len(line) <= LONGEST_LINE else f"{line[:half]} … {line[-half:]}", file=sys.stderr)
        if isinstance(error, OSError) and not is_out_of_memory(error):
            # Exit at once: open writers would report the same error again during shutdown.
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


def _explain(error: Exception) -> tuple[str | None, int]:
    """Return what the user can do about an error, and the exit code. None for a bug, which keeps its trace."""
    code, text = exit_code(error), str(error)
    if isinstance(error, InputError):
        return text, code
    if is_out_of_memory(error):
        advice = "use smaller batches or shorter texts, close other programs, or use a machine with more"
        return f"out of memory ({first_line(error)}): {advice}", code
    if TOO_MANY_FILES in text:
        return f"{first_line(error)}: raise the limit, as with ulimit -n {OPEN_FILES}", USER_ERROR
    if isinstance(error, FileNotFoundError) and error.filename is None:  # of os.getcwd
        return "the current folder was deleted or moved: change into one that is there", USER_ERROR
    if isinstance(error, OSError):
        where, intact = error.filename or "the workdir", "what was saved before is intact"
        if error.errno in FAILING:
            again = "and the same command continues from there once the disk works"
            return f"the disk of {where} fails: {error.strerror}; {intact}, {again}", code
        return None if code == CRASH else f"cannot write {where}: {error.strerror}; {intact}", code
    if isinstance(error, UnicodeEncodeError):
        return f"a name or a text in the command line is not UTF-8 ({error})", USER_ERROR
    if found := _JAX_VARIABLE.search(text):
        name = next(filter(None, found.groups())).upper()
        return f"{name} in the environment: {first_line(error)}; correct it, or unset it", USER_ERROR
    hint = "check the name, the network, and `gcloud auth application-default login`"
    return f"{text}: {hint}" if "gs://" in text else None, code


def _allow_open_files() -> None:
    """Raise the limit of open files as far as the shell allows."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < OPEN_FILES:
        raised = OPEN_FILES if most == resource.RLIM_INFINITY else min(most, OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))


def _report(unraisable: "sys.UnraisableHookArgs") -> None:
    """Print an error that no caller can catch, except those of TensorStore's threads that finish after a failed save:
    their asyncio loop is closed, and the save itself has raised the error."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    console()
