"""A Hugging Face hub for tests: serves folders as model repositories, keeps a record, and fails on request.

Point `HF_ENDPOINT` at `url`. No answer speaks of Xet, so that the hub client downloads by plain HTTP.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import sys
import threading
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

Answer = tuple[int, bytes, dict[str, str]]  # status, body, headers; a Content-Length of "" is not sent
LARGE_SUFFIXES = (".safetensors", ".bin", ".h5", ".msgpack", ".onnx")  # these are in git-lfs, whatever their size


@dataclass
class Fault:
    """What goes wrong with `times` requests where `match` finds `METHOD /path`."""

    match: str
    status: int | None = None
    retry_after: str | None = None
    delay_s: float = 0.0  # before the answer; of a truncated one, before the cut
    drop: bool = False
    truncate: int | None = None  # bytes of the body that are sent before the connection is cut
    times: int = 1


class Request(NamedTuple):
    """A request and what became of it; status 0 is a connection closed without an answer."""

    method: str
    path: str
    range: str | None
    status: int


class StoredFile(NamedTuple):
    """One file of a commit, with the names that git and, if it is large, git-lfs give its content."""

    path: str
    content: bytes
    oid: str
    sha256: str | None

    @classmethod
    def read(cls, path: Path, name: str) -> StoredFile:
        """Take a file in as it is now."""
        content = path.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest() if name.endswith(LARGE_SUFFIXES) else None
        return cls(name, content, hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(), sha256)


class Commit(NamedTuple):
    """The files of a repository at one moment."""

    sha: str
    files: list[StoredFile]


class HubServer(ThreadingHTTPServer):
    """Serves on a free port of 127.0.0.1 while its context is open. Fill `faults`, look into `requests`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.replies: list[tuple[str, Answer]] = []  # what a hostile hub says where a pattern finds `METHOD /path`
        self.closing = threading.Event()
        self._history: dict[str, list[Commit]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> HubServer:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()

    def publish(self, hub_id: str, folder: Path) -> str:
        """Make what is in `folder` now the newest commit of `hub_id`, and give its hash. Older ones stay."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = [StoredFile.read(path, path.relative_to(folder).as_posix()) for path in paths]
        history = self._history.setdefault(hub_id, [])
        story = [hub_id, *(commit.sha for commit in history), *(f"{file.path} {file.oid}" for file in files)]
        sha = hashlib.sha1("\n".join(story).encode()).hexdigest()
        history.append(Commit(sha, files))
        return sha

    def asked(self, pattern: str = "") -> list[Request]:
        """The requests where `pattern` finds `METHOD /path`."""
        return [request for request in self.requests if re.search(pattern, f"{request.method} {request.path}")]

    def take_fault(self, method: str, path: str) -> Fault | None:
        """The fault that this request meets, if any."""
        with self._lock:
            for fault in self.faults:
                if fault.times and re.search(fault.match, f"{method} {path}"):
                    fault.times -= 1
                    return fault
        return None

    def reply(self, method: str, target: str, wanted_range: str | None) -> Answer:
        """The first of `replies` that fits, else an honest answer."""
        found = (answer for pattern, answer in self.replies if re.search(pattern, f"{method} {target}"))
        return next(found, None) or self.answer(target, wanted_range)

    def answer(self, target: str, wanted_range: str | None) -> Answer:
        """What the hub says when nothing goes wrong."""
        path, _, query = target.partition("?")
        options = {name for name, value in urllib.parse.parse_qsl(query) if value.lower() == "true"}
        try:
            match [urllib.parse.unquote(part) for part in path.split("/")[1:]]:
                case ["api", "models", owner, name, *rest] if not rest or rest[0] == "revision":
                    commit = self._commit(f"{owner}/{name}", *rest[1:])
                    return _model_info(f"{owner}/{name}", commit, "blobs" in options)
                case ["api", "models", owner, name, "tree", revision, *parents]:
                    below = "".join(f"{parent}/" for parent in parents)
                    return _tree(self._commit(f"{owner}/{name}", revision), below, "recursive" in options)
                case [owner, name, "resolve", revision, *parts]:
                    return _file(self._commit(f"{owner}/{name}", revision), "/".join(parts), wanted_range)
            raise FileNotFoundError("RepoNotFound")
        except FileNotFoundError as error:
            return 404, b"{}", {"X-Error-Code": str(error)}

    def _commit(self, hub_id: str, revision: str = "main") -> Commit:
        for commit in reversed(self._history.get(hub_id, [])):
            if revision in ("main", commit.sha):
                return commit
        raise FileNotFoundError("RevisionNotFound" if hub_id in self._history else "RepoNotFound")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors, but a client that hangs up is none."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        wanted_range = self.headers.get("Range")
        fault = self.server.take_fault(self.command, self.path) or Fault("")
        status, body, headers = self.server.reply(self.command, self.path, wanted_range)
        if fault.status is not None:
            status, body, headers = fault.status, b"{}", {"Retry-After": fault.retry_after} if fault.retry_after else {}
        outcome = 0 if fault.drop else status
        self.server.requests.append(Request(self.command, self.path, wanted_range, outcome))
        self.close_connection = fault.drop or fault.truncate is not None
        if fault.truncate is None:
            self.server.closing.wait(fault.delay_s)
        if fault.drop:
            return
        self.send_response(status)
        sent = {"Content-Length": str(len(body)), **headers}
        self.close_connection = self.close_connection or sent["Content-Length"] != str(len(body))
        for name, value in sent.items():
            if value or name != "Content-Length":
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: fault.truncate])
        if fault.truncate is not None:
            self.server.closing.wait(fault.delay_s)

    do_HEAD = do_GET = do_POST = _handle  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def dead() -> str:
    """An address on this machine where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed_at_once:
        return f"http://127.0.0.1:{closed_at_once.getsockname()[1]}"


def _file(commit: Commit, path: str, wanted_range: str | None) -> Answer:
    file = next((file for file in commit.files if file.path == path), None)
    if file is None:
        raise FileNotFoundError("EntryNotFound")
    size, etag = len(file.content), f'"{file.sha256 or file.oid}"'
    headers = {"ETag": etag, "X-Repo-Commit": commit.sha, "Accept-Ranges": "bytes"}
    if file.sha256:
        headers |= {"X-Linked-Size": str(size), "X-Linked-ETag": etag}
    if (part := re.fullmatch(r"bytes=(\d+)-(\d*)", wanted_range or "")) is None:
        return 200, file.content, headers
    first, last = int(part[1]), min(int(part[2] or size), size - 1)
    if first > last:
        return 416, b"", headers | {"Content-Range": f"bytes */{size}"}
    return 206, file.content[first : last + 1], headers | {"Content-Range": f"bytes {first}-{last}/{size}"}


def _tree(commit: Commit, below: str, recursive: bool) -> Answer:
    inside = [file for file in commit.files if file.path.startswith(below)]
    listed = [file for file in inside if recursive or "/" not in file.path.removeprefix(below)]
    return _json([{"type": "file", "path": file.path, "oid": file.oid, **_sizes(file, "oid")} for file in listed])


def _model_info(hub_id: str, commit: Commit, with_blobs: bool) -> Answer:
    siblings: list[dict[str, Any]] = [{"rfilename": file.path} for file in commit.files]
    if with_blobs:
        for sibling, file in zip(siblings, commit.files, strict=True):
            sibling |= {"blobId": file.oid, **_sizes(file, "sha256")}
    return _json({"id": hub_id, "sha": commit.sha, "private": False, "tags": [], "siblings": siblings})


def _sizes(file: StoredFile, hash_name: str) -> dict[str, Any]:
    size = {"size": len(file.content)}
    return size | {"lfs": {hash_name: file.sha256, "pointerSize": 134, **size}} if file.sha256 else size


def _json(data: Any) -> Answer:
    return 200, json.dumps(data).encode(), {"Content-Type": "application/json"}
