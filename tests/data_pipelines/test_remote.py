"""Text on the web and in S3 is read as on disk; each failure of a network is one line, with the exit code it needs."""

import gzip
import io
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from fsspec.registry import _registry as registry

from data_pipelines import remote, sources
from data_pipelines.corpus import Corpus
from data_pipelines.remote import Unreachable
from data_pipelines.tokenizer import Tokenizer
from tests.web import Buckets, Web, serving
from xlnet_jax.__main__ import COMMANDS
from xlnet_jax.errors import RESTART, InputError, exit_code
from xlnet_jax.settings.config import Config
from xlnet_jax.training.resolve import Text
from xlnet_jax.training.workdir import Workdir

prepare_command = COMMANDS["prepare"]

LINES = [f"line {number} of the text" for number in range(2_000)]
TEXT = "\n".join(LINES).encode()
READ = [*LINES, sources.DOCUMENT_END]


def parquet(rows, **columns):
    file = io.BytesIO()
    pq.write_table(pa.table({"text": rows, **columns}), file, row_group_size=100)
    return file.getvalue()


FORMS = {
    "a.txt": TEXT,
    "a.txt.gz": gzip.compress(TEXT),
    "A.TXT.ZST": zstd.compress(TEXT),
    "a.jsonl": b'{"text": "%s"}' % TEXT.replace(b"\n", b"\\n"),
    "a.parquet": parquet(["\n".join(LINES)]),
}


def lines_of(*names):
    return list(sources.read_lines(sources.find(names)))


@pytest.fixture
def web():
    pytest.importorskip("aiohttp", reason="the extra [https] is not installed")
    with serving(Web()) as started:
        yield started


@pytest.fixture
def s3(monkeypatch):
    s3fs = pytest.importorskip("s3fs", reason="the extra [s3] is not installed")
    with serving(Buckets()) as started:
        for name, value in {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "mine"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", started.url)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        s3fs.S3FileSystem.clear_instance_cache()
        yield started
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("name", FORMS)
def test_a_file_on_the_web_is_read_by_its_name_whatever_its_query(web, name):
    web.files[f"/{name}"] = FORMS[name]
    web.types[f"/{name}"] = "application/octet-stream"
    url = f"{web.url}/{name}?token=secret.html"
    (source,) = sources.find([url])
    assert source.name == "a" or name == "A.TXT.ZST"
    assert source.units[0].size == len(FORMS[name])
    assert lines_of(url) == READ


def test_a_broken_download_may_be_tried_again(web):
    web.files["/a.txt"] = TEXT
    found = sources.find([f"{web.url}/a.txt"])
    web.cuts = [10_000]
    with pytest.raises(Unreachable, match=r"the network or the server failed .*; run the same command again to") as e:
        list(sources.read_lines(found))
    assert exit_code(e.value) == RESTART
    assert list(sources.read_lines(found)) == READ


def test_of_a_large_table_in_s3_only_the_text_is_fetched(s3, monkeypatch):
    monkeypatch.setattr(remote, "BLOCK_BYTES", 4_096)
    unread = [np.random.default_rng(number).bytes(2_000) for number in range(2_000)]
    table = s3.files["/bucket/t.parquet"] = parquet(LINES, another=unread)
    assert len([line for line in lines_of("s3://bucket/t.parquet") if line]) == len(LINES)
    fetched = [tuple(map(int, asked[2].removeprefix("bytes=").split("-"))) for asked in s3.asked if asked[2]]
    assert 0 < sum(last - first + 1 for first, last in fetched) < len(table) / 2


@pytest.mark.parametrize(
    ("path", "message", "code"),
    [
        ("/none.txt", r"none\.txt: no such file, commit or host \(HTTP 404\)", 2),
        ("/secret.txt", r"it does not exist, or you have no permission to read it \(HTTP 403\)", 2),
        ("/busy.txt", r"the network or the server failed \(HTTP 503\); run the same command again", RESTART),
        ("/page", r"this is a web page; give the address of the file itself", 2),
        ("http://127.0.0.1:9/a.txt", "the network or the server failed", RESTART),
        ("http://no-such-host.invalid/a.txt", "no such file, commit or host", 2),
    ],
)
def test_what_the_web_does_not_give_is_told_in_one_line(web, path, message, code):
    web.status = {"/secret.txt": 403, "/busy.txt": 503}
    web.files["/page"], web.types["/page"] = b"<html>", "text/html; charset=utf-8"
    with pytest.raises(InputError, match=message) as error:
        sources.find([web.url + path if path.startswith("/") else path])
    assert exit_code(error.value) == code
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("s3://b/a.txt", "s3fs", "s3"), ("https://h/a.txt", "aiohttp", "https"), ("hf:wikitext", "huggingface_hub", "hub"),
     ("hf://datasets/a/b/c.txt", "huggingface_hub", "hub")],
)  # fmt: skip
def test_a_missing_package_names_its_extra(monkeypatch, name, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    for registered in ("s3", "https", "hf"):
        monkeypatch.delitem(registry, registered, raising=False)
    with pytest.raises(InputError, match=rf"{name}: reading it needs .* pip install -e '\.\[{extra}\]'"):
        sources.find([name])


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("texts/news.jsonl.zst", "news"),
        ("tfds:wikipedia/20230601.en[train[:10%]]", "wikipedia-20230601.en"),
        ("gs://bucket/books/*.txt.gz", "books"),
        ("https://host/news.txt.gz?version=2", "news"),
        ("s3://bucket/folder/*.txt", "folder"),
        ("hf:wikitext/wikitext-2-raw-v1:train", "wikitext-wikitext-2-raw-v1"),
        ("hf:me/mine@0123abc/en", "me-mine-en"),
    ],
)
def test_sources_have_short_names(name, short):
    assert sources.describe(name) == short


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("s3://bucket/a.txt", ["a.txt"]),
        ("s3://bucket/more", ["more/a.jsonl", "more/deep/a.parquet"]),
        ("s3://bucket/*.txt*", ["a.txt", "a.txt.gz"]),
        ("s3://bucket/more/**/a.*", ["more/a.jsonl", "more/deep/a.parquet"]),
    ],
)
def test_files_folders_and_globs_are_found_in_s3(s3, name, keys):
    paths = {"a.txt": "a.txt", "a.txt.gz": "a.txt.gz", "more/a.jsonl": "a.jsonl", "more/deep/a.parquet": "a.parquet"}
    s3.files = {f"/bucket/{path}": FORMS[form] for path, form in paths.items()}
    s3.files |= {"/bucket/more/.hidden.txt": b"x", "/bucket/more/README.md": b"x", "/bucket/more/": b""}
    (source,) = sources.find([name])
    assert [unit.path for unit in source.units] == [f"s3://bucket/{key}" for key in keys]
    assert [unit.size for unit in source.units] == [len(FORMS[paths[key]]) for key in keys]
    assert lines_of(name) == READ * len(keys)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s3://bucket/none.txt", "s3://bucket/none.txt: no such file"),
        ("s3://bucket/*.md", "no files found"),
        ("s3://none/a.txt", "s3://none/a.txt: no such file"),
        (
            "s3://bucket/closed.txt",
            r"it does not exist, or you have no permission to read it \(HTTP 403\): set AWS_PROFILE, or",
        ),
        ("s3://bucket/corpus", "a prepared corpus or TFDS dataset must be on disk or in gs://"),
    ],
)
def test_what_s3_does_not_give_is_told_in_one_line(s3, name, message):
    s3.files = {"/bucket/a.txt": TEXT, "/bucket/closed.txt": b"", "/bucket/corpus/manifest.json": b"{}"}
    s3.status = {"/bucket/closed.txt": 403}
    with pytest.raises(InputError, match=message) as error:
        sources.find([name])
    assert exit_code(error.value) == 2


