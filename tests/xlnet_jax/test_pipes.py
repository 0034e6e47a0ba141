"""A pipe or a device in the place of any file that a command reads is refused at once, in one line: nobody waits for
its end."""

import os

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
@pytest.mark.parametrize(
    ("target", "message"), [(None, "a pipe or a device"), ("/dev/zero", "a pipe or a device"), ("", None)]
)
def test_a_pipe_a_device_and_a_link_to_itself_are_no_files(tmp_path, name, target, message):
    path = tmp_path / name
    if target is None:
        os.mkfifo(path)
    else:
        path.symlink_to(target or path)
    if name == "metrics.jsonl" and not message:  # none yet
        assert READERS[name](str(path)) == []
        return
    with pytest.raises(InputError, match=message) as refused:
        READERS[name](str(path))
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
