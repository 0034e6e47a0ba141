"""A headless Chromium, driven by its DevTools protocol over a pipe: pages, JavaScript in them, and screenshots."""

import base64
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import time

import pytest

needs_chromium = pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")


class Page:
    """A page of the browser."""

    def __init__(self, browser, url):
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.show(1200, 900)
        self.open(url)

    def open(self, url):
        """Go to an address, and wait until all of it is there."""
        self._call("Page.navigate", url=url)
        self.wait("document.readyState == 'complete'")

    def _call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def show(self, width, height, scheme="light"):
        """Set the size of the window, and whether the reader prefers a light or a dark page."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.prefer("prefers-color-scheme", scheme)

    def prefer(self, feature, value):
        """Set a preference of the reader that CSS asks for, and no others."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": feature, "value": value}])

    def run(self, script):
        """Return the value of a JavaScript expression; a promise is awaited."""
        found = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition, seconds=60):
        """Return the value of an expression as soon as it is true."""
        end = time.monotonic() + seconds
        while not (found := self.run(condition)):
            assert time.monotonic() < end, f"{condition}: {self.run('document.body.innerText')}"
            time.sleep(0.05)
        return found

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))


class Browser:
    """A running Chromium; use `browsing`."""

    def __init__(self, send, receive):
        self._send, self._receive, self._number = send, receive, 0

    def call(self, method, session=None, **params):
        """Return the result of a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        self._send.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        self._send.flush()
        while True:
            data = b""
            while not data.endswith(b"\0"):
                part = self._receive.read1(1 << 20) if not self._rest else b""
                self._rest += part
                assert self._rest, "chromium has ended"
                line, end, self._rest = self._rest.partition(b"\0")
                data += line + end
            answer = json.loads(data[:-1])
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    _rest = b""

    def open(self, url):
        return Page(self, url)


@contextlib.contextmanager
def browsing(folder):
    """Yield a browser. folder: for its files."""
    to_read, to_write = os.pipe(), os.pipe()  # the browser reads commands from descriptor 3, and answers to 4
    argv = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
    command = shlex.join([*argv, f"--user-data-dir={folder}", "about:blank"])
    started = subprocess.Popen(
        ["bash", "-c", f"exec {command} 3<&{to_read[0]} 4>&{to_write[1]}"],
        pass_fds=(to_read[0], to_write[1]),
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read[0])
    os.close(to_write[1])
    try:
        with os.fdopen(to_read[1], "wb") as send, os.fdopen(to_write[0], "rb") as receive:
            yield Browser(send, receive)
    finally:
        started.terminate()
        started.wait()
