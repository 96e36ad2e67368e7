"""Networks made of Linux network namespaces: a public net, and home networks behind routers that masquerade.

    host a ── router a ──┐                          192.168.7.0/24 in every home, 44.128.0.0/24 outside: addresses that
                         ├── public net ── relay    the daemon takes for public, on no wire of this or any machine
    host b ── router b ──┘

Everything is in namespaces, also the bridge: when they are deleted, nothing is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PUBLIC_NET = "44.128.0."
HOME_NET = "192.168.7."
NEEDED = {"ip": "iproute2", "iptables": "iptables"}


def missing() -> str | None:
    """Why such networks cannot be made here; None when they can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if absent := [package for tool, package in NEEDED.items() if shutil.which(tool) is None]:
        return f"not installed: {', '.join(absent)}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    trial = Internet(f"swarm-trial-{os.getpid()}")
    try:
        trial.add_home("h")
    except subprocess.CalledProcessError as error:
        return f"network namespaces do not work here: {' '.join(error.cmd)}: {error.stderr.strip()}"
    finally:
        trial.remove()
    return None


class Internet:
    """A public net with hosts on it and homes behind routers; `remove` ends what runs there and deletes it all."""

    def __init__(self, prefix: str) -> None:
        """Names of namespaces start with `prefix`. Raises `CalledProcessError`."""
        self._prefix = prefix
        self._names: list[str] = []
        self._num_public = 0
        self._make("net")
        self._run("net", "ip link add net type bridge")
        self._run("net", "ip link set net up")

    def add_host(self, name: str) -> str:
        """Make a host on the public net; its address."""
        self._make(name)
        self._num_public += 1
        address = f"{PUBLIC_NET}{self._num_public}"
        self._wire("net", f"to-{name}", name, "wan", address)
        self._run("net", f"ip link set to-{name} master net")
        return address

    def add_address(self, name: str) -> str:
        """Give a host on the public net one more address."""
        self._num_public += 1
        address = f"{PUBLIC_NET}{self._num_public}"
        self._run(name, f"ip addr add {address}/24 dev wan")
        return address

    def add_home(self, name: str) -> str:
        """Make a host behind a router that lets nothing in; the address that the router has outside."""
        router = f"{name}-nat"
        address = self.add_host(router)
        self._make(name)
        self._wire(router, "lan", name, "eth", f"{HOME_NET}2")
        self._run(router, f"ip addr add {HOME_NET}1/24 dev lan")
        self._run(name, f"ip route add default via {HOME_NET}1")
        self._run(router, "sysctl -q -w net.ipv4.ip_forward=1")
        self._run(router, "iptables -t nat -A POSTROUTING -o wan -j MASQUERADE")
        for chain in ("FORWARD", "INPUT"):
            self._run(router, f"iptables -A {chain} -i wan -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
            self._run(router, f"iptables -A {chain} -i wan -j DROP")
        return address

    def start(self, name: str, *command: str, log: Path) -> subprocess.Popen[str]:
        """Run a command on a host, connected by pipes, errors to `log`."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self._name(name), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("a"),
            text=True,
            start_new_session=True,
        )

    def reaches(self, name: str, address: str, port: int) -> bool:
        """Whether a TCP connection from a host to an address succeeds."""
        code = f"import socket; socket.create_connection(({address!r}, {port}), 2)"
        command = ["ip", "netns", "exec", self._name(name), sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True).returncode == 0

    def remove(self) -> None:
        """End every process inside, then delete the namespaces and with them all else."""
        for name in self._names:
            inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in inside.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self._names.clear()

    def _name(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _make(self, name: str) -> None:
        self._names.append(self._name(name))
        _sh(f"ip netns add {self._name(name)}")
        self._run(name, "ip link set lo up")

    def _wire(self, here: str, here_end: str, there: str, there_end: str, there_address: str) -> None:
        there_name = self._name(there)
        _sh(f"ip link add {here_end} netns {self._name(here)} type veth peer name {there_end} netns {there_name}")
        self._run(here, f"ip link set {here_end} up")
        self._run(there, f"ip addr add {there_address}/24 dev {there_end}")
        self._run(there, f"ip link set {there_end} up")

    def _run(self, name: str, command: str) -> None:
        _sh(f"ip netns exec {self._name(name)} {command}")


def _sh(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)
