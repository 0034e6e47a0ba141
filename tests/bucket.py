"""A server that stands in for Google Cloud Storage: its JSON API over the files of a folder on this machine.

The libraries are the real ones and reach it by their own settings: ArrayRecord and TensorStore by the address of an
emulator, and TensorFlow, which knows one address alone, through a proxy with a certificate of its own.
"""

import contextlib
import json
import os
import re
import ssl
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

CERTIFICATE = Path(__file__).parent / "googleapis.pem"
"""A certificate of nobody: it and its key are made for tests, and only they trust it"""


class Bucket:
    """Objects as files below a folder, whose first level holds the buckets. An object is there when it is whole."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.uploads: dict[str, list] = {}  # address of an upload in parts: [bucket, name, content so far]
        self.markers: set[str] = set()  # empty objects such as bucket/folder/, by which clients make a folder
        self.made: list[str] = []  # bucket/name of each object in the order of their making
        self.refused: dict[str, int] = {}  # status of the answer to each method, in place of the work

    def names(self, bucket: str) -> list[str]:
        """Return the names of all objects, in order."""
        root = self.folder / bucket
        files = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
        return sorted(files + [m.partition("/")[2] for m in self.markers if m.startswith(f"{bucket}/")])

    def content(self, bucket: str, name: str) -> bytes | None:
        """Return an object, or None where there is none."""
        if f"{bucket}/{name}" in self.markers:
            return b""
        path = self.folder / bucket / name
        return path.read_bytes() if path.is_file() else None

    def put(self, bucket: str, name: str, content: bytes) -> dict:
        """Make or replace an object, all at once. Return its description."""
        self.made.append(f"{bucket}/{name}")
        if name.endswith("/"):
            self.markers.add(f"{bucket}/{name}")
        else:
            partial = self.folder / f"being-written-{uuid.uuid4().hex}"
            partial.write_bytes(content)
            (self.folder / bucket / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial, self.folder / bucket / name)
        return self.about(bucket, name)

    def delete(self, bucket: str, name: str) -> None:
        """Remove an object, and the folders on this machine that held it alone."""
        self.markers.discard(f"{bucket}/{name}")
        path = self.folder / bucket / name
        if path.is_file():
            path.unlink()
        with contextlib.suppress(OSError):  # a folder with other objects
            for folder in path.parents:
                if folder == self.folder / bucket:
                    break
                folder.rmdir()

    def generation(self, bucket: str, name: str) -> int:
        """Return the number of an object's version; 0 = there is none."""
        if f"{bucket}/{name}" in self.markers:
            return 1
        path = self.folder / bucket / name
        return path.stat().st_mtime_ns if path.is_file() else 0

    def about(self, bucket: str, name: str) -> dict:
        """Return what the API says of an object."""
        return {
            "kind": "storage#object", "name": name, "bucket": bucket,
            "size": str(len(self.content(bucket, name) or b"")), "generation": str(self.generation(bucket, name)),
            "metageneration": "1",
            "updated": "2026-01-01T00:00:00.000Z", "timeCreated": "2026-01-01T00:00:00.000Z",
        }  # fmt: skip

    def listing(self, bucket: str, query: dict[str, str]) -> dict:
        """Return one page of objects, and of the folders that a delimiter makes of their names."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        entries: dict[str, bool] = {}  # name: it is a folder
        for name in self.names(bucket):
            if not name.startswith(prefix):
                continue
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            entries[prefix + head + found if found else name] = bool(found)
        begin, most = int(query.get("pageToken", 0)), int(query.get("maxResults", 1000))
        page = sorted(entries)[begin : begin + most]
        answer = {
            "kind": "storage#objects",
            "items": [self.about(bucket, name) for name in page if not entries[name]],
            "prefixes": [name for name in page if entries[name]],
        }
        if begin + most < len(entries):
            answer["nextPageToken"] = str(begin + most)
        return answer


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
        """Answer a request of any method."""
        bucket, parts = self.server.bucket, urlsplit(self.path)
        path, query = parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self._body()
        if status := bucket.refused.get(self.command):
            return self._answer(status, b"refused")
        if path.startswith("/upload/session/"):
            return self._take_part(path.rpartition("/")[2], body)
        if found := re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", path):
            return self._begin_upload(found[1], query, body)
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)", path):
            return self._copy(*map(unquote, found.groups()))
        if re.fullmatch(r"/storage/v1/b/[^/]+/storageLayout", path):
            return self._json({"hierarchicalNamespace": {"enabled": False}})
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)", path):
            there = (bucket.folder / found[1]).is_dir()
            return self._json({"name": found[1], "location": "US"}) if there else self._answer(404)
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/o/?", path):
            return self._json(bucket.listing(found[1], query))
        if found := re.fullmatch(r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)", path):
            return self._object(*map(unquote, found.groups()), query, media=query.get("alt") == "media")
        if found := re.fullmatch(r"/([^/]+)/(.+)", path):  # the older API
            return self._object(*map(unquote, found.groups()), query, media=True)
        return self._answer(400)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _object(self, name_of_bucket: str, name: str, query: dict, media: bool) -> None:
        bucket = self.server.bucket
        content = bucket.content(name_of_bucket, name)
        wanted = query.get("ifGenerationMatch")
        if self.command == "DELETE":
            if content is None:
                return self._answer(404)
            if wanted is not None and int(wanted) != bucket.generation(name_of_bucket, name):
                return self._answer(412)
            bucket.delete(name_of_bucket, name)
            return self._answer(204)
        if content is None:
            return self._answer(404, f"No such object: {name_of_bucket}/{name}".encode())
        if not media:
            return self._json(bucket.about(name_of_bucket, name))
        generation = str(bucket.generation(name_of_bucket, name))
        if query.get("ifGenerationNotMatch") == generation:
            return self._answer(304)
        size = str(len(content))
        headers = {"x-goog-generation": generation, "ETag": f'"{generation}"', "x-goog-stored-content-length": size}
        if found := re.fullmatch(r"bytes=(-?\d+)-?(\d*)", self.headers.get("Range", "")):
            first = int(found[1]) if int(found[1]) >= 0 else max(len(content) + int(found[1]), 0)
            last = min(int(found[2] or len(content) - 1), len(content) - 1)
            if first >= len(content):
                return self._answer(416)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            return self._answer(206, content[first : last + 1], headers)
        return self._answer(200, content, headers)

    def _begin_upload(self, name_of_bucket: str, query: dict, body: bytes) -> None:
        bucket = self.server.bucket
        if not (bucket.folder / name_of_bucket).is_dir():
            return self._answer(404)
        if query["uploadType"] == "resumable":
            name = query.get("name") or json.loads(body)["name"]
            address = uuid.uuid4().hex
            bucket.uploads[address] = [name_of_bucket, name, b""]
            host = self.headers["Host"]
            scheme = "https" if isinstance(self.connection, ssl.SSLSocket) else "http"
            return self._answer(200, b"", {"Location": f"{scheme}://{host}/upload/session/{address}"})
        name = query.get("name")
        if query["uploadType"] == "multipart":
            boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])[1]
            about, content = (
                part.partition(b"\r\n\r\n")[2][:-2] for part in body.split(b"--" + boundary.encode())[1:3]
            )
            name, body = name or json.loads(about)["name"], content
        wanted = query.get("ifGenerationMatch")
        if wanted is not None and int(wanted) != bucket.generation(name_of_bucket, name):
            return self._answer(412)
        return self._json(bucket.put(name_of_bucket, name, body))

    def _take_part(self, address: str, body: bytes) -> None:
        bucket = self.server.bucket
        upload = bucket.uploads[address]
        upload[2] += body
        total = self.headers.get("Content-Range", "").rpartition("/")[2]
        if total == "*" or (total and len(upload[2]) < int(total)):
            there = {"Range": f"bytes=0-{len(upload[2]) - 1}"} if upload[2] else {}
            return self._answer(308, b"", there)
        return self._json(bucket.put(*upload))

    def _copy(self, bucket_from: str, name: str, bucket_to: str, new: str) -> None:
        content = self.server.bucket.content(bucket_from, name)
        if content is None:
            return self._answer(404)
        size = str(len(content))
        about = self.server.bucket.put(bucket_to, new, content)
        return self._json({"done": True, "objectSize": size, "totalBytesRewritten": size, "resource": about})

    def _json(self, content: dict) -> None:
        self._answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

    def log_message(self, *args):
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Print nothing: clients end without a word to their open connections."""


@contextlib.contextmanager
def serving(bucket: Bucket) -> Iterator[dict[str, str]]:
    """Serve on a free port of this machine while the body works. Yield the environment that leads libraries to it."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.bucket, server.tls = bucket, tls
        address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield {
                "CLOUD_STORAGE_EMULATOR_ENDPOINT": address,
                "STORAGE_EMULATOR_HOST": address,
                "TENSORSTORE_GCS_HTTP_URL": address,
                "https_proxy": address,
                "CURL_CA_BUNDLE": str(CERTIFICATE),
                "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
                "GCS_STAT_CACHE_MAX_AGE": "0",  # tests write into the folder itself, and use its names again
                "NO_GCE_CHECK": "true",
            }
        finally:
            server.shutdown()
            thread.join()
