"""A stand-in of the Hugging Face Hub on this machine, and a process that is its client.

The stand-in answers what the client of huggingface_hub asks: models, revisions, files in ranges, uploads. The client is
a process of its own, because the library reads HF_ENDPOINT when it is imported.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKEN = "hf_right"
_ATTRIBUTES = b"*.safetensors filter=lfs\n"  # every repository has them


class Hub:
    """Models that the stand-in has, as OWNER/NAME -> {revision: {file: bytes}}, and what it was asked."""

    def __init__(self):
        self.models, self.gated, self.asked = {}, set(), []
        self.broken = set()  # files that it fails to give
        self.may_write = True
        self._stored = {}  # of large files, by their SHA-256
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def add(self, name, folder, revision="main"):
        """Have the files of a folder as a revision of a model."""
        files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        self.models.setdefault(name, {})[revision] = {".gitattributes": _ATTRIBUTES, **files}

    def commit(self, name, revision="main"):
        """Return the commit of a revision: 40 hexadecimal digits that its files decide."""
        files = self.models[name][revision]
        return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()

    def fetched(self):
        """Return the names of the files whose content was asked for since the last call, and forget all questions."""
        files = [path.partition("/resolve/")[2].partition("/")[2] for verb, path in self.asked if verb == "GET"]
        self.asked.clear()
        return sorted(filter(None, files))

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def _files(self, name, revision):
        revisions = self.models[name]
        found = next((r for r in revisions if revision in (r, self.commit(name, r))), None)
        return (None, None) if found is None else (self.commit(name, found), revisions[found])

    def _handler(hub):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self._answer()

            def do_GET(self):
                self._answer()

            def do_PUT(self):
                hub._stored[self.path.rpartition("/")[2]] = self._body()
                self._send(200)

            def do_POST(self):
                path, body = self.path, self._body()
                hub.asked.append(("POST", path))
                if path == "/api/validate-yaml":
                    self._json({"errors": [], "warnings": []})
                elif not hub.may_write:
                    self._refuse(403, "", "You don't have the rights to write here")
                elif path == "/api/repos/create":
                    asked = json.loads(body)
                    name = f"{asked.get('organization') or 'me'}/{asked['name']}"
                    exists = name in hub.models
                    hub.models.setdefault(name, {"main": {".gitattributes": _ATTRIBUTES}})
                    self._json({"url": f"{hub.address}/{name}", "name": name}, 409 if exists else 200)
                elif "/preupload/" in path:
                    modes = [
                        {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular"}
                        for f in json.loads(body)["files"]
                    ]
                    self._json({"files": [{**mode, "shouldIgnore": False, "oid": None} for mode in modes]})
                elif path.endswith("/info/lfs/objects/batch"):
                    objects = [
                        {**o, "actions": {"upload": {"href": f"{hub.address}/stored/{o['oid']}"}}}
                        for o in json.loads(body)["objects"]
                    ]
                    self._json({"transfer": "basic", "objects": objects})
                else:
                    name, revision = re.fullmatch(r"/api/models/(.+)/commit/(\w+)", path).groups()
                    for line in map(json.loads, body.decode().splitlines()):
                        value = line["value"]
                        if line["key"] == "file":
                            hub.models[name][revision][value["path"]] = base64.b64decode(value["content"])
                        elif line["key"] == "lfsFile":
                            hub.models[name][revision][value["path"]] = hub._stored[value["oid"]]
                    commit = hub.commit(name)
                    self._json({"commitUrl": f"{hub.address}/{name}/commit/{commit}", "commitOid": commit})

            def _answer(self):
                hub.asked.append((self.command, self.path))
                path = self.path.partition("?")[0]
                if path == "/api/whoami-v2":
                    ours = self.headers.get("Authorization") == f"Bearer {TOKEN}"
                    self._json({"name": "me"}) if ours else self._refuse(401, "", "Invalid user token")
                elif info := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(?:revision|tree)/(.+))?", path):
                    self._tell(info[1], info[2] or "main", "/tree/" in path)
                elif file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                    self._give(*file.groups())
                else:
                    self._refuse(404, "", path)

            def _tell(self, name, revision, as_tree):
                if name not in hub.models:
                    return self._refuse(401, "RepoNotFound", "Repository not found")  # as the Hub does without a token
                commit, files = hub._files(name, revision.replace("%2F", "/"))
                if files is None:
                    return self._refuse(404, "RevisionNotFound", "Invalid rev id")
                if as_tree:
                    return self._json(
                        [{"type": "file", "path": f, "size": len(c), "oid": _id(c)} for f, c in sorted(files.items())]
                    )
                return self._json({"id": name, "sha": commit, "siblings": [{"rfilename": f} for f in sorted(files)]})

            def _give(self, name, revision, file):
                if name in hub.gated and file != ".gitattributes":
                    return self._refuse(403, "GatedRepo", "Access to model is restricted")
                if file in hub.broken:
                    return self._refuse(500, "", "Internal Error")
                commit, files = hub._files(name, revision)
                if file not in files:
                    return self._refuse(404, "EntryNotFound", "Entry not found")
                headers = {"ETag": f'"{_id(files[file])}"', "X-Repo-Commit": commit}
                self._send(200, files[file], headers)

            def _json(self, value, status=200):
                self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

            def _refuse(self, status, code, message):
                self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

            def _send(self, status, content=b"", headers=()):
                self.send_response(status)
                for name, value in {**dict(headers), "Content-Length": len(content)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def _body(self):
                if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

        return Handler


def _id(content):
    return hashlib.sha1(content).hexdigest()


class Client:
    """A process whose Hub is a stand-in. It evaluates Python, with `xlnet_jax` and `hub` imported."""

    _LOOP = """
import contextlib, io, json, sys
import huggingface_hub, xlnet_jax
from xlnet_jax.storage import hub
answers = sys.stdout
for line in sys.stdin:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            answer = {"value": str(eval(json.loads(line)))}
    except xlnet_jax.InputError as mistake:
        answer = {"mistake": str(mistake)}
    print(json.dumps({**answer, "printed": printed.getvalue()}), file=answers, flush=True)
"""

    def __init__(self, hub, home):
        places = {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        self.cache = Path(home) / "hub"
        self._process = subprocess.Popen(
            [sys.executable, "-c", self._LOOP],
            env={**ours, **places, "HF_HUB_ETAG_TIMEOUT": "2"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __call__(self, expression):
        """Return the value of an expression, as a str; the InputError that it ends in, as one; and what it printed."""
        self._process.stdin.write(json.dumps(expression) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        self.printed = answer["printed"]
        return answer["value"] if "value" in answer else answer["mistake"]

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=30)


@contextlib.contextmanager
def stand_in(home):
    """Yield a Hub and a Client of it, whose cache is in this folder."""
    hub = Hub()
    client = Client(hub, home)
    try:
        yield hub, client
    finally:
        client.close()
        hub.close()
