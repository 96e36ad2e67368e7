"""`swarm doctor`: checks this machine and its network for problems, and suggests fixes.

The facts come from `probes.py`; each `check_` here judges some.
"""

from __future__ import annotations

import ipaddress
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, structs
from packaging.specifiers import SpecifierSet
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodes import exits
from nodes.boot.resolve import check_settings, fitted
from nodes.boot.visits import visiting
from nodes.commands import probes
from nodes.roles import ROLES
from swarm.config import LoadedConfig, NodeConfig, load_config
from swarm.distribution import own_version
from swarm.engines.choice import GET_VLLM, Vllm, choose, look_for_vllm
from swarm.engines.config import GenerationSettings
from swarm.environments.sandbox.confinement import in_words
from swarm.errors import PeerUnreachable, Refusal, SwarmError, TransportError
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.net.addresses.dial import by_peer, unreachable
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.records.wire import open_manifest
from swarm.net.services.diagnosis import FIRST_PORT, MAX_PORTS, ClockReading, DialBackReply, ask_dial_back, read_clock
from swarm.net.services.requests import MANIFEST_PROTOCOL
from swarm.policy.config import EMBEDDED
from swarm.reasons import Reason
from swarm.sanitize import clean, clean_lines
from swarm.types import SCHEMA_VERSION, RunManifest

if TYPE_CHECKING:
    from swarm.preflight.check import Preflight

Level = Literal["ok", "warn", "fail"]
STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}

GIB = 2**30
ENOUGH_DISK_BYTES = 5 * GIB
LEAST_DISK_BYTES = GIB // 2
LEAST_GPU_BYTES = 2 * GIB
MAX_SKEW_S = 3.0
"""hivemind's DHT refuses peers with a larger clock skew."""
WORRYING_SKEW_S = 1.0
MAX_PLAUSIBLE_SKEW_S = 4e9
"""A reported time further off, or not a number, is invalid."""
CONNECT_TIMEOUT_S = 20.0
REQUEST_TIMEOUT_S = 5.0
DIRECTORY_TIMEOUT_S = 4.0
NETWORK_CHECKS = ("clock", "run", "reachable", "nat")


class Finding(Struct, frozen=True):
    """The outcome of one check."""

    check: str
    level: Level
    seen: str
    fix: str = ""
    """The fix; empty when nothing is wrong."""


def unchecked(why: str, fix: str, checks: Sequence[str]) -> Iterator[Finding]:
    """Findings for checks that could not run, and how to enable them."""
    for check in checks:
        yield Finding(check, "warn", f"not checked: {why}", fix)


def summary(findings: Sequence[Finding]) -> Text:
    """One line with the counts of each level."""
    counts = {level: sum(finding.level == level for finding in findings) for level in ("ok", "warn", "fail")}
    words = f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed"
    return Text(words, style=STYLES["fail" if counts["fail"] else "warn" if counts["warn"] else "ok"])


def line_of(finding: Finding) -> Table:
    """A finding for a terminal."""
    line = Table.grid(padding=(0, 2))
    line.add_column(width=4)
    line.add_column(width=11)
    line.add_column(overflow="fold")
    text = Text(clean_lines(finding.seen))
    if finding.fix:
        text.append(f"\nto do: {clean_lines(finding.fix)}", style="dim")
    line.add_row(Text(finding.level, style=STYLES[finding.level]), finding.check, text)
    return line


def check_python(found: str, required: str) -> Finding:
    """Whether this interpreter is one the project supports."""
    if SpecifierSet(required).contains(found, prereleases=True):
        return Finding("python", "ok", found)
    return Finding("python", "fail", f"{found}, but {required} is needed", "install a newer Python and run make again")


def check_packages(packages: Sequence[probes.Package]) -> Finding:
    """Whether every library is installed in a supported version."""
    missing = [package.requirement for package in packages if package.installed is None]
    present = [package for package in packages if package.installed is not None and not package.fits]
    other = [f"{package.requirement} (installed: {package.installed})" for package in present]
    if not missing and not other:
        return Finding("packages", "ok", f"all {len(packages)} are in their version ranges")
    seen = "; ".join([*(f"{name} is missing" for name in missing), *(f"out of range: {text}" for text in other)])
    return Finding(
        "packages", "fail" if missing else "warn", seen, "run make install, which installs the tested versions"
    )


