"""The HTTP server for Prometheus, with bounds: it runs in the node's own process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

MAX_CONNECTIONS = 16
"""A thread each; the oldest makes room for a newer one."""
SILENCE_S = 5.0
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers `app`, on separate threads from `start` to `stop`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, app: WSGIApplication) -> None:
        """Listen at an address. Raises `OSError`."""
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}
        self.address_family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(app)
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        """Answer requests from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection on a thread; close the oldest one if there are too many."""
        with self._lock:
            self._open[request] = None
            if len(self._open) > MAX_CONNECTIONS:
                _hang_up(next(iter(self._open)))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that ended is no error of the node."""


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def for_known_hosts(app: WSGIApplication, host: str, names: Sequence[str]) -> WSGIApplication:
    """`app`, served at `host`, for requests that name this machine; others are refused.

    Without this, a website could read it in a browser by pointing its own name here. A name must be one of `names` or
    localhost; an IP address must be this machine's own, or any if the server is open to other machines.
    """
    is_open = host not in THIS_MACHINE
    known = {*THIS_MACHINE, *(name.lower() for name in names)}

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked = _host_of(str(environ.get("HTTP_HOST", "")))
        if asked in known or (is_open and _is_ip(asked)):
            return app(environ, start_response)
        start_response("400 Bad Request", [("Content-Type", "text/plain")])
        return [b"unknown host; telemetry.prometheus_names lists those that are answered\n"]

    return guarded


def _host_of(header: str) -> str:
    """The host without a port, in small letters; empty if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it may have ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)
