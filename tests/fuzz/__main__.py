"""python -m tests.fuzz --minutes N --seed S: damaged inputs of all kinds, tried in turn; a table and the failures."""

import argparse
import gc
import multiprocessing
import os
import pkgutil
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path

XLA = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"  # programs are tiny and run once
# parts of names of modules that need what is not here
UNIMPORTED = (".gpu", "__main__", "lm_eval", "modeling_any_order")


def main() -> int:
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
    from tests.fuzz.trial import Outcome, try_example

    import_everything()
    maker = multiprocessing.get_context("fork").Process(target=make_samples, args=(work / "samples", options.quick))
    maker.start()
    maker.join()
    if maker.exitcode:
        raise RuntimeError("the samples cannot be made")
    kinds = [kind for name, kind in KINDS.items() if options.only in name and (kind.quick or not options.quick)]
    if not kinds:
        raise SystemExit(f"no kind of input has a name with {options.only!r}")
    for kind in [kind for kind in kinds if not all((work / "samples" / name).exists() for name in kind.samples)]:
        print(f"not tried: {kind.name}, whose samples this environment cannot make")
        kinds.remove(kind)
    end = time.monotonic() + 60 * options.minutes
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    spent: dict[str, float] = defaultdict(float)  # seconds; examples with --examples
    failed = set()
    while options.examples is not None or time.monotonic() < end:
        kind = min(kinds, key=lambda kind: spent[kind.name])
        if options.examples is not None and spent[kind.name] >= max(options.examples, 1):
            break
        number = options.number + len(outcomes[kind.name])
        rng = None if options.examples == 0 else random.Random(f"{options.seed} {kind.name} {number}")
        outcome = try_example(kind, work / "samples", work, rng)
        outcomes[kind.name].append(outcome)
        spent[kind.name] += outcome.seconds if options.examples is None else 1
        if options.examples == 0 and outcome.code:
            outcome.problems.append(f"exit code {outcome.code} for sound samples: {outcome.stderr.strip()[:300]}")
        for problem in outcome.problems:
            if (kind.name, problem) not in failed:
                failed.add((kind.name, problem))
                again = f"--only {kind.name!r} --seed {options.seed} --number {number} --examples 1"
                print(f"FAILED {kind.name}: {problem}\n    {outcome.done}")
                print(f"    python -m tests.fuzz {again}", flush=True)
    print("\n| kind | examples | done (0) | refused (2) | wrong |\n|---|---|---|---|---|")
    total = Counter[str]()
    for name, found in outcomes.items():
        ends = Counter("wrong" if outcome.problems else str(outcome.code) for outcome in found)
        print(f"| {name} | {len(found)} | {ends['0']} | {ends['2']} | {ends['wrong']} |")
        total += ends
    print(f"| all, seed {options.seed} | {total.total()} | {total['0']} | {total['2']} | {total['wrong']} |")
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
    """Make the samples, on one core, so that no pool of processes starts."""
    from tests.fuzz import samples

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    samples.make(folder, quick)


if __name__ == "__main__":
    sys.exit(main())