def check_gpu(torch: probes.Torch, driver: str | None, wanted: str) -> Finding:
    """Whether torch works, and on which device."""
    if torch.problem:
        return Finding("gpu", "fail", f"torch cannot be used: {torch.problem}", "reinstall torch: run make install")
    wants_cuda, wants_mps = wanted.startswith("cuda"), wanted.startswith("mps")
    lacking: Level = "fail" if wants_cuda else "warn"
    if torch.gpus:
        described = ", ".join(
            f"{gpu.name} ({gpu.free_bytes / GIB:.0f} of {gpu.total_bytes / GIB:.0f} GiB free)" for gpu in torch.gpus
        )
        if max(gpu.free_bytes for gpu in torch.gpus) < LEAST_GPU_BYTES:
            return Finding("gpu", "warn", described, "free its memory, or set policy.device to cpu")
        return Finding("gpu", "ok", described)
    if driver and torch.cuda_build is None:
        return Finding(
            "gpu",
            lacking,
            f"there is an NVIDIA driver ({driver}), but torch {torch.version} is a build for CPUs",
            "remove .venv and run make install again, which selects torch's CUDA build if there is a GPU",
        )
    if driver:
        seen = f"torch {torch.version} is built for CUDA {torch.cuda_build}, but cannot use the driver {driver}"
        return Finding("gpu", lacking, seen, "update the NVIDIA driver, and check that nvidia-smi lists a GPU")
    if wants_cuda or (wants_mps and not torch.mps):
        return Finding("gpu", "fail", f"policy.device is {wanted}, but there is none", "set policy.device to auto")
    if torch.mps:
        return Finding("gpu", "ok", f"Apple's GPU; torch {torch.version}")
    return Finding("gpu", "ok", f"none; the CPU is used, with torch {torch.version}")


def check_engine(settings: GenerationSettings, model: str, device: str, vllm: Vllm, supported: str) -> Finding:
    """The engine that a node would use on this type of device, and whether vLLM is available where it would help."""
    if settings.engine == "vllm" and vllm.problem:
        return Finding("engine", "fail", f"generation.engine is vllm, but {vllm.problem}", GET_VLLM)
    choice = choose(settings, model, device, 1, lambda: vllm)
    seen = f"{choice.name}: {choice.reason}"
    if choice.fix:
        return Finding("engine", "warn", f"there is a GPU, but the engine is {seen}", choice.fix)
    if vllm.problem and settings.vllm.python:
        fix = "correct generation.vllm.python, or remove it"
        return Finding("engine", "warn", f"{seen}; {vllm.problem}", fix)
    if vllm.problem:
        return Finding("engine", "ok", seen)
    seen = f"{seen}; {vllm.python} has vLLM {vllm.version or 'of unknown version'}"
    if vllm.version and not SpecifierSet(supported).contains(vllm.version, prereleases=True):
        return Finding("engine", "warn", seen, f"install vllm{supported} there, the version that swarm supports")
    return Finding("engine", "ok", seen)


def check_memory(found: Preflight) -> Finding:
    """Whether the policy fits into the memory of its device, with the parts, and what would fit."""
    levels: dict[str, Level] = {"fits": "ok", "smaller": "warn", "too large": "fail"}
    return Finding("memory", levels[found.verdict], found.seen, found.fix)


def check_sandbox(sandbox: probes.Sandbox) -> Finding:
    """Whether the sandbox would contain a verification worker that a foreign answer took over."""
    if sandbox.problem:
        return Finding("sandbox", "fail", sandbox.problem, "run make install, which installs the tested versions")
    seen = f"verification workers have {in_words(sandbox.unprotected)}"
    if not sandbox.unprotected:
        return Finding("sandbox", "ok", seen)
    fix = "use Linux 6.12 or newer with Landlock, or run the node as a user without other files"
    return Finding("sandbox", "warn", seen, fix)


def check_disk(disk: probes.Disk) -> Finding:
    """Whether there is disk space and permission to write."""
    if disk.problem:
        elsewhere = "choose another directory with --out" if disk.what == "directory" else "set XDG_CACHE_HOME, HF_HOME"
        return Finding(disk.what, "fail", f"{disk.path} cannot be written: {disk.problem}", f"allow it, or {elsewhere}")
    seen = f"{disk.path}: {disk.free_bytes / GIB:.1f} GiB free"
    if disk.free_bytes >= ENOUGH_DISK_BYTES:
        return Finding(disk.what, "ok", seen)
    level: Level = "fail" if disk.free_bytes < LEAST_DISK_BYTES else "warn"
    return Finding(disk.what, level, seen, "free disk space: checkpoints of a model take several times its size")


def check_identity(key: probes.KeyFile) -> Finding:
    """Whether the key is usable, and only by its owner."""
    if key.problem:
        fix = "restore it with swarm identity import, or move it away to become a new peer"
        return Finding("identity", "fail", key.problem, fix)
    if not key.peer_id:
        return Finding("identity", "ok", f"{key.path} will be created at the first start")
    if key.mode & 0o077:
        return Finding("identity", "warn", f"{key.path} has mode {key.mode:04o}", f"chmod 600 {key.path}")
    return Finding("identity", "ok", f"{key.peer_id}, {'in use by a running node' if key.in_use else 'not in use'}")


