"""A process that is a client of a stand-in of the Hugging Face Hub, whose library reads HF_ENDPOINT at its import."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.web import Hub, serving


class Client:
    """A process whose Hub is a stand-in. It evaluates Python, with `xlnet_jax` and `hub` imported."""

    _LOOP = """
import contextlib, io, json, sys, types
import huggingface_hub, xlnet_jax
from huggingface_hub.utils import _http
from xlnet_jax.storage import hub
_http.time = types.SimpleNamespace(sleep=lambda seconds: None)  # before it asks again
answers = sys.stdout
for line in sys.stdin:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            answer = {"value": str(eval(json.loads(line)))}
    except xlnet_jax.InputError as mistake:
        answer = {"mistake": str(mistake)}
    print(json.dumps({**answer, "printed": printed.getvalue()}), file=answers, flush=True)
"""

    def __init__(self, hub, home):
        places = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        self.cache = Path(home) / "hub"
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._LOOP],
            env={**ours, **places, "HF_HUB_ETAG_TIMEOUT": "2"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __call__(self, expression):
        """Return the value of an expression, as a str; the InputError that it ends in, as one; and what it printed."""
        self._process.stdin.write(json.dumps(expression) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        self.printed = answer["printed"]
        return answer["value"] if "value" in answer else answer["mistake"]

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=30)


@contextlib.contextmanager
def stand_in(home):
    """Yield a Hub and a Client of it, whose cache is in this folder."""
    with serving(Hub()) as hub, contextlib.closing(Client(hub, home)) as client:
        yield hub, client


@contextlib.contextmanager
def serving_datasets(hub, monkeypatch):
    """Serve a Hub to this process, and yield it. Skips the test where the client of the Hub is not installed."""
    huggingface_hub = pytest.importorskip("huggingface_hub", reason="the extra [hub] is not installed")
    with serving(hub) as started:
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        template = started.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", started.url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        huggingface_hub.HfFileSystem.clear_instance_cache()
        yield started
        huggingface_hub.HfFileSystem.clear_instance_cache()
