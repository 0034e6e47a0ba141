"""A server gives the numbers of the library, also to several clients at once, and in one batch."""

import dataclasses
import json
import threading
import time

import numpy as np
import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import BERT, CAUSAL, HEADS, SMALL, random_model
from tests.xlnet_jax.serving.conftest import ask, ask_together, connect, is_closed, send
from xlnet_jax.inference.sampler import Sampler
from xlnet_jax.serving import batching, service
from xlnet_jax.serving.server import JSON_TYPE, MOST_BYTES, Server
from xlnet_jax.serving.service import MOST_PIECES, TOGETHER, Service

TEXTS = ["It is a truth", "She was not at all the sea, and he", "A list"]
GAPS = "It ___ a truth ___ acknowledged"


# ---- the numbers of the library --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["left", "random", "confidence"])
def test_a_stream_shows_the_pieces_of_each_pass_of_the_text_that_generate_draws(server, model, order):
    settings = {"gap_pieces": [3, 2], "order": order, "parallel": 2, "seed": 5, "temperature": 0.8}
    status, text = send(server, "/fill", {"text": GAPS, "stream": True, **settings})
    frame, *passes, whole = map(json.loads, text.splitlines())
    assert status == 200
    assert frame == {"parts": ["It ", " a truth ", " acknowledged"], "gaps": [3, 2]}
    (expected,) = xlnet_jax.generate(model, GAPS, **settings)
    assert whole["text"] == expected.text
    assert whole["pieces"] == expected.pieces
    np.testing.assert_allclose(whole["log_probs"], expected.log_probs, atol=2e-6)
    assert [line["pass"] for line in passes] == sorted({*expected.passes_P.tolist()})
    shown = {piece["number"]: (line["pass"], piece["piece"]) for line in passes for piece in line["pieces"]}
    for number, (piece, its_pass) in enumerate(zip(expected.pieces, expected.passes_P, strict=False)):
        assert shown[number] == (its_pass, piece)
    assert ask(server, "fill", {"text": GAPS, **settings}) == whole


def test_scores_and_vectors_are_those_of_the_library(server, model):
    scores = ask(server, "score", {"texts": TEXTS, "orders": ["random:2"], "seed": 3})["scores"]
    for row, score in zip(scores, xlnet_jax.score_texts(model, TEXTS, "random:2", seed=3), strict=True):
        assert row["pieces"] == score.pieces
        np.testing.assert_allclose(row["log_probs"], score.log_probs_P, atol=2e-6)
        assert row["log_likelihood"] == pytest.approx(score.log_likelihood, abs=1e-4)
        assert row["nats_per_piece"] == pytest.approx(-score.log_likelihood / len(score.pieces), abs=1e-5)
        bits = -score.log_likelihood / np.log(2) / len(row["text"])
        assert row["bits_per_character"] == pytest.approx(bits, abs=1e-5)
    vectors = ask(server, "embed", {"texts": TEXTS, "normalize": True})["vectors"]
    np.testing.assert_allclose(vectors, xlnet_jax.embed_texts(model, TEXTS, normalize=True), atol=2e-6)
    (blank,) = ask(server, "score", {"texts": [" "]})["scores"]
    assert (blank["pieces"], blank["nats_per_piece"], blank["bits_per_character"]) == ([], None, None)


@pytest.mark.parametrize("head", ["classification", "regression", "token_classification", "question_answering"])
def test_predictions_of_two_clients_are_those_of_the_library(serve, tokenizer, head):
    model = random_model(dataclasses.replace(SMALL, vocab_size=800), HEADS[head], tokenizer)
    server = serve(model)
    inputs = {
        "token_classification": [["It", "is", "true"], ["She", "was"]],
        "question_answering": [{"question": "Who?", "context": text} for text in TEXTS],
    }.get(head, [TEXTS[0], [TEXTS[1], TEXTS[2]]])
    found = ask_together(server, [("predict", {"inputs": inputs}), ("predict", {"inputs": inputs[:1]})])
    as_tuples = [tuple(one) if head != "token_classification" and isinstance(one, list) else one for one in inputs]
    expected = server.service.model.predict(as_tuples)
    for rows, (_, answer) in zip((expected, expected[:1]), found, strict=True):
        for row, one in zip(rows, answer["predictions"], strict=True):
            value = list(row.value) if isinstance(row.value, tuple) else row.value
            assert one["value"] == (pytest.approx(value, abs=1e-4) if isinstance(value, float) else value)
            assert one["probabilities"] == pytest.approx(row.probabilities, abs=2e-5)
    assert server.about["task"] == head
    status, text = send(server, "/fill", {"text": TEXTS[0]})
    assert (status, "has a head for" in text) == (400, True)
    status, text = send(server, "/predict", {"inputs": [5]})
    assert status == 400
    assert text.count("\n") == 1