def check_port(port: probes.Port) -> Finding:
    """Whether a node could listen there."""
    if not port.problem:
        return Finding("port", "ok", f"{port.address} can be listened on")
    if port.by_a_node:
        seen = f"{port.address} is taken by {port.owner}: a node is running here"
        return Finding("port", "warn", seen, "for a second node set network.listen to another port")
    if port.taken:
        seen = f"{port.address} is taken by {port.owner or 'another process'}"
        return Finding("port", "fail", seen, "end that process, or set network.listen to another port")
    fix = "set network.listen to an address of this machine and a port from 1024 on"
    return Finding("port", "fail", f"{port.address} cannot be listened on: {port.problem}", fix)


def check_daemon(trial: probes.DaemonTrial) -> Finding:
    """Whether the network daemon runs here."""
    if not trial.path:
        return Finding("daemon", "fail", trial.problem, "reinstall hivemind: run make install")
    if not trial.executable:
        return Finding("daemon", "fail", f"{trial.path} may not be executed", f"chmod +x {trial.path}")
    if trial.problem:
        fix = "check that /tmp is not mounted noexec and that this is a 64-bit Linux or macOS; reinstall hivemind"
        return Finding("daemon", "fail", trial.problem, fix)
    seen = f"started and answered in {trial.start_s:.1f} s"
    if trial.unwatched:
        seen += f"; strangers may have it dial addresses that they claim, as it cannot be watched: {trial.unwatched}"
        return Finding("daemon", "warn", seen, "use Linux 5.5 or newer, outside of containers that forbid it")
    return Finding("daemon", "ok", f"{seen}; dials only whom its node dials")


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


def doctor(
    file: Path | None, overrides: Sequence[tuple[str, str]], command: str, as_json: bool, console: Console
) -> int:
    """Run every check for this command's node and print the findings. Returns the exit code: 1 when a check fails."""
    loaded = load_config(file, None, os.environ, overrides)
    Bootstraps(loaded.config.network.bootstrap)  # a wrong address is a usage error, not a finding
    findings = []
    for finding in diagnose(loaded, command):
        findings.append(finding)
        if not as_json:
            console.print(line_of(finding))
    if as_json:
        print(json.dumps([structs.asdict(finding) for finding in findings], indent=1))
    else:
        console.print(summary(findings))
    return exits.FAILED if any(finding.level == "fail" for finding in findings) else exits.DONE


def diagnose(loaded: LoadedConfig, command: str = "join") -> Iterator[Finding]:
    """Run every check on this machine and its network, the quick ones first."""
    config = loaded.config
    yield check_python(sys.version.split()[0], probes.required_python())
    yield check_packages(probes.packages())
    torch = probes.torch()
    gpu = check_gpu(torch, probes.nvidia_driver(), config.policy.device)
    yield gpu
    if gpu.level == "fail":
        yield from unchecked("the policy has no device", "fix the GPU or torch first", ("engine", "memory"))
    else:
        vllm = look_for_vllm(config.generation.vllm.python)
        device = torch.device(config.policy.device)
        yield check_engine(config.generation, config.policy.model, device, vllm, probes.supported_vllm())
        yield from _model_and_memory(loaded, command)
    yield check_sandbox(probes.sandbox())
    for disk in probes.disks(config):
        yield check_disk(disk)
    yield check_identity(probes.key(config))
    ports = [probes.try_port(address) for address in config.network.listen]
    for port in ports:
        yield check_port(port)
    trial = probes.try_daemon()
    yield check_daemon(trial)
    bootstraps = config.network.bootstrap
    if not bootstraps:
        checks = ", ".join(NETWORK_CHECKS)
        yield Finding(
            "network", "ok", f"{checks}: checked with a member's address, swarm doctor ADDRESS; none was given"
        )
    elif not trial.executable or trial.problem:
        yield from unchecked("there is no working daemon", "fix the daemon first", ("bootstrap", *NETWORK_CHECKS))
    else:
        yield from look_from_outside(config.network, ports)


def _model_and_memory(loaded: LoadedConfig, command: str) -> Iterator[Finding]:
    try:
        warning = check_settings(loaded.config)
        loaded, lines = fitted(loaded)
    except SwarmError as error:
        yield Finding("settings", "fail", str(error), "change what is named")
        yield from unchecked("these settings cannot be used", "see settings", ("memory",))
        return
    if warning:
        yield Finding("settings", "warn", warning)
    for line in lines:
        yield Finding("model", "ok", line)
    if loaded.config.policy.model not in EMBEDDED:
        yield _memory(loaded.config, command)


def _memory(config: NodeConfig, command: str) -> Finding:
    from swarm.preflight.check import preflight  # imports torch

    try:
        found = preflight(config, ROLES[command].duties)
    except SwarmError as error:
        return Finding("memory", "warn", f"not checked: {error}", "see policy.model and generation.engine")
    return check_memory(found)
