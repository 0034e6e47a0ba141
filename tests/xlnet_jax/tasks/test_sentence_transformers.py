"""Folders of sentence-transformers: their vectors are ours, and we load them back."""

import dataclasses
import json

import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import BERT, SMALL, random_model
from tests.xlnet_jax.tasks.conftest import BAD, GOOD
from xlnet_jax.errors import InputError
from xlnet_jax.inference.embed import SEQ_LEN
from xlnet_jax.settings.config import HeadConfig
from xlnet_jax.tasks.convert import ConvertSettings, convert

TEXTS = [*GOOD, "it", " ".join(BAD)]
NETWORKS = {
    "xlnet": dataclasses.replace(SMALL, vocab_size=55),
    "bert": dataclasses.replace(BERT, vocab_size=55, max_positions=128),
}


def their_vectors(folder, texts):
    """The vectors of sentence-transformers, or without it those that the files in the folder describe: the modules in
    their order, each as its file in sentence_transformers computes it."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        return vectors_of_modules(folder, texts)
    return SentenceTransformer(str(folder), device="cpu").encode(texts)


def vectors_of_modules(folder, texts):
    torch = pytest.importorskip("torch", reason="no PyTorch: pip install -e '.[bench]'")
    transformers = pytest.importorskip("transformers", reason="no transformers: pip install -e '.[bench]'")
    found = None
    for module in json.loads((folder / "modules.json").read_text()):
        if module["type"].endswith(".Transformer"):
            settings = json.loads((folder / "sentence_bert_config.json").read_text())
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, model_max_length=settings["max_seq_length"], do_lower_case=settings["do_lower_case"]
            )
            network = transformers.AutoModel.from_pretrained(folder).eval()
            given = tokenizer(texts, padding=True, truncation="longest_first", return_tensors="pt")
            with torch.no_grad():
                hidden, mask = network(**given).last_hidden_state, given["attention_mask"]
        elif module["type"].endswith(".Pooling"):
            settings = json.loads((folder / module["path"] / "config.json").read_text())
            assert settings["word_embedding_dimension"] == hidden.shape[-1]
            (mode,) = (name for name, on in settings.items() if name.startswith("pooling_mode_") and on)
            rows = torch.arange(len(texts))
            if mode == "pooling_mode_mean_tokens":
                found = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
            elif mode == "pooling_mode_lasttoken":
                found = hidden[rows, mask.shape[1] - 1 - mask.flip(1).argmax(1)]
            else:
                assert mode == "pooling_mode_cls_token"
                found = hidden[rows, mask.argmax(1)]
        else:
            assert module["type"].endswith(".Normalize")
            found = torch.nn.functional.normalize(found, p=2, dim=1)
    return found.numpy()


@pytest.fixture(params=[("xlnet", "mean"), ("xlnet", "last"), ("xlnet", "first"), ("bert", "mean"), ("bert", "last")])
def exported(request, tokenizer, tmp_path):
    """A checkpoint for embedding, and its folder."""
    network, pooling = request.param
    head = HeadConfig("embedding", summary=pooling, use_projection=False)
    xlnet_jax.save(random_model(dataclasses.replace(NETWORKS[network], mem_len=0), head, tokenizer), tmp_path / "ours")
    convert(ConvertSettings(str(tmp_path / "ours"), str(tmp_path / "theirs"), "sentence-transformers"))
    return xlnet_jax.load(tmp_path / "ours"), tmp_path / "theirs"


def test_vectors_are_those_of_embed_and_the_folder_is_loaded_with_its_pooling(exported):
    ours, folder = exported
    expected = xlnet_jax.embed_texts(ours, TEXTS)
    np.testing.assert_allclose(their_vectors(folder, TEXTS), expected, atol=1e-5)
    again = xlnet_jax.load(folder)
    assert again.head == ours.head
    cut = min(SEQ_LEN, again.model.num_places)
    assert json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == cut
    np.testing.assert_allclose(again.encode(TEXTS), expected, atol=1e-5)


def test_a_pretrained_checkpoint_is_exported_with_the_mean_of_length_1_if_asked_for(tokenizer, tmp_path):
    ours = random_model(NETWORKS["xlnet"], None, tokenizer)
    xlnet_jax.save(ours, tmp_path / "ours")
    paths = str(tmp_path / "ours"), str(tmp_path / "theirs")
    settings = ConvertSettings(*paths, "sentence-transformers", normalize=True)
    assert any("(native) -> " in line and "(sentence-transformers)" in line for line in convert(settings))
    vectors = their_vectors(tmp_path / "theirs", TEXTS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(vectors, xlnet_jax.embed_texts(ours, TEXTS, normalize=True), atol=1e-5)
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: sentence-transformers\npipeline_tag: sentence-similarity\n")
    assert 'SentenceTransformer("theirs").encode(["A text."])' in card


def test_a_language_model_is_not_taken_for_an_embedding(tmp_path):
    xlnet_jax.save(dataclasses.replace(random_model(), extra={"summary_use_proj": False}), tmp_path / "lm", "hf")
    assert xlnet_jax.load(tmp_path / "lm").head is None


def test_what_cannot_be_exported_is_refused_in_one_line(tokenizer, tmp_path):
    head = HeadConfig("embedding", summary="first", use_projection=False)
    for name, network in NETWORKS.items():
        xlnet_jax.save(random_model(network, head, tokenizer), tmp_path / name)
    xlnet_jax.save(random_model(), tmp_path / "no_tokenizer")
    for source, to, changes, message in (
        ("bert", "sentence-transformers", {}, "sentence-transformers has no pooling first of a text in bert: use `to`"),
        ("no_tokenizer", "sentence-transformers", {}, "no tokenizer"),
        ("bert", "hf", {"normalize": True}, "`normalize` is a module of `to` sentence-transformers: leave it out"),
        ("xlnet", "tf1", {}, "the 2019 code has no head for embedding: use `to` hf or native"),
    ):
        with pytest.raises(InputError, match=message):
            convert(ConvertSettings(str(tmp_path / source), str(tmp_path / "new"), to, **changes))
        assert not (tmp_path / "new").exists()
