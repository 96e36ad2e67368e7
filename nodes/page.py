"""The page's port, which is kept across restarts; the processes of page and site, which a node starts beside itself.

Both are in `swarm/extras/page`; `swarm ui` serves the page, and `swarm site` writes the files.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from swarm.children import inherited, python_path
from swarm.distribution import how_to_install
from swarm.errors import ConfigError
from swarm.files import at_home, open_private, replace_file
from swarm.kinds import extra, has_extra
from swarm.net.addresses.listening import bound

HOST = "127.0.0.1"
USUAL_PORT = 8787
PORT_FILE = "ui.port"
LOG_FILE = "ui.log"
SITE_LOG_FILE = "site.log"
SITE_EVERY_S = 60
PUBLIC = "page.public"
INDEX = "index.html"
NICENESS = 10
"""Niceness of the page's process: a node's round comes first."""
STOP_TIMEOUT_S = 5.0


def check_installed() -> None:
    """Raises `ConfigError` when the page or its libraries are missing."""
    if not has_extra("page") or any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise ConfigError(f"the page needs starlette and uvicorn: {how_to_install('ui')}, or use --no-ui")


def listen(folder: Path | None, port: int | None) -> tuple[socket.socket, str]:
    """A listening socket for this machine alone, and a sentence if its port is not the one of the last start.

    `port`, if given; otherwise the one that `folder` had last, the usual one, or any that is free. `folder` keeps it.
    Raises `ConfigError` when `port` is taken.
    """
    if port is not None:
        try:
            return _bound(port), ""
        except OSError as error:
            raise ConfigError(f"the page cannot have port {port}: {os.strerror(error.errno or 0).lower()}; choose "
                              "another, or leave it out to have a free one found") from error  # fmt: skip
    before = _last_port(folder)
    found = _first_free([before, USUAL_PORT] if before else [USUAL_PORT])
    now = found.getsockname()[1]
    if folder is not None:
        replace_file(folder / PORT_FILE, f"{now}\n".encode())
    return found, f"port {before} of this page is taken; now it is {now}" if before not in (None, now) else ""


def address(listening: socket.socket) -> str:
    """The page's URL."""
    return f"http://{HOST}:{listening.getsockname()[1]}/"


@contextmanager
def page_of(folder: Path, port: int | None, say: Callable[[str], None]) -> Iterator[None]:
    """Serve the page of the nodes in `folder` from a separate process while the block runs; `say` gets its address.

    The process ends with this one, however it ends. Raises `ConfigError`.
    """
    check_installed()
    listening, changed = listen(folder, port)
    if changed:
        say(changed)
    say(f"page: {address(listening)}")
    arguments = ["ui", str(folder), "--socket", str(listening.fileno())]
    with listening, _beside(arguments, folder / LOG_FILE, [listening.fileno()]):
        yield


@contextmanager
def site_folder(out: Path) -> Iterator[None]:
    """Make the folder, and have it alone while the block runs.

    Raises `ConfigError` for one that another process writes, that has another page, or that cannot be made.
    """
    with ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            if (out / INDEX).exists() and extra(PUBLIC).MARK not in (out / INDEX).read_bytes():
                raise ConfigError(f"{out / INDEX} is not of `swarm site`; choose another folder, or remove it")
            opened = os.open(out, os.O_RDONLY)
            stack.callback(os.close, opened)
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{out} is kept up to date by another process; choose another folder") from error
        except OSError as error:
            raise ConfigError(f"the folder {out} cannot be used: {error.strerror or error}") from error
        yield


@contextmanager
def site_of(folder: Path, site: Path) -> Iterator[None]:
    """Keep the swarm's page for everybody in the folder `site` up to date, likewise, with what the node in `folder`
    knows. Raises `ConfigError`."""
    site = at_home(site)
    with site_folder(site):
        pass  # the child has it from here on
    arguments = ["site", str(site), str(folder), "--every", str(SITE_EVERY_S)]
    with _beside(arguments, folder / SITE_LOG_FILE):
        yield


@contextmanager
def _beside(arguments: Sequence[str], log: Path, sockets: Sequence[int] = ()) -> Iterator[None]:
    """Run a command of `swarm` while the block runs; it ends with this process, however that ends."""
    with open_private(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "swarm", *arguments, "--supervised"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=sockets,
            env={**inherited("base", "home"), **python_path()},
            start_new_session=True,  # Ctrl-C is for the node
        )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        process.kill()
        process.wait()


def _first_free(ports: Sequence[int]) -> socket.socket:
    for port in ports:
        with suppress(OSError):
            return _bound(port)
    return _bound(0)


def _bound(port: int) -> socket.socket:
    return bound(("", "ip4", HOST, "tcp", str(port)))


def _last_port(folder: Path | None) -> int | None:
    with suppress(OSError, ValueError):
        port = int((folder / PORT_FILE).read_text()) if folder is not None else 0
        return port if 0 < port < 2**16 else None
    return None
