"""Functions that take settings of a command accept pathlib paths in them, as text."""

from pathlib import Path

from data_pipelines.prepare.commands import PrepareSettings, prepare_corpus
from data_pipelines.tokenizer.commands import Train, train_tokenizer
from xlnet_jax.objectives.inspect import InspectSettings, inspect_window
from xlnet_jax.settings.config import DataConfig
from xlnet_jax.tasks.convert import ConvertSettings, convert


def test_paths_work_from_a_text_to_a_converted_checkpoint(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"She walked {i} miles to Bath, and back again on day {i * 7}.\n\n" for i in range(300)))
    train_tokenizer(Train(source=(text,), out=tmp_path / "tokenizer", vocab_size=200))
    assert (tmp_path / "tokenizer" / "spiece.model").exists()
    corpus = prepare_corpus(
        PrepareSettings(source=(text,), tokenizer=tmp_path / "tokenizer", out=tmp_path / "corpus", block_len=64)
    )
    assert corpus.num_blocks("train") > 1
    data = DataConfig(seq_len=32, reuse_len=16, perm_size=16, num_predict=5, batch_size=2, windows_per_block=2)
    inspect_window(InspectSettings(tmp_path / "corpus", out=tmp_path / "window.png", data=data))
    assert (tmp_path / "window.png").exists()
    convert(ConvertSettings(Path("tiny"), tmp_path / "tiny-hf", to="hf"))
    assert (tmp_path / "tiny-hf" / "config.json").exists()
