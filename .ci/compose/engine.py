"""A Docker engine: the one there is, or one of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from commands import WORK, Skipped, run, step, succeeds

PACKAGES = ("docker.io", "docker-compose")


def install(*packages: str) -> None:
    """Debian packages."""
    if not shutil.which("apt-get"):
        raise Skipped(f"{', '.join(packages)} missing, and this is no Debian to install them on")
    with step(f"install {' '.join(packages)}"):
        # On a machine with an init system the package would start an engine that nobody asked for.
        apt = ("env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get")
        run(*apt, "update", "-q")
        run(*apt, "install", "-qy", "--no-install-recommends", *packages)


def compose_command() -> list[str] | None:
    """Compose as a plugin or as the older command."""
    if succeeds("docker", "compose", "version"):
        return ["docker", "compose"]
    return ["docker-compose"] if succeeds("docker-compose", "version") else None


@contextlib.contextmanager
def engine() -> Iterator[list[str]]:
    """A running engine, and the compose command to talk to it."""
    if succeeds("docker", "info"):
        compose = compose_command()
        if compose is None and os.geteuid() == 0:
            install("docker-compose")
            compose = compose_command()
        if compose is None:
            raise Skipped("there is a Docker engine but no docker-compose")
        yield compose
        return
    if os.geteuid() != 0:
        raise Skipped("no Docker engine answers, and only root can start one")
    if sys.platform != "linux" or not succeeds("unshare", "--mount", "--net", "--pid", "--fork", "true"):
        raise Skipped("no Docker engine answers, and this machine does not allow namespaces")
    if not shutil.which("dockerd") or compose_command() is None:
        install(*PACKAGES)
    compose = compose_command()
    if compose is None:
        raise Skipped("docker-compose is installed but does not run")
    # A socket's path must be short, the checkout's may be long.
    with tempfile.TemporaryDirectory(prefix="swarm-docker-", ignore_cleanup_errors=True) as folder, own_engine(folder):
        yield compose


@contextlib.contextmanager
def own_engine(folder: str) -> Iterator[None]:
    """An engine that nobody else talks to, and that leaves this machine's network as it is.

    It needs no packet filter: containers talk over one bridge, and the builder is on the host's network.
    """
    os.environ["DOCKER_HOST"] = f"unix://{folder}/docker.sock"
    network = ["--bridge=none", "--iptables=false", "--ip-forward=false"]
    for options in (network, [*network, "--storage-driver=vfs"]):
        command = ["dockerd", "--host", os.environ["DOCKER_HOST"], "--data-root", str(WORK / "engine")]
        command += ["--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid", *options]
        with open(WORK / "engine.log", "ab") as log:
            # In a session of its own: Ctrl-C must not end it before the containers.
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            with step(f"start an engine with {' '.join(options)}"):
                answers = engine_answers(process)
            if answers:
                yield
                return
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
            for mount in Path("/proc/mounts").read_text().splitlines():
                if mount.split()[1].startswith(folder):  # the engine leaves a network namespace behind
                    succeeds("umount", mount.split()[1])
    tail = (WORK / "engine.log").read_text(errors="replace").strip().splitlines()[-1:]
    raise Skipped(f"dockerd does not start here: {' '.join(tail)}")


def engine_answers(process: subprocess.Popen[bytes]) -> bool:
    """Whether the engine came up."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if succeeds("docker", "info"):
            return True
        time.sleep(0.5)
    return False
