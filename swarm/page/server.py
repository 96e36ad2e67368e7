"""The page's server: uvicorn, with bounds on what connections may cost before and after their requests."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from swarm.page.app import make_app
from swarm.page.site import Site

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
    """A connection that is closed when it sends no request, takes no answer, or when newer ones need its place.

    uvicorn itself waits forever for a header and for readers, and refuses everybody while there are many connections.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """As uvicorn makes its connections."""
        super().__init__(*arguments, **named)
        self._asked_by: asyncio.TimerHandle | None = None
        self._taken_by: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, in the place of whoever waits longest if there are too many."""
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
