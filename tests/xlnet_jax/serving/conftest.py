"""A server of a network with random weights, and requests to it."""

import dataclasses
import http.client
import json
import socket
import threading

import pytest

import xlnet_jax
from data_pipelines.tokenizer import Tokenizer, TokenizerSettings
from tests.xlnet_jax.random_models import SMALL, random_model
from xlnet_jax.serving.batching import Work
from xlnet_jax.serving.server import Server
from xlnet_jax.serving.service import Service

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="session")
def tokenizer(reference):
    return Tokenizer((reference / "data" / "spiece.model").read_bytes(), TokenizerSettings())


@pytest.fixture(scope="session")
def model(tokenizer):
    return random_model(dataclasses.replace(SMALL, vocab_size=800, mem_len=60), tokenizer=tokenizer)  # context 68


@pytest.fixture(scope="session")
def serve(tmp_path_factory):
    """A function that returns the running server of a model."""
    servers = []

    def start(model):
        folder = tmp_path_factory.mktemp("model") / "native"
        xlnet_jax.save(model, folder)
        servers.append(Server(0))
        service = Service(str(folder), None)
        servers[-1].start(service, {"checkpoint": "native", **service.about()})
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def server(serve, model):
    return serve(model)


def connect(server):
    return http.client.HTTPConnection(*server.server_address, timeout=120)


def send(server, path, body=None, headers=JSON, method=None):
    """Return the status and the body of an answer. body: bytes, or what JSON can hold."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    connection = connect(server)
    connection.request(method or ("GET" if body is None else "POST"), path, data, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def ask(server, kind, body):
    """Return the answer to a good request."""
    status, text = send(server, f"/{kind}", body)
    assert status == 200, text
    return json.loads(text)


def ask_together(server, requests):
    """Return the answers to requests that all wait before the first is computed."""
    begun, released, found = threading.Event(), threading.Event(), [None] * len(requests)

    def hold(*_):
        begun.set()
        released.wait()
        yield [None]

    def one(i, kind, body):
        found[i] = send(server, f"/{kind}", body)

    server.batcher.ask(Work(hold, (), 1), None)
    begun.wait()
    threads = [threading.Thread(target=one, args=(i, *request)) for i, request in enumerate(requests)]
    for thread in threads:
        thread.start()
    while server.batcher._waiting.qsize() < len(requests):
        pass
    released.set()
    for thread in threads:
        thread.join()
    return [(status, json.loads(text)) for status, text in found]


def is_closed(address):
    with socket.socket() as probe:
        return probe.connect_ex(address) != 0
