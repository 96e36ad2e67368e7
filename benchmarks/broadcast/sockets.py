"""The baseline for unlimited links: bytes through a plain TLS socket.

    python -m benchmarks.broadcast.sockets serve FOLDER NUM_BYTES NUM_CLIENTS
    python -m benchmarks.broadcast.sockets fetch PORT NUM_BYTES

events  ready (port) of the server, fetched (seconds) of each client
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from benchmarks.common.children import emit

PIECE_BYTES = 2**18


def serve(folder: Path, num_bytes: int, num_clients: int) -> None:
    """Send to all clients simultaneously, once all are connected."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate(folder))
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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    piece = bytearray(PIECE_BYTES)
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as server:
        left = num_bytes - server.recv_into(piece)
        began = time.perf_counter()
        while left > 0:
            left -= server.recv_into(piece)
        emit("fetched", seconds=time.perf_counter() - began)
        server.sendall(b"x")


def _certificate(folder: Path) -> Path:
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "benchmark")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, None)
    )
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        fetch(int(sys.argv[2]), int(sys.argv[3]))
