"""A pipe or a device in the place of any file that a command reads is refused at once, in one line: nobody waits for
its end."""

import os
import re

import pytest
from etils import epath

from data_pipelines.tokenizer import Tokenizer
from xlnet_jax.errors import InputError
from xlnet_jax.inference.generate import GenerateSettings
from xlnet_jax.settings import parser
from xlnet_jax.tasks import readers
from xlnet_jax.tasks.classification.tables import read_table
from xlnet_jax.training.metrics import read_records

READERS = {
    "text.txt": lambda path: list(readers.lines(path)),
    "squad.json": readers.json_file,
    "text.txt.gz": lambda path: list(readers.lines(path)),
    "table.csv": lambda path: list(read_table(path)),
    "tokenizer.json": Tokenizer.load,
    "spiece.model": Tokenizer.load,
    "metrics.jsonl": lambda path: list(read_records(epath.Path(path))),
    "prompts.txt": lambda path: GenerateSettings("x", prompt_file=path).prompts(),
    "settings.json": lambda path: parser.CommandLine.of(["--config", path]),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["pipe", "zeros"])
def test_a_pipe_or_a_device_is_no_file(tmp_path, name, kind):
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="a pipe or a device") as refused:
        READERS[name](str(path))
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("name", READERS)
def test_a_link_to_itself_is_no_file(tmp_path, name):
    path = tmp_path / name
    path.symlink_to(path)
    if name == "metrics.jsonl":  # none yet
        assert READERS[name](str(path)) == []
        return
    with pytest.raises(InputError, match=re.escape(str(path))) as refused:
        READERS[name](str(path))
    assert "\n" not in str(refused.value)
