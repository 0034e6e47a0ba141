"""python -m tests.fuzz --minutes N --seed S: damaged inputs of all kinds, tried in turn; a table and the failures."""

import argparse
import gc
import os
import pkgutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path

XLA = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"  # programs are tiny and run once
UNIMPORTED = (".triton", ".gpu", "__main__")  # parts of names of modules that need what is not here


def main() -> int:
    """Try examples until the time is over; return 1 where one is wrong."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--examples", type=int, help="of each kind, in place of --minutes; 0 = the samples as they are")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=0, help="number of the first example of each kind")
    parser.add_argument("--only", default="", help="kinds whose names hold this text")
    parser.add_argument("--quick", action="store_true", help="only kinds whose commands compile nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xlnet-jax-fuzz-") as folder:
        work = Path(folder)
        (work / "home").mkdir()
        os.environ.update(  # before libraries read it: one CPU device, no network, an empty home
            JAX_PLATFORMS="cpu", XLA_FLAGS=XLA, JAX_COMPILATION_CACHE_DIR=str(work / "programs"),
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0", TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0",
            HF_HUB_OFFLINE="1", HOME=str(work / "home"), MPLCONFIGDIR=str(work / "home"),
            GLIBC_TUNABLES="glibc.malloc.hugetlb=0",
        )  # fmt: skip
        return _try(options, work)


def _try(options: argparse.Namespace, work: Path) -> int:
    from tests.fuzz.inputs import KINDS
    from tests.fuzz.trial import Outcome, Trials

    import_everything()
    make_samples(work / "samples", options.quick)
    kinds = [kind for name, kind in KINDS.items() if options.only in name and (kind.quick or not options.quick)]
    kinds = [kind for kind in kinds if all((work / "samples" / name).exists() for name in kind.samples.split())]
    trials, end = Trials(work / "samples", work, options.seed), time.monotonic() + 60 * options.minutes
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    spent, failed = Counter[str](), Counter[tuple[str, str]]()
    while options.examples is not None or time.monotonic() < end:
        # The next is of the kind that has taken the least time so far; with --examples, of each kind in turn.
        cost = spent if options.examples is None else {name: len(found) for name, found in outcomes.items()}
        kind = min(kinds, key=lambda kind: cost.get(kind.name, 0))
        number = options.number + len(outcomes[kind.name])
        if options.examples is not None and len(outcomes[kind.name]) >= max(options.examples, 1):
            break
        outcome = trials.example(kind, number) if options.examples != 0 else trials.sound(kind)
        outcomes[kind.name].append(outcome)
        spent[kind.name] += outcome.seconds  # type: ignore[assignment]
        if options.examples == 0 and outcome.code:
            outcome.problems.append(f"exit code {outcome.code} for sound samples: {outcome.stderr.strip()[:300]}")
        for problem in outcome.problems:
            if not failed[kind.name, problem]:
                again = f"--only {kind.name!r} --seed {options.seed} --number {number} --examples 1"
                print(
                    f"FAILED {kind.name}: {problem}\n    {outcome.done}\n    python -m tests.fuzz {again}", flush=True
                )
            failed[kind.name, problem] += 1
    print("\n| kind | examples | done (0) | refused (2) | wrong |\n|---|---|---|---|---|")
    total = Counter[str]()
    for name, found in outcomes.items():
        wrong = sum(bool(outcome.problems) for outcome in found)
        codes = Counter(outcome.code for outcome in found if not outcome.problems)
        total.update(examples=len(found), done=codes[0], refused=codes[2], wrong=wrong)
        print(f"| {name} | {len(found)} | {codes[0]} | {codes[2]} | {wrong} |")
    print(
        f"| all, seed {options.seed} | {' | '.join(str(total[k]) for k in ('examples', 'done', 'refused', 'wrong'))} |"
    )
    return int(total["wrong"] > 0)


def import_everything() -> None:
    """Import all that commands import, but start no jax backend: its threads would not live in a fork."""
    from xlnet_jax.storage.quiet import tensorflow

    tensorflow()
    for library in ("tensorflow_datasets", "orbax.checkpoint", "pyarrow.parquet", "matplotlib.pyplot", "tensorboardX"):
        import_module(library)
    for package in ("xlnet_jax", "data_pipelines"):
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            is_command = module.name.count(".") == 1 and not module.ispkg and package == "xlnet_jax"
            if not is_command and not any(part in module.name for part in UNIMPORTED):
                import_module(module.name)
    from jax._src import xla_bridge

    gc.freeze()  # no child copies the memory of all these objects by collecting garbage
    assert not xla_bridge._backends, "a backend was started: its threads do not live in a fork"


def make_samples(folder: Path, quick: bool) -> None:
    """Make the samples, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            from tests.fuzz import samples

            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # no pool of processes
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            samples.make(folder, quick)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise RuntimeError("the samples cannot be made")


if __name__ == "__main__":
    sys.exit(main())
