import json
import subprocess
import sys

import numpy as np
import pytest

from data_pipelines.tokenizer import EOD, EOP, SPECIAL_PIECES, UNK, Tokenizer, TokenizerSettings, normalize
from xlnet_jax.errors import InputError

CHINESE = [
    "春天来了，山上的花都开了。孩子们在河边放风筝，老人坐在树下喝茶。",
    "他问：“你明天来不来？”她说：“我一定来！”然后她笑了。",
    "火车慢慢地离开了车站。窗外是一片金黄的麦田，远处有几座小村庄……天快黑了。",
    "「今天的月亮真圆。」爷爷说。我们都抬起头来看天上的月亮。",
] * 5


@pytest.fixture(scope="module")
def chinese():
    return Tokenizer.train(CHINESE, 105, "auto")


# ---- what a tokenizer is --------------------------------------------------------------------------------------------


def test_special_pieces_and_the_recipes_symbols_have_their_ids(english):
    assert tuple(english.pieces[:9]) == SPECIAL_PIECES
    assert english.pieces[9:17] == [".", "(", ")", '"', "-", "–", "£", "€"]
    assert english.vocab_size == len(english.pieces) == 1000


def test_the_same_text_gives_the_same_bytes_in_another_process(english):
    script = (
        "from data_pipelines import sources; from data_pipelines.tokenizer import Tokenizer\n"
        "lines = [line for line in sources.read_lines(sources.find(sources.embedded()[:1])) if line]\n"
        "print(Tokenizer.train(lines[:1500], 1000, 'auto').sha256)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == english.sha256
    assert result.stderr == "", "training is silent"


@pytest.mark.parametrize(("asked", "limit"), [(50_000, "large"), (20, "small")])
def test_a_vocabulary_that_does_not_suit_the_text_is_refused_with_a_size_that_works(novels, asked, limit):
    with pytest.raises(InputError, match=rf"^`vocab_size` {asked} is too {limit} for .* that works is \d+") as error:
        Tokenizer.train(novels[:40], asked, "english")
    works = int(str(error.value).split("works is ")[1].split(";")[0])
    assert Tokenizer.train(novels[:40], works, "english").vocab_size == works
    with pytest.raises(InputError, match=f"too {limit}"):
        Tokenizer.train(novels[:40], works + (1 if limit == "large" else -1), "english")


def test_a_paragraph_longer_than_sentencepieces_limit_is_learned_from(novels):
    assert Tokenizer.train([" ".join(novels[:300])], 300, "english").vocab_size == 300


# ---- on disk --------------------------------------------------------------------------------------------------------


def test_a_saved_tokenizer_is_the_same_when_it_is_loaded(chinese, tmp_path):
    chinese.save(tmp_path / "tokenizer")
    for path in (tmp_path / "tokenizer", tmp_path / "tokenizer" / "spiece.model"):
        loaded = Tokenizer.load(path)
        assert (loaded.settings, loaded.sha256) == (chinese.settings, chinese.sha256)
    assert loaded.settings == TokenizerSettings("nfkc", split_digit_commas=False)
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer"], "nothing unfinished is left"
    (tmp_path / "tokenizer" / "tokenizer_settings.json").unlink()
    assert Tokenizer.load(tmp_path / "tokenizer").settings == TokenizerSettings("english", split_digit_commas=True)


def test_a_model_without_xlnets_special_pieces_is_refused(novels, tmp_path):
    import sentencepiece

    with (tmp_path / "other.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(novels[:100]), model_writer=file, vocab_size=200, minloglevel=2
        )
    with pytest.raises(InputError, match="ids 0 to 8, here <cls>; add them") as error:
        Tokenizer.load(tmp_path / "other.model")
    assert f"tokenizer {tmp_path / 'other.model'}: id 3 is " in str(error.value)


@pytest.mark.parametrize("damage", ["cut", "piece"])
def test_a_damaged_model_is_refused(english, tmp_path, damage):
    begin = english.model.rindex("▁".encode())
    content, message = {
        "cut": (english.model[: len(english.model) // 2], "it is not a SentencePiece model, or is damaged"),
        "piece": (english.model[: begin + 2] + b"\xff" + english.model[begin + 3 :], "one of its pieces is not UTF-8"),
    }[damage]
    (tmp_path / "spiece.model").write_bytes(content)
    with pytest.raises(InputError, match=rf"spiece\.model: {message}"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"format_version": 1, "upper": true}', '{"format_version": 1, "normalization": "nfd"}']
)
def test_settings_that_cannot_be_read_are_refused(english, tmp_path, content):
    english.save(tmp_path / "t")
    (tmp_path / "t" / "tokenizer_settings.json").write_text(content)
    with pytest.raises(InputError, match=r"tokenizer_settings\.json"):
        Tokenizer.load(tmp_path / "t")


# ---- text -> ids ----------------------------------------------------------------------------------------------------


# The recorded cases keep accents only where they also remove spaces.
GOLDEN_VARIANTS = [(lower, keep, space) for lower in (False, True) for keep, space in ((0, 1), (1, 1), (0, 0))]


@pytest.mark.parametrize(("lower", "keep_accents", "remove_space"), GOLDEN_VARIANTS)
def test_normalisation_and_ids_are_the_originals_with_each_of_its_options(reference, lower, keep_accents, remove_space):
    options = {"lower": bool(lower), "keep_accents": bool(keep_accents), "remove_space": bool(remove_space)}
    goldens = json.loads((reference / "data" / "prepro_goldens.json").read_text())
    cases = [
        (entry["text"], variant)
        for entry in goldens["strings"]
        for variant in entry["variants"]
        if all(variant[name] == value for name, value in options.items())
    ]
    assert len(cases) > 200
    settings = TokenizerSettings("english", **options)
    assert settings.normalize([text for text, _ in cases]) == [variant["preprocessed"] for _, variant in cases]
    for name in goldens["models"]:
        encoded = [(text, v["tok"][name]) for text, v in cases if name in v.get("tok", {})]
        encoded = [(text, golden) for text, golden in encoded if not golden.get("spm_version_dependent")]
        tokenizer = Tokenizer((reference / "data" / name).read_bytes(), settings)
        rows = tokenizer.encode_lines([text for text, _ in encoded])
        for (text, golden), ids in zip(encoded, rows, strict=True):
            assert ids.tolist() == golden["ids"], text


def test_the_released_english_vocabulary_loads(published):
    tokenizer = Tokenizer.load(published("tokenizers/xlnet_cased.spiece.model"))
    assert tokenizer.vocab_size == 32_000
    (ids,) = tokenizer.encode_lines(["In 1999, XLNet's  caf\u00e9 didn''t exist."])
    assert tokenizer.decode(ids) == "In 1999, XLNet's cafe didn\"t exist."
    pieces = [tokenizer.pieces[i] for i in ids]
    assert pieces[:3] == ["▁In", "▁1999", ","]


def test_text_survives_a_round_trip(english, chinese, novels):
    assert [english.decode(i) for i in english.encode_lines(novels[:20])] == novels[:20]
    plain = [normalize(line, "nfkc") for line in CHINESE[:4]]
    assert [chinese.decode(i) for i in chinese.encode_lines(CHINESE[:4])] == plain


def test_without_normalisation_sentencepiece_does_not_normalise_either():
    tokenizer = Tokenizer.train(["\uff21\uff22 \uff23\u2460 e\u0301"] * 5, 25, "none")
    (ids,) = tokenizer.encode_lines(["\uff21\uff22 \uff23\u2460 e\u0301"])
    assert tokenizer.decode(ids) == "\uff21\uff22 \uff23\u2460 e\u0301"


# ---- words and sentences --------------------------------------------------------------------------------------------


def test_words_start_where_the_originals_do(english):
    for piece, starts in zip(english.pieces, english.is_word_start, strict=True):
        expected = piece.startswith(("▁", "<")) or piece in set('!"#$%&"()*+,-./:;?@[\\]^_`{|}~')
        assert starts == expected, piece


def sentences(tokenizer, line):
    """Split the line where the tokenizer finds that a sentence begins."""
    (ids,) = tokenizer.encode_lines([line])
    cuts = np.flatnonzero(tokenizer.tables.sentence_starts(ids))
    return [tokenizer.decode(part) for part in np.split(ids, cuts)]


@pytest.mark.parametrize(
    "parts",
    [
        ["He came.", "She went!", "Who stayed?", "Nobody."],
        ['"Is he married?"', '"Single, my dear!"', "She smiled."],
        ["(She left.)", "(He stayed.)", '"So?"'],
        ["It cost 3.14 pounds.", "He paid."],
        ['"What?" said she, "did he go?" he asked.', "Nobody knew."],
        ["He waited... and waited...", "Then he left."],
        ["Come here!!", "Now?!", "Yes."],
        ["The year was over.", "13 began."],
        ["no sentence ends in here, a.b and c.D neither"],
    ],
    ids=lambda parts: parts[0][:20],
)
def test_sentences_begin_behind_a_stop_and_its_quotes_at_a_word_that_is_not_lowercase(english, parts):
    assert sentences(english, " ".join(parts)) == parts


@pytest.mark.parametrize(
    "parts",
    [
        ["春天来了。", "花开了！", "你来不来？", "来。"],
        ["「今天的月亮真圆。」", "爷爷说。", "我们看月亮。"],
        ["他问：“你来不来？”", "她说：“来！”", "她笑了。"],
    ],
    ids=lambda parts: parts[0],
)
def test_sentences_without_spaces_begin_behind_a_stop_and_its_quotes(chinese, parts):
    assert sentences(chinese, "".join(parts)) == [normalize(p, "nfkc") for p in parts]


def test_sentence_starts_take_any_ids(english):
    assert english.tables.sentence_starts(np.zeros(0, np.int32)).shape == (0,)
    ids = np.random.default_rng(0).integers(0, 1000, 5000)
    assert english.tables.sentence_starts(ids).shape == (5000,)
    stop, space = english.pieces.index("."), english.pieces.index("▁the")
    capital = next(i for i, p in enumerate(english.pieces) if p == "▁The")
    line = np.array([capital, stop, EOP, capital, stop, EOD, UNK, stop, space])
    assert np.flatnonzero(english.tables.sentence_starts(line)).tolist() == [3]
