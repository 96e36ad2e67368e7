"""`swarm ui`: the page of the nodes on this machine."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from msgspec import Struct
from rich.console import Console

from nodes import exits
from nodes.commands.watching import finding
from nodes.page import NICENESS, PAGE, address, check_installed, listen
from nodes.stop import Stop, StopRequest

POLL_S = 0.2


class UiOptions(Struct, frozen=True):
    """Options of the command line."""

    runs: tuple[Path, ...]
    port: int | None
    socket: int | None
    """A listening socket that this process has inherited."""
    supervised: bool


def show_ui(options: UiOptions, console: Console) -> int:
    """Serve the page until Ctrl-C. Raises `ConfigError`."""
    check_installed()
    stop = StopRequest(options.supervised)
    if options.socket is not None:
        os.nice(NICENESS)
        listening = socket.socket(fileno=options.socket)
    else:
        finding.check(options.runs)
        listening, changed = listen(None, options.port)
        if changed:
            console.print(changed, style="yellow")
    console.print(f"page: {address(listening)} (this machine only; Ctrl-C ends it)", highlight=False)
    _serve(options.runs, listening, stop)
    return exits.INTERRUPTED if stop() else exits.DONE


def _serve(runs: Sequence[Path], listening: socket.socket, stop: Stop) -> None:
    page = import_module(f"{PAGE}.server")
    server = page.make_server(page.Site(lambda: finding.find(runs)))
    # Not on the main thread: uvicorn would take the signals there, and miss one that came before.
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="page")
    serving.start()
    while serving.is_alive() and not stop():
        serving.join(POLL_S)
    server.should_exit = True
    serving.join()
