from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.errors import IdentityError
from swarm.net.records.identity import Identity, peer_id_of, public_key_of, verify


def test_peer_id_of_the_all_zero_key_is_the_known_one() -> None:
    # base58 of 00 24 08 01 12 20 followed by 32 zero bytes, worked out by hand with integer arithmetic.
    number = int.from_bytes(bytes((0x00, 0x24, 0x08, 0x01, 0x12, 0x20)) + bytes(32), "big")
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = alphabet[digit] + digits
    assert peer_id_of(bytes(32)) == "1" + digits
    assert peer_id_of(bytes(32)).startswith("12D3Koo")
    assert public_key_of(peer_id_of(bytes(range(32)))) == bytes(range(32))


def test_file_is_private_in_libp2p_format_and_stable(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "node.key"
    first = Identity.load_or_create(path)
    encoded = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert encoded[:4] == bytes((0x08, 0x01, 0x12, 0x40)) and len(encoded) == 68
    assert public_key_of(first.peer_id) == encoded[36:]
    first.close()
    assert Identity.load_or_create(path).peer_id == first.peer_id
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["node.key", "node.key.lock"]


def test_signature_binds_message_and_peer() -> None:
    one, two = Identity.generate(), Identity.generate()
    signature = one.sign(b"message")
    assert verify(one.peer_id, b"message", signature)
    assert not verify(one.peer_id, b"other", signature)
    assert not verify(two.peer_id, b"message", signature)
    assert not verify(one.peer_id, b"message", b"short")


@pytest.mark.parametrize("peer_id", ["", "0OIl", "Qm" + "a" * 44, "1" * 5_000, "12D3KooW", "é"])
def test_other_peer_ids_are_refused(peer_id: str) -> None:
    with pytest.raises(IdentityError):
        public_key_of(peer_id)
    assert not verify(peer_id, b"", b"")


@pytest.mark.parametrize("space", [" ", "\n", "\t\x0b", "\x00"])
def test_a_key_has_one_peer_id(space: str) -> None:
    identity = Identity.generate()
    for alias in (identity.peer_id + space, space + identity.peer_id, "1" + identity.peer_id):
        with pytest.raises(IdentityError):
            public_key_of(alias)
        assert not verify(alias, b"message", identity.sign(b"message"))


@pytest.mark.parametrize("content", [b"", b"junk", bytes(68), bytes((8, 1, 18, 64)) + bytes(range(64))])
def test_damaged_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "node.key"
    path.write_bytes(content)
    with pytest.raises(IdentityError, match=r"node\.key"):
        Identity.load_or_create(path)
    assert path.read_bytes() == content


def test_unusable_path_is_an_identity_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IdentityError, match="cannot be used"):
        Identity.load_or_create(tmp_path / "file" / "node.key")


def test_second_holder_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    script = (
        "import sys; from pathlib import Path; from swarm.net.records.identity import Identity\n"
        "held = Identity.load_or_create(Path(sys.argv[1])); print(held.peer_id, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        peer_id = holder.stdout.readline().strip()
        with pytest.raises(IdentityError, match="in use by another process"):
            Identity.load_or_create(path)
        holder.kill()
    assert Identity.load_or_create(path).peer_id == peer_id


def test_a_key_others_can_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "node.key"
    Identity.load_or_create(path).close()
    os.chmod(path, 0o644)
    Identity.load_or_create(path)
    assert "other users can read the key file" in caplog.text
