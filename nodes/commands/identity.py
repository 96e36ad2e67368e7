"""`swarm identity`: show, back up and restore a node's key."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodes.boot.directory import IDENTITY_FILE
from swarm.errors import BackupError, IdentityError
from swarm.net.records.identity import MAX_BACKUP_CHARS, Backup, Identity, in_use, install, open_backup, seal_backup

PRIVATE = 0o600


class IdentityInfo(Struct, frozen=True):
    """Public facts about an identity."""

    peer_id: str
    file: str
    mode: str
    """Octal permissions, e.g. `0600`."""
    created: float
    """Unix seconds."""
    in_use: bool


def show_identity(where: Path, as_json: bool, console: Console) -> None:
    """Print the peer id and facts about its file. Raises `IdentityError`."""
    info = describe(where)
    if as_json:
        print(json.dumps(structs.asdict(info), indent=1))
        return
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.created))
    open_to_others = int(info.mode, 8) & 0o077
    rows = [
        ("peer id", info.peer_id),
        ("file", info.file),
        ("mode", f"{info.mode}: others can read the key; chmod 600 it" if open_to_others else info.mode),
        ("created", created),
        ("in use", "by a running node" if info.in_use else "no"),
    ]
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(name, Text(value, style="yellow" if name == "mode" and open_to_others else ""))
    console.print(table, soft_wrap=True)


def describe(where: Path) -> IdentityInfo:
    """The identity in a directory or file. Raises `IdentityError`."""
    path = existing(where)
    identity, status = Identity.read(path), path.stat()
    return IdentityInfo(identity.peer_id, str(path), f"{status.st_mode & 0o7777:04o}", status.st_mtime, in_use(path))


def export_identity(backup: Path, where: Path, passphrase_file: Path | None, console: Console) -> None:
    """Write a backup that only its owner can read. Raises `IdentityError`, also when `backup` exists."""
    passphrase = _passphrase(passphrase_file)
    path = existing(where)
    identity = Identity.read(path)
    text = seal_backup(Backup(identity.peer_id, int(path.stat().st_mtime), identity.encoded()), passphrase)
    try:
        descriptor = os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise BackupError(f"{backup} already exists, and backups are never overwritten; choose another name") from error
    except OSError as error:
        raise BackupError(f"the backup {backup} cannot be written: {error.strerror or error}") from error
    guard = "encrypted" if passphrase else "not encrypted: anyone with this file can act as this peer"
    console.print(Text(f"{identity.peer_id} is backed up in {backup}, {guard}"), soft_wrap=True)


def import_identity(backup: Path, where: Path, passphrase_file: Path | None, force: bool, console: Console) -> None:
    """Restore a backup into a directory or file. Raises `IdentityError`."""
    passphrase = _passphrase(passphrase_file)
    try:
        with backup.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_BACKUP_CHARS + 1)
    except OSError as error:
        raise BackupError(f"the backup {backup} cannot be read: {error.strerror or error}") from error
    try:
        opened = open_backup(text, passphrase)
        peer_id = Identity.parse(opened.encoded).peer_id
    except BackupError as error:
        raise BackupError(f"{backup}: {error}") from error
    except IdentityError as error:
        raise BackupError(f"{backup} contains no key: {error}") from error
    if peer_id != opened.peer_id:
        raise BackupError(f"{backup} names {opened.peer_id}, but its key belongs to {peer_id}; nothing was changed")
    path = key_file(where)
    moved = install(path, opened.encoded, opened.created_at, force=force)
    console.print(Text(f"{path} is now {peer_id}"), soft_wrap=True)
    if moved:
        console.print(Text(f"the previous identity is kept in {moved}"), soft_wrap=True)


def key_file(where: Path) -> Path:
    """The key file for a directory or a file."""
    return where if where.is_file() or where.suffix == ".key" else where / IDENTITY_FILE


def existing(where: Path) -> Path:
    """The key file for a directory or a file. Raises `IdentityError` when there is none."""
    path = key_file(where)
    if not path.is_file():
        raise IdentityError(f"there is no identity {path}; use a node's directory, or the key file itself")
    return path


def _passphrase(file: Path | None) -> bytes | None:
    """The first line of a file."""
    if file is None:
        return None
    try:
        passphrase = file.read_bytes().splitlines()[:1]
    except OSError as error:
        raise BackupError(f"the passphrase file {file} cannot be read: {error.strerror or error}") from error
    if not passphrase or not passphrase[0]:
        raise BackupError(f"the first line of the passphrase file {file} must be the passphrase, but it is empty")
    return passphrase[0]
