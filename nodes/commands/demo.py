"""`swarm demo`: a swarm on this machine; each node is a process, connected over the real network stack.

    demo ──spawns──▶ swarm bootstrap            OUT/bootstrap/
         ──spawns──▶ swarm join (per peer)    OUT/peer-K/metrics.jsonl ──tail──▶ live view, report
         ──spawns──▶ swarm join (control)     OUT/alone/, a separate run without other members
    or   ──spawns──▶ swarm learn                OUT/learner/
         ──spawns──▶ swarm work (per worker)  OUT/worker-K/

The children are the same commands that people run. `--transport memory` runs all peers in turn in one process, which
makes a run reproducible to the last digit.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import yaml
from msgspec import Struct, structs
from rich.console import Console

from nodes import exits
from nodes.console import policy_progress
from nodes.page import check_installed, page_of
from nodes.simulation.children import (
    LOOPBACK,
    SAVE_TIMEOUT_S,
    SAVING,
    STOP_TIMEOUT_S,
    Child,
    find_source_in_child,
    look_after,
    start_first,
    start_node,
    stop_all,
)
from nodes.simulation.configs import as_fields, lone, node_seed, real_model
from nodes.stop import StopRequest
from swarm.config import NodeConfig, Values, environment_values, load_config, overlay
from swarm.distribution import versions
from swarm.errors import ConfigError, Interrupted
from swarm.files import private_directory
from swarm.policy.config import EMBEDDED, TINY, TINY_SEES, TINY_SPARSE, check_model_path
from swarm.telemetry.benefit.verdict import by_controls
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.live import LiveView, plain_line
from swarm.telemetry.records import METRICS_FILE
from swarm.telemetry.report import print_end, swarm_summary, write_report

POLL_S = 0.1
PLAIN_EVERY_ROUNDS = 20
CONFIG_FILE = "demo.yaml"
CONTROL = "alone"
CONTROL_FILE = "alone.yaml"
LEARNER = "learner"
LEARNER_MODE_QUESTIONS = 16
GRACE_S = 15.0
Start = Literal["sparse", "dense", "sees"]
STARTS: Mapping[Start, str] = MappingProxyType({"sparse": TINY_SPARSE, "dense": TINY, "sees": TINY_SEES})
"""The embedded policy of each."""


class DemoOptions(Struct, frozen=True):
    """Options of the command line."""

    peers: int
    rounds: int
    local: int
    external: int
    seed: int
    out: Path
    live: bool
    transport: Literal["hivemind", "memory"]
    mode: Literal["swarm", "learner"] = "swarm"
    engine: str | None = None
    """None: as configured by default."""
    start: Start = "sparse"
    """Which embedded policy all nodes start from, unless another is chosen."""
    policy: str | None = None
    """A directory, a hub id or a name; None: the embedded policy of `start`."""
    control: bool = True
    """Whether a lone node shows what the others gain."""
    ui: bool = True
    """Whether a page shows the nodes while they run."""
    ui_port: int | None = None

    @property
    def model(self) -> str:
        """The policy that all nodes start from."""
        return self.policy or STARTS[self.start]

    @property
    def num_nodes(self) -> int:
        """Nodes with separate policies."""
        return self.peers + self.has_control

    @property
    def has_control(self) -> bool:
        """Only who learns from others has something to be compared with."""
        return self.control and self.mode == "swarm" and self.external > 0 and self.peers > 1


def demo(options: DemoOptions, console: Console) -> int:
    """Run the swarm and write its report. Returns the exit code: 0, 1 when a peer kept crashing, or 130."""
    stop = StopRequest()
    values = _values(options)
    config = _checked(options, values)
    with policy_progress(console, options.model) as progress:
        find_source_in_child(options.model, progress)
    if options.model not in EMBEDDED:
        _check_memory(options, config)
    _write_config(options, values)
    console.print(f"results go to {options.out}", highlight=False, soft_wrap=True)
    names = _names(options)
    histories = [
        PeerHistory(options.out / name / METRICS_FILE, name, control=name == CONTROL)
        for name in [*names, *([CONTROL] if options.has_control else [])]
    ]
    title = f"swarm demo: {options.peers} peers, {options.local} local + {options.external} external groups"
    if options.mode == "learner":
        title = f"swarm demo: a learner and {options.peers - 1} workers"
    view = LiveView(histories, title=title)
    live = options.live and console.is_terminal
    children: list[Child] = []
    with _page(options, console):
        try:
            with view.shown(console) if live else contextlib.nullcontext():
                plain_every = PLAIN_EVERY_ROUNDS if options.model in EMBEDDED else 1
                watch = _Watch(view, histories, None if live else console, plain_every)
                children += _start(options, names, stop, watch)
                watch.until_done(children, stop)
        except Interrupted:
            pass  # `stop` is set as well
        finally:
            saving = options.model not in EMBEDDED
            if saving and stop():
                console.print(SAVING, highlight=False, soft_wrap=True)
            stop_all(children, SAVE_TIMEOUT_S if saving else STOP_TIMEOUT_S)
    for history in histories:
        history.tail()
    _report(options, histories, console)
    if stop():
        return exits.INTERRUPTED
    return exits.FAILED if any(child.given_up for child in children) else exits.DONE


@contextlib.contextmanager
def _page(options: DemoOptions, console: Console) -> Iterator[None]:
    """The page of all nodes, where it is wanted and its libraries are there."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    with contextlib.ExitStack() as stack:
        if options.ui:
            try:
                check_installed()
            except ConfigError as error:
                say(f"no page: {error}")
            else:
                stack.enter_context(page_of(options.out, options.ui_port, say))
        yield


