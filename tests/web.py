"""Servers on this machine that stand in for the web, for S3 and for the Hugging Face Hub."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass
class Answer:
    """A response, before a range of it is chosen."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Web:
    """Files by their paths, and how the server misbehaves."""

    files: dict[str, bytes] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)  # content type of a path
    status: dict[str, int] = field(default_factory=dict)  # answer to a path in place of its file
    cuts: list[int] = field(default_factory=list)  # bytes after which each of the next responses to GET breaks off
    ranges: bool = True
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path with query, range
    token: str = ""  # of the last request
    url: str = ""

    def answer(self, path: str, query: dict[str, list[str]]) -> Answer:
        """Return the response to a request of any method."""
        if path in self.status:
            return Answer(self.status[path])
        return self.file(self.files[path], self.types.get(path, "text/plain")) if path in self.files else Answer(404)

    def file(self, body: bytes, content_type: str = "application/octet-stream") -> Answer:
        """Return the response that holds a file."""
        return Answer(200, body, {"Content-Type": content_type, "ETag": f'"{hashlib.md5(body).hexdigest()}"'})


@dataclass
class Buckets(Web):
    """S3, with the buckets as first folders of the paths."""

    def answer(self, path, query):
        """See `Web.answer`."""
        bucket = path.split("/")[1]
        if not any(name.startswith(f"/{bucket}/") for name in self.files):
            return Answer(404, b"<Error><Code>NoSuchBucket</Code><Message>no such bucket</Message></Error>")
        if "list-type" not in query:
            return Answer(200) if path.strip("/") == bucket else super().answer(path, query)
        prefix = query.get("prefix", [""])[0]
        keys = [
            name.removeprefix(f"/{bucket}/") for name in sorted(self.files) if name.startswith(f"/{bucket}/{prefix}")
        ]
        folders = set()
        if "delimiter" in query:
            folders = {prefix + key[len(prefix) :].partition("/")[0] + "/" for key in keys if "/" in key[len(prefix) :]}
            keys = [key for key in keys if "/" not in key[len(prefix) :]]
        parts = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(body)}</Size><ETag>{self.file(body).headers['ETag']}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for key in keys
            for body in [self.files[f"/{bucket}/{key}"]]
        ]
        parts += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
        listed = (
            f"<Name>{bucket}</Name><KeyCount>{len(parts)}</KeyCount><IsTruncated>false</IsTruncated>{''.join(parts)}"
        )
        return Answer(
            200, f"<ListBucketResult>{listed}</ListBucketResult>".encode(), {"Content-Type": "application/xml"}
        )


@dataclass
class Dataset:
    """A dataset of the Hub: {revision: {path: content}}, and the field `configs` of its card."""

    revisions: dict[str, dict[str, bytes]]
    configs: list[dict] = field(default_factory=list)

    def commit(self, revision: str) -> str:
        """Return the commit of a branch or of itself."""
        if revision in self.revisions:
            content = repr(sorted(self.revisions[revision].items())).encode()
            return hashlib.sha1(revision.encode() + content).hexdigest()
        return revision

    def tree(self, revision: str) -> dict[str, bytes] | None:
        """Return the files of a branch or commit; commits of `main` are kept when it moves on."""
        if revision in self.revisions:
            self.revisions.setdefault(self.commit(revision), dict(self.revisions[revision]))
        return self.revisions.get(revision)


@dataclass
class Hub(Web):
    """The Hub's API for datasets, by their full names; `moved` holds old names."""

    datasets: dict[str, Dataset] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    private: dict[str, str] = field(default_factory=dict)  # the token that a dataset needs

    def answer(self, path, query):
        """See `Web.answer`."""
        if path in self.status:
            return Answer(self.status[path])
        if found := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            tree = self.datasets[found[1]].tree(unquote(found[2]))
            return self.file(tree[found[3]])
        found = re.fullmatch(
            r"/api/datasets/(?P<id>.+?)(/(?P<what>revision|tree)/(?P<rev>[^/]+)(/(?P<path>.*))?)?", path
        )
        if not found:
            return Answer(404)
        name = self.moved.get(found["id"], found["id"])
        if name not in self.datasets or self.token != self.private.get(name, self.token):
            return Answer(
                401, b"{}", {"X-Error-Code": "RepoNotFound"}
            )  # whoever has no token does not learn what exists
        dataset, revision = self.datasets[name], unquote(found["rev"] or "main")
        if (tree := dataset.tree(revision)) is None:
            return Answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if found["what"] == "tree":
            return self._json(self._entries(tree, unquote(found["path"] or ""), "true" in query.get("recursive", ())))
        siblings = [{"rfilename": path, "size": len(body), "blobId": _oid(body)} for path, body in sorted(tree.items())]
        card = {"configs": dataset.configs} if dataset.configs else {}
        return self._json({"id": name, "sha": dataset.commit(revision), "siblings": siblings, "cardData": card})

    def _entries(self, tree, folder, recursive):
        prefix = f"{folder}/" if folder else ""
        inside = {path: body for path, body in tree.items() if path.startswith(prefix)}
        deep = {path: path[len(prefix) :].split("/")[:-1] for path in inside}
        folders = {prefix + "/".join(parts[:n]) for parts in deep.values() for n in range(1, len(parts) + 1)}
        return [
            {"type": "directory", "path": path, "oid": path}
            for path in sorted(folders)
            if recursive or "/" not in path[len(prefix) :]
        ] + [
            {"type": "file", "path": path, "size": len(body), "oid": _oid(body)}
            for path, body in inside.items()
            if recursive or not deep[path]
        ]

    def _json(self, content):
        return Answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})


def _oid(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        """Answer, or break off where the server is told to."""
        web: Web = self.server.web
        parts = urlsplit(self.path)
        web.asked.append((self.command, self.path, self.headers.get("Range", "")))
        web.token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        given = web.answer(parts.path if "/resolve/" not in parts.path else unquote(parts.path), parse_qs(parts.query))
        body, headers, status = given.body, dict(given.headers), given.status
        if (
            (wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")))
            and status == 200
            and web.ranges
        ):
            first, last = int(wanted[1]), min(int(wanted[2] or len(body) - 1), len(body) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            body, status = body[first : last + 1], 206
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if web.cuts and status in (200, 206):
            self.wfile.write(body[: web.cuts.pop(0)])
            self.close_connection = True
            return
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)

    do_HEAD = do_POST = do_GET

    def log_message(self, *args):
        """Print nothing."""


@contextlib.contextmanager
def serving(web: Web) -> Iterator[Web]:
    """Serve on a free port of this machine while the body works; `web.url` is the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        server.web = web
        web.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield web
        finally:
            server.shutdown()
            thread.join()
