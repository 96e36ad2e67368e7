"""The baseline for unlimited links: bytes through a plain TLS socket.

    python -m benchmarks.broadcast.sockets serve NUM_BYTES NUM_CLIENTS
    python -m benchmarks.broadcast.sockets fetch PORT NUM_BYTES

events  ready (port) of the server, fetched (seconds) of each client
"""

from __future__ import annotations

import socket
import sys
import threading
import time

from benchmarks.common.children import emit
from swarm.extras.direct.tickets import asking_context, serving_context

PIECE_BYTES = 2**18


def serve(num_bytes: int, num_clients: int) -> None:
    """Send to all clients simultaneously, once all are connected."""
    context, _ = serving_context()
    content = bytes(PIECE_BYTES)
    together = threading.Barrier(num_clients)

    def send(plain: socket.socket) -> None:
        with context.wrap_socket(plain, server_side=True) as client:
            together.wait()
            for _ in range(num_bytes // PIECE_BYTES):
                client.sendall(content)
            client.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        emit("ready", port=server.getsockname()[1])
        threads = [threading.Thread(target=send, args=(server.accept()[0],)) for _ in range(num_clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def fetch(port: int, num_bytes: int) -> None:
    """Receive everything into memory."""
    context = asking_context()
    piece = bytearray(PIECE_BYTES)
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as server:
        left = num_bytes - server.recv_into(piece)
        began = time.perf_counter()
        while left > 0:
            left -= server.recv_into(piece)
        emit("fetched", seconds=time.perf_counter() - began)
        server.sendall(b"x")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        fetch(int(sys.argv[2]), int(sys.argv[3]))
