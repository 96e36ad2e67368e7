"""A peer that is light enough to have a thousand of it in one process: one connection to a daemon, and no more on it
than a daemon needs in order to take it for a member.

TCP -> multistream `/tls/1.0.0` -> TLS 1.3 with a certificate signed by the peer's key -> yamux
the daemon's streams:  identify, greetings and the directory's pings are answered, the rest refused
its own streams:       identify (read and dropped)
"""

from __future__ import annotations

import asyncio
import os
import ssl
import struct
from asyncio.sslproto import SSLProtocol
from collections import Counter
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from swarm.errors import PeerUnreachable
from swarm.extras.direct.tickets import asking_context, show
from swarm.net.addresses.dial import probe
from swarm.net.records.envelope import encode_answer
from swarm.net.records.feed import HELLO_PROTOCOL, Hello, encode
from swarm.net.records.identity import PUBLIC_KEY_HEADER, Identity, public_key_of

HANDSHAKE_TIMEOUT_S = 15.0
MULTISTREAM, TLS, IDENTIFY = "/multistream/1.0.0", "/tls/1.0.0", "/ipfs/id/1.0.0"
YAMUX, DIRECTORY_PING = "/yamux/1.0.0", "DHTProtocol.rpc_ping"
CALL_ID = slice(3, 19)
"""In the directory's ping: after its length, and the tag and length of the id."""
NODE_ID_BYTES = 20
TLS_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
TLS_PREFIX = b"libp2p-tls-handshake:"

HEADER = struct.Struct(">BBHII")
DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RESET = 1, 2, 4, 8
HALF_WINDOW_BYTES = 2**17
OWN_IDENTIFY = 1
"""Its first stream; those of the side that dialled have odd numbers."""

# asyncio keeps a quarter of a megabyte for each connection; a TLS record has at most 16 KiB.
SSLProtocol.max_size = 2**14
_tls_key = ec.generate_private_key(ec.SECP256R1())


class LightPeer:
    """An identity with its TLS certificate, and at most one open connection."""

    def __init__(self, identity: Identity, run_id: str) -> None:
        """Not connected; says that it takes part in this run."""
        self.identity = identity
        self._run_id = run_id
        self._context = _context(identity)
        self._connection: _Connection | None = None

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""
        return self._connection is not None and not self._connection.closed

    async def connect(self, address: str) -> None:
        """Dial `/ip4/HOST/tcp/PORT` as a node does: a probe, then the whole handshake. Raises `PeerUnreachable`."""
        problem = await probe(address)
        if problem is not None:
            raise PeerUnreachable(f"{address}: {problem}")
        _, _, host, _, port = address.split("/")
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                self._connection = await self._shake_hands(host, int(port))
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise PeerUnreachable(f"{address}: {error!r}") from error

    async def _shake_hands(self, host: str, port: int) -> _Connection:
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection(host, port)
        try:
            hello = _line(MULTISTREAM) + _line(TLS)
            writer.write(hello)
            if await reader.readexactly(len(hello)) != hello:
                raise ConnectionError("the daemon has no TLS")
            transport = await loop.start_tls(writer.transport, _Connection(self), self._context)
        except BaseException:
            writer.close()
            raise
        assert transport is not None
        connection = transport.get_protocol()
        assert isinstance(connection, _Connection)
        connection.begin(transport, writer)
        return connection

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._connection is not None:
            self._connection.close()

    def identify(self) -> bytes:
        """The message of the identify protocol."""
        public_key = PUBLIC_KEY_HEADER + public_key_of(self.identity.peer_id)
        protocols = b"".join(_field(3, name.encode()) for name in (IDENTIFY, HELLO_PROTOCOL))
        return _field(1, public_key) + protocols + _field(5, b"ipfs/0.1.0") + _field(6, b"light")

    def greeting(self) -> bytes:
        """The answer to a greeting, as framed."""
        return b"".join(each for each in encode_answer([encode(Hello(self._run_id, True))]) if isinstance(each, bytes))


