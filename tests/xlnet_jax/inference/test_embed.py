"""The vector of a text depends on the text alone; vectors come in the order of the texts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.xlnet_jax.random_models import BERT, CAUSAL, HEADS, random_model
from xlnet_jax import InputError
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.inference import embed as embedding
from xlnet_jax.inference import log_probs
from xlnet_jax.inference.embed import embed_texts
from xlnet_jax.models.inputs import text_inputs
from xlnet_jax.models.xlnet import Backbone

command = COMMANDS["embed"]

LONG = "The list of names is new, and the names of the list are old. " * 2
TEXTS = [LONG, "The list of names is new", "new", "The names are old."]
SAME = 1e-5


@pytest.mark.parametrize(("longest", "count", "padding"), [(300, 1000, 1.3), (40, 400, 1.35), (300, 30, 1.35)])
def test_batches_have_few_shapes_and_little_padding(longest, count, padding):
    lengths = np.random.default_rng(0).integers(8, longest, count).tolist()
    batches = [*log_probs.batches_by_length(lengths, 4096)]
    assert sorted(i for rows, *_ in batches for i in rows) == list(range(count))
    for rows, size, length in batches:
        assert len(rows) <= size <= 4096 // length
        assert max(lengths[i] for i in rows) <= length
    assert sum(size * length for _, size, length in batches) < padding * sum(lengths)
    assert len({(size, length) for _, size, length in batches}) <= 10


def test_vectors_are_pooled_from_the_real_tokens_whatever_the_padding_and_the_neighbors(model):
    """`embed_texts` pads on the right to one of few lengths, `hidden_states` on the left to the longest text."""
    ids_BL, mask_BL, segments_BL = model.tokenize(TEXTS)
    hidden_BLD = np.asarray(model.hidden_states(ids_BL, mask_BL, segments_BL))
    expected = {
        "mean": (hidden_BLD * mask_BL[:, :, None]).sum(1) / mask_BL.sum(1)[:, None],
        "last": hidden_BLD[:, -1],
        "cls": hidden_BLD[:, -1],
        "first": hidden_BLD[np.arange(len(TEXTS)), mask_BL.argmax(1)],
    }
    for pooling, vectors in expected.items():
        found = embed_texts(model, TEXTS, pooling)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, vectors, atol=SAME)
    pieces = model.tokenize(TEXTS[1:2])[0][:, :-2]
    hidden = model.hidden_states(pieces, np.ones_like(pieces), np.zeros_like(pieces))
    np.testing.assert_allclose(embed_texts(model, TEXTS[1:2], "last", specials=False), hidden[:, -1], atol=SAME)


def test_vectors_depend_neither_on_the_bucket_nor_on_the_batch(model, monkeypatch):
    together = embed_texts(model, TEXTS)
    normalized = embed_texts(model, TEXTS, normalize=True)
    np.testing.assert_allclose(normalized * np.linalg.norm(together, axis=1, keepdims=True), together, atol=SAME)
    np.testing.assert_allclose(embed_texts(model, TEXTS[::-1], batch_tokens=1), together[::-1], atol=SAME)
    monkeypatch.setattr(log_probs, "SHORTEST", 64)
    np.testing.assert_allclose(embed_texts(model, TEXTS), together, atol=SAME)


def test_a_layer_is_named_from_either_end(model):
    ids, mask, segments = model.tokenize(TEXTS[1:2])
    run = jax.jit(lambda params, inputs: Backbone(model.model).apply(params, inputs, mutable="intermediates"))
    _, sown = run({"params": model.params["backbone"]}, text_inputs(*map(jnp.asarray, (ids, mask, segments))))
    by_layer = sown["intermediates"]["layers"]["rows_BTD"][0].mean(2)
    for layer, place in ((1, 0), (-3, 0), (3, 2), (-1, 2)):
        np.testing.assert_allclose(embed_texts(model, TEXTS[1:2], layer=layer), by_layer[place], atol=SAME)


def segment_by_segment(model, text, seq_len, mem_len):
    """Return the hidden states of one text without padding, each segment read with the memory of those before it."""
    config = dataclasses.replace(model.model, mem_len=mem_len)
    ids, _, segments = model.tokenize([text])
    run = jax.jit(Backbone(config).apply)
    mems, hidden = None, []
    for begin in range(0, ids.shape[1], seq_len):
        part, kinds = (jnp.asarray(x[:, begin : begin + seq_len]) for x in (ids, segments))
        inputs = text_inputs(part, None, kinds, mem_len=0 if mems is None else mems.shape[2])
        outputs = run({"params": model.params["backbone"]}, inputs, mems)
        mems = outputs.new_mems_ZBMD
        hidden.append(outputs.content_BLD[0])
    return np.concatenate(hidden)


def test_a_long_text_is_read_in_segments_with_memory(model):
    hidden = segment_by_segment(model, LONG, seq_len=12, mem_len=16)
    assert len(hidden) > 3 * 12
    for pooling, vector in (("mean", hidden.mean(0)), ("first", hidden[0]), ("last", hidden[-1])):
        found = embed_texts(model, [*TEXTS, LONG[:80]], pooling, max_len=12, mem_len=16)
        np.testing.assert_allclose(found[0], vector, atol=SAME)


def test_learned_positions_limit_a_segment(tokenizer):
    bert = random_model(dataclasses.replace(BERT, vocab_size=800), tokenizer=tokenizer)
    assert len(bert.tokenize([LONG])[0][0]) > bert.model.num_places
    in_segments = embed_texts(bert, [LONG], max_len=bert.model.num_places)
    np.testing.assert_allclose(embed_texts(bert, [LONG]), in_segments, atol=SAME)


def test_a_text_of_one_segment_sees_all_of_itself_whatever_the_memory(tokenizer):
    causal = random_model(dataclasses.replace(CAUSAL, vocab_size=800), tokenizer=tokenizer)
    limited = dataclasses.replace(causal, model=dataclasses.replace(causal.model, same_length=True, mem_len=2))
    np.testing.assert_allclose(embed_texts(limited, TEXTS), embed_texts(causal, TEXTS), atol=SAME)


def test_lines_come_out_as_rows_in_their_order(model, checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(embedding, "TEXTS_AT_ONCE", 2)  # as a large file is, in chunks
    lines, out = tmp_path / "lines.txt", tmp_path / "vectors.npy"
    lines.write_text("\n".join(TEXTS) + "\n")
    assert command.main([str(checkpoint), "--text", str(lines), "--out", str(out)]) == 0
    found = np.load(out, mmap_mode="r")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, embed_texts(model, TEXTS), atol=SAME)
    assert f"{len(TEXTS)} x {model.model.d_model}, mean of layer -1" in capsys.readouterr().out


def test_documents_come_with_their_ids(model, checkpoint, tmp_path):
    documents = [f"{TEXTS[1]} {TEXTS[2]}", TEXTS[3]]
    (tmp_path / "a.txt").write_text(f"\n{TEXTS[1]}\n{TEXTS[2]}\n\n\n{TEXTS[3]}\n")
    pq.write_table(pa.table({"text": documents, "name": ["x", "y"]}), tmp_path / "a.parquet")
    for text, more, ids in (("a.txt", "--unit document", [0, 1]), ("a.parquet", "--id-field name", ["x", "y"])):
        argv = [str(checkpoint), "--text", str(tmp_path / text), "--out", str(tmp_path / "out.parquet"), "--overwrite"]
        assert command.main([*argv, *more.split()]) == 0
        table = pq.read_table(tmp_path / "out.parquet")
        assert table["id"].to_pylist() == ids
        found = np.array(table["embedding"].to_pylist(), np.float32)
        np.testing.assert_allclose(found, embed_texts(model, documents), atol=SAME)


def test_a_text_without_pieces_keeps_its_place_with_zeros_and_is_counted(model, checkpoint, tmp_path, capsys):
    text, out = tmp_path / "a.jsonl", tmp_path / "vectors.npy"
    text.write_text('{"text": "She was happy."}\n{"body": "x"}\n{"text": "He left."}\n{"text": null}\n')
    assert command.main([str(checkpoint), "--text", str(text), "--out", str(out)]) == 0
    found, expected = np.load(out), embed_texts(model, ["She was happy.", "He left."])
    assert found.shape == (4, model.model.d_model)
    np.testing.assert_allclose(found[[0, 2]], expected, atol=SAME)
    np.testing.assert_array_equal(found[[1, 3]], 0)
    said = f"2 of 4 records have no text and keep their place with zeros: text {text}: line 2 has no field 'text', only"
    assert said in capsys.readouterr().err


def test_a_blank_text_changes_no_other_vector(model):
    for pooling in ("mean", "first", "last", "cls"):
        found = embed_texts(model, ["", *TEXTS, "\u0301"], pooling, normalize=True)
        np.testing.assert_allclose(found[1:-1], embed_texts(model, TEXTS, pooling, normalize=True), atol=SAME)
        np.testing.assert_array_equal(found[[0, -1]], 0)
    np.testing.assert_array_equal(embed_texts(model, [" "], pooling), np.zeros((1, model.model.d_model)))


def test_a_mistake_is_one_line_and_leaves_no_file(model, checkpoint, tmp_path):
    gap, ids = tmp_path / "gap.jsonl", tmp_path / "ids.jsonl"
    gap.write_text('{"body": "One."}\n{"text": " "}\n')
    ids.write_text('{"text": "a", "id": 1}\n{"text": "b", "id": "two"}\n')
    out, table = tmp_path / "x.npy", tmp_path / "x.parquet"
    for text, made, more, said in (
        (gap, out, "", r"there is no text: .*gap\.jsonl: line 1 has no field 'text', only 'body'; .* line 2 is blank"),
        (gap, table, "--id-field n", r"line 1 has no field 'n', only 'body': name the id field with --id-field"),
        (ids, tmp_path / "x.csv", "", r"give a name that ends in \.npy or \.parquet"),
        (ids, out, "--layer 4", r"--layer 4 does not exist: there are 1 to 3, or -1 to -3 from the last"),
        (ids, out, "--pooling cls --no-specials", r"--pooling cls needs --specials"),
        (ids, table, "--id-field id", "--id-field: ids must be all texts or all whole numbers"),
    ):
        with pytest.raises(InputError, match=said):
            command.main([str(checkpoint), "--text", str(text), "--out", str(made), *more.split()])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["gap.jsonl", "ids.jsonl"]
    with pytest.raises(InputError, match="has no tokenizer"):
        embed_texts(random_model(head=HEADS["regression"]), TEXTS)


def test_a_network_with_a_task_head_is_embedded_by_its_backbone(model):
    finetuned = dataclasses.replace(
        random_model(model.model, HEADS["classification"], model.tokenizer),
        params={"backbone": model.params["backbone"]},
    )
    np.testing.assert_array_equal(embed_texts(finetuned, TEXTS[1:]), embed_texts(model, TEXTS[1:]))
