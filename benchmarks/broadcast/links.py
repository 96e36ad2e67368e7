"""A host per node with rate-limited links: network namespaces on one bridge, shaped with `tc tbf`.

    namespace n0: eth0 (10.77.0.1) ──tbf──┐
    namespace n1: eth0 (10.77.0.2) ──tbf──┤ bridge, in a namespace too, which shapes traffic to the hosts
    ...                                   ┘

Deleting the namespaces removes everything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType

NET = "10.77."
BURST_BYTES = 2**16
QUEUE = "200ms"
CONGESTION = "cubic"
"""Linux's default for TCP, set explicitly so that machines with other settings give comparable figures."""


def missing() -> str | None:
    """Why links cannot be created here; None when they can."""
    if absent := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"{' and '.join(absent)} must be installed (iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Links() as links:
            links.add("a", 10**6)
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    return None


class Links:
    """Hosts and their links, deleted at the end of the block."""

    def __init__(self) -> None:
        """None yet."""
        self._prefix = f"swb{os.getpid()}"
        self._hosts: list[str] = []

    def __enter__(self) -> Links:
        """Only the bridge. Raises `CalledProcessError`."""
        _sh(f"ip netns add {self._prefix}")
        self._in("", "ip link add net type bridge")
        self._in("", "ip link set net up")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Delete everything."""
        for host in [*self._hosts, ""]:
            subprocess.run(["ip", "netns", "del", self._prefix + host], capture_output=True)

    def add(self, host: str, bytes_per_s: int) -> str:
        """Make a host; its address. Raises `CalledProcessError`."""
        _sh(f"ip netns add {self._prefix}{host}")
        self._hosts.append(host)
        address = f"{NET}{len(self._hosts) // 250}.{len(self._hosts) % 250 + 1}"
        self._in("", f"ip link add to-{host} type veth peer name eth0 netns {self._prefix}{host}")
        self._in("", f"ip link set to-{host} master net up")
        self._in(host, "ip link set lo up")
        self._in(host, f"ip addr add {address}/16 dev eth0")
        self._in(host, "ip link set eth0 up")
        self._in(host, f"ip route replace {NET}0.0/16 dev eth0 src {address} congctl {CONGESTION}")
        shape = f"root tbf rate {8 * bytes_per_s}bit burst {BURST_BYTES} latency {QUEUE}"
        self._in(host, f"tc qdisc add dev eth0 {shape}")
        self._in("", f"tc qdisc add dev to-{host} {shape}")
        return address

    def on(self, host: str) -> list[str]:
        """Prefix of a command that runs on the host."""
        return ["ip", "netns", "exec", self._prefix + host]

    def _in(self, host: str, command: str) -> None:
        _sh(" ".join([*self.on(host), command]))


def _sh(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)