class _Connection(asyncio.Protocol):
    """Yamux on an encrypted connection."""

    def __init__(self, peer: LightPeer) -> None:
        self._peer = peer
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._opening: dict[int, bytes] = {}
        """By stream of the daemon whose protocol is not known yet: what it has sent."""
        self._unread: Counter[int] = Counter()
        """By stream: bytes received since the daemon was last allowed more."""
        self.closed = False

    def begin(self, transport: asyncio.WriteTransport, beneath: asyncio.StreamWriter) -> None:
        self._transport = transport
        self._beneath = beneath  # a stream that nobody holds closes its socket
        hello = _line(MULTISTREAM)
        self._send(SYN | FIN, OWN_IDENTIFY, hello + _line(IDENTIFY))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= HEADER.size:
            _, kind, flags, stream, length = HEADER.unpack_from(self._received)
            end = HEADER.size + (length if kind == DATA else 0)
            if len(self._received) < end:
                return
            body = bytes(self._received[HEADER.size : end])
            del self._received[:end]
            self._take(kind, flags, stream, length, body)

    def _take(self, kind: int, flags: int, stream: int, length: int, body: bytes) -> None:
        if kind == PING and flags & SYN:
            self._write(HEADER.pack(0, PING, ACK, 0, length))
        if kind not in (DATA, WINDOW):
            return
        if flags & SYN:
            self._opening[stream] = b""
            self._write(HEADER.pack(0, WINDOW, ACK, stream, 0))
        self._unread[stream] += len(body)
        if self._unread[stream] > HALF_WINDOW_BYTES:
            self._write(HEADER.pack(0, WINDOW, 0, stream, self._unread.pop(stream)))
        if stream in self._opening:
            self._negotiate(stream, self._opening[stream] + body)
        if flags & (FIN | RESET):
            self._opening.pop(stream, None)
            self._unread.pop(stream, None)

    def _negotiate(self, stream: int, received: bytes) -> None:
        """Answer once the daemon has named a protocol, and a ping once it is here."""
        self._opening[stream] = received
        if received.count(b"\n") < 2:
            return
        hello, name, request = received.split(b"\n", 2)
        named = name[1:].decode(errors="replace")
        accepted = _line(MULTISTREAM) + _line(named)
        if named in (DIRECTORY_PING, HELLO_PROTOCOL) and not request:
            self._send(0, stream, accepted)
            return
        del self._opening[stream]
        if named == DIRECTORY_PING:
            self._send(FIN, stream, _sized(_pong(request[CALL_ID])))
        elif named == IDENTIFY:
            self._send(FIN, stream, accepted + _sized(self._peer.identify()))
        elif named == HELLO_PROTOCOL:
            self._send(0, stream, self._peer.greeting())
        else:
            self._send(FIN, stream, _line(MULTISTREAM) + _line("na"))

    def _send(self, flags: int, stream: int, body: bytes) -> None:
        self._write(HEADER.pack(0, DATA, flags, stream, len(body)) + body)

    def _write(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)


def _context(identity: Identity) -> ssl.SSLContext:
    """A client that shows a certificate as libp2p wants it; one TLS key serves all identities."""
    public = _tls_key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    own = PUBLIC_KEY_HEADER + public_key_of(identity.peer_id)
    proof = _asn1(0x30, _asn1(0x04, own) + _asn1(0x04, identity.sign(TLS_PREFIX + public)))
    name, now = x509.Name([]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, _tls_key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.UnrecognizedExtension(TLS_EXTENSION, proof), critical=True)
        .sign(_tls_key, hashes.SHA256())
    )
    context = asking_context()
    context.set_alpn_protocols([YAMUX, "libp2p"])
    show(context, _tls_key, certificate)
    return context


def _pong(call_id: bytes) -> bytes:
    """The answer to a ping of the directory, with a random node id."""
    answer = _field(2, _field(1, os.urandom(NODE_ID_BYTES)))
    return _field(1, call_id) + _field(4, _field(1, answer))


def _asn1(tag: int, body: bytes) -> bytes:
    return bytes([tag, len(body)]) + body  # all are shorter than 128 bytes


def _line(text: str) -> bytes:
    return _sized(text.encode() + b"\n")


def _field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _sized(body)


def _sized(body: bytes) -> bytes:
    length, prefix = len(body), b""
    while length > 0x7F:
        prefix, length = prefix + bytes([length & 0x7F | 0x80]), length >> 7
    return prefix + bytes([length]) + body
