"""Text of a run: a prepared corpus as it is, or text that the run prepares itself."""

import itertools
from dataclasses import replace

import pytest

from data_pipelines import sources
from data_pipelines.corpus import Corpus
from data_pipelines.prepare.commands import prepare
from data_pipelines.tokenizer import Tokenizer
from tests.xlnet_jax.training.tiny_run import arguments
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import demo
from xlnet_jax.settings.config import Config
from xlnet_jax.settings.resolution import Resolution
from xlnet_jax.training.resolve import Text, require_memory
from xlnet_jax.training.workdir import Workdir

train = COMMANDS["train"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two texts, a corpus of both, and their tokenizer."""
    root = tmp_path_factory.mktemp("texts")
    with open(sources.embedded()[0]) as novels:
        for name in ("one.txt", "two.txt"):
            (root / name).write_text("".join(itertools.islice(novels, 300)))
    found = sources.find([str(root / "one.txt"), str(root / "two.txt")])
    tokenizer = Tokenizer.train(sources.read_lines(found), 400, "auto")
    tokenizer.save(root / "tokenizer")
    prepare(found, None, tokenizer, root / "corpus", block_len=78, validation_fraction=0.1, weights=(0.8, 0.2))
    return root


def settings(*names, **changes):
    return replace(Config(), corpus=tuple(map(str, names)), **changes)


def test_a_prepared_corpus_stands_alone(folder):
    for config in (settings(folder / "corpus", folder / "one.txt"), settings(folder / "corpus", validation=("x",))):
        with pytest.raises(
            InputError, match="is a prepared corpus with its own held-out part: give no other text with it"
        ):
            Text.of(config)


def test_a_tokenizer_that_did_not_make_a_corpus_is_refused(folder, tmp_path):
    lines = sources.read_lines(sources.find([str(folder / "one.txt")]))
    other = Tokenizer.train(lines, 300, "auto")
    other.save(tmp_path / "other")
    config = settings(folder / "corpus", tokenizer=str(tmp_path / "other"))
    with pytest.raises(InputError, match=r"corpus: it was made with another tokenizer than .*other \(sha256 "):
        Text.of(config).required_tokenizer(Resolution(config), None)
    with pytest.raises(InputError, match=r"it was made with another tokenizer than weights \(sha256 "):
        Text.of(config).required_tokenizer(Resolution(replace(config, init="weights")), other)


def leveled(names, level, **changes):
    return settings(*names, data=replace(Config().data, token_level=level), **changes)


@pytest.mark.parametrize("level", ["word", "character", "byte"])
def test_a_vocabulary_that_the_text_decides_is_known_before_the_run_begins(folder, tmp_path, level):
    config, workdir = leveled([folder / "one.txt"], level), Workdir(tmp_path)
    text = Text.of(config)
    counted = text.counted_tokenizer(config, workdir)
    assert counted.settings.token_level == level
    assert counted.vocab_size < config.model.vocab_size
    assert text.find_tokenizer(config, counted, workdir).sha256 == Tokenizer.load(workdir.tokenizer).sha256
    assert text.counted_tokenizer(config, workdir).sha256 == counted.sha256
    assert text.counted_tokenizer(settings(folder / "one.txt"), workdir) is None


def test_a_tokenizer_of_another_level_than_the_one_asked_for_is_refused(folder, tmp_path):
    Tokenizer.train([], 1, "auto", token_level="byte").save(tmp_path / "bytes")
    for config, origin in (
        (leveled([folder / "one.txt"], "word", tokenizer=str(tmp_path / "bytes")), "`tokenizer` .* at level byte"),
        (leveled([folder / "corpus"], "byte"), "`corpus` .* at level piece"),
    ):
        with pytest.raises(InputError, match=f"`data.token_level` .*: the tokenizer of {origin}; leave one of the two"):
            Text.of(config).required_tokenizer(Resolution(config), None)
    for level in ("byte", "piece"):  # its own level, or none asked for
        config = leveled([folder / "one.txt"], level, tokenizer=str(tmp_path / "bytes"))
        assert Text.of(config).required_tokenizer(Resolution(config), None).vocab_size == 265


def test_blocks_that_never_fill_the_memory_are_refused(folder):
    data, corpus = replace(demo().data, seq_len=32, reuse_len=16, perm_size=16), Corpus(folder / "corpus")
    config = Config(data=data, model=replace(demo().model, mem_len=48))
    require_memory(corpus, config)
    config = replace(config, model=replace(config.model, mem_len=49))
    with pytest.raises(InputError, match=r"`model\.mem_len` 49 can never be filled: .* 4 windows and at most 48 posi"):
        require_memory(corpus, config)


def test_training_starts_from_a_prepared_corpus_and_goes_on(folder, tmp_path, capsys):
    more = ("--optimizer.decay-steps", "12", "--steps")
    for steps in ("4", "8"):
        assert train.main(arguments(folder / "corpus", tmp_path / "run", *more, steps)) == 0
    assert "resumed     at step 4 of 8" in capsys.readouterr().out
    assert not (tmp_path / "run" / "corpus").exists()
    with pytest.raises(InputError, match="run holds another run"):
        train.main(arguments(folder / "one.txt", tmp_path / "run", *more, "8"))
