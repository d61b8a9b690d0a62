"""What every request must pass: the name of the host, the token, the origin, the size of the body."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ultimate_embedder.serve.address import is_allowed
from ultimate_embedder.serve.answers import (
    FORBIDDEN,
    MISDIRECTED,
    TOO_LARGE,
    UNAUTHORIZED,
    ApiError,
    error_answer,
)

LARGEST_BODY = 8 << 20
SLOWEST_BODY_S = 60.0
READING = ("GET", "HEAD")
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self'; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """Who may use the server."""

    names: frozenset[str]
    any_ip: bool = False
    token: str | None = field(default=None, repr=False)
    port: int = 0
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @property
    def cookie_name(self) -> str:
        """Cookies are shared by all ports of a host."""
        return f"ultimate-embedder-{self.port}"

    @property
    def cookie(self) -> str:
        """What a browser keeps: not the token itself, and worth nothing after the server has ended."""
        return hmac.new(self._key, (self.token or "").encode(), hashlib.sha256).hexdigest()

    def is_token(self, given: str) -> bool:
        """Compare with the token, in a time that tells nothing of it."""
        return self.token is not None and hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def is_cookie(self, given: str) -> bool:
        """The same for the cookie."""
        return hmac.compare_digest(given.encode(errors="replace"), self.cookie.encode())


class Guard:
    """Refuses what must not be answered, and adds the headers that keep a browser from doing harm."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":  # no web sockets
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        guarded = _with_headers(send)
        try:
            if (early := self._judge(scope)) is not None:
                await early(scope, receive, guarded)
                return
            # a request that only reads has no body; its messages say whether the client is still there
            await self._app(scope, receive if scope["method"] in READING else _bounded(receive), guarded)
        except ApiError as refused:  # before anything was sent: bodies are read first
            await error_answer(refused, Headers(scope=scope))(scope, receive, guarded)

    def _judge(self, scope: Scope) -> Response | None:
        """What is answered at once; None if the request may pass."""
        headers = Headers(scope=scope)
        if not is_allowed(headers.get("host"), self._access.names, any_ip=self._access.any_ip):
            raise ApiError(
                MISDIRECTED,
                "This server is not known by that name. Use the address that 'ultimate-embedder serve' printed, or "
                "start it with --allow-host NAME.",
                code="unknown_host",
            )
        _refuse_other_origins(headers)
        _refuse_large(headers)
        return self._ask_for_token(scope, headers) if self._access.token is not None else None

    def _ask_for_token(self, scope: Scope, headers: Headers) -> Response | None:
        if scope["path"] == "/" and scope["method"] in READING:
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            if self._access.is_token(given):
                return self._let_in()
        word, _, bearer = headers.get("authorization", "").partition(" ")
        if word.lower() == "bearer" and self._access.is_token(bearer.strip()):
            return None
        if self._access.is_cookie(_cookie(headers, self._access.cookie_name)):
            return None
        raise ApiError(
            UNAUTHORIZED,
            "This server needs a token. Open the link that 'ultimate-embedder serve' printed, or send the header "
            "'Authorization: Bearer TOKEN'.",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _let_in(self) -> Response:
        """Keep the token in a cookie, and show the page without it in its address."""
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="lax", path="/")
        return answer


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _refuse_other_origins(headers: Headers) -> None:
    """A page of another web site may not use the server, also not one that runs on this machine."""
    origin = headers.get("origin")
    if origin is not None:
        try:
            same = urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
        except ValueError:
            same = False
    else:
        # without an origin: links and bookmarks; a browser tells what else another site has embedded
        same = headers.get("sec-fetch-site", "none") in ("none", "same-origin") or (
            headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        )
    if not same:
        raise ApiError(FORBIDDEN, "Pages of other web sites cannot use this server.", code="other_origin")


def _refuse_large(headers: Headers) -> None:
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length[:20]) > LARGEST_BODY:
        raise _too_large()


def _too_large() -> ApiError:
    limit = f"{LARGEST_BODY >> 20} MiB"
    return ApiError(TOO_LARGE, f"The body is larger than {limit}. Send fewer texts per request.", code="too_large")


def _bounded(receive: Receive) -> Receive:
    """The same body, but no more of it than is allowed, and not for ever."""
    received, over = 0, False
    deadline = time.monotonic() + SLOWEST_BODY_S  # of the whole: a byte now and then is no progress

    async def read() -> Message:
        nonlocal received, over
        if over:  # from now on it is about whether the client is still there
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
        except asyncio.TimeoutError:
            raise ApiError(408, f"The body did not arrive within {SLOWEST_BODY_S:g} s.", code="too_slow") from None
        received += len(message.get("body", b""))
        over = not message.get("more_body", False)
        if received > LARGEST_BODY:
            raise _too_large()
        return message

    return read


def _with_headers(send: Send) -> Send:
    async def add(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return add
