"""A headless Chromium, driven through its debugging pipe: no further package is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)
WAIT_S = 60.0


class Page:
    """One page of the browser."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb", 0)
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        """The address of everything that the page has asked for."""
        self.complaints: list[str] = []
        """Errors of scripts, and what the content security policy has refused."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._writing.write(
            json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        )
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        content = bytearray()
        while (byte := self._reading.read(1)) != b"\0":
            assert byte, "the browser has ended"
            content += byte
        return dict(json.loads(content))

    def _note(self, event: dict[str, Any]) -> None:
        found = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(found["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.complaints.append(str(found["entry"]["text"]))

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window, and the colours that the user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """What a script gives."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Wait until a script gives something that is true."""
        until = time.monotonic() + WAIT_S
        while not (value := self.evaluate(script)):
            assert time.monotonic() < until, f"it did not become true: {script}"
            time.sleep(0.05)
        return value

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(picture))


@contextlib.contextmanager
def open_browser() -> Iterator[Page]:
    """A page of a new browser; the test is skipped where none is installed."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"needs a browser: {' or '.join(PROGRAMS)}")
    there, writing = os.pipe()
    reading, back = os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-") as folder, contextlib.ExitStack() as stack:

        def wire() -> None:  # the browser reads from 3 and writes to 4
            os.dup2(os.dup(there), 3, inheritable=True)
            os.dup2(os.dup(back), 4, inheritable=True)

        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=wire,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        os.close(there)
        os.close(back)
        yield Page(reading, writing)
