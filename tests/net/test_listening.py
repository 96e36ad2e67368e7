from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swarm.errors import TransportError
from swarm.net.addresses import listening
from swarm.net.addresses.listening import check_free, keep_ports, same_ports, with_port

ANY_PORT = "/ip4/127.0.0.1/tcp/0"


@contextmanager
def _taken() -> Iterator[str]:
    """The address of a port on which another process listens as daemons do, with SO_REUSEPORT."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "PATIENCE_S", 0.0)


def test_a_taken_port_is_refused_with_what_to_do() -> None:
    with _taken() as address, pytest.raises(TransportError, match="taken; end the process .* or set network.listen"):
        check_free(address)
    check_free(address)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(TransportError, match="cannot listen on /ip4/192.0.2.1/tcp/4001: .*an address of this machine"):
        check_free("/ip4/192.0.2.1/tcp/4001")


@pytest.mark.parametrize("address", [ANY_PORT, "/ip6/::1/tcp/0", "/ip4/127.0.0.1/udp/0/quic-v1"])
def test_the_ports_of_the_last_process_are_taken_again(tmp_path: Path, address: str) -> None:
    before = tmp_path / "listen.last"
    first, lost = same_ports([address], before)
    assert lost == [] and first != (address,) and first[0].endswith("/quic-v1") == address.endswith("/quic-v1")
    keep_ports(first, before)
    assert same_ports([address], before) == (first, [])
    assert same_ports([address], tmp_path / "none")[0] != first, "a new directory is a new node"


def test_another_address_in_the_configuration_counts_more_than_the_last_port(tmp_path: Path) -> None:
    keep_ports(["/ip4/127.0.0.1/tcp/4001"], tmp_path / "listen.last")
    fixed = with_port(ANY_PORT)
    assert same_ports([fixed], tmp_path / "listen.last") == ((fixed,), [])


def test_a_port_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    with _taken() as address:
        keep_ports([address], tmp_path / "listen.last")
        found, lost = same_ports([ANY_PORT], tmp_path / "listen.last")
    assert found != (address,) and found[0].startswith("/ip4/127.0.0.1/tcp/")
    assert len(lost) == 1 and f"cannot listen on {address}" in lost[0] and f"now it is {found[0]}" in lost[0]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"nonsense\n/ip4\n"])
def test_a_damaged_list_of_ports_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "listen.last").write_bytes(content)
    found, lost = same_ports([ANY_PORT], tmp_path / "listen.last")
    assert lost == [] and found[0] != ANY_PORT
