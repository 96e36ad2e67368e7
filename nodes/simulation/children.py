"""The processes of a simulation: commands and functions in children, and whole runs as processes.

Policies are made in a child, so that its parent imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe, forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import yaml
from pydantic import JsonValue

from nodes.boot.directory import ADDRESS_FILE
from nodes.simulation.configs import Member
from nodes.stop import Stop
from swarm.config import ENVIRONMENT_PREFIX
from swarm.errors import Interrupted, PolicyError, SwarmError, TransportError
from swarm.files import open_private, private_directory
from swarm.policy.cache import Progress
from swarm.policy.config import MADE_HERE

SUPERVISED = "--supervised"
"""The option with which a child ends when its parent has died."""
STOP_TIMEOUT_S = 4.0
SAVE_TIMEOUT_S = 180.0
"""To stop where large policies may be trained: updates take seconds, and checkpoints have gigabytes."""
SAVING = "stopping: nodes save their state, to go on from there; Ctrl-C again ends them without"
POLL_S = 0.05
LOG_TAIL_LINES = 5
STDIN, STDOUT, STDERR = 0, 1, 2
Started = Callable[[int], None]
"""Called with the id of a process, at its start and at every restart."""
IMPORTED_ONCE = ["nodes.simulation.warm"]
THREADS = {"OMP_NUM_THREADS": "1"}
"""Variables of each child: the children share the cores."""

START_TIMEOUT_S = 300.0
LOOK_EVERY_S = 0.1
MAX_RESTARTS = 5
BOOTSTRAP = "bootstrap"
LOOPBACK: dict[str, JsonValue] = {
    "listen": ["/ip4/127.0.0.1/tcp/0"],
    "nat_port_map": False,
    "daemon_processors": 1,
}
"""Fields of `network` for nodes that share a machine: with one processor a daemon takes less time for the same gossip,
and several daemons find work for all cores. Entries in the directory are renewed no more often than elsewhere: nodes
that start together learn of each other from the first."""


class Child:
    """One process, leader of a separate session: Ctrl-C in the terminal reaches only its parent."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        out: Path,
        module: str = "nodes.cli",
        started: Started = lambda pid: None,
    ) -> None:
        """`arguments` of the `swarm` command, whose module is `module`; output goes to `OUT/log.txt`."""
        self.name = name
        self.restarts = 0
        self.given_up = False
        self._module = module
        self._started = started
        self._arguments = [*arguments, SUPERVISED]
        self._log = out / "log.txt"
        self._process: BaseProcess | None = None
        self._lifeline: Connection | None = None

    def start(self) -> None:
        """Start or restart."""
        self.signal(signal.SIGKILL)  # leftovers of an earlier process's session
        private_directory(self._log.parent)
        # Never written to: its end tells the child that this process died.
        stdin, self._lifeline = multiprocessing.Pipe(duplex=False)
        with stdin:
            self._process = start_command(self._module, self._arguments, self._log, stdin, without_fields(os.environ))
        if self.pid is not None:
            self._started(self.pid)

    @property
    def pid(self) -> int | None:
        """Process id, and id of its session."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.is_alive()

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process; None while it runs."""
        return self._process.exitcode if self._process else None

    @property
    def finished(self) -> bool:
        """Whether it shut down cleanly or must not be restarted."""
        return self.given_up or self.exit_code == 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole session; a dead session is not an error."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def interrupt(self) -> None:
        """Ask only the process itself to shut down cleanly."""
        if self._process is not None and self.running:
            self._process.terminate()

    def last_words(self) -> str:
        """The end of its log, and the signal that killed it, if one did."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        if (code := self.exit_code) is not None and code < 0:
            guess = ", as the system does with a process when memory runs out" if -code == signal.SIGKILL else ""
            lines.append(f"it was killed by {signal.Signals(-code).name}{guess}")
        return "\n".join(lines[-LOG_TAIL_LINES:])


def stop_all(children: Sequence[Child], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Ask every process to stop, wait for it, then kill the rest with their children."""
    for child in children:
        child.interrupt()
    deadline = time.monotonic() + timeout_s
    try:
        while any(child.running for child in children) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    finally:  # a second Ctrl-C ends the wait
        for child in children:
            child.signal(signal.SIGKILL)


