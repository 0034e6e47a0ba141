"""python -m tests.fuzz --minutes N --seed S: damaged inputs of all kinds, tried in turn; a table and the failures."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

XLA = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"  # programs are tiny and run once


def main() -> int:
    """Try examples until the time is over; return 1 where one is wrong."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--examples", type=int, help="of each kind, in place of --minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, help="the one example with this number; --only names its kind")
    parser.add_argument("--only", action="append", help="kinds of this name, or whose names hold this text")
    parser.add_argument("--sound", action="store_true", help="try the samples as they are, in place of --minutes")
    parser.add_argument("--quick", action="store_true", help="only kinds whose commands compile nothing")
    parser.add_argument(
        "--samples", type=Path, help="folder of samples, made for the chosen kinds where it does not exist"
    )
    parser.add_argument("--verbose", action="store_true", help="print every example")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xlnet-jax-fuzz-") as folder:
        work = Path(folder)
        _settle(work)
        from tests.fuzz.campaign import Campaign, warm  # after the environment is settled: libraries read it once
        from tests.fuzz.inputs import KINDS

        warm()
        samples = (options.samples or work / "samples").absolute()
        parts = options.only or [""]
        named = [k for k in KINDS.values() if any(p == k.name or (p in k.name and p not in KINDS) for p in parts)]
        kinds = [kind for kind in named if kind.quick or not options.quick]
        campaign = Campaign(kinds, samples, work, options.seed, options.verbose)
        if options.number is not None:
            campaign.try_number(options.number)
        elif options.sound:
            campaign.try_sound()
        elif options.examples is not None:
            campaign.try_each(options.examples)
        else:
            campaign.try_for(options.minutes)
        return campaign.report()


def _settle(work: Path) -> None:
    """Settle the environment of this process and of all examples: one CPU device, no network, an empty home."""
    (work / "home").mkdir()
    os.environ.update(
        JAX_PLATFORMS="cpu",
        XLA_FLAGS=XLA,
        JAX_COMPILATION_CACHE_DIR=str(work / "programs"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        TF_CPP_MIN_LOG_LEVEL="3",
        TF_ENABLE_ONEDNN_OPTS="0",
        HF_HUB_OFFLINE="1",
        HOME=str(work / "home"),
        MPLCONFIGDIR=str(work / "home"),
    )


if __name__ == "__main__":
    sys.exit(main())
