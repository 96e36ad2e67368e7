"""A page served for real, on loopback."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nodes.commands.watching import find_nodes
from nodes.page import listen
from swarm.extras.page.server import make_server
from swarm.extras.page.site import Site
from tests.telemetry.folders import DEADLINE_S, until


class Served:
    """A page on loopback."""

    def __init__(self, listening: socket.socket, site: Site) -> None:
        self.port: int = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.site = site

    def get(self, path: str, host: str | None = None, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            headers = {"Host": host} if host is not None else {}
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def events(self, place: int = 0, num_events: int = 2) -> list[tuple[str, bytes]]:
        """The first events of a stream: (name, data)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request("GET", f"/events?node={place}")
            answer = connection.getresponse()
            found: list[tuple[str, bytes]] = []
            name = ""
            while len(found) < num_events:
                line = answer.readline()
                if line.startswith(b"event: "):
                    name = line[7:].strip().decode()
                elif line.startswith(b"data: "):
                    found.append((name, line[6:].rstrip(b"\n")))
            return found
        finally:
            connection.close()


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Serve the nodes in `folder`."""
    site = Site(lambda: find_nodes([folder]))
    listening, _ = listen(None, None)
    server = make_server(site)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        until(lambda: server.started, "the server")
        yield Served(listening, site)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
