"""`swarm identity`, and the format of its backups."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from nodes.cli import app
from swarm.errors import BackupError, IdentityError, IdentityInUse
from swarm.net.records.identity import Backup, Identity, open_backup, seal_backup

BACKUP = Backup("12D3KooWsomebody", 1_700_000_000, bytes(range(68)))


def swarm(*arguments: object) -> str:
    """Output of a command that works; what it raises otherwise."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], obj=[])
    if result.exception is not None:
        raise result.exception
    return result.output


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Identity.load_or_create(tmp_path / "home" / "identity.key").close()
    return tmp_path / "home"


def peer_id(home: Path) -> str:
    return Identity.read(home / "identity.key").peer_id


def test_show_tells_peer_file_mode_and_use_and_never_the_key(home: Path) -> None:
    shown = json.loads(swarm("identity", "show", home, "--json"))
    assert shown["peer_id"] == peer_id(home)
    assert shown["file"] == str(home / "identity.key")
    assert (shown["mode"], shown["in_use"]) == ("0600", False)
    assert shown["created"] == (home / "identity.key").stat().st_mtime
    os.chmod(home / "identity.key", 0o644)
    holder = Identity.load_or_create(home / "identity.key")
    text = swarm("identity", "show", home / "identity.key")
    assert "chmod 600" in text and "by a running node" in text
    holder.close()
    assert base64.b64encode(holder.encoded()).decode()[8:20] not in text


def test_a_backup_restores_the_same_peer_elsewhere(home: Path, tmp_path: Path) -> None:
    os.utime(home / "identity.key", (1_000_000, 1_000_000))
    backup, other = tmp_path / "backup.txt", tmp_path / "other"
    assert "anyone with this file can act as this peer" in swarm("identity", "export", backup, "--from", home)
    assert backup.stat().st_mode & 0o777 == 0o600
    assert f"Peer-Id: {peer_id(home)}" in backup.read_text()
    swarm("identity", "import", backup, "--to", other)
    restored = other / "identity.key"
    assert restored.read_bytes() == (home / "identity.key").read_bytes()
    assert restored.stat().st_mode & 0o777 == 0o600
    assert restored.stat().st_mtime == 1_000_000, "the key is as old as it was"
    swarm("identity", "import", backup, "--to", other)  # again: nothing to do
    assert sorted(entry.name for entry in other.iterdir()) == ["identity.key", "identity.key.lock"]


def test_an_encrypted_backup_needs_its_passphrase(home: Path, tmp_path: Path) -> None:
    backup, right, wrong = tmp_path / "backup.txt", tmp_path / "right", tmp_path / "wrong"
    right.write_text("correct horse\n")
    wrong.write_text("battery staple\n")
    swarm("identity", "export", backup, "--from", home, "--passphrase-file", right)
    key = (home / "identity.key").read_bytes()
    assert base64.b64encode(key).decode()[8:40] not in backup.read_text().replace("\n", "")
    for given_file, message in (((), "is encrypted"), (("--passphrase-file", wrong), "does not decrypt the backup")):
        with pytest.raises(BackupError, match=message):
            swarm("identity", "import", backup, "--to", tmp_path / "other", *given_file)
    assert not (tmp_path / "other").exists()
    swarm("identity", "import", backup, "--to", tmp_path / "other", "--passphrase-file", right)
    assert peer_id(tmp_path / "other") == peer_id(home)


