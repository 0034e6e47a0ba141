"""Commands under a limit of address space, in which jax would abort."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

GIB = 1 << 30
LIMITED = """
import resource, sys
from importlib import import_module
module, *sys.argv[1:] = sys.argv[1:]
command = import_module("xlnet_jax.__main__")
main = import_module(module).main
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
command.run(main)
"""


@pytest.mark.parametrize("words", ["xlnet_jax.train --workdir run", "xlnet_jax.evaluate nothing"])
def test_too_little_address_space_is_one_line(tmp_path, words):
    script = LIMITED.format(limit=3 * GIB)
    done = subprocess.run(
        [sys.executable, "-c", script, *words.split()], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert re.fullmatch(
        r"error: this process may use 3.0 GiB of address space \(ulimit -v\), .* 4 GiB .*: raise the limit; .*\n",
        done.stderr,
    )
    assert not list(Path(tmp_path).iterdir())
