"""A node's identity: an Ed25519 key in the file format of the libp2p daemon, its peer id, and its backups.

A backup is a text file with the peer id in clear, the key, and a checksum:

-----BEGIN SWARM IDENTITY BACKUP-----
Format: 1
Peer-Id: 12D3Koo...
Created: 1700000000
Encryption: none, or scrypt-65536-8-1+chacha20poly1305
Checksum: SHA-256 of the lines above and of the bytes below

base64: the key file; encrypted: salt, nonce, ciphertext, with the lines above authenticated too
-----END SWARM IDENTITY BACKUP-----
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import logging
import os
import re
import secrets
import textwrap
from pathlib import Path
from typing import IO

import base58
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from msgspec import Struct

from swarm.errors import BackupError, IdentityError, IdentityInUse
from swarm.files import open_private

logger = logging.getLogger(__name__)

KEY_BYTES = 32
# libp2p keys are protobuf messages {1: key type, 2: bytes}. For Ed25519 (type 1) everything but the key is constant.
PRIVATE_KEY_HEADER = bytes((0x08, 0x01, 0x12, 2 * KEY_BYTES))
PUBLIC_KEY_HEADER = bytes((0x08, 0x01, 0x12, KEY_BYTES))
# So short a public key is stored verbatim as an identity multihash: code 0, then the length.
PEER_ID_HEADER = bytes((0x00, len(PUBLIC_KEY_HEADER) + KEY_BYTES)) + PUBLIC_KEY_HEADER
MAX_PEER_ID_CHARS = 64
BEGIN = "-----BEGIN SWARM IDENTITY BACKUP-----"
END = "-----END SWARM IDENTITY BACKUP-----"
FORMAT = "1"
PLAIN = "none"
ENCRYPTED = "scrypt-65536-8-1+chacha20poly1305"
"""Fixed by the format, so a backup cannot request more memory. Takes 64 MiB and 0.2 s."""
SALT_BYTES = 16
NONCE_BYTES = 12
MAX_BACKUP_CHARS = 10_000
FIELDS = ("Format", "Peer-Id", "Created", "Encryption")


def peer_id_of(public_key: bytes) -> str:
    """The libp2p peer id (`12D3Koo...`) of a raw Ed25519 public key."""
    encoded: bytes = base58.b58encode(PEER_ID_HEADER + public_key)
    return encoded.decode()


def public_key_of(peer_id: str) -> bytes:
    """The raw Ed25519 public key in a peer id. Raises `IdentityError` if it contains none."""
    # base58 decoding is quadratic, so the length of an untrusted string is checked first.
    if len(peer_id) > MAX_PEER_ID_CHARS:
        raise IdentityError(f"a peer id must have at most {MAX_PEER_ID_CHARS} characters, got {len(peer_id)}")
    try:
        # base58 ignores trailing white space, with which a peer would have several ids.
        encoded: bytes = base58.b58decode(peer_id) if peer_id.isalnum() else b""
    except ValueError:
        encoded = b""
    if len(encoded) != len(PEER_ID_HEADER) + KEY_BYTES or not encoded.startswith(PEER_ID_HEADER):
        raise IdentityError(f"a peer id must be that of an Ed25519 key (12D3Koo...), got {peer_id!r}")
    return encoded[len(PEER_ID_HEADER) :]


def is_peer_id(text: str) -> bool:
    """Whether a text is the peer id of an Ed25519 key."""
    try:
        return bool(public_key_of(text))
    except IdentityError:
        return False


def verify(peer_id: str, message: bytes, signature: bytes) -> bool:
    """Whether `signature` over `message` is valid for the key of `peer_id`."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key_of(peer_id)).verify(signature, message)
    except (IdentityError, InvalidSignature):
        return False
    return True


