"""Servers on this machine that stand in for the web, for S3 and for the Hugging Face Hub."""

import base64
import contextlib
import hashlib
import json
import re
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

TOKEN = "hf_right"
_ATTRIBUTES = b"*.safetensors filter=lfs\n"  # every repository of models has them


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    origin: str
    """scheme and host by which the client reached the server"""


@dataclass
class Answer:
    """A response, before a range of it is chosen."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def answer_json(content, status: int = 200) -> Answer:
    return Answer(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


@dataclass
class Web:
    """Files by their paths, and how the server misbehaves."""

    files: dict[str, bytes] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)  # content type of a path
    status: dict[str, int] = field(default_factory=dict)  # answer to a path in place of its file
    cuts: list[int] = field(default_factory=list)  # bytes after which each of the next responses to GET breaks off
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path with query, range
    url: str = ""

    def answer(self, request: Request) -> Answer:
        path = request.path
        return self.file(self.files[path], self.types.get(path, "text/plain")) if path in self.files else Answer(404)

    def file(self, body: bytes, content_type: str = "application/octet-stream") -> Answer:
        return Answer(200, body, {"Content-Type": content_type, "ETag": f'"{hashlib.md5(body).hexdigest()}"'})


@dataclass
class Buckets(Web):
    """S3, with the buckets as first folders of the paths."""

    def answer(self, request):
        path, query = request.path, request.query
        bucket = path.split("/")[1]
        if not any(name.startswith(f"/{bucket}/") for name in self.files):
            return Answer(404, b"<Error><Code>NoSuchBucket</Code><Message>no such bucket</Message></Error>")
        if "list-type" not in query:
            return Answer(200) if path.strip("/") == bucket else super().answer(request)
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        keys, folders = listing(
            [name.removeprefix(f"/{bucket}/") for name in self.files if name.startswith(f"/{bucket}/")],
            prefix, delimiter,
        )  # fmt: skip
        parts = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(body)}</Size><ETag>{self.file(body).headers['ETag']}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for key in keys
            for body in [self.files[f"/{bucket}/{key}"]]
        ]
        parts += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders]
        head = f"<Name>{bucket}</Name><KeyCount>{len(parts)}</KeyCount><IsTruncated>false</IsTruncated>"
        listed = f"<ListBucketResult>{head}{''.join(parts)}</ListBucketResult>"
        return Answer(200, listed.encode(), {"Content-Type": "application/xml"})


def listing(names, prefix: str, delimiter: str) -> tuple[list[str], list[str]]:
    """Return the names with this prefix, in order, and the folders that a delimiter makes of the longer ones."""
    keys, folders = [], set()
    for name in sorted(names):
        if name.startswith(prefix):
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            folders.add(prefix + head + found) if found else keys.append(name)
    return keys, sorted(folders)


@dataclass
class Dataset:
    """A repository of the Hub: {revision: {path: content}}, and the field `configs` of its card."""

    revisions: dict[str, dict[str, bytes]]
    configs: list[dict] = field(default_factory=list)

    def commit(self, revision: str) -> str:
        """Return the commit of a branch or of itself: 40 hexadecimal digits that its files decide."""
        if revision in self.revisions:
            return _sha1(repr(sorted(self.revisions[revision].items())).encode())
        return revision

    def tree(self, revision: str) -> dict[str, bytes] | None:
        """Return the files of a branch or commit; commits of a branch are kept when it moves on."""
        for branch in list(self.revisions):
            self.revisions.setdefault(self.commit(branch), dict(self.revisions[branch]))
        return self.revisions.get(revision)


@dataclass
class Hub(Web):
    """The Hub's API: datasets, and models, which can be uploaded, by their full names; `moved` holds old names."""

    datasets: dict[str, Dataset] = field(default_factory=dict)
    models: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)  # name -> revision -> file -> content
    moved: dict[str, str] = field(default_factory=dict)
    private: dict[str, str] = field(default_factory=dict)  # the token that a dataset needs
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)  # files that it fails to give
    may_write: bool = True
    stored: dict[str, bytes] = field(default_factory=dict)  # large files, by their SHA-256

    def add(self, name, folder: Path, revision="main"):
        files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        self.models.setdefault(name, {})[revision] = {".gitattributes": _ATTRIBUTES, **files}

    def commit(self, name, revision="main"):
        return Dataset(self.models[name]).commit(revision)

    def fetched(self):
        """Return the names of the files whose content was asked for since the last call, and forget all questions."""
        files = [path.partition("/resolve/")[2].partition("/")[2] for verb, path, _ in self.asked if verb == "GET"]
        self.asked.clear()
        return sorted(filter(None, files))

    def answer(self, request):
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        path = request.path
        if path == "/api/whoami-v2":
            return answer_json({"name": "me"}) if token == TOKEN else _refuse(401, "", "Invalid user token")
        if request.method in ("POST", "PUT"):
            return self._write(request)
        if found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._give(self._repository(*found.groups()[:2], token), found[2], *map(unquote, found.groups()[2:]))
        form = r"/api/(datasets/|models/)(?P<id>.+?)(/(?P<what>revision|tree)/(?P<rev>[^/]+)(/(?P<path>.*))?)?"
        if not (found := re.fullmatch(form, path)):
            return Answer(404)
        repository, revision = self._repository(found[1], found["id"], token), unquote(found["rev"] or "main")
        if repository is None:  # whoever has no token does not learn what exists
            return _refuse(401, "RepoNotFound", "Repository not found")
        if (tree := repository.tree(revision)) is None:
            return _refuse(404, "RevisionNotFound", "Invalid rev id")
        if found["what"] == "tree":
            return answer_json(
                _entries(tree, unquote(found["path"] or ""), "true" in request.query.get("recursive", ""))
            )
        siblings = [
            {"rfilename": path, "size": len(body), "blobId": _sha1(body)} for path, body in sorted(tree.items())
        ]
        card = {"configs": repository.configs} if repository.configs else {}
        name = self.moved.get(found["id"], found["id"])
        about = {"id": name, "sha": repository.commit(revision), "siblings": siblings, "cardData": card}
        return answer_json(about)

    def _repository(self, kind: str | None, name: str, token: str) -> Dataset | None:
        if kind != "datasets/":
            return Dataset(self.models[name]) if name in self.models else None
        name = self.moved.get(name, name)
        return self.datasets.get(name) if token == self.private.get(name, token) else None

    def _give(self, repository, name, revision, file):
        if name in self.gated and file != ".gitattributes":
            return _refuse(403, "GatedRepo", "Access to model is restricted")
        if file in self.broken:
            return _refuse(500, "", "Internal Error")
        tree = repository.tree(revision)
        if file not in tree:
            return _refuse(404, "EntryNotFound", "Entry not found")
        headers = {"ETag": f'"{_sha1(tree[file])}"', "X-Repo-Commit": repository.commit(revision)}
        return Answer(200, tree[file], {"Accept-Ranges": "bytes", **headers})

    def _write(self, request):
        path, body = request.path, request.body
        if request.method == "PUT":
            self.stored[path.rpartition("/")[2]] = body
            return Answer()
        if path == "/api/validate-yaml":
            return answer_json({"errors": [], "warnings": []})
        if not self.may_write:
            return _refuse(403, "", "You don't have the rights to write here")
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            status = 409 if name in self.models else 200
            self.models.setdefault(name, {"main": {".gitattributes": _ATTRIBUTES}})
            return answer_json({"url": f"{self.url}/{name}", "name": name}, status)
        if "/preupload/" in path:
            form = {"shouldIgnore": False, "oid": None}
            files = [
                {"path": path, "uploadMode": "lfs" if path.endswith(".safetensors") else "regular", **form}
                for path in (file["path"] for file in json.loads(body)["files"])
            ]
            return answer_json({"files": files})
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**o, "actions": {"upload": {"href": f"{self.url}/stored/{o['oid']}"}}}
                for o in json.loads(body)["objects"]
            ]
            return answer_json({"transfer": "basic", "objects": objects})
        name, revision = re.fullmatch(r"/api/models/(.+)/commit/(\w+)", path).groups()
        for line in map(json.loads, body.decode().splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.models[name][revision][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.models[name][revision][value["path"]] = self.stored[value["oid"]]
        commit = self.commit(name)
        return answer_json({"commitUrl": f"{self.url}/{name}/commit/{commit}", "commitOid": commit})


def _entries(tree, folder, recursive):
    prefix = f"{folder}/" if folder else ""
    inside = {path: body for path, body in tree.items() if path.startswith(prefix)}
    deep = {path: path[len(prefix) :].split("/")[:-1] for path in inside}
    folders = {prefix + "/".join(parts[:n]) for parts in deep.values() for n in range(1, len(parts) + 1)}
    return [
        {"type": "directory", "path": path, "oid": path}
        for path in sorted(folders)
        if recursive or "/" not in path[len(prefix) :]
    ] + [
        {"type": "file", "path": path, "size": len(body), "oid": _sha1(body)}
        for path, body in sorted(inside.items())
        if recursive or not deep[path]
    ]


def _refuse(status, code, message):
    return Answer(status, b"", {"X-Error-Code": code, "X-Error-Message": message})


def _sha1(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's acknowledgement of its headers

    def do_CONNECT(self):
        """Accept the client's tunnel, then answer as the server that it asked for."""
        self.send_response(200, "Connection established")
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb", -1), self.connection.makefile("wb", 0)
        self.close_connection = False

    def do_GET(self):
        """Answer a request of any method, or break off where the server is told to."""
        web, parts = self.server.web, urlsplit(self.path)
        wanted = self.headers.get("Range", "")
        web.asked.append((self.command, self.path, wanted))
        scheme = "https" if isinstance(self.connection, ssl.SSLSocket) else "http"
        origin, query = f"{scheme}://{self.headers['Host']}", {k: v[0] for k, v in parse_qs(parts.query).items()}
        request = Request(self.command, parts.path, query, self.headers, self._body(), origin)
        given = Answer(web.status[parts.path]) if parts.path in web.status else web.answer(request)
        body, headers, status = given.body, dict(given.headers), given.status
        if status == 200 and (found := re.fullmatch(r"bytes=(-?\d+)-?(\d*)", wanted)):
            first = int(found[1]) if int(found[1]) >= 0 else max(len(body) + int(found[1]), 0)
            last = min(int(found[2] or len(body) - 1), len(body) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            body, status = (body[first : last + 1], 206) if first < len(body) else (b"", 416)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET" and web.cuts and status in (200, 206):
            body, self.close_connection = body[: web.cuts.pop(0)], True
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *args):
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients end without a word to their open connections


@contextlib.contextmanager
def serving(web: Web, tls: ssl.SSLContext | None = None) -> Iterator[Web]:
    """Serve on a free port of this machine while the body works; `web.url` is the address. tls: of tunnels."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.web, server.tls = web, tls
        web.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield web
        finally:
            server.shutdown()
            thread.join()
