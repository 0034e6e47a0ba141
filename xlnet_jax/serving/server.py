"""The page and the JSON of `xlnet-jax play`, over HTTP on this machine alone.

A page of another site could send requests to this server too, through the browser of its reader. So the host must be
this machine by name (against DNS rebinding), the origin, which browsers add, this server, and the type of a request
JSON, which a browser never sends to another site without asking first.
"""

import contextlib
import itertools
import json
import socket
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from xlnet_jax.errors import InputError, first_line
from xlnet_jax.serving.batching import Batcher, Ticket, TooBusyError
from xlnet_jax.serving.service import Service
from xlnet_jax.storage.reading import decode_json

JSON_TYPE = "application/json"
HOST = "127.0.0.1"
MOST_BYTES = 64 * 1024
"""of a request; more are refused"""
_DISCARDED_BYTES, _DISCARD_SECONDS = 4 << 20, 2.0
"""what is thrown away of a request that is too large: without that, its sender would not see the answer"""
_SECONDS = 20.0
"""time in which a request must arrive"""
_NAMES = ("127.0.0.1", "localhost", "[::1]")
_FILES = {"/": ("page.html", "text/html"), "/page.js": ("page.js", "text/javascript")}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
KINDS = ("fill", "score", "embed", "predict")


class Refusal(Exception):
    """A request that is refused, with the status and a line that says why."""

    def __init__(self, status: HTTPStatus, line: str) -> None:
        super().__init__(line)
        self.status = status


class Server(ThreadingHTTPServer):
    """Server of one model. `close` ends all of its threads."""

    daemon_threads = False  # closing waits for them

    def __init__(self, port: int) -> None:
        """Take a port; 0 = any that is free. Raises InputError if another program has it."""
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            why = f"cannot be used ({error.strerror}): give another one, or 0 for any that is free"
            raise InputError("port", port, why) from None
        self.service: Service | None = None
        self.batcher = Batcher()
        self._connections, self._lock = set[socket.socket](), threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}"

    def start(self, service: Service, about: Mapping[str, Any]) -> None:
        """Answer requests in threads of their own. about: of the model, for `GET /health`."""
        self.service, self.about = service, about
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, name="server")
        self._thread.start()

    def close(self) -> None:
        """Refuse what waits, and end all threads. A second call does nothing."""
        if self._thread:
            self.shutdown()
            self._thread.join()
            self._thread = None
        self.batcher.close()
        with self._lock:
            for connection in self._connections:  # browsers keep some without a request
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone."""


class Handler(BaseHTTPRequestHandler):
    """Reads one request and answers it. The end of the connection ends the answer, which may be a stream."""

    server: Server
    timeout = _SECONDS
    server_version, sys_version = "xlnet-jax", ""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer in JSON where http.server would answer with a page."""
        self._send_json(code, {"error": message or HTTPStatus(code).phrase})

    def _answer(self, act: Any) -> None:
        try:
            self._check_origin()
            act()
        except Refusal as refusal:
            self._send_json(refusal.status, {"error": str(refusal)})
            if refusal.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                self._discard()
        except InputError as mistake:
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": " ".join(str(mistake).split())})
        except TooBusyError as error:
            self._send_json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)})
        except (ConnectionError, TimeoutError):
            pass  # the client has gone
        except Exception as error:
            why = f"the server failed: {type(error).__name__}: {first_line(error)}"
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": why})

    def _check_origin(self) -> None:
        host = self.headers.get("Host", "")
        if host.rpartition(":")[0] not in _NAMES and host not in _NAMES:
            raise Refusal(HTTPStatus.FORBIDDEN, f"this server is for {self.server.address}, not for another host")
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "none")
        if origin not in (None, f"http://{host}") or site not in ("none", "same-origin"):
            raise Refusal(HTTPStatus.FORBIDDEN, "this server answers no page of another site")

    def _get(self) -> None:
        if self.path == "/health":
            status = "ready" if self.server.service and self.server.service.is_ready else "compiling"
            self._send_json(HTTPStatus.OK, {"status": status, **self.server.about})
        elif self.path in _FILES:
            name, kind = _FILES[self.path]
            self._send_head(HTTPStatus.OK, f"{kind}; charset=utf-8")
            self.wfile.write(resources.files(__package__).joinpath(name).read_bytes())
        elif self.path[1:] in KINDS:
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.path} takes a POST of JSON")
        else:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is / (the page), /health, and a POST of /{', /'.join(KINDS)}")

    def _post(self) -> None:
        kind = self.path[1:]
        if kind not in KINDS:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is a POST of /{', /'.join(KINDS)}")
        given, service = self._read_json(), self.server.service
        assert service is not None
        is_stream = given.pop("stream", False) if kind == "fill" else False
        if not isinstance(is_stream, bool):
            raise InputError("stream", "", "must be true or false")
        ticket = self.server.batcher.ask(*service.read(kind, given))
        if is_stream:
            self._stream(ticket)
        else:
            *_, answer = ticket
            self._send_json(HTTPStatus.OK, answer)

    def _read_json(self) -> dict[str, Any]:
        if self.headers.get_content_type() != JSON_TYPE or "Content-Type" not in self.headers:
            raise Refusal(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a request must have the header Content-Type: application/json"
            )
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            raise Refusal(
                HTTPStatus.LENGTH_REQUIRED, "a request must have the header Content-Length, its size in bytes"
            )
        if len(length) > 15 or int(length) > MOST_BYTES:
            why = f"a request may have at most {MOST_BYTES:,} bytes, not {length[:15]}"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
        given = decode_json(self.rfile.read(int(length)), "a request", "give an object, in braces")
        if not isinstance(given, dict):
            raise InputError("a request must be a JSON object, in braces")
        return given

    def _stream(self, ticket: Ticket) -> None:
        """Send each result as a line of JSON when it is there; an error in the middle is the last line."""
        results = iter(ticket)
        first = next(results)
        self._send_head(HTTPStatus.OK, "application/x-ndjson")
        try:
            for result in itertools.chain([first], results):
                self._send_line(result)
        except OSError:  # the client has gone
            raise
        except Exception as error:
            self._send_line({"error": " ".join(str(error).split())})
        finally:
            ticket.is_left = True

    def _send_line(self, answer: Mapping[str, Any]) -> None:
        self.wfile.write(f"{json.dumps(answer, ensure_ascii=False)}\n".encode(errors="replace"))

    def _send_json(self, status: int, answer: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            self._send_head(status, JSON_TYPE)
            self._send_line(answer)

    def _send_head(self, status: int, kind: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, **_HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()

    def _discard(self) -> None:
        """Read and forget the rest of a request that is too large, up to a limit."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_DISCARD_SECONDS)
            left = _DISCARDED_BYTES
            while left > 0 and (part := self.connection.recv(MOST_BYTES)):
                left -= len(part)