def _names(options: DemoOptions) -> list[str]:
    """Names of the nodes, in display order."""
    if options.mode == "learner":
        return [LEARNER, *(f"worker-{k + 1}" for k in range(options.peers - 1))]
    return [f"peer-{k + 1}" for k in range(options.peers)]


def _values(options: DemoOptions) -> Values:
    """The configuration that all peers share: the demo's own, below the environment's fields, below the options."""
    own: Values = {"run_name": "demo", "checkpoint": {"every_rounds": 25}, "evaluation": {"num_questions": 360}}
    if options.model not in EMBEDDED:
        own |= real_model(options.model, max(1, options.local + options.external), options.num_nodes)
    if options.mode == "learner":
        own["follow"] = {"questions": LEARNER_MODE_QUESTIONS}
    chosen: Values = {
        "rounds": options.rounds,
        "policy": {"model": options.model},
        "mix": {"local": options.local, "external": options.external},
        "network": LOOPBACK,
        "telemetry": {"ui": False},  # one page shows all nodes
    }
    if options.engine is not None:
        chosen["generation"] = {"engine": options.engine}
    values = overlay(own, environment_values(os.environ), chosen)
    if options.mode == "learner":
        del values["rounds"]  # workers continue until the learner has made its steps
    return values


def _checked(options: DemoOptions, values: Values) -> NodeConfig:
    """The configuration as a peer reads it; an impossible one, or another demo's directory, is refused at once."""
    path = options.out / CONFIG_FILE
    if path.exists() and path.read_text() != _as_yaml(values):
        raise ConfigError(f"{options.out} contains a demo with other options; choose another --out, or remove it")
    if not path.exists() and options.out.exists() and any(options.out.iterdir()):
        raise ConfigError(f"{options.out} is not empty and contains no demo; choose another --out")
    config = load_config(command_line=as_fields(values)).config
    check_model_path(config.policy)
    return config


def _check_memory(options: DemoOptions, config: NodeConfig) -> None:
    """Raises `ConfigError` when this machine cannot hold all nodes."""
    from swarm.preflight.check import check_nodes  # imports torch, for which the embedded policy need not wait

    check_nodes(config, options.num_nodes, in_turn=options.transport == "memory")


def _write_config(options: DemoOptions, values: Values) -> None:
    """Write the configuration of the peers, and the control's; a directory with the same ones is resumed."""
    private_directory(options.out)
    (options.out / CONFIG_FILE).write_text(_as_yaml(values))
    if options.has_control:
        control = overlay(values, lone(options.local + options.external))
        (options.out / CONTROL_FILE).write_text(_as_yaml(control))


