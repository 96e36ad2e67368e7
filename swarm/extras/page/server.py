"""Serves the page: its files, and what they show as server-sent events; nothing changes a node.

Every answer forbids the browser to load or run anything but the page's own files, whatever a text in it says; images
may also be in the page itself, as samples have them. Requests must name this machine as their host, so that no other
website can read the page by pointing its name here. Connections are bounded in what they cost before and after their
requests.
"""

from __future__ import annotations

import asyncio
import html
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import uvicorn
from anyio import to_thread
from markdown_it import MarkdownIt
from markdown_it.token import Token
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from swarm.documents import anchor, names, text
from swarm.extras.page.site import ASSETS, Site

logger = logging.getLogger(__name__)

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HOSTS = ("127.0.0.1", "localhost")
MAX_STREAMS = 32
"""Pages open at a time."""
REFRESH_EVERY_S = 1.0
BEAT_EVERY_S = 10.0
"""Longest silence of a stream: a page that was closed is noticed when something is sent."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
LINK = re.compile(r"(\.\./|extras/)?[a-zA-Z0-9-]+\.md(#[\w-]+)?|#[\w-]+|https://[^\s]+")
"""Allowed links in a document; other files are in the repository only."""
DOCUMENT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="/icon.svg">
<link rel="stylesheet" href="/page.css">
</head>
<body>
<nav class="note"><a href="/">The page</a> · {others}</nav>
<main class="document">
{body}
</main>
</body>
</html>
"""


class Board:
    """Refreshes the site while a page is open, and notifies all pages; for one event loop."""

    def __init__(self, site: Site, ending: Callable[[], bool]) -> None:
        """No page is open yet; streams end when the server is `ending`."""
        self.site = site
        self._ending = ending
        self._num_streams = 0
        self._version = 0
        self._refreshed = asyncio.Condition()

    async def run(self) -> None:
        """Refresh until cancelled."""
        while not self._ending():
            if self._num_streams:
                await self.refresh()
            await asyncio.sleep(REFRESH_EVERY_S)
        async with self._refreshed:
            self._refreshed.notify_all()

    async def refresh(self) -> None:
        """Read what is new, in another thread."""
        try:
            changed = await to_thread.run_sync(self.site.refresh)
        except Exception:
            # A directory that is removed meanwhile, a disk that fails: the page shows what it knows, and tries again.
            logger.exception("the page could not be refreshed")
            return
        async with self._refreshed:
            self._version += changed
            self._refreshed.notify_all()

    @contextmanager
    def stream(self) -> Iterator[bool]:
        """A slot for a stream while the block runs; whether there is one."""
        free = self._num_streams < MAX_STREAMS
        self._num_streams += free
        try:
            yield free
        finally:
            self._num_streams -= free

    async def events(self, index: int) -> AsyncIterator[bytes]:
        """The overview and one node's details, now and after every change."""
        await self.refresh()
        sent = -1
        while not self._ending():
            if sent == self._version:
                yield b": unchanged\n\n"
            else:
                sent = self._version
                detail = await to_thread.run_sync(self.site.detail, index)
                yield _event("overview", self.site.overview) + _event("detail", detail or b"null")
            await self._changed(sent)

    async def _changed(self, since: int) -> None:
        """Return when there is something new, or after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT_EVERY_S), self._refreshed:
                await self._refreshed.wait_for(lambda: self._version != since or self._ending())


class EventStream(Response):
    """The answer to a page that wants to follow a node; it has its slot before anything is sent."""

    def __init__(self, board: Board, index: int) -> None:
        """Follow the node at `index`."""
        self._board = board
        self._index = index

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the page is closed, or refuse."""
        with self._board.stream() as free:
            answer = (
                StreamingResponse(self._board.events(self._index), media_type="text/event-stream")
                if free
                else Response("too many pages are open\n", 503, media_type="text/plain")
            )
            await answer(scope, receive, send)