def test_no_credentials_are_told_in_one_line(s3, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/none")
    with pytest.raises(InputError, match=r"permission to read it .*: set AWS_PROFILE, or .* FSSPEC_S3_ANON=true"):
        sources.find(["s3://bucket/a.txt"])


def test_commands_take_a_web_address(web, tmp_path):
    web.files["/a.txt"] = TEXT
    url = f"{web.url}/a.txt?key=secret"
    Tokenizer.train(iter(LINES), 200, "nfkc").save(tmp_path / "tokenizer")
    command = f"--source {url} --tokenizer {tmp_path}/tokenizer --out {tmp_path}/corpus --block-len 64"
    assert prepare_command.main(command.split()) == 0
    record = Corpus(tmp_path / "corpus").manifest.origins["train"]
    file = [f"{web.url}/a.txt", len(TEXT), web.file(TEXT).headers["ETag"]]
    assert record == [{"name": f"{web.url}/a.txt", "commit": None, "files": [file]}]
    web.asked.clear()
    assert prepare_command.main(command.split()) == 0
    assert [method for method, *_ in web.asked] == ["HEAD"]
    web.files["/a.txt"] = TEXT.upper()
    with pytest.raises(InputError, match="its training text differs"):
        prepare_command.main(command.split())
    text = Text.of(Config(corpus=(url,)))
    assert (text.name, text.prepared, text.train[0].units[0].path) == ("a", None, url)


def test_a_run_keeps_where_its_text_came_from_beside_its_fingerprints(tmp_path):
    workdir = Workdir(tmp_path)
    workdir.claim_text({"train": ["abc"]}, {"train": [{"name": "hf:me/story", "commit": "0123"}]})
    assert json.loads(workdir.text.read_text())["origins"]["train"][0]["commit"] == "0123"
    workdir.claim_text({"train": ["abc"]}, {})
    assert json.loads(workdir.text.read_text()) == {"format_version": 1, "train": ["abc"]}
