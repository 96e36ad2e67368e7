"""Runs a node of any role: its steps until it is done or stopped, and lines for people."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from nodes import exits
from nodes.boot.assemble import RunningNode, opened
from nodes.roles.role import RoleNode
from nodes.roles.runtime import EndReason
from nodes.stop import StopRequest
from swarm.config import LoadedConfig, NodeConfig
from swarm.distribution import versions
from swarm.errors import (
    ConfigError,
    EngineError,
    Interrupted,
    NonFiniteUpdates,
    OutOfMemory,
    SnapshotError,
    TaskError,
    TransportError,
)
from swarm.sanitize import clean_lines
from swarm.telemetry.history import KEPT_ROUNDS, PeerHistory, pause_in_words, suite_in_words
from swarm.telemetry.live import LiveView, plain_line
from swarm.telemetry.records import METRICS_FILE, EvaluationEvent, NoteEvent, PauseEvent, RoundEvent, SuiteEvent
from swarm.telemetry.report import print_end, swarm_summary, write_report

if TYPE_CHECKING:
    from swarm.policy.ranks import Ranks

REPORTED_IN_DETAIL = 4_096
"""Most rounds whose figures the report at the end reads: a node may have run for weeks."""


def launch(
    role: type[RoleNode], loaded: LoadedConfig, console: Console, *, live: bool, report: bool, supervised: bool
) -> int:
    """Run a node of this role until it is done or asked to stop.

    Returns the process's exit code. Among torchrun's processes, rank 0 is the node. Raises `SwarmError` for errors
    before the start.
    """
    if not role.has_policy:
        return _launch(role, loaded, console, live and console.is_terminal, report, StopRequest(supervised), None)
    from nodes.roles.ranks import follow, leading
    from swarm.policy.ranks import open_ranks

    with open_ranks() as ranks:
        if ranks.rank > 0:
            return follow(ranks)
        with leading(ranks):
            return _launch(role, loaded, console, live and console.is_terminal, report, StopRequest(supervised), ranks)


def _launch(
    role: type[RoleNode],
    loaded: LoadedConfig,
    console: Console,
    live: bool,
    report: bool,
    stop: StopRequest,
    ranks: Ranks | None,
) -> int:
    with opened(role, loaded, console, stop, ranks, stop.at_once()) as running:
        config = running.config
        # Skip an earlier process's lines; memory is bounded, since a node may run for weeks.
        name = config.called(running.transport.peer_id)
        history = PeerHistory.read(config.out / METRICS_FILE, name, KEPT_ROUNDS)
        view = LiveView([history], title=name)
        with view.shown(console) if live else contextlib.nullcontext():
            code = run_steps(running, stop, None if live else console, history)
    if report:
        history = PeerHistory.read(config.out / METRICS_FILE, name, max_detailed=REPORTED_IN_DETAIL)
        _report(config, history, console)
    return code


def run_steps(running: RunningNode, stop: StopRequest, plain: Console | None, history: PeerHistory) -> int:
    """Run rounds until done, stopped or failed; returns the exit code. A crash leaves the last checkpoint unchanged.

    A node none of whose questions got a group that could be rewarded has failed, too.
    """
    reason: EndReason = "done"
    code = exits.DONE
    node = running.node
    try:
        node.begin()
        while not (node.done or stop()):
            running.step()
            if plain is not None and not _is_read(plain, history, running.config.telemetry.log_every_rounds):
                stop.ask()
    except Interrupted:
        pass  # `stop` is set as well
    except TransportError as error:
        reason, code = "error", exits.NETWORK
        node.note(f"the network is permanently lost: {error}", "error")
    except (ConfigError, EngineError, NonFiniteUpdates, OutOfMemory, SnapshotError, TaskError) as error:
        reason, code = "error", exits.FAILED
        node.note(str(error), "error")
    if stop():
        reason, code = "interrupted", exits.INTERRUPTED
    node.end(reason)
    if plain is not None:
        _is_read(plain, history, 1)
    if code == exits.DONE:
        history.tail()
        code = exits.FAILED if history.figures.useless else exits.DONE
    return exits.INTERRUPTED if stop() else code


def _is_read(console: Console, history: PeerHistory, every: int) -> bool:
    """Print new events; whether anybody still reads them."""
    try:
        _print_plain(console, history, every)
    except SystemExit:  # rich's answer to a closed pipe; from now on it prints nothing
        return False
    return True


def _print_plain(console: Console, history: PeerHistory, every: int) -> None:
    """Print new events of the metrics file as plain lines."""
    for event in history.tail():
        if isinstance(event, NoteEvent) and event.level != "debug":
            text = f"{history.name} | {event.level}: {clean_lines(event.text)}"
            console.print(text, markup=False, highlight=False)
        elif isinstance(event, PauseEvent):
            text = f"{history.name} | {pause_in_words(event)}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif isinstance(event, EvaluationEvent) and event.accuracy is not None:
            text = f"{history.name} | round {event.round} | accuracy {event.accuracy:.3f} on held-out questions"
            console.print(text, markup=False, highlight=False)
        elif isinstance(event, SuiteEvent):
            text = f"{history.name} | {suite_in_words(event)}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        elif isinstance(event, RoundEvent) and event.round % every == 0:
            console.print(plain_line(history), markup=False, highlight=False, soft_wrap=True)


def _report(config: NodeConfig, history: PeerHistory, console: Console) -> None:
    summary = swarm_summary([history], config.model_dump(mode="json"), versions())
    report = write_report(config.out, [history], summary)
    print_end(console, summary, [history])
    console.print(Text(f"report: {report}"), soft_wrap=True)
