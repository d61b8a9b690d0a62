"""A headless Chromium, driven through its debugging pipe: no driver and no websocket is needed."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions")
PATIENCE_S = 120.0


class Page:
    """A page of the browser."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.requests: list[str] = []
        """The address of everything that the page has asked for."""
        self.complaints: list[str] = []
        """Errors of scripts, and what the content security policy has refused."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window, and the colours that the user prefers."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def open(self, address: str) -> None:
        """Go to an address."""
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, script: str) -> Any:
        """What a script gives."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Wait until a script gives something that is true."""
        until = time.monotonic() + PATIENCE_S
        while not (value := self.evaluate(script)):
            assert time.monotonic() < until, f"it did not become true: {script}"
            time.sleep(0.05)
        return value

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page, as PNG."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _note(self, event: dict[str, Any]) -> None:
        found = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(found["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.complaints.append(str(found["entry"]["text"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._receive], [], [], PATIENCE_S)[0], "the browser does not answer"
            part = os.read(self._receive, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextlib.contextmanager
def open_browser() -> Iterator[Page]:
    """A page of a new browser; the test is skipped where none is installed."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"needs a browser: {' or '.join(NAMES)}")
    (its_input, send), (receive, its_output) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        # it reads from descriptor 3 and writes to 4
        command = f'exec "$0" "$@" 3<&{its_input} 4>&{its_output}'
        arguments = [*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            ["/bin/bash", "-c", command, program, *arguments],
            pass_fds=(its_input, its_output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_input)
        os.close(its_output)
        try:
            yield Page(send, receive)
        finally:
            os.close(send)
            os.close(receive)
            process.terminate()
            process.wait(30)
