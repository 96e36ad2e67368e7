"""Bootstraps whose addresses are in the DNS, asked for at a server in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.resolver
import dns.rrset
import pytest

from swarm.errors import ConfigError, PeerUnreachable
from swarm.net.addresses import bootstrap as bootstrap_module, bootstrap as names_module
from swarm.net.addresses.bootstrap import MAX_LOOK_UPS, Bootstraps, _Name, look_up
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.records.identity import Identity

from .records import fast_settings, make_identity, sealed_manifest, until

A, B, C = (f"/ip4/10.0.0.{i}/tcp/{i}/p2p/{Identity.generate().peer_id}" for i in (1, 2, 3))


class NameServer:
    """Answers TXT questions over UDP from `texts`; a name that maps to nothing has records of other kinds only."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            self._answer_until_closed()

    def _answer_until_closed(self) -> None:
        while True:
            packet, sender = self._socket.recvfrom(4_096)
            question = dns.message.from_wire(packet)
            name = question.question[0].name.to_text(omit_final_dot=True)
            self.asked.append(name)
            reply = dns.message.make_response(question)
            if name not in self.texts:
                reply.set_rcode(dns.rcode.NXDOMAIN)
            elif self.texts[name]:
                # A text of more than 255 bytes travels in pieces.
                quoted = [
                    " ".join(f'"{text[i : i + 255]}"' for i in range(0, len(text), 255)) for text in self.texts[name]
                ]
                reply.answer.append(dns.rrset.from_text(f"{name}.", 60, "IN", "TXT", *quoted))
            self._socket.sendto(reply.to_wire(), sender)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    with closing(NameServer()) as server:
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], server.port
        monkeypatch.setattr(dns.resolver, "Resolver", lambda: resolver)
        yield server


def peer(multiaddr: str) -> str:
    return multiaddr.rpartition("/")[2]


def test_addresses_are_found_behind_a_name_and_the_names_it_names(server: NameServer) -> None:
    server.texts = {
        "_dnsaddr.boot.example": [
            f"dnsaddr={A}",
            "v=spf1 -all",
            "dnsaddr=/ip4/10.0.0.9/tcp/9",
            "dnsaddr=/dnsaddr/eu.boot.example",
            "dnsaddr=/dnsaddr/gone.boot.example",
            "dnsaddr=/dnsaddr/boot.example",
            "dnsaddr=nonsense" + "x" * 300,
        ],
        "_dnsaddr.eu.boot.example": [f"dnsaddr={B}", f"dnsaddr={A}"],
    }
    assert sorted(look_up("/dnsaddr/boot.example")) == [A, B]
    assert look_up(f"/dnsaddr/boot.example/p2p/{peer(B)}") == (B,)
    with pytest.raises(PeerUnreachable, match="_dnsaddr.gone.boot.example does not exist"):
        look_up(f"/dnsaddr/boot.example/p2p/{peer(C)}")


def test_names_that_lead_on_and_on_are_not_followed_for_ever(server: NameServer) -> None:
    server.texts = {
        f"_dnsaddr.n{i}.example": [f"dnsaddr=/dnsaddr/n{i + step}.example" for step in (1, 2, 3)] for i in range(100)
    }
    with pytest.raises(PeerUnreachable, match="contain no multiaddr"):
        look_up("/dnsaddr/n0.example")
    assert len(server.asked) == MAX_LOOK_UPS


def test_what_went_wrong_is_told_in_one_line(server: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "TIMEOUT_S", 0.3)
    server.texts = {"_dnsaddr.empty.example": [], "_dnsaddr.other.example": ["v=spf1 -all"]}

    def problem(name: str) -> str:
        with pytest.raises(PeerUnreachable) as error:
            look_up(f"/dnsaddr/{name}")
        assert "\n" not in str(error.value)
        return str(error.value)

    assert problem("none.example") == "_dnsaddr.none.example does not exist"
    assert problem("empty.example") == "_dnsaddr.empty.example has no TXT records"
    assert problem("other.example") == "its TXT records contain no multiaddr"
    assert problem("a..b") or problem("\udcff")
    server.close()
    dead = problem("boot.example")
    assert "within 0.3 s" in dead or "cannot be looked up" in dead


@pytest.mark.parametrize(
    "entry", ["/dnsaddr/", "/dnsaddr/a..b", "/dnsaddr/boot.example/tcp/1", "/dnsaddr/" + "a" * 64, "/dnsaddr/x/p2p/Qm"]
)
def test_entries_that_are_no_names_are_refused(entry: str) -> None:
    with pytest.raises(ConfigError):
        Bootstraps([entry], {})


def test_a_name_is_one_source_among_others_and_keeps_what_was_found(
    server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstraps = Bootstraps(["/dnsaddr/boot.example", C], {})
    assert bootstraps.look_up() == {"/dnsaddr/boot.example": "_dnsaddr.boot.example does not exist"}
    assert bootstraps.multiaddrs() == (C,)
    server.texts = {"_dnsaddr.boot.example": [f"dnsaddr={A}"]}
    assert bootstraps.look_up() == {} and bootstraps.multiaddrs() == (A, C)
    monkeypatch.setattr(bootstrap_module, "LOOK_UP_EVERY_S", 0.0)
    server.texts = {"_dnsaddr.boot.example": [f"dnsaddr={B}"]}
    bootstraps.look_again()
    until(lambda: bootstraps.multiaddrs() == (B, C), "the change is seen")
    server.texts = {}
    bootstraps.look_again()
    until(bootstraps.problems, "that it is gone is seen")
    assert bootstraps.multiaddrs() == (B, C)


def test_names_are_looked_up_again_once_a_while(server: NameServer) -> None:
    now = 1_000.0
    name = _Name("/dnsaddr/boot.example", lambda: now)
    for _ in range(10):
        name.look_again()
        now += 20
    until(lambda: len(server.asked) == 4, "after 0, 60, 120 and 180 s")


@pytest.mark.network
def test_a_node_finds_its_bootstrap_by_name_also_when_it_has_moved(
    server: NameServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap_module, "LOOK_UP_EVERY_S", 0.5)
    founder = make_identity(tmp_path, "founder")
    first = HivemindTransport(fast_settings(), founder, sealed_manifest(founder))
    second = HivemindTransport(fast_settings(("/dnsaddr/boot.example",)), make_identity(tmp_path, "b"))
    try:
        first.start()
        second.start()
        words = "no bootstrap known: /dnsaddr/boot.example: _dnsaddr.boot.example does not exist"
        until(lambda: second.status().detail == words, words)
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            moved = f"/ip4/127.0.0.1/tcp/{nobody.getsockname()[1]}/p2p/{first.peer_id}"
            server.texts = {"_dnsaddr.boot.example": [f"dnsaddr={moved}"]}
            until(lambda: "connection refused" in second.status().detail, "where it was is dialled")
            server.texts = {"_dnsaddr.boot.example": [f"dnsaddr={address}" for address in first.multiaddrs()]}
            until(second.manifest, "the run is learned where it is now")
    finally:
        first.close()
        second.close()
