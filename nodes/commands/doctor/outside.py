"""Judges what only another machine can tell: clock, run, and whether others can reach this one."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator, Mapping, Sequence

from nodes.commands.doctor import probes
from nodes.commands.doctor.findings import Finding, unchecked
from nodes.commands.watching.visit import visiting
from swarm.distribution import own_version
from swarm.errors import PeerUnreachable, Refusal, TransportError
from swarm.foreign import clean
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.net.addresses.dial import by_peer, unreachable
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.records.wire import open_manifest
from swarm.net.services.diagnosis import FIRST_PORT, MAX_PORTS, ClockReading, DialBackReply, ask_dial_back, read_clock
from swarm.net.services.requests import MANIFEST_PROTOCOL
from swarm.reasons import Reason
from swarm.types import SCHEMA_VERSION, RunManifest

MAX_SKEW_S = 3.0
"""hivemind's DHT refuses peers with a larger clock skew."""
WORRYING_SKEW_S = 1.0
MAX_PLAUSIBLE_SKEW_S = 4e9
"""A reported time further off, or not a number, is invalid."""
CONNECT_TIMEOUT_S = 20.0
REQUEST_TIMEOUT_S = 5.0
DIRECTORY_TIMEOUT_S = 4.0
NETWORK_CHECKS = ("clock", "run", "reachable", "nat")


def look_from_outside(settings: NetworkSettings, ports: Sequence[probes.Port]) -> Iterator[Finding]:
    """The checks that need another machine."""
    bootstraps = Bootstraps(settings.bootstrap)
    problems = bootstraps.look_up()
    addresses = bootstraps.multiaddrs()
    problems |= unreachable(addresses)
    yield check_bootstraps((*addresses, *bootstraps.problems()), problems)
    alive = tuple(address for address in addresses if address not in problems)
    if not alive:
        yield from unchecked("no bootstrap answers", "see above", NETWORK_CHECKS)
        return
    free = {port.address for port in ports if not port.problem}
    listen = tuple(address if address in free else _any_port(address) for address in settings.listen)
    try:
        with visiting(settings.model_copy(update={"bootstrap": alive, "listen": listen, "retry_s": 1.0})) as transport:
            peer_id = _first_connected(transport, by_peer(alive))
            if peer_id is None:
                detail = transport.status().detail
                yield Finding("connection", "fail", f"no connection to a bootstrap: {detail}", "try another bootstrap")
                yield from unchecked("no connection to a bootstrap", "see above", NETWORK_CHECKS)
                return
            yield _clock(transport, peer_id)
            yield _run(transport, peer_id, settings.run_id)
            yield from _reachability(transport, peer_id, [port.address for port in ports if port.by_a_node])
    except TransportError as error:
        yield Finding("connection", "fail", str(error), "see the checks of ports and daemon above")


def _first_connected(transport: HivemindTransport, peers: Mapping[str, object]) -> str | None:
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while time.monotonic() < deadline:
        for peer_id in peers:
            if transport.observed(peer_id):
                return peer_id
        time.sleep(0.1)
    return None


def _clock(transport: HivemindTransport, peer_id: str) -> Finding:
    try:
        return check_clock(read_clock(transport, peer_id, REQUEST_TIMEOUT_S))
    except PeerUnreachable as error:
        return _unanswered("clock", error)


def _run(transport: HivemindTransport, peer_id: str, wanted: str | None) -> Finding:
    try:
        sealed = transport.request(peer_id, MANIFEST_PROTOCOL, b"", REQUEST_TIMEOUT_S)
    except PeerUnreachable as error:
        return _unanswered("run", error)
    if not sealed:
        return check_run(None, "", wanted)
    try:
        manifest = open_manifest(sealed)
    except Refusal as refusal:
        return check_run(refusal, "", wanted)
    return check_run(manifest, _version_of(transport, peer_id), wanted)


def _version_of(transport: HivemindTransport, peer_id: str) -> str:
    """The peer's version by the directory; empty without a timely answer."""
    deadline = time.monotonic() + DIRECTORY_TIMEOUT_S
    while time.monotonic() < deadline:
        for record in transport.peers():
            if record.peer_id == peer_id:
                return record.version
        time.sleep(0.1)
    return ""


def _reachability(transport: HivemindTransport, peer_id: str, taken: Sequence[str]) -> Iterator[Finding]:
    # A port of a running node on this machine serves as well as ours: either answers.
    ports = dial_back_ports((*taken, *transport.multiaddrs()))
    if not ports:
        low = f"no TCP port from {FIRST_PORT} on is listening, and lower ports are not dialled back"
        yield from unchecked(low, "set network.listen to such a port", ("reachable", "nat"))
        return
    try:
        reply = ask_dial_back(transport, peer_id, ports)
    except PeerUnreachable as error:
        yield from (_unanswered(check, error) for check in ("reachable", "nat"))
        return
    yield check_reachable(reply, ports)
    yield check_nat(reply, probes.local_ips())


def dial_back_ports(multiaddrs: Sequence[str]) -> tuple[int, ...]:
    """The TCP ports in some addresses that a dial-back may use, in order."""
    found = [
        int(parts[4])
        for parts in (address.split("/") for address in multiaddrs)
        if len(parts) > 4 and parts[3] == "tcp" and parts[4].isdecimal() and "p2p-circuit" not in parts
    ]
    return tuple(dict.fromkeys(port for port in found if FIRST_PORT <= port < 65_536))[:MAX_PORTS]