def test_a_causal_network_continues_and_a_masked_one_fills_nothing(serve, tokenizer):
    causal = random_model(dataclasses.replace(CAUSAL, vocab_size=800), tokenizer=tokenizer)
    server = serve(causal)
    assert server.about["fills_gaps"] is False
    found = ask(server, "fill", {"text": TEXTS[0], "max_new_tokens": 4, "seed": 2})
    assert found["text"] == xlnet_jax.generate(causal, TEXTS[0], max_new_tokens=4, seed=2)[0].text
    status, text = send(server, "/fill", {"text": GAPS})
    assert status == 400
    assert json.loads(text)["error"].endswith("reads from left to right: give one to continue")

    server = serve(random_model(dataclasses.replace(BERT, vocab_size=800), tokenizer=tokenizer))
    assert "predicts masked pieces" in server.about["can"]["fill"] or "in no order" in server.about["can"]["fill"]
    assert server.about["score_order"] == "pseudo"
    assert "pseudo_log_likelihood" in ask(server, "score", {"texts": [TEXTS[0]]})["scores"][0]


# ---- several clients -------------------------------------------------------------------------------------------------


def test_concurrent_requests_are_one_batch_with_the_numbers_of_each_alone(server, monkeypatch):
    """Draws of several seeds and lengths, scores, and vectors."""
    requests = [
        ("fill", {"text": GAPS, "seed": 1, "gap_pieces": [4, 1]}),
        ("fill", {"text": "She ___ the sea", "seed": 7}),
        ("score", {"texts": TEXTS[:1]}),
        ("score", {"texts": TEXTS[1:]}),
        ("embed", {"texts": TEXTS[:2]}),
        ("embed", {"texts": TEXTS[2:]}),
        ("score", {"texts": TEXTS[:1], "orders": ["right-to-left"]}),  # other work, another batch
    ]
    alone = [ask(server, *request) for request in requests]
    batches = []

    def watch(owner, name, count):
        function = getattr(owner, name)

        def watched(*args, **settings):
            batches.append((name, count(args)))
            return function(*args, **settings)

        monkeypatch.setattr(owner, name, watched)

    watch(Sampler, "draw", lambda args: len(args[1]))
    for name in ("score_texts", "embed_texts"):
        watch(service, name, lambda args: len(args[1]))
    together = ask_together(server, requests)
    assert sorted(batches) == [("draw", TOGETHER), ("embed_texts", 3), ("score_texts", 1), ("score_texts", 3)]
    for (status, found), expected in zip(together, alone, strict=True):
        assert status == 200
        flat, other = ({**one, **(one.get("scores") or [{}])[-1]} for one in (found, expected))
        for name in ("text", "pieces", "passes"):
            assert flat.get(name) == other.get(name)
        for name in ("log_probs", "log_likelihood", "vectors"):
            if name in other:
                np.testing.assert_allclose(flat[name], other[name], atol=2e-5)


def test_a_mistake_spoils_no_other_request_of_its_batch(server):
    requests = [("score", {"texts": [text], "orders": ["1 0"]}) for text in (TEXTS[0], "A list")]
    (wrong, line), (right, found) = ask_together(server, requests)
    assert (wrong, right) == (400, 200), (line, found)
    assert "must have each position" in line["error"]


def test_a_short_request_is_answered_during_a_long_one(server):
    ask(server, "fill", {"text": TEXTS[0], "max_new_tokens": 2})
    ask(server, "embed", {"texts": TEXTS[:1]})
    connection, body = connect(server), {"text": TEXTS[0], "max_new_tokens": MOST_PIECES, "stream": True}
    connection.request("POST", "/fill", json.dumps(body), {"Content-Type": JSON_TYPE})
    stream = connection.getresponse()
    stream.readline()
    ask(server, "embed", {"texts": TEXTS[:1]})
    assert server.batcher._running  # the long one
    connection.close()  # nobody waits for it: it is given up
    stream.close()
    end = time.monotonic() + 60
    while server.batcher._running:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_too_many_waiting_requests_are_refused(server, monkeypatch):
    monkeypatch.setattr(batching, "MOST_WAITING", 0)
    status, text = send(server, "/embed", {"texts": TEXTS})
    assert (status, json.loads(text)["error"]) == (503, "too many requests wait: try again later")


