"""Backups of an identity: a text file with the peer id in clear, the key, and a checksum.

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
import hashlib
import re
import secrets
import textwrap

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from msgspec import Struct

from swarm.errors import BackupError

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
