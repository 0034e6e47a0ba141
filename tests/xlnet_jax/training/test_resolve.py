"""Text of a run: a prepared corpus as it is, or text that the run prepares itself."""

import itertools
from dataclasses import replace

import pytest

from data_pipelines import sources
from data_pipelines.batches import BatchSource
from data_pipelines.objectives import plm
from data_pipelines.prepare import prepare
from data_pipelines.tokenizer import Tokenizer
from xlnet_jax import train
from xlnet_jax.errors import InputError
from xlnet_jax.objectives.presets import demo
from xlnet_jax.settings.config import Config
from xlnet_jax.training.resolve import Text
from xlnet_jax.training.workdir import Workdir


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """two texts, a corpus of both with weights, and their tokenizer"""
    root = tmp_path_factory.mktemp("texts")
    with open(sources.embedded()[0]) as novels:
        for name in ("one.txt", "two.txt"):
            (root / name).write_text("".join(itertools.islice(novels, 300)))
    found = sources.find([str(root / "one.txt"), str(root / "two.txt")])
    tokenizer = Tokenizer.train(sources.read_lines(found, "strict"), 400, "auto")
    tokenizer.save(root / "tokenizer")
    prepare(found, None, tokenizer, root / "corpus", block_len=78, validation_fraction=0.1, weights=(0.8, 0.2))
    return root


def settings(*names, **changes):
    return replace(Config(), corpus=tuple(map(str, names)), **changes)


def test_a_prepared_corpus_is_taken_as_it_is_with_its_tokenizer(folder, tmp_path):
    config = settings(folder / "corpus")
    text = Text.of(config)
    tokenizer = text.demanded_tokenizer(config, None)
    assert tokenizer.sha256 == Tokenizer.load(folder / "tokenizer").sha256
    corpus = text.find_corpus(config, tokenizer, Workdir(tmp_path / "run"))
    assert corpus.folder == folder / "corpus"
    assert not (tmp_path / "run").exists()


def test_a_prepared_corpus_stands_alone(folder):
    for config in (settings(folder / "corpus", folder / "one.txt"), settings(folder / "corpus", validation=("x",))):
        with pytest.raises(InputError, match="is a prepared corpus, with a held-out part of its own: it stands alone"):
            Text.of(config)


def test_a_tokenizer_that_did_not_make_a_corpus_is_refused(folder, tmp_path):
    lines = sources.read_lines(sources.find([str(folder / "one.txt")]), "strict")
    other = Tokenizer.train(lines, 300, "auto")
    other.save(tmp_path / "other")
    config = settings(folder / "corpus", tokenizer=str(tmp_path / "other"))
    with pytest.raises(InputError, match=r"corpus: it was made with another tokenizer than .*other \(sha256 "):
        Text.of(config).demanded_tokenizer(config, None)
    with pytest.raises(InputError, match=r"it was made with another tokenizer than weights \(sha256 "):
        Text.of(config).demanded_tokenizer(replace(config, init="weights"), other)


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
        (leveled([folder / "one.txt"], "word", tokenizer=str(tmp_path / "bytes")), "`tokenizer` .* of level byte"),
        (leveled([folder / "corpus"], "byte"), "`corpus` .* of level piece"),
    ):
        with pytest.raises(InputError, match=f"data.token-level .*: the tokenizer of {origin}; leave one of the two"):
            Text.of(config).demanded_tokenizer(config, None)
    for level in ("byte", "piece"):  # its own level, or none asked for
        config = leveled([folder / "one.txt"], level, tokenizer=str(tmp_path / "bytes"))
        assert Text.of(config).demanded_tokenizer(config, None).vocab_size == 265


def test_several_texts_are_read_by_their_weights(folder, tmp_path):
    config = settings(folder / "one.txt", folder / "two.txt", data=replace(demo().data, windows_per_block=4))
    text = Text.of(config)
    assert text.name == "one+two"
    corpus = text.find_corpus(config, Tokenizer.load(folder / "tokenizer"), Workdir(tmp_path / "run"))
    assert corpus.manifest.sources == ("one", "two")
    first = corpus.manifest.splits["train"].source_blocks[0]
    for weights, share in (((0.9, 0.1), 0.9), ((0.25, 0.75), 0.25)):
        data = replace(config.data, weights=weights)
        source = BatchSource(corpus, "train", corpus.tokenizer.is_word_start, data, 0, 0, plm.FILLING)
        blocks = [b for visit in range(100) for b in source.assign(visit, range(data.batch_size))[0]]
        assert sum(b < first for b in blocks) / len(blocks) == pytest.approx(share, abs=0.01)


def test_blocks_that_never_fill_the_memory_are_refused(folder, tmp_path):
    data = replace(demo().data, seq_len=32, reuse_len=16, perm_size=16, num_predict=6)
    tokenizer, workdir = Tokenizer.load(folder / "tokenizer"), Workdir(tmp_path / "run")
    config = settings(folder / "corpus", data=data, model=replace(demo().model, mem_len=48))
    text = Text.of(config)
    assert text.find_corpus(config, tokenizer, workdir).block_len == 78
    config = replace(config, model=replace(config.model, mem_len=49))
    with pytest.raises(
        InputError, match=r"model\.mem-len 49 can never be filled: the 4 windows .* at most 48 positions"
    ):
        text.find_corpus(config, tokenizer, workdir)


def test_training_starts_from_a_prepared_corpus_and_goes_on(folder, tmp_path, capsys):
    tiny = """--preset demo --model.num-layers 1 --model.d-model 16 --model.num-heads 1 --model.d-head 16
        --model.d-ff 16 --model.mem-len 16 --data.batch-size 8 --data.seq-len 32 --data.reuse-len 16 --data.perm-size 16
        --data.num-predict 6 --eval.max-windows 32 --optimizer.decay-steps 200 --checkpoint.every-steps 4""".split()
    arguments = [*tiny, "--corpus", str(folder / "corpus"), "--workdir", str(tmp_path / "run")]
    assert train.main([*arguments, "--steps", "4"]) == 0
    assert train.main([*arguments, "--steps", "8"]) == 0
    assert "resumed     at step 4 of 8" in capsys.readouterr().out
    assert not (tmp_path / "run" / "corpus").exists()
    with pytest.raises(InputError, match="run holds another run"):
        train.main([*arguments[:-4], "--corpus", str(folder / "one.txt"), "--workdir", str(tmp_path / "run")])
