"""Two nodes behind routers of their own, that nobody can dial, in real processes and network namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm.net.records.identity import Identity

from .namespaces import Internet, missing
from .records import until

pytestmark = [pytest.mark.network, pytest.mark.slow]

Event = dict[str, object]
PORT = 4001
NEEDED_WITNESSES = 5
"""A daemon believes in an outer address that peers at four others have seen; one more does no harm."""


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if why := missing():
        pytest.skip(why)


@pytest.fixture
def internet() -> Iterator[Internet]:
    net = Internet(f"swarm-test-{os.getpid()}")
    try:
        yield net
    finally:
        net.remove()
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        assert f"swarm-test-{os.getpid()}" not in left


class Relay:
    """`swarm bootstrap --relay` on a public host."""

    def __init__(self, internet: Internet, folder: Path) -> None:
        self._internet = internet
        self._folder = folder
        folder.mkdir()
        self.peer_id = Identity.load_or_create(folder / "identity.key").peer_id
        self.host = internet.add_host("relay")
        self.multiaddr = f"/ip4/{self.host}/tcp/{PORT}/p2p/{self.peer_id}"

    def start(self) -> None:
        options = ("--network.announce_every_s=2", "--network.nat_port_map=false")
        command = ("-m", "nodes.cli", "bootstrap", "--relay", "--out", str(self._folder), *options)
        listen = f"--network.listen=/ip4/0.0.0.0/tcp/{PORT}"
        self._process = self._internet.start("relay", sys.executable, *command, listen, log=self._folder / "log.txt")
        (self._folder / "multiaddrs").unlink(missing_ok=True)
        until((self._folder / "multiaddrs").exists, "the relay is up", 60.0)
        assert self.multiaddr in (self._folder / "multiaddrs").read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        until(lambda: not self._internet.reaches("relay", self.host, PORT), "its daemon is gone")


class Node:
    """`nat_process.py` on a host, and everything it has told."""

    def __init__(self, internet: Internet, host: str, folder: Path, bootstrap: str, *listen: str) -> None:
        folder.mkdir()
        script = Path(__file__).with_name("nat_process.py")
        arguments = (str(script), str(folder), bootstrap, *filter(None, [",".join(listen)]))
        self.events: list[Event] = []
        self._log = folder / "log.txt"
        self._process = internet.start(host, sys.executable, *arguments, log=self._log)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    def order(self, **what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def wait(self, matches: Callable[[Event], bool], what: str, since: int = 0, timeout_s: float = 60.0) -> Event:
        def found() -> Event | None:
            assert self._process.poll() is None, f"it exited: {self._log.read_text()[-2000:]}"
            return next(filter(matches, self.events[since:]), None)

        try:
            return until(found, what, timeout_s) or {}
        except AssertionError as error:
            raise AssertionError(f"{error}; it told last: {self.events[-3:]}") from None

    def peer_id(self) -> str:
        return str(self._up()["peer_id"])

    def age_s(self, event: Event) -> float:
        """Seconds from the start of its network to the event."""
        return float(str(event["at"])) - float(str(self._up()["at"]))

    def _up(self) -> Event:
        return self.wait(lambda event: "peer_id" in event, "it is up")

    def wait_reachable(self, relay: Relay, since: int = 0) -> Event:
        words = f"behind NAT, reachable through relay {relay.peer_id}"
        circuit = f"{relay.multiaddr}/p2p-circuit/p2p/{self.peer_id()}"
        return self.wait(
            lambda event: words in str(event.get("detail")) and circuit in str(event["multiaddrs"]), words, since
        )

    def ask(self, other: Node, num_bytes: int) -> Event:
        since = len(self.events)
        self.order(request=other.peer_id(), bytes=num_bytes)
        return self.wait(lambda event: "echoed" in event or "failed" in event, "an answer", since)


def exchange(sender: Node, receiver: Node, sequence: int) -> Event:
    """A sealed group must arrive by gossip."""
    sender.order(publish=sequence)
    by = sender.peer_id()
    return receiver.wait(
        lambda event: event.get("group") == sequence and event["by"] == by, f"group {sequence} arrives"
    )


def test_two_hosts_behind_nat_exchange_groups_and_requests_through_a_relay(internet: Internet, tmp_path: Path) -> None:
    relay = Relay(internet, tmp_path / "relay")
    homes = {"a": internet.add_home("a"), "b": internet.add_home("b")}
    relay.start()
    assert internet.reaches("a", relay.host, PORT)
    assert not internet.reaches("a", homes["b"], PORT) and not internet.reaches("relay", homes["a"], PORT)
    a, b = (Node(internet, name, tmp_path / name, relay.multiaddr) for name in homes)

    first = [exchange(a, b, 1), exchange(b, a, 2)]
    reachable = [node.wait_reachable(relay) for node in (a, b)]
    first_echo = until_echoed(a, b)
    echoes_s = [float(str(until_echoed(*pair)["s"])) for pair in ((a, b, 1_000), (b, a, 1_000), (a, b, 1_000_000))]

    since = [len(a.events), len(b.events)]
    relay.kill()
    for node, start in zip((a, b), since, strict=True):
        node.wait(lambda event: "no bootstrap reachable" in str(event.get("detail")), "the relay's end is seen", start)
    since = [len(a.events), len(b.events)]
    relay.start()
    back = time.time()
    again = [exchange(a, b, 3), exchange(b, a, 4)]
    reachable_again = [node.wait_reachable(relay, start) for node, start in zip((a, b), since, strict=True)]
    until_echoed(b, a)
    last_echo = until_echoed(a, b)

    seconds = {
        "first group": [b.age_s(first[0]), a.age_s(first[1])],
        "reachable": [a.age_s(reachable[0]), b.age_s(reachable[1])],
        "first request answered": [a.age_s(first_echo)],
        "echoes of 1 kB, 1 kB, 1 MB": echoes_s,
        "group after the relay's return": [float(str(event["at"])) - back for event in again],
        "reachable after the relay's return": [float(str(event["at"])) - back for event in reachable_again],
        "request after the relay's return": [float(str(last_echo["at"])) - back],
    }
    print(json.dumps(seconds))


def test_two_hosts_behind_nat_come_to_be_connected_directly(internet: Internet, tmp_path: Path) -> None:
    relay = Relay(internet, tmp_path / "relay")
    crowd = [internet.add_host("crowd"), *(internet.add_address("crowd") for _ in range(NEEDED_WITNESSES - 1))]
    homes = {"a": internet.add_home("a"), "b": internet.add_home("b")}
    relay.start()
    script = Path(__file__).with_name("crowd_process.py")
    witnesses = internet.start("crowd", sys.executable, str(script), *crowd, log=tmp_path / "crowd.txt")
    assert witnesses.stdout is not None
    known = ",".join([relay.multiaddr, *json.loads(witnesses.stdout.readline())])
    listen = ("/ip4/0.0.0.0/tcp/4001", "/ip4/0.0.0.0/udp/4001/quic-v1")
    a, b = (Node(internet, name, tmp_path / name, known, *listen) for name in homes)

    def is_direct(node: Node, other: Node, outer: str) -> Event:
        end = f"/ip4/{outer}/udp/4001/quic-v1"
        return node.wait(
            lambda event: end in dict(event.get("connections") or {}).get(other.peer_id(), ()),  # type: ignore[arg-type]
            "a direct connection",
            timeout_s=120.0,
        )

    direct = [is_direct(a, b, homes["b"]), is_direct(b, a, homes["a"])]
    print(json.dumps({"direct after": [a.age_s(direct[0]), b.age_s(direct[1])]}))
    # Nobody else is in the run now: only the two can bring each other's groups.
    relay.kill()
    alone = time.time()
    groups = [exchange(a, b, 1), exchange(b, a, 2)]
    print(json.dumps({"groups after the relay's end": [float(str(event["at"])) - alone for event in groups]}))


def until_echoed(node: Node, other: Node, num_bytes: int = 1_000) -> Event:
    """A request that succeeds within a minute: the other's place at the relay must become known first, and a circuit
    made while the relay was still starting is cut after 128 KiB and made anew."""
    deadline = time.monotonic() + 60
    while not (answer := node.ask(other, num_bytes)).get("echoed"):
        assert time.monotonic() < deadline, answer
        time.sleep(0.2)
    return answer