class Identity:
    """An Ed25519 key and its peer id. If loaded from a file, it holds the file's lock until `close`."""

    def __init__(self, key: Ed25519PrivateKey, path: Path | None = None, lock: IO[bytes] | None = None) -> None:
        """Wrap a key; use `load_or_create` or `generate` instead."""
        self._key = key
        self._lock = lock
        self.path = path
        self.peer_id = peer_id_of(key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> Identity:
        """A new key in memory only."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """The key in `path`; if the file does not exist, it is created with mode 0600.

        Raises `IdentityError` if the file cannot be read or written, holds no Ed25519 key, or is in use.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = _lock(path)
            if not path.exists():
                _write(path, Ed25519PrivateKey.generate())
            encoded = path.read_bytes()
            if path.stat().st_mode & 0o077:
                logger.warning("other users can read the key file %s: run chmod 600 on it", path)
        except OSError as error:
            raise IdentityError(f"the identity file {path} cannot be used: {error.strerror or error}") from error
        return cls(_parse(encoded, path), path, lock)

    @classmethod
    def parse(cls, encoded: bytes) -> Identity:
        """The key in the bytes of a key file, without a file. Raises `IdentityError`."""
        return cls(_parse(encoded, "given"))

    @classmethod
    def read(cls, path: Path) -> Identity:
        """The key in `path`, read without a lock: another process may use it. Raises `IdentityError`."""
        try:
            encoded = path.read_bytes()
        except OSError as error:
            raise IdentityError(f"the identity file {path} cannot be read: {error.strerror or error}") from error
        return cls(_parse(encoded, path), path)

    def encoded(self) -> bytes:
        """The private key in the file format. Never send or print it."""
        return _encode(self._key)

    def sign(self, message: bytes) -> bytes:
        """64-byte signature of `message`."""
        return self._key.sign(message)

    def close(self) -> None:
        """Release the lock on the key file."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _lock(path: Path) -> IO[bytes]:
    # Two nodes with one key corrupt each other's connections. The kernel releases a flock when the process ends, so a
    # killed node leaves nothing to clean up. The lock file is never removed: otherwise two processes could hold a lock.
    lock = open_private(path.with_name(path.name + ".lock"), "ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise _used(path) from error
    return lock


def _used(path: Path) -> IdentityInUse:
    return IdentityInUse(
        f"the identity {path} is in use by another process; stop it, or choose another directory with --out"
    )


def check_unused(path: Path) -> None:
    """Raises `IdentityInUse` when a process holds the identity in `path`; see `in_use`."""
    if in_use(path):
        raise _used(path)


def in_use(path: Path) -> bool:
    """Whether a process holds the identity in `path`. This check takes the lock for an instant, so a node that starts
    just then may be refused.
    """
    try:
        with path.with_name(path.name + ".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no lock file: never used; or that of another user, and then the answer is unknown
    return False


def install(path: Path, encoded: bytes, created_at: float, *, force: bool = False) -> Path | None:
    """Write a key to `path`. Returns where the previous key was moved to, None if there was none.

    Raises `IdentityInUse` while a process uses `path`, and `IdentityError` if it holds another identity (and not
    `force`) or cannot be written.
    """
    key = _parse(encoded, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path):
            moved = None
            if path.exists():
                if path.read_bytes() == encoded:
                    return None
                if not force:
                    raise IdentityError(
                        f"{path} already holds another identity; import into another directory, or give --force to "
                        "replace it, which keeps the old file beside the new one"
                    )
                moved = path.with_name(f"{path.name}.replaced-{secrets.token_hex(4)}")
                # A hard link, then a rename over it: an identity file exists at all times, so none is created.
                os.link(path, moved)
            _write(path, key)
            os.utime(path, (created_at, created_at))
            return moved
    except OSError as error:
        raise IdentityError(f"the identity file {path} cannot be written: {error.strerror or error}") from error


def _parse(encoded: bytes, path: Path | str) -> Ed25519PrivateKey:
    seed = encoded[len(PRIVATE_KEY_HEADER) : len(PRIVATE_KEY_HEADER) + KEY_BYTES]
    public_key = encoded[len(PRIVATE_KEY_HEADER) + KEY_BYTES :]
    if not encoded.startswith(PRIVATE_KEY_HEADER) or len(public_key) != KEY_BYTES:
        raise IdentityError(
            f"the identity file {path} must hold an Ed25519 key in libp2p's private key format, "
            f"got {len(encoded)} bytes of something else; move the file away to have a new key made"
        )
    key = Ed25519PrivateKey.from_private_bytes(seed)
    if key.public_key().public_bytes_raw() != public_key:
        raise IdentityError(f"the identity file {path} is damaged: its keys do not match; restore a backup")
    return key


def _encode(key: Ed25519PrivateKey) -> bytes:
    return PRIVATE_KEY_HEADER + key.private_bytes_raw() + key.public_key().public_bytes_raw()


def _write(path: Path, key: Ed25519PrivateKey) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(_encode(key))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


class Backup(Struct, frozen=True):
    """Content of a backup."""

    peer_id: str
    created_at: int
    """Creation time of the key in unix seconds."""
    encoded: bytes
    """Bytes of the key file."""


def seal_backup(backup: Backup, passphrase: bytes | None) -> str:
    """The backup as text. Without a passphrase, anyone who reads it can act as that peer."""
    values = (FORMAT, backup.peer_id, str(backup.created_at), ENCRYPTED if passphrase else PLAIN)
    header = "\n".join(f"{name}: {value}" for name, value in zip(FIELDS, values, strict=True))
    body = _encrypt(backup.encoded, passphrase, header.encode()) if passphrase else backup.encoded
    lines = textwrap.wrap(base64.b64encode(body).decode(), 64)
    return "\n".join([BEGIN, header, f"Checksum: {_checksum(header, body)}", "", *lines, END, ""])


def open_backup(text: str, passphrase: bytes | None) -> Backup:
    """The inverse of `seal_backup`; does not check the key. Raises `BackupError`."""
    header, checksum, body = _split(text)
    values = dict(line.partition(": ")[::2] for line in header.splitlines())
    if tuple(values) != FIELDS or values["Format"] != FORMAT:
        raise BackupError(f"a backup must be of format {FORMAT}, got {values.get('Format', 'none')!r}")
    if checksum != _checksum(header, body):
        raise BackupError("the backup is damaged: its checksum does not match; use another copy")
    if not re.fullmatch(r"[0-9]{1,11}", values["Created"]):
        raise BackupError(f"Created must be unix seconds, got {values['Created']!r}")
    created_at = int(values["Created"])
    if values["Encryption"] == PLAIN:
        return Backup(values["Peer-Id"], created_at, body)
    if values["Encryption"] != ENCRYPTED:
        raise BackupError(f"the encryption must be {PLAIN} or {ENCRYPTED}, got {values['Encryption']!r}")
    if not passphrase:
        raise BackupError("the backup is encrypted: give its passphrase with --passphrase-file")
    return Backup(values["Peer-Id"], created_at, _decrypt(body, passphrase, header.encode()))


def _split(text: str) -> tuple[str, str, bytes]:
    """Header, checksum and body."""
    lines = [line.strip() for line in text.strip().splitlines()] if len(text) <= MAX_BACKUP_CHARS else []
    if len(lines) < len(FIELDS) + 4 or lines[0] != BEGIN or lines[-1] != END:
        raise BackupError(f"a backup starts with {BEGIN} and ends with {END}; this text does not, or is truncated")
    header, rest = "\n".join(lines[1 : 1 + len(FIELDS)]), lines[1 + len(FIELDS) : -1]
    try:
        body = base64.b64decode("".join(rest[2:]), validate=True)
    except ValueError as error:
        raise BackupError(f"the backup is damaged: {error}; use another copy") from error
    return header, rest[0].removeprefix("Checksum: "), body


def _checksum(header: str, body: bytes) -> str:
    return hashlib.sha256(header.encode() + b"\n\n" + body).hexdigest()


def _encrypt(encoded: bytes, passphrase: bytes, header: bytes) -> bytes:
    salt, nonce = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(NONCE_BYTES)
    return salt + nonce + ChaCha20Poly1305(_derive(passphrase, salt)).encrypt(nonce, encoded, header)


def _decrypt(body: bytes, passphrase: bytes, header: bytes) -> bytes:
    salt, nonce, ciphertext = body[:SALT_BYTES], body[SALT_BYTES:][:NONCE_BYTES], body[SALT_BYTES + NONCE_BYTES :]
    try:
        return ChaCha20Poly1305(_derive(passphrase, salt)).decrypt(nonce, ciphertext, header)
    except (InvalidTag, ValueError) as error:
        raise BackupError("the passphrase does not decrypt the backup") from error


def _derive(passphrase: bytes, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=65_536, r=8, p=1).derive(passphrase)
