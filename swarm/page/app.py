"""Serves the page: its files, what they show as server-sent events, and nothing that changes a node.

Every answer forbids the browser to load or run anything but the page's own files, whatever a text in it says; pictures
may also be in the page itself, as samples have them. Requests must name this machine as their host, so that no other
website can read the page by pointing its name here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from anyio import to_thread
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swarm.page.documents import as_html
from swarm.page.site import Site

logger = logging.getLogger(__name__)

ASSETS = Path(__file__).parent / "assets"
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


class Board:
    """Refreshes the site while a page is open, and tells all pages; one event loop's."""

    def __init__(self, site: Site, ending: Callable[[], bool]) -> None:
        """Nobody looks yet; streams end when the server is `ending`."""
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
        """A place for a stream while the block runs; whether there is one."""
        free = self._num_streams < MAX_STREAMS
        self._num_streams += free
        try:
            yield free
        finally:
            self._num_streams -= free

    async def events(self, place: int) -> AsyncIterator[bytes]:
        """The overview and one node's details, now and after every change."""
        await self.refresh()
        sent = -1
        while not self._ending():
            if sent == self._version:
                yield b": unchanged\n\n"
            else:
                sent = self._version
                detail = await to_thread.run_sync(self.site.detail, place)
                yield _event("overview", self.site.overview) + _event("detail", detail or b"null")
            await self._changed(sent)

    async def _changed(self, since: int) -> None:
        """Return when there is something new, or after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT_EVERY_S), self._refreshed:
                await self._refreshed.wait_for(lambda: self._version != since or self._ending())


class EventStream(Response):
    """The answer to a page that wants to follow a node; it has its place before anything is sent."""

    def __init__(self, board: Board, place: int) -> None:
        """Follow the node at `place`."""
        self._board = board
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the page is closed, or refuse."""
        with self._board.stream() as free:
            answer = (
                StreamingResponse(self._board.events(self._place), media_type="text/event-stream")
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
        return EventStream(board, _place(request))

    async def samples(request: Request) -> Response:
        found = await to_thread.run_sync(site.samples, _place(request))
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


def _place(request: Request) -> int:
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
