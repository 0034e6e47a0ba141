import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build the documentation as `make docs` does; return its folder and what mkdocs printed."""
    if find_spec("mkdocs") is None:
        pytest.skip("the extra [docs] is not installed")
    folder = tmp_path_factory.mktemp("site")
    # With --quiet mkdocs counts no warning, and --strict passes.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stderr
