"""A server that stands in for Google Cloud Storage: its JSON API over the files of a folder on this machine.

The libraries are the real ones and reach it by their own settings: ArrayRecord and TensorStore by the address of an
emulator, and TensorFlow, which knows one address alone, through a proxy with a certificate of its own.
"""

import contextlib
import json
import os
import re
import ssl
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from tests import web
from tests.web import Answer, Request, answer_json, listing

CERTIFICATE = Path(__file__).parent / "googleapis.pem"
"""A certificate of nobody: it and its key are made for tests, and only they trust it"""


class Bucket(web.Web):
    """Objects as files below a folder, whose first level holds the buckets. An object is there when it is whole."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder
        self.uploads: dict[str, list] = {}  # address of an upload in parts: [bucket, name, content so far]
        self.markers: set[str] = set()  # empty objects such as bucket/folder/, by which clients make a folder
        self.made: list[str] = []  # bucket/name of each object in the order of their making

    def names(self, bucket: str) -> list[str]:
        root = self.folder / bucket
        files = [str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()]
        return sorted(files + [m.partition("/")[2] for m in self.markers if m.startswith(f"{bucket}/")])

    def content(self, bucket: str, name: str) -> bytes | None:
        if f"{bucket}/{name}" in self.markers:
            return b""
        path = self.folder / bucket / name
        return path.read_bytes() if path.is_file() else None

    def put(self, bucket: str, name: str, content: bytes) -> dict:
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
        return {
            "kind": "storage#object", "name": name, "bucket": bucket,
            "size": str(len(self.content(bucket, name) or b"")), "generation": str(self.generation(bucket, name)),
            "metageneration": "1",
            "updated": "2026-01-01T00:00:00.000Z", "timeCreated": "2026-01-01T00:00:00.000Z",
        }  # fmt: skip

    def answer(self, request: Request) -> Answer:
        path, query = request.path, request.query
        if path.startswith("/upload/session/"):
            return self._take_part(path.rpartition("/")[2], request)
        if found := re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", path):
            return self._begin_upload(found[1], request)
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/o/([^/]+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)", path):
            return self._copy(*map(unquote, found.groups()))
        if re.fullmatch(r"/storage/v1/b/[^/]+/storageLayout", path):
            return answer_json({"hierarchicalNamespace": {"enabled": False}})
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)", path):
            there = (self.folder / found[1]).is_dir()
            return answer_json({"name": found[1], "location": "US"}) if there else Answer(404)
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/o/?", path):
            return answer_json(self._page(found[1], query))
        if found := re.fullmatch(r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)", path):
            return self._object(*map(unquote, found.groups()), request, media=query.get("alt") == "media")
        if found := re.fullmatch(r"/([^/]+)/(.+)", path):  # the older API
            return self._object(*map(unquote, found.groups()), request, media=True)
        return Answer(400)

    def _page(self, bucket: str, query: dict[str, str]) -> dict:
        keys, folders = listing(self.names(bucket), query.get("prefix", ""), query.get("delimiter", ""))
        return {
            "kind": "storage#objects",
            "items": [self.about(bucket, name) for name in keys],
            "prefixes": folders,
        }

    def _object(self, bucket: str, name: str, request: Request, media: bool) -> Answer:
        content, generation = self.content(bucket, name), str(self.generation(bucket, name))
        if content is None:
            return Answer(404, f"No such object: {bucket}/{name}".encode())
        if request.method == "DELETE":
            if request.query.get("ifGenerationMatch", generation) != generation:
                return Answer(412)
            self.delete(bucket, name)
            return Answer(204)
        if not media:
            return answer_json(self.about(bucket, name))
        if request.query.get("ifGenerationNotMatch") == generation:
            return Answer(304)
        size = str(len(content))
        headers = {"x-goog-generation": generation, "ETag": f'"{generation}"', "x-goog-stored-content-length": size}
        return Answer(200, content, headers)

    def _begin_upload(self, bucket: str, request: Request) -> Answer:
        query, body, name = request.query, request.body, request.query.get("name")
        if not (self.folder / bucket).is_dir():
            return Answer(404)
        if query["uploadType"] == "resumable":
            address = uuid.uuid4().hex
            self.uploads[address] = [bucket, name or json.loads(body)["name"], b""]
            return Answer(200, b"", {"Location": f"{request.origin}/upload/session/{address}"})
        if query["uploadType"] == "multipart":
            boundary = re.search(r'boundary="?([^";]+)', request.headers["Content-Type"])[1]
            about, body = (part.partition(b"\r\n\r\n")[2][:-2] for part in body.split(b"--" + boundary.encode())[1:3])
            name = name or json.loads(about)["name"]
        there = self.generation(bucket, name)
        if int(query.get("ifGenerationMatch", there)) != there:
            return Answer(412)
        return answer_json(self.put(bucket, name, body))

    def _take_part(self, address: str, request: Request) -> Answer:
        upload = self.uploads[address]
        upload[2] += request.body
        total = request.headers.get("Content-Range", "").rpartition("/")[2]
        if total == "*" or (total and len(upload[2]) < int(total)):
            there = {"Range": f"bytes=0-{len(upload[2]) - 1}"} if upload[2] else {}
            return Answer(308, b"", there)
        return answer_json(self.put(*upload))

    def _copy(self, bucket_from: str, name: str, bucket_to: str, new: str) -> Answer:
        content = self.content(bucket_from, name)
        if content is None:
            return Answer(404)
        size, about = str(len(content)), self.put(bucket_to, new, content)
        return answer_json({"done": True, "objectSize": size, "totalBytesRewritten": size, "resource": about})


@contextlib.contextmanager
def serving(bucket: Bucket) -> Iterator[dict[str, str]]:
    """Serve on a free port of this machine while the body works. Yield the environment that leads libraries to it."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)
    with web.serving(bucket, tls):
        yield {
            **dict.fromkeys(
                ("CLOUD_STORAGE_EMULATOR_ENDPOINT", "STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL", "https_proxy"),
                bucket.url,
            ),
            "CURL_CA_BUNDLE": str(CERTIFICATE),
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
            "GCS_STAT_CACHE_MAX_AGE": "0",  # tests write into the folder itself, and use its names again
            "NO_GCE_CHECK": "true",
        }