def without_fields(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without configuration fields: what they say is in the children's files already, where a control
    or a mix may differ."""
    return {name: value for name, value in environment.items() if not name.startswith(ENVIRONMENT_PREFIX)}


def start_command(
    module: str,
    arguments: Sequence[str],
    log: Path,
    stdin: Connection,
    environment: Mapping[str, str] | None = None,
) -> BaseProcess:
    """Run a command's module in a separate session; `environment` replaces this process's."""
    ready, child_ready = multiprocessing.Pipe(duplex=False)
    with ready:
        with child_ready:
            process = start_function(_run, module, arguments, log, stdin, child_ready, environment)
        with contextlib.suppress(EOFError):
            ready.recv()  # ends when the process leads its session, or is dead
    return process


def start_function(function: Callable[..., None], *arguments: object) -> BaseProcess:
    """Run a module's function in a child with this process's environment.

    On Linux it is a fork of a process that has already imported what nodes need: this takes each node seconds
    otherwise. Neither hears of SIGINT unless it unblocks it: the terminal's Ctrl-C is for this process. Other systems'
    libraries do not allow a fork after these imports.
    """
    linux = sys.platform == "linux"
    context = multiprocessing.get_context("forkserver") if linux else multiprocessing.get_context("spawn")
    context.set_forkserver_preload(IMPORTED_ONCE)
    os.environ.update(THREADS)  # read when torch is imported
    process = context.Process(target=_call, args=(dict(os.environ), function, arguments))
    if linux:
        _start_server()
    process.start()
    return process


def _start_server() -> None:
    """Start the process that children are forked from, unless it runs.

    It ignores SIGINT, but only after its imports, which take seconds; blocked, the signal has no effect before.
    """
    resource_tracker.ensure_running()  # otherwise the server's start does this, and unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _call(environment: dict[str, str], function: Callable[..., None], arguments: Sequence[object]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments)


def _run(
    module: str,
    arguments: Sequence[str],
    log: Path,
    stdin: Connection,
    ready: Connection,
    environment: Mapping[str, str] | None,
) -> None:
    os.setsid()
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with open_private(log, "ab") as output:
        for source, target in ((stdin.fileno(), STDIN), (output.fileno(), STDOUT), (output.fileno(), STDERR)):
            os.dup2(source, target)
    stdin.close()
    ready.close()
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def find_source_in_child(model: str, progress: Progress) -> str:
    """What transformers loads, as `find_source` in `swarm/policy/loading.py`. Raises what it does."""
    if model not in MADE_HERE:
        return model
    answers, sender = Pipe(duplex=False)
    with answers:
        with sender:
            child = start_function(_find, model, sender)
        try:
            return _source(answers, progress)
        except EOFError:
            raise PolicyError(f"the process that makes {model} died; is there enough memory?") from None
        finally:
            child.join()


def _source(answers: Connection, progress: Progress) -> str:
    while True:
        match answers.recv():
            case (int(done), int(total)):
                progress(done, total)
            case SwarmError() as error:
                raise error
            case source:
                return str(source)


def _find(model: str, answers: Connection) -> None:
    from swarm.policy.loading import find_source

    try:
        answers.send(find_source(model, lambda done, total: answers.send((done, total))))
    except SwarmError as error:
        answers.send(error)


def on_loopback(config: Mapping[str, object]) -> dict[str, object]:
    """A complete configuration, for nodes that share a machine."""
    network = config["network"]
    assert isinstance(network, dict)
    return {**config, "network": {**network, **LOOPBACK}}


def run_as_processes(members: Sequence[Member], folder: Path, stop: Stop, started: Started = lambda pid: None) -> None:
    """Run the members to their end, or until `stop`; `started` is called with the id of each one's process.

    Raises `TransportError` when one keeps crashing.
    """
    files = [folder / f"{member.config.name}.yaml" for member in members]
    for member, file in zip(members, files, strict=True):
        file.write_text(yaml.safe_dump(member.config.model_dump(mode="json"), sort_keys=False))
    home = folder / BOOTSTRAP
    bootstrap = Child(BOOTSTRAP, [BOOTSTRAP, str(files[0]), "--out", str(home)], home)
    address = start_first(bootstrap, home, stop)
    nodes: list[Child] = []
    try:
        for member, file in zip(members, files, strict=True):
            config = member.config
            arguments = ["join", str(file), "--bootstrap", address]
            nodes.append(start_node(config.name, arguments, config.out, config.seed or 0, started))
        while not stop() and not all(node.finished for node in nodes):
            for child in (bootstrap, *nodes):
                look_after(child, lambda text, level: print(f"{level}: {text}", flush=True))
            time.sleep(LOOK_EVERY_S)
    finally:
        stop_all([bootstrap, *nodes])
    for node in nodes:
        if node.given_up:
            raise TransportError(f"{node.name} kept crashing; the end of its log:\n{node.last_words()}")


def start_first(child: Child, home: Path, stop: Stop) -> str:
    """Start the process that the others dial, and wait for its address in `home`.

    Raises `TransportError` if it does not start, `Interrupted` on a stop request; it is then stopped.
    """
    address_file = home / ADDRESS_FILE
    address_file.unlink(missing_ok=True)
    child.start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while not address_file.exists():
        if stop() or not child.running or time.monotonic() > deadline:
            stop_all([child])
            if stop():
                raise Interrupted(f"stopped before the {child.name} had an address")
            raise TransportError(f"the {child.name} did not start; the end of its log:\n{child.last_words()}")
        time.sleep(LOOK_EVERY_S)
    return address_file.read_text().split()[0]


def start_node(name: str, arguments: Sequence[str], out: Path, seed: int, started: Started = lambda pid: None) -> Child:
    """Start a node with its questions' and samples' seed; `arguments`: command, configuration, bootstrap."""
    options = ["--name", name, "--out", str(out), "--seed", str(seed), "--no-report"]
    node = Child(name, [*arguments, *options], out, started=started)
    node.start()
    return node


def look_after(child: Child, tell: Callable[[str, str], None]) -> None:
    """Restart a crashed process from its checkpoint, a few times; `tell` gets text and level."""
    if child.running or child.finished:
        return
    if child.restarts >= MAX_RESTARTS:
        child.given_up = True
        tell(f"{child.name} crashed {child.restarts + 1} times; giving up: {child.last_words()}", "error")
        return
    tell(f"{child.name} died (exit code {child.exit_code}); restarting from its checkpoint", "warning")
    child.restarts += 1
    child.start()