class SafeHeaders:
    """Adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        """Around `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, safely if scope["type"] == "http" else send)


def make_app(site: Site, ending: Callable[[], bool]) -> Starlette:
    """The application; it has no route that changes anything. `ending`: whether the server is about to end."""
    board = Board(site, ending)

    @asynccontextmanager
    async def refreshing(app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(board.run())
        yield
        task.cancel()

    async def events(request: Request) -> Response:
        return EventStream(board, _index(request))

    async def samples(request: Request) -> Response:
        found = await to_thread.run_sync(site.samples, _index(request))
        return _json(found)

    return Starlette(
        routes=[
            *(Route(path, _file(path), methods=["GET"]) for path in _assets()),
            Route("/events", events, methods=["GET"]),
            Route("/samples", samples, methods=["GET"]),
            Route("/docs/{name:path}", _doc, methods=["GET"]),
        ],
        middleware=[
            Middleware(SafeHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
        ],
        lifespan=refreshing,
    )


def _assets() -> dict[str, Path]:
    """Files by path; nothing else is served by name."""
    files = {f"/{path.name}": path for path in sorted(ASSETS.iterdir()) if path.suffix in TYPES}
    return {"/": ASSETS / "index.html", **files}


def _file(path: str) -> Callable[[Request], Response]:
    file = _assets()[path]
    content = file.read_bytes()

    def answer(request: Request) -> Response:
        return Response(content, media_type=TYPES[file.suffix])

    return answer


def _doc(request: Request) -> Response:
    found = as_html(request.path_params["name"])
    if found is None:
        return Response("there is no such document\n", 404, media_type="text/plain")
    return Response(found, media_type="text/html")


@lru_cache(64)
def as_html(name: str) -> bytes | None:
    """A document as an HTML page; None when there is none of this name."""
    if name not in names():
        return None
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(text(name))
    for heading, inline in zip(tokens, tokens[1:], strict=False):
        if heading.type == "heading_open":
            heading.attrSet("id", anchor(inline.content))
    for token in tokens:
        token.attrs.pop("style", None)  # which the page's policy forbids
        token.children = list(_without_files(token.children or []))
    body = reader.renderer.render(tokens, reader.options, {})
    title = next((inline.content for inline in tokens if inline.type == "inline"), name)
    others = " · ".join(f'<a href="/docs/{other}">{other.removesuffix(".md")}</a>' for other in names())
    return DOCUMENT.format(title=html.escape(title), others=others, body=body).encode()


def _without_files(tokens: list[Token]) -> Iterator[Token]:
    """Text instead of pictures, and of links to what is in the repository only."""
    leads = True
    for token in tokens:
        if token.type == "link_open":
            leads = LINK.fullmatch(str(token.attrs.get("href", ""))) is not None
        if token.type == "image":
            yield Token("text", "", 0, content=token.content)
        elif leads or token.type not in ("link_open", "link_close"):
            yield token


def _index(request: Request) -> int:
    """The node asked for; the first one unless it is a number."""
    text = request.query_params.get("node", "0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0


def _json(content: bytes | None) -> Response:
    if content is None:
        return Response("there is no such node\n", 404, media_type="text/plain")
    return Response(content, media_type="application/json")


def _event(name: str, content: bytes) -> bytes:
    """A server-sent event; JSON as written here has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), content)


MAX_CONNECTIONS = 128
REQUEST_WITHIN_S = 5.0
"""Until the header of a connection's first or next request is complete."""
TAKEN_WITHIN_S = 20.0
"""For a reader to take what waits to be sent."""
STOP_TIMEOUT_S = 3


def make_server(site: Site) -> uvicorn.Server:
    """A server of the page; it ends once its `should_exit` is set."""
    config = uvicorn.Config(
        make_app(site, lambda: server.should_exit),
        http=BoundedConnection,
        ws="none",
        loop="asyncio",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
    )
    server = uvicorn.Server(config)
    return server


class BoundedConnection(H11Protocol):
    """A connection that is closed when it sends no request, takes no answer, or when newer ones need its slot.

    uvicorn itself waits forever for a header and for readers, and refuses everybody while there are many connections.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """The arguments are uvicorn's."""
        super().__init__(*arguments, **named)
        self._asked_by: asyncio.TimerHandle | None = None
        self._taken_by: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, in the slot of the one that waits longest if there are too many."""
        super().connection_made(transport)
        self._look()
        if len(self.connections) > MAX_CONNECTIONS:
            waiting = [each for each in self.connections if isinstance(each, BoundedConnection) and each.waits_since()]
            min(waiting, key=BoundedConnection.waits_since).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        for clock in (self._asked_by, self._taken_by):
            if clock is not None:
                clock.cancel()
        super().connection_lost(exc)

    def waits_since(self) -> float:
        """The event loop's time since when there is no request; 0 while one is answered."""
        return self._asked_by.when() if self._asked_by is not None else 0.0

    def drop(self) -> None:
        """Close at once."""
        self.connections.discard(self)
        self.transport.abort()

    def handle_events(self) -> None:
        """Look for requests in what has arrived."""
        super().handle_events()
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The reader is behind."""
        super().pause_writing()
        self._taken_by = self.loop.call_later(TAKEN_WITHIN_S, self.drop)

    def resume_writing(self) -> None:
        """The reader has caught up."""
        super().resume_writing()
        if self._taken_by is not None:
            self._taken_by.cancel()

    def _look(self) -> None:
        """The time for a request runs from the end of the last one on; single bytes do not prolong it."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self._asked_by is not None:
                self._asked_by.cancel()
            self._asked_by = None
        elif self._asked_by is None:
            self._asked_by = self.loop.call_later(REQUEST_WITHIN_S, self.drop)
