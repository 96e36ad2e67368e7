"""Who a node is: an Ed25519 key, kept in the file format the libp2p daemon reads, and the peer id made from it."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from pathlib import Path
from typing import IO

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from swarm.errors import IdentityError, IdentityInUse

logger = logging.getLogger(__name__)

KEY_BYTES = 32
# libp2p's keys are protobuf messages {1: key type, 2: bytes}; with Ed25519 (type 1) every byte but the key is fixed.
PRIVATE_KEY_HEADER = bytes((0x08, 0x01, 0x12, 2 * KEY_BYTES))
PUBLIC_KEY_HEADER = bytes((0x08, 0x01, 0x12, KEY_BYTES))
# A public key this short is its own "hash": code 0 (identity), then the length.
PEER_ID_HEADER = bytes((0x00, len(PUBLIC_KEY_HEADER) + KEY_BYTES)) + PUBLIC_KEY_HEADER
MAX_PEER_ID_CHARS = 64


def peer_id_of(public_key: bytes) -> str:
    """The libp2p peer id (`12D3Koo...`) of a raw Ed25519 public key."""
    encoded: bytes = base58.b58encode(PEER_ID_HEADER + public_key)
    return encoded.decode()


def public_key_of(peer_id: str) -> bytes:
    """The raw Ed25519 public key a peer id contains. Raises `IdentityError` when it contains none."""
    # base58 decoding is quadratic: the length is checked before a stranger's string reaches it.
    if len(peer_id) > MAX_PEER_ID_CHARS:
        raise IdentityError(f"a peer id must have at most {MAX_PEER_ID_CHARS} characters, got {len(peer_id)}")
    try:
        encoded: bytes = base58.b58decode(peer_id)
    except ValueError:
        encoded = b""
    if len(encoded) != len(PEER_ID_HEADER) + KEY_BYTES or not encoded.startswith(PEER_ID_HEADER):
        raise IdentityError(f"a peer id must be that of an Ed25519 key (12D3Koo...), got {peer_id!r}")
    return encoded[len(PEER_ID_HEADER) :]


def verify(peer_id: str, message: bytes, signature: bytes) -> bool:
    """Whether `signature` over `message` was made with the key behind `peer_id`."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key_of(peer_id)).verify(signature, message)
    except (IdentityError, InvalidSignature):
        return False
    return True


class Identity:
    """An Ed25519 key and its peer id; one made from a file also holds that file's lock until `close`."""

    def __init__(self, key: Ed25519PrivateKey, path: Path | None = None, lock: IO[bytes] | None = None) -> None:
        """Wrap a key; use `load_or_create` or `generate` instead."""
        self._key = key
        self._lock = lock
        self.path = path
        self.peer_id = peer_id_of(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> Identity:
        """A key that lives in memory only."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """The key in `path`, made there with mode 0600 when there is none.

        Raises `IdentityError` when the file cannot be read or written, holds no Ed25519 key, or is in use.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = _lock(path)
            if not path.exists():
                _create(path)
            encoded = path.read_bytes()
            if path.stat().st_mode & 0o077:
                logger.warning("the key file %s can be read by other users: chmod 600 it", path)
        except OSError as error:
            raise IdentityError(f"the identity file {path} cannot be used: {error.strerror or error}") from error
        seed = encoded[len(PRIVATE_KEY_HEADER) : len(PRIVATE_KEY_HEADER) + KEY_BYTES]
        public_key = encoded[len(PRIVATE_KEY_HEADER) + KEY_BYTES :]
        if not encoded.startswith(PRIVATE_KEY_HEADER) or len(public_key) != KEY_BYTES:
            raise IdentityError(
                f"the identity file {path} must hold an Ed25519 key in libp2p's private key format, "
                f"got {len(encoded)} other bytes; move it away to have a new one made"
            )
        key = Ed25519PrivateKey.from_private_bytes(seed)
        if key.public_key().public_bytes_raw() != public_key:
            raise IdentityError(f"the identity file {path} is damaged: its public key is not that of its private key")
        return cls(key, path, lock)

    def sign(self, message: bytes) -> bytes:
        """64-byte signature over `message`."""
        return self._key.sign(message)

    def close(self) -> None:
        """Let another process use the key file."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _lock(path: Path) -> IO[bytes]:
    # Two nodes with one key corrupt each other's connections. The kernel drops a flock with its process, so a node that
    # was killed leaves nothing to clean up. The lock file is never removed: removing it would let two holders coexist.
    lock = path.with_name(path.name + ".lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise IdentityInUse(
            f"the identity {path} is in use by another process; stop it or give this node another identity file"
        ) from error
    return lock


def _create(path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(PRIVATE_KEY_HEADER + key.private_bytes_raw() + key.public_key().public_bytes_raw())
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
