"""Runs store neither the password nor the signature of a URL, and resume with new ones."""

import pytest

from tests.web import Web, serving
from tests.xlnet_jax.training.tiny_run import arguments
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError

train = COMMANDS["train"]

pytest.importorskip("aiohttp", reason="the extra [https] is not installed")


def test_no_file_and_no_line_of_a_run_holds_a_secret_of_its_url(text, tmp_path, capsys):
    with serving(Web({"/novel.txt": text.read_bytes(), "/other.txt": text.read_bytes()[:-9000]})) as web:
        address = web.url.replace("http://", "http://LOGIN:PASSWORD@")
        url = f"{address}/novel.txt?X-Amz-Signature=SIGNED&X-Amz-Date=1"
        words = arguments(url, tmp_path / "run", "--steps", "4", "--optimizer.decay-steps", "12")
        assert train.main(words) == 0
        again = [word.replace("PASSWORD", "PASSWORD2").replace("SIGNED&X-Amz-Date=1", "SIGNED2") for word in words]
        again[again.index("--steps", 10) + 1] = "8"
        assert train.main(again) == 0
        printed = "".join(capsys.readouterr())
        with pytest.raises(InputError, match="another"):
            train.main([word.replace("novel", "other") for word in again])
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert any(b"/novel.txt" in file.read_bytes() for file in files)
    for file in files:
        assert not any(secret in file.read_bytes() for secret in (b"PASSWORD", b"SIGNED", b"LOGIN")), file
    assert "PASSWORD" not in printed
    assert "SIGNED" not in printed
