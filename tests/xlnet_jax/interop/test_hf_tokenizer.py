"""AutoTokenizer of transformers gives our ids in the folders that we write."""

import dataclasses
import functools
import json
import re

import numpy as np
import pytest

import xlnet_jax
from data_pipelines import sources
from data_pipelines.tokenizer import Tokenizer, TokenizerSettings
from tests.xlnet_jax.random_models import BERT, ROBERTA, SMALL, random_model
from xlnet_jax.interop.hf_tokenizer import DIFFERENCES

transformers = pytest.importorskip("transformers", reason="needs the extra [bench]: pip install -e '.[bench]'")

AUSTEN = [line for line in sources.read_lines(sources.find(sources.embedded())) if line]
CHINESE = [
    "贝内特先生是个古怪的人，他一方面喜欢插科打诨，爱挖苦人。", "她的脑子很容易捉摸：她是个智力贫乏、见识不多的女人。",
    "人们普遍认为，有钱的单身汉总要娶位太太。", "“这个地方１２３年来，真是……”他说：“ＡＢＣ。”",
]  # fmt: skip
ODD = [
    "", " ", "  two  spaces \t and tabs\u3000wide ", "``quotes'' and \"others\"", "naïve café, Ångström und Straße",
    "e\u0301 ½\u0327 A\u030a ﬁ ① Ⅻ ｶﾞ", "한국어 각 ㅎㅏㄴ", "กำลัง ຳ हिन्दी", "1,234,567.89 - 5–6 (£7) €8 $9,",
    "zero\u200bwidth", "İstanbul ΑΣ", "<eop> a<eop>b", "日本語のテキスト。",
    "emoji 😀 👩\u200d👩\u200d👧", "...---...", "a" * 500,
    "see <url> and x@user5, <url><url>lovely <url", "don't, <URL>日本語の本",
]  # fmt: skip
SYMBOLS = ("<url>", "@user", "<URL>", "日本", "don't")
SPECIAL = re.compile("<(unk|s|/s|cls|sep|pad|mask|eod)>")


def trained(normalization, level="piece", size=1000, lower=False, symbols=()):
    lines = AUSTEN[:400] + CHINESE * 20 + ODD[2:9] * 3
    return Tokenizer.train(lines, size, normalization, token_level=level, lower=lower, user_symbols=symbols)


TOKENIZERS = {
    "tiny": lambda: Tokenizer.load("tiny"),
    "english": lambda: trained("english"),
    "uncased": lambda: trained("english", lower=True),
    "nfkc": lambda: trained("nfkc"),
    "none": lambda: trained("none"),
    "accents": lambda: Tokenizer(trained("nfkc").model, TokenizerSettings(keep_accents=True)),
    "spaces": lambda: Tokenizer(trained("english").model, TokenizerSettings(remove_space=False)),
    "words": lambda: trained("english", "word"),
    "characters": lambda: trained("nfkc", "character"),
    "symbols": lambda: trained("english", symbols=SYMBOLS),
    "symbols and characters": lambda: trained("nfkc", "character", symbols=SYMBOLS),
    "bytes": lambda: trained("none", "byte"),
}


@functools.cache
def tokenizer_of(kind):
    return TOKENIZERS[kind]()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Writes a folder with this tokenizer, and returns it with the notes. Each is written once."""

    @functools.cache
    def write(tokenizer, config=SMALL):
        folder = tmp_path_factory.mktemp("hf") / "hf"
        model = random_model(dataclasses.replace(config, vocab_size=tokenizer.vocab_size), tokenizer=tokenizer)
        return folder, xlnet_jax.save(model, folder, "hf")

    return write


def compared(tokenizer, theirs, lines):
    """Return (line, our ids, theirs) of the lines whose ids differ."""
    there = theirs(lines, add_special_tokens=False)["input_ids"]
    rows = zip(lines, tokenizer.encode_lines(lines), there, strict=True)
    return [(line, ours.tolist(), of_line) for line, ours, of_line in rows if ours.tolist() != of_line]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_thousands_of_lines_have_our_ids_and_our_text_there(written, kind):
    tokenizer = tokenizer_of(kind)
    folder, notes = written(tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    lines = [*(AUSTEN if kind == "tiny" else AUSTEN[::7]), *CHINESE, *ODD]
    assert len(lines) > (7000 if kind == "tiny" else 1000)
    assert not compared(tokenizer, theirs, lines)
    assert any(note.startswith(DIFFERENCES) for note in notes)
    known = [ids.tolist() for ids in tokenizer.encode_lines(lines[::7]) if 0 not in ids]
    assert [theirs.decode(ids) for ids in known] == [tokenizer.decode(np.array(ids, int)) for ids in known]


@pytest.mark.parametrize("kind", ["tiny", "nfkc", "characters"])
def test_special_pieces_segments_and_padding_are_ours(written, kind):
    tokenizer = tokenizer_of(kind)
    folder, _ = written(tokenizer)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), xlnet_jax.load(folder)
    texts = ["The list of names", "A much longer list of many names"]
    ids, mask, segments = ours.tokenize(texts)
    there = theirs(texts, padding=True)
    assert there["input_ids"] == ids.tolist()
    assert there["attention_mask"] == mask.tolist()
    assert there["token_type_ids"] == segments.tolist()
    a, b = (ids.tolist() for ids in tokenizer.encode_lines(["one", "two"]))
    pair = theirs("one", "two")
    assert pair["input_ids"] == [*a, 4, *b, 4, 3]
    assert pair["token_type_ids"] == [0] * (len(a) + 1) + [1] * (len(b) + 1) + [2]
    assert theirs.decode(pair["input_ids"], skip_special_tokens=True) == "one two"
    assert [theirs.mask_token_id, theirs.pad_token_id, theirs.unk_token_id] == [6, 5, 0]
    assert theirs("a <mask>", add_special_tokens=False)["input_ids"][-1] == 6


@pytest.mark.parametrize(("config", "b", "pad"), [(BERT, 1, 5), (ROBERTA, 0, 1)])
def test_bert_reads_cls_first_there_and_pads_on_the_right(written, config, b, pad):
    tokenizer = tokenizer_of("english")
    folder, _ = written(tokenizer, config)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert not compared(tokenizer, theirs, AUSTEN[:1000])
    one, two = (ids.tolist() for ids in tokenizer.encode_lines(["one", "two"]))
    there = theirs(["one", "one"], ["two", "two two"], padding=True)
    assert there["input_ids"][0] == [3, *one, 4, *two, 4] + [pad] * len(two)
    assert there["token_type_ids"][1] == [0] * (len(one) + 2) + [b] * (2 * len(two) + 1)
    network = transformers.AutoModel.from_pretrained(folder)
    network(**theirs(["one", "one"], ["two", "two two"], padding=True, return_tensors="pt"))
    assert network.config.pad_token_id == theirs.pad_token_id == pad


@pytest.mark.parametrize("lower", [False, True], ids=["cased", "uncased"])
def test_the_strings_of_the_original_have_our_ids_there(reference, written, lower):
    tokenizer = Tokenizer((reference / "data" / "spiece.model").read_bytes(), TokenizerSettings(lower=lower))
    theirs = transformers.AutoTokenizer.from_pretrained(written(tokenizer)[0])
    goldens = json.loads((reference / "data" / "prepro_goldens.json").read_text())["strings"]
    texts = [x["text"] for x in goldens if not SPECIAL.search(x["text"])]
    assert len(texts) > 200
    assert not compared(tokenizer, theirs, texts)
