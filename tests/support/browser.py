"""Open a page in headless Chromium, through its debugging pipe: no driver and no websocket is needed."""

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

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions")
PATIENCE_S = 120.0
# elements that stick out on the right, unless something around them scrolls
STICKING_OUT = """
(() => {
  const scrolls = element => { for (let e = element; e; e = e.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(e).overflowX)) return true; return false };
  const width = document.documentElement.clientWidth;
  const out = [...document.querySelectorAll('body *')].filter(
    e => e.getClientRects().length && e.getBoundingClientRect().right > width + 1 && !scrolls(e));
  if (document.documentElement.scrollWidth > width) out.push(document.documentElement);
  return out.slice(0, 5).map(e => e.tagName + '.' + e.className + ': ' + e.textContent.slice(0, 60));
})()
"""


def find_browser() -> str | None:
    """The path of Chromium; None if it is not installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """A page that is open."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.requests: list[str] = []
        """Addresses that the page asked for."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Network.enable")
        self._call("Page.enable")

    def open(self, url: str, *, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        """Load an address in a window of that size."""
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media="", features=features)
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._call("Page.navigate", url=url)
        until = time.monotonic() + PATIENCE_S
        while self.evaluate("document.readyState") != "complete" or self.evaluate("location.href") != url:
            assert time.monotonic() < until, f"{url} does not load"

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def sticking_out(self) -> list[str]:
        """What cannot be seen without scrolling the page sideways."""
        found: list[str] = self.evaluate(STICKING_OUT)
        return found

    def screenshot(self, path: Path) -> None:
        """A picture of the whole page, as PNG."""
        taken = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def emulate_print(self) -> None:
        """Show the page as it is printed, in the window that it has; a dark system stays dark."""
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        self._call("Emulation.setEmulatedMedia", media="print", features=dark)

    def print(self, path: Path) -> None:
        """The page on A4, as PDF."""
        done = self._call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True)
        path.write_bytes(base64.b64decode(done["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

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
def browser(program: str) -> Iterator[Page]:
    """Chromium with one page, until the block ends."""
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