def _any_port(address: str) -> str:
    parts = address.split("/")
    return "/".join([*parts[:4], "0", *parts[5:]])


def _unanswered(check: str, error: PeerUnreachable) -> Finding:
    fix = "the bootstrap may run an older version; ask another member of the run"
    return Finding(check, "warn", f"not checked: {error}", fix)


def check_bootstraps(bootstraps: Sequence[str], problems: Mapping[str, str]) -> Finding:
    """Whether the bootstraps answer."""
    seen = "; ".join(f"{address}: {problem}" for address, problem in problems.items())
    if not problems:
        return Finding("bootstrap", "ok", "it answers" if len(bootstraps) == 1 else f"all {len(bootstraps)} answer")
    if len(problems) < len(bootstraps):
        return Finding("bootstrap", "warn", seen, "remove the dead ones from network.bootstrap")
    fix = "check the address with its source, that the node is up, and that your firewall allows outgoing connections"
    return Finding("bootstrap", "fail", seen, fix)


def check_clock(reading: ClockReading) -> Finding:
    """Whether this machine's clock agrees with the bootstrap's."""
    skew_s, known_to_s = abs(reading.offset_s), reading.uncertainty_s
    direction = "behind" if reading.offset_s > 0 else "ahead of"
    seen = f"{skew_s:.2f} s {direction} the bootstrap's (to within {known_to_s:.2f} s)"
    fix = "enable time synchronisation (NTP) here or, if this clock is right, there"
    if not skew_s < MAX_PLAUSIBLE_SKEW_S:
        return Finding("clock", "warn", "not checked: the bootstrap reported no time", "ask another member of the run")
    if skew_s - known_to_s > MAX_SKEW_S:
        return Finding("clock", "fail", f"{seen}: the directory refuses more than {MAX_SKEW_S:g} s", fix)
    if skew_s - known_to_s > WORRYING_SKEW_S:
        return Finding("clock", "warn", seen, fix)
    if known_to_s > MAX_SKEW_S:
        return Finding("clock", "warn", seen, "the link is too slow to measure; try another bootstrap")
    return Finding("clock", "ok", seen)


def check_run(answer: RunManifest | Refusal | None, their_version: str, wanted: str | None) -> Finding:
    """Whether this node can take part in the bootstrap's run."""
    if answer is None:
        return Finding("run", "warn", "the bootstrap does not know its run yet", "wait until it has joined one")
    if isinstance(answer, Refusal):
        if answer.reason == Reason.SCHEMA_VERSION:
            seen = f"the run uses another version of the protocol than ours ({SCHEMA_VERSION}): {answer.detail}"
            return Finding("run", "fail", seen, "update swarm here or there, so that the versions match")
        return Finding("run", "fail", f"its manifest was refused: {answer}", "do not join it; ask who founded it")
    if wanted is not None and wanted != answer.run_id:
        seen = f"the bootstrap is in {answer.run_id}, not in {wanted}"
        return Finding("run", "fail", seen, "specify a bootstrap of that run, or remove network.run_id")
    ours, theirs = own_version(), clean(their_version) or "an unknown version"
    seen = f"{answer.run_id}; schema {SCHEMA_VERSION} as ours; the bootstrap has swarm {theirs}, this is {ours}"
    return Finding("run", "ok", seen)


def check_reachable(reply: DialBackReply, ports: Sequence[int]) -> Finding:
    """Whether others can open connections to this machine."""
    if reply.state == "refused":
        return Finding("reachable", "warn", f"not checked: {clean(reply.detail, 200)}", "try again in a minute")
    at = clean(reply.observed or "?")
    reached = [str(port) for port in ports if reply.reached.get(port)]
    if reached:
        return Finding("reachable", "ok", f"the bootstrap reached this machine at {at}, port {', '.join(reached)}")
    tried = ", ".join(map(str, ports))
    fix = (
        "the node can still dial others; to accept connections, set a fixed port in network.listen, open it in "
        "the firewall, and forward it in the router (or enable UPnP there)"
    )
    return Finding("reachable", "warn", f"the bootstrap cannot reach this machine at {at}, port {tried}", fix)


def check_nat(reply: DialBackReply, local_ips: frozenset[str]) -> Finding:
    """The NAT or firewall between this machine and the bootstrap."""
    if reply.state == "refused" or not reply.observed:
        return Finding("nat", "warn", "not checked: there was no dial-back", "try again in a minute")
    try:
        seen_as = ipaddress.ip_address(reply.observed)
    except ValueError:
        return Finding("nat", "warn", "not checked: the bootstrap reported no address", "ask another member of the run")
    reached = any(reply.reached.values())
    if seen_as.is_loopback:
        return Finding("nat", "ok", "the bootstrap is on this machine and cannot tell how others see it")
    if str(seen_as) in local_ips:
        if not seen_as.is_global:
            return Finding("nat", "ok", f"the bootstrap is in the same private network, and sees {seen_as}")
        if reached:
            return Finding("nat", "ok", f"public: {seen_as} is an address of this machine")
        fix = "open the port of network.listen for incoming TCP in the firewall"
        return Finding("nat", "warn", f"public address {seen_as}, but a firewall blocks incoming connections", fix)
    if reached:
        return Finding("nat", "ok", f"behind NAT with a mapped port: seen as {seen_as}, and reachable there")
    fix = "forward a port in the router and set network.listen to it; otherwise other nodes cannot dial this one"
    return Finding(
        "nat", "warn", f"behind NAT, unreachable: seen as {seen_as}, which is not an address of this machine", fix
    )
