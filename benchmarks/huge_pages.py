"""Measure training speed on a CPU with and without the huge pages of the train command, in turns:

    python benchmarks/huge_pages.py

Prints the tokens per second at the end of each short run of the demo, and the ratio of the medians.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from xlnet_jax.training.machine import HUGE_PAGES

ROUNDS = 3
TUNABLES = {"4 kB pages": "glibc.malloc.hugetlb=0", "huge pages": HUGE_PAGES}


def tokens_per_second(tunables: str) -> float:
    """Return the tokens per second of steps 41 to 80 of a fresh run."""
    with tempfile.TemporaryDirectory() as workdir:
        settings = f"--steps 80 --log.every-steps 40 --eval.max-windows 16 --workdir {workdir}/run".split()
        command = [sys.executable, "-m", "xlnet_jax.train", *settings]
        subprocess.run(command, env=os.environ | {"GLIBC_TUNABLES": tunables}, check=True, stdout=subprocess.DEVNULL)
        records = map(json.loads, (Path(workdir) / "run" / "metrics.jsonl").read_text().splitlines())
        return [r["tokens_per_second"] for r in records if r["split"] == "train"][-1]


def main() -> None:
    rounds = [{name: tokens_per_second(tunables) for name, tunables in TUNABLES.items()} for _ in range(ROUNDS)]
    medians = {name: statistics.median(r[name] for r in rounds) for name in TUNABLES}
    for name, median in medians.items():
        print(f"{name:12} {median:10,.0f} tokens/s   {'  '.join(f'{r[name]:,.0f}' for r in rounds)}")
    slow, fast = medians.values()
    print(f"{'ratio':12} {fast / slow:10.2f}")


if __name__ == "__main__":
    main()