def _as_yaml(values: Values) -> str:
    return yaml.safe_dump(values, sort_keys=False)


def _start(options: DemoOptions, names: Sequence[str], stop: StopRequest, watch: _Watch) -> list[Child]:
    """Start all processes of the demo; the bootstrap comes first, because the others need its address."""
    config = str(options.out / CONFIG_FILE)
    if options.transport == "memory":
        seed = str(node_seed(options.seed, 0))
        arguments = ["simulate-in-memory", config, str(options.out), str(options.peers), seed]
        if options.has_control:
            arguments += ["--control", str(options.out / CONTROL_FILE)]
        peers = Child("all peers", arguments, options.out / "process")
        peers.start()
        return [peers]
    if options.mode == "learner":
        first, *names = names
        arguments = ["learn", config, "--name", first, "--rounds", str(options.rounds), "--no-report"]
        command = "work"
    else:
        first, arguments, command = "bootstrap", ["bootstrap", config], "join"
    home = options.out / first
    bootstrap = Child(first, [*arguments, "--out", str(home)], home)
    address = start_first(bootstrap, home, stop)
    children = [bootstrap]
    for k, name in enumerate(names):
        children.append(_start_node(options, name, [command, config, "--bootstrap", address], k))
    if options.has_control:
        # Without a bootstrap it founds a run and stays alone in it. It asks what the first peer asks.
        children.append(_start_node(options, CONTROL, ["join", str(options.out / CONTROL_FILE)], 0))
    return children


def _start_node(options: DemoOptions, name: str, arguments: Sequence[str], stream: int) -> Child:
    """Start a node with question stream `stream` of the demo's seed."""
    return start_node(name, arguments, options.out / name, node_seed(options.seed, stream))


class _Watch:
    """Reports events and restarts crashed processes."""

    def __init__(
        self, view: LiveView, histories: Sequence[PeerHistory], plain: Console | None, plain_every: int
    ) -> None:
        """Without a live view `plain` gets a line of each node every `plain_every` rounds."""
        self._view = view
        self._plain_every = plain_every
        self._histories = histories
        self._plain = plain
        self._printed = dict.fromkeys((history.name for history in histories), 0)

    def until_done(self, children: Sequence[Child], stop: StopRequest) -> None:
        """Return when every peer is done or abandoned, a grace period after the learner's end, or on a stop request."""
        learner_seen = time.monotonic()
        while not stop():
            for child in children:
                look_after(child, self._say)
            if self._plain is not None:
                self._print_rounds(self._plain)
            if all(child.finished for child in children if child.name != "bootstrap"):
                return
            if children[0].name != LEARNER or not children[0].finished:
                learner_seen = time.monotonic()
            elif time.monotonic() - learner_seen > GRACE_S:  # a restarting worker may have missed it
                return
            time.sleep(POLL_S)

    def _say(self, text: str, level: str) -> None:
        self._view.note(text, level)
        if self._plain is not None:
            self._plain.print(f"{level}: {text}", markup=False, highlight=False, soft_wrap=True)

    def _print_rounds(self, console: Console) -> None:
        for history in self._histories:
            history.tail()
            done = history.latest.round if history.latest else 0
            last = history.start is not None and done == history.start.rounds
            due = done // self._plain_every > self._printed[history.name] // self._plain_every or last
            if due and done != self._printed[history.name]:
                self._printed[history.name] = done
                # What the control says counts more than the nodes' own estimates.
                answer = by_controls(self._histories)
                lines = [plain_line(history, estimates=answer is None)]
                if history.control and answer is not None and not last:
                    lines.append(f"until now | {answer.line}")
                for line in lines:
                    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _report(options: DemoOptions, histories: Sequence[PeerHistory], console: Console) -> None:
    config = {**structs.asdict(options), "out": str(options.out)}
    summary = swarm_summary(histories, config, versions())
    report = write_report(options.out, histories, summary)
    print_end(console, summary, histories)
    console.print(f"results are in {options.out}; open {report}", highlight=False, soft_wrap=True)
