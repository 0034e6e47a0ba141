"""The command: its address, its mistakes in one line, and its end by a signal."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import xlnet_jax
from tests.xlnet_jax.serving.conftest import is_closed
from xlnet_jax import InputError
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.serving.server import HOST

command = COMMANDS["play"]
PAGE = Path(__file__).parents[3] / "docs" / "play.md"


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("play") / "model"
    xlnet_jax.save(model, folder)
    return folder


def test_a_port_in_use_and_a_run_without_a_checkpoint_are_mistakes(folder, tmp_path):
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError) as mistake:
            command.main([str(folder), "--port", str(port)])
    assert re.fullmatch(
        rf"--port {port} cannot be used \(Address already in use\): give another one, or 0 for any that is free",
        str(mistake.value),
    )
    with pytest.raises(InputError, match=r"--port 70000 must be in \[0, 65535\]"):
        command.main([str(folder), "--port", "70000"])
    with pytest.raises(InputError, match=f"no checkpoint in {tmp_path}: looked for"):
        command.main([str(tmp_path), "--port", "0"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it(folder, number, code):
    process = subprocess.Popen(
        [sys.executable, "-m", "xlnet_jax.play", str(folder), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        found = re.match(r"http://127\.0\.0\.1:(\d+)  model: plm, 3 layers x 24, 800 pieces; answers fill, score", line)
        assert found, line + process.stderr.read()
        with urllib.request.urlopen(f"{line.split()[0]}/health") as answer:
            assert json.load(answer)["status"] in ("compiling", "ready")
        process.send_signal(number)
        process.send_signal(number)  # as from a shell and from a program in front of it
        assert process.wait(120) == code
        assert process.stderr.read() == "stopped\n"
        assert is_closed((HOST, int(found[1])))
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_commands_of_the_page_of_docs(server):
    """The answers below the commands have the keys that are shown there."""
    commands = re.findall(r"```\n(curl .*?)\n```\n+```json\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    assert len(commands) == 5
    for line, shown in commands:
        own = line.replace("127.0.0.1:8000", f"{HOST}:{server.server_address[1]}")
        answer = subprocess.run(["bash", "-c", own], capture_output=True, text=True, check=True).stdout
        expected = [json.loads(one) for one in shown.splitlines()] if "stream" in line else [json.loads(shown)]
        found = [json.loads(one) for one in answer.splitlines()]
        if "/predict" not in line:
            assert [one.keys() for one in found] == [one.keys() for one in expected], answer
