"""Try many examples of all kinds, and report: how many of each kind, and which commands failed."""

import gc
import os
import pkgutil
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz import samples
from tests.fuzz.inputs import Kind
from tests.fuzz.trial import Outcome, Trials

UNWARMED = ("beam_runner", ".triton", "__main__")  # parts of names of modules that need what is not here
LIBRARIES = (
    "tensorflow_datasets", "orbax.checkpoint", "pyarrow.parquet", "safetensors.numpy", "sentencepiece",
    "matplotlib.pyplot", "array_record.python.array_record_data_source", "tensorboardX", "rich.table", "rich.console",
)  # fmt: skip


def warm() -> None:
    """Import everything that commands import, but start no jax backend: its threads would not live in a fork."""
    from xlnet_jax.storage.quiet_tensorflow import tensorflow

    tensorflow()
    for library in LIBRARIES:
        import_module(library)
    for library in ("torch", "tokenizers"):
        samples.optional(library)
    for package in ("xlnet_jax", "data_pipelines"):
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            if not any(part in module.name for part in UNWARMED):
                import_module(module.name)
    for module in pkgutil.iter_modules(import_module("data_pipelines").__path__, "data_pipelines."):
        if module.ispkg and module.name.endswith(("prepare", "inspect", "tokenizer")):
            import_module(f"{module.name}.__main__")
    from jax._src import xla_bridge

    gc.freeze()  # no child copies the memory of all these objects by collecting garbage
    assert not xla_bridge._backends, "a backend was started: its threads do not live in a fork"


def made(folder: Path, names: Collection[str]) -> Path:
    """Return the folder of the samples; make them, in a process of its own, where there are none. names: samples that
    are needed."""
    if not folder.exists():
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # no pool of processes
                with open(os.devnull, "w") as nowhere:
                    os.dup2(nowhere.fileno(), 1)
                samples.make(folder.with_name(f"{folder.name}.partial").absolute(), names)
                folder.with_name(f"{folder.name}.partial").rename(folder)
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            shutil.rmtree(folder.with_name(f"{folder.name}.partial"), ignore_errors=True)
            raise RuntimeError("the samples cannot be made")
    return folder.absolute()


class Campaign:
    """Examples of one seed. Kinds without samples, for want of a library, are left out."""

    def __init__(self, kinds: Sequence[Kind], folder: Path, work: Path, seed: int, verbose: bool):
        there = made(folder, {name for kind in kinds for name in kind.samples.split()})
        self._trials, self._seed, self._verbose = Trials(there, work, seed), seed, verbose
        self._kinds = [kind for kind in kinds if all((there / name).exists() for name in kind.samples.split())]
        self._outcomes: dict[str, list[Outcome]] = defaultdict(list)
        self._failed: dict[tuple[str, str], list[tuple[str, Outcome]]] = defaultdict(list)

    def try_sound(self) -> None:
        """Run every command on sound samples: it must end with 0."""
        for kind in self._kinds:
            if kind.needs and find_spec(kind.needs) is None:
                continue
            outcome = self._trials.sound(kind)
            if outcome.code and not outcome.problems:
                outcome.problems.append(f"exit code {outcome.code} for sound samples: {outcome.stderr.strip()[:300]}")
            self._note(kind, "--sound", outcome)

    def try_number(self, number: int) -> None:
        """Try one example of each kind."""
        for kind in self._kinds:
            self._note(kind, f"--seed {self._seed} --number {number}", self._trials.example(kind, number))

    def try_each(self, count: int) -> None:
        """Try as many examples of each kind."""
        for number in range(count):
            self.try_number(number)

    def try_for(self, minutes: float) -> None:
        """Try examples until the time is over: the next is of the kind that has taken the least time so far."""
        end, spent, numbers = time.monotonic() + 60 * minutes, Counter[str](), Counter[str]()
        while time.monotonic() < end:
            kind = min(self._kinds, key=lambda kind: (spent[kind.name], kind.name))
            outcome = self._trials.example(kind, numbers[kind.name])
            self._note(kind, f"--seed {self._seed} --number {numbers[kind.name]}", outcome)
            spent[kind.name] += max(outcome.seconds, 0.05)  # type: ignore[assignment]
            numbers[kind.name] += 1

    def _note(self, kind: Kind, again: str, outcome: Outcome) -> None:
        self._outcomes[kind.name].append(outcome)
        if self._verbose:
            said = outcome.stderr.strip().replace("\n", " / ")[:300]
            print(f"{kind.name} {again}: {outcome.code} {outcome.seconds:.2f} s; {outcome.done}; {said}", flush=True)
        for problem in outcome.problems:
            if not self._failed[kind.name, problem]:
                print(
                    f"FAILED {kind.name}: {problem}\n    {outcome.done}\n    {self._again(kind.name, again)}",
                    flush=True,
                )
            self._failed[kind.name, problem].append((again, outcome))

    def _again(self, name: str, again: str) -> str:
        return f"python -m tests.fuzz --only {name!r} {again} --verbose"

    def report(self) -> int:
        """Print the table by kind, and every failure once with the command that shows it; return the exit code."""
        print(f"\n| kind | examples | done (0) | refused (2) | wrong | seconds |\n|{'---|' * 6}")
        total: Counter[str] = Counter()
        for name, outcomes in self._outcomes.items():
            wrong = sum(bool(o.problems) for o in outcomes)
            row = {
                "examples": len(outcomes),
                "done": sum(o.code == 0 and not o.problems for o in outcomes),
                "refused": sum(o.code == 2 and not o.problems for o in outcomes),
                "wrong": wrong,
                "seconds": round(sum(o.seconds for o in outcomes)),
            }
            total.update(row)
            print(f"| {name} | {' | '.join(f'{value:,}' for value in row.values())} |")
        print(f"| all, seed {self._seed} | {' | '.join(f'{value:,}' for value in total.values())} |")
        for (name, problem), found in sorted(self._failed.items()):
            again, outcome = found[0]
            print(f"\n{name}, {len(found)} times: {problem}\n    {outcome.done}\n    {self._again(name, again)}")
        return int(bool(self._failed))