def test_closing_ends_all_threads_also_with_clients(model, tmp_path):
    xlnet_jax.save(model, tmp_path / "model")
    before = set(threading.enumerate())
    server = Server(0)
    server.start(Service(str(tmp_path / "model"), None), {})
    idle, busy = connect(server), connect(server)
    idle.connect()
    busy.request(
        "POST", "/fill", json.dumps({"text": TEXTS[0], "max_new_tokens": MOST_PIECES, "stream": True}),
        {"Content-Type": JSON_TYPE},
    )  # fmt: skip
    stream = busy.getresponse()
    stream.readline()
    server.close()
    assert set(threading.enumerate()) <= before
    assert json.loads(stream.read().splitlines()[-1]) == {"error": "the server stops"}
    assert is_closed(server.server_address)
    idle.close()


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status", "line"),
    [
        ({"Host": "evil.example"}, 403, "not for another host"),
        ({"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}, 403, "not for another host"),
        ({"Host": "127.0.0.1.evil.example:80"}, 403, "not for another host"),
        ({"Origin": "http://evil.example"}, 403, "no page of another site"),
        ({"Origin": "null"}, 403, "no page of another site"),
        ({"Origin": "http://localhost:3000"}, 403, "no page of another site"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "no page of another site"),
        ({"Content-Type": "text/plain"}, 415, "must have the header Content-Type: application/json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "must have the header Content-Type"),
        ({"Content-Length": "-5"}, 411, "must have the header Content-Length"),
        ({"Transfer-Encoding": "chunked"}, 411, "must have the header Content-Length"),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200, ""),  # through a tunnel
        ({"Host": "[::1]:1"}, 200, ""),
        ({"Content-Type": "application/json; charset=utf-8"}, 200, ""),
    ],
)
def test_requests_of_other_sites_and_types_are_refused(server, headers, status, line):
    found, text = send(server, "/embed", {"texts": TEXTS}, {"Content-Type": JSON_TYPE, **headers})
    assert found == status
    assert line in json.loads(text).get("error", "")
    if "Host" in headers or "Origin" in headers:
        assert send(server, "/", headers=headers)[0] == status


@pytest.mark.parametrize("size", [200_000, 700_000])
def test_a_request_of_megabytes_gets_a_line(server, size):
    status, text = send(server, "/score", {"texts": ["word " * size]})
    assert (status, text.count("\n")) == (413, 1)
    assert json.loads(text)["error"].startswith(f"a request may have at most {MOST_BYTES:,} bytes, not ")
    connection = connect(server)  # without a single byte of the body
    connection.putrequest("POST", "/score")
    for name, value in (("Content-Type", JSON_TYPE), ("Content-Length", "9" * 400)):
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413


@pytest.mark.parametrize(
    ("kind", "body", "line"),
    [
        ("fill", b"{", "a request is not JSON (Expecting property name"),
        ("fill", b"\xff", "a request is not JSON ("),
        ("fill", b"[" * 60_000, "a request is not JSON ("),
        ("fill", b'{"text": "a", "temperature": NaN}', "`temperature` nan must be"),
        ("fill", b'{"text": "a", "seed": %s}' % (b"9" * 5_000), "a request is not JSON ("),
        ("fill", [1], "must be a JSON object, in braces"),
        ("fill", {}, "`text` must be a text"),
        ("fill", {"text": ["a"]}, "`text` must be a text"),
        ("fill", {"text": "a", "prompt_file": "/etc/passwd"}, 'a request has no "prompt_file"'),
        ("fill", {"text": "a", "picture": "a.png"}, 'a request has no "picture"'),
        ("fill", {"text": "a", "temperature": -1}, "`temperature` -1.0 must be at least 0"),
        ("fill", {"text": "a", "temperature": "hot"}, "`temperature`"),
        ("fill", {"text": "a", "order": "up"}, "`order`"),
        ("fill", {"text": "a", "parallel": {"a": 1}}, "parallel"),
        ("fill", {"text": "a", "seed": 2**32}, "`seed` 4294967296 must be below 2^31"),
        ("fill", {"text": "a", "stream": 1}, "`stream` must be true or false"),
        ("fill", {"text": "It is \ud800"}, "`text` contains half a character"),
        ("fill", {"text": "It is", "prefix": "\0"}, "contains a zero byte"),
        ("fill", {"text": "It is", "max_new_tokens": 10**6}, "1,000,000 pieces are open, but a request may have at"),
        ("fill", {"text": "It ___ a", "gap_pieces": [1, 2]}, "`gap_pieces` has 2 numbers"),
        ("fill", {"text": "It is", "stop": ["Zebedee"]}, "`stop` 'Zebedee' is not in the vocabulary"),
        ("score", {"texts": []}, "`texts` must be a list of at least one text"),
        ("score", {"texts": [1]}, "`texts`: number 0 (from 0) is not text: 1"),
        ("score", {"texts": ["It is"], "orders": ["up"]}, "`orders` up: give one or several of left-to-right"),
        ("score", {"texts": ["It is"], "orders": ["random:900000000000"]}, "give fewer orders, or a shorter text"),
        ("score", {"texts": ["It is " * 500], "orders": ["pseudo"]}, "give fewer orders, or a shorter text"),
        ("embed", {"texts": ["It is"], "layer": 9}, "`layer` 9 does not exist"),
        ("embed", {"texts": ["It is"], "out": "a.npy"}, 'a request has no "out"'),
        ("predict", {"inputs": ["It is"]}, "the checkpoint is not finetuned to predict"),
    ],
)
def test_a_mistake_in_a_request_gets_one_line(server, kind, body, line):
    status, text = send(server, f"/{kind}", body)
    assert (status, text.count("\n")) == (400, 1), text
    assert line in json.loads(text)["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/fill", 405), ("GET", "/../setup.cfg", 404), ("POST", "/health", 404), ("PUT", "/fill", 501)],
)
def test_there_is_nothing_else(server, method, path, status):
    found, text = send(server, path, b"{}", method=method)
    assert (found, text.count("\n")) == (status, 1)
    assert json.loads(text)["error"]