def test_a_backup_is_never_overwritten(home: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup.txt"
    backup.write_text("precious")
    with pytest.raises(BackupError, match="never overwritten"):
        swarm("identity", "export", backup, "--from", home)
    assert backup.read_text() == "precious"


def test_another_identity_is_replaced_only_by_force_and_kept(home: Path, tmp_path: Path) -> None:
    backup, other = tmp_path / "backup.txt", tmp_path / "other"
    swarm("identity", "export", backup, "--from", home)
    Identity.load_or_create(other / "identity.key").close()
    before = (other / "identity.key").read_bytes()
    with pytest.raises(IdentityError, match="--force"):
        swarm("identity", "import", backup, "--to", other)
    assert (other / "identity.key").read_bytes() == before
    swarm("identity", "import", backup, "--to", other, "--force")
    assert peer_id(other) == peer_id(home)
    (kept,) = other.glob("identity.key.replaced-*")
    assert kept.read_bytes() == before and kept.stat().st_mode & 0o777 == 0o600


def test_an_identity_in_use_is_exported_but_not_replaced(home: Path, tmp_path: Path) -> None:
    backup, mine = tmp_path / "backup.txt", tmp_path / "mine.txt"
    Identity.load_or_create(tmp_path / "other" / "identity.key").close()
    swarm("identity", "export", backup, "--from", tmp_path / "other")
    holder = Identity.load_or_create(home / "identity.key")
    swarm("identity", "export", mine, "--from", home)
    with pytest.raises(IdentityInUse, match="in use by another process"):
        swarm("identity", "import", backup, "--to", home, "--force")
    assert peer_id(home) == holder.peer_id
    holder.close()


def test_a_backup_of_another_key_than_it_names_is_refused(home: Path, tmp_path: Path) -> None:
    key = (home / "identity.key").read_bytes()
    lying = tmp_path / "lying.txt"
    lying.write_text(seal_backup(Backup(Identity.generate().peer_id, 0, key), None))
    with pytest.raises(BackupError, match="but its key belongs to"):
        swarm("identity", "import", lying, "--to", tmp_path / "other")
    lying.write_text(seal_backup(BACKUP, None))
    with pytest.raises(BackupError, match="contains no key"):
        swarm("identity", "import", lying, "--to", tmp_path / "other")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "nowhere"), "there is no identity nowhere/identity.key"),
        (("export", "b", "--from", "nowhere"), "there is no identity"),
        (("import", "nowhere"), "cannot be read"),
        (("import", "nowhere", "--passphrase-file", "none"), "passphrase file none cannot be read"),
        (("import", "nowhere", "--passphrase-file", os.devnull), "must be the passphrase, but it is empty"),
    ],
)
def test_wrong_use_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(IdentityError, match=re.escape(message)):
        swarm("identity", *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("passphrase", [None, b"secret"])
def test_a_backup_is_what_was_sealed(passphrase: bytes | None) -> None:
    sealed = seal_backup(BACKUP, passphrase)
    assert open_backup(sealed, passphrase) == BACKUP
    assert open_backup(f"\n{sealed}".replace("\n", "\r\n"), passphrase) == BACKUP, "however it was mailed"
    assert len(sealed.splitlines()) < 16 and max(map(len, sealed.splitlines())) < 80


def test_an_encrypted_header_cannot_be_changed() -> None:
    sealed = seal_backup(BACKUP, b"secret").replace("Created: 1700000000", "Created: 1700000001")
    header = "\n".join(sealed.splitlines()[1:5])
    body = base64.b64decode("".join(sealed.splitlines()[7:-1]))
    old = next(line for line in sealed.splitlines() if line.startswith("Checksum"))
    forged = sealed.replace(old, f"Checksum: {hashlib.sha256(header.encode() + bytes((10, 10)) + body).hexdigest()}")
    with pytest.raises(BackupError, match="passphrase"):
        open_backup(forged, b"secret")


SEALED = seal_backup(BACKUP, None)


@given(st.integers(0, len(SEALED) - 1), st.characters(codec="utf-8"))
def test_any_damage_is_found(position: int, char: str) -> None:
    damaged = SEALED[:position] + char + SEALED[position + 1 :]
    with suppress(BackupError):
        assert open_backup(damaged, None) == BACKUP, "only white space may differ"


@given(st.text(max_size=400))
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BackupError):
        open_backup(text, None)
