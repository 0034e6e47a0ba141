"""BERT and RoBERTa with their own tokenizers: read, and written back."""

import json

import jax
import numpy as np
import pytest

import xlnet_jax
from tests.data_pipelines.tokenizer.test_foreign import bert, lines, roberta  # noqa: F401
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.tasks.features import encode_text

torch = pytest.importorskip("torch", reason="needs PyTorch and transformers: pip install -e '.[bench]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install -e '.[bench]'")
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 40,
}  # fmt: skip
KINDS = {
    "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
    "roberta": (transformers.RobertaConfig, transformers.RobertaForMaskedLM),
}


def published(folder, kind, more_rows=0, size=None):
    """A network as it is published: random weights beside the tokenizer that is in this folder already."""
    config, network = KINDS[kind]
    size = size or transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).vocab_size
    torch.manual_seed(0)
    model = network(config(vocab_size=size + more_rows, **SIZES)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module", params=["bert", "roberta"])
def model(request):
    folder = request.getfixturevalue(request.param)
    return folder, published(folder, request.param)


def logits_BLV(loaded, ids_BL, segment_ids_BL):
    @jax.jit
    def run(params):
        return loaded.network.apply({"params": params}, text_inputs(ids_BL, None, segment_ids_BL))[0]

    return run(loaded.params)


def test_a_text_scores_as_there_though_cls_stands_behind_it_here(model):
    """Theirs reads <cls> A <sep> B <sep>, ours the same tokens with <cls> at the end."""
    folder, theirs = model
    loaded = xlnet_jax.load(folder)
    rows = loaded.tokenizer.foreign.theirs
    a, b = loaded.tokenizer.encode_lines(["Emma's father was sitting", "in the house."])
    ids, segments = encode_text(a, b)
    ours = np.asarray(logits_BLV(loaded, ids[None], segments[None])[0])
    moved = np.roll(rows[ids], 1)
    types = torch.tensor(np.where(np.roll(segments, 1) == 1, 1, 0))[None] if loaded.model.num_segments > 1 else None
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(moved)[None], token_type_ids=types).logits[0].numpy()
    known = rows >= 0
    np.testing.assert_allclose(np.roll(ours, 1, 0)[:, known], expected[:, rows[known]], atol=1e-5)


def test_what_is_written_is_what_was_read(model, tmp_path):
    folder, theirs = model
    xlnet_jax.save(xlnet_jax.load(folder), tmp_path / "native")
    xlnet_jax.save(xlnet_jax.load(tmp_path / "native"), tmp_path / "hf", "hf")
    again = type(theirs).from_pretrained(tmp_path / "hf")
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0, atol=0)
    assert (tmp_path / "hf" / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    for name in ("vocab_size", "pad_token_id"):
        assert getattr(again.config, name) == getattr(theirs.config, name)


def test_autotokenizer_gives_the_same_ids_before_and_after(model, lines, tmp_path):  # noqa: F811
    """Also where transformers' class of that network would normalise by rules of its own."""
    folder, _ = model
    xlnet_jax.save(xlnet_jax.load(folder), tmp_path / "hf", "hf")
    before = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    after = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    texts = [*lines, "Emma Woodhouse, handsome", "naïve CAFÉ", "[MASK] <mask>"]
    assert len(texts) > 100
    assert after(texts)["input_ids"] == before(texts)["input_ids"]
    assert after.mask_token in ("[MASK]", "<mask>")
    assert after(texts[:2], padding=True)["attention_mask"]


@pytest.mark.parametrize("lower", [True, False])
def test_a_vocabulary_of_bert_keeps_its_case_there(bert, tmp_path, lower):  # noqa: F811
    vocabulary = transformers.PreTrainedTokenizerFast(tokenizer_file=str(bert / "tokenizer.json")).get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.get)
    published(tmp_path, "bert", size=len(pieces))
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    before = transformers.BertTokenizer.from_pretrained(tmp_path, do_lower_case=lower)
    xlnet_jax.save(xlnet_jax.load(tmp_path), tmp_path / "hf", "hf")
    for kind in (transformers.AutoTokenizer, transformers.BertTokenizer):
        after = kind.from_pretrained(tmp_path / "hf")
        for text in ("Emma Woodhouse was Sitting", "THE house", "naïve"):
            assert after(text)["input_ids"] == before(text)["input_ids"]
