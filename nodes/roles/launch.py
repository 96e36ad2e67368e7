"""Launches a node of any role: configuration, directory, network, verification, steps, messages for people."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodes import exits
from nodes.roles.home import Home, claim_home, resumed
from nodes.roles.progress import policy_progress
from nodes.roles.ranks.led import follow, leading
from nodes.roles.run import (
    PEERS_FILE,
    ask_bootstraps,
    best_address,
    check_group_size,
    check_no_twin,
    check_only_learner,
    check_terms,
    manifest_values,
    on_same_ports,
    other_files,
    other_options,
    remember,
    reopen,
    sharing_of_own_tools,
    shown_address,
    terms_of,
    warn,
    warn_of_readers,
    write_addresses,
)
from nodes.roles.shell import EndReason
from nodes.roles.versions import versions
from nodes.stop import StopRequest
from swarm.config import NodeConfig, load_config
from swarm.distribution import own_version
from swarm.environments.modalities import modalities
from swarm.environments.sandbox.confinement import in_words
from swarm.environments.specs import left_out
from swarm.environments.tools.own import with_own_tools
from swarm.environments.verification.pool import VerificationPool
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
from swarm.foreign import clean, clean_lines, is_name
from swarm.judging.opening import lacking_judge, other_judges, with_judge
from swarm.net.backends import open_transport
from swarm.net.membership.member import Profile
from swarm.net.records.identity import Identity
from swarm.net.services.diagnosis import serve_diagnosis
from swarm.page.serving import page_of
from swarm.policy.config import MADE_HERE, SMOLLM2, public_name
from swarm.policy.media.processor import modalities_of
from swarm.policy.packaged.smollm import check_smollm2
from swarm.policy.ranks import Ranks, open_ranks
from swarm.preflight.check import check_policy, check_start
from swarm.preflight.need import RoleName
from swarm.protocols import Transport, Verifier
from swarm.telemetry.alerts.checks import HIGH_LEARNING_RATE
from swarm.telemetry.end import print_end
from swarm.telemetry.history import KEPT_ROUNDS, PeerHistory, pause_in_words, suite_in_words
from swarm.telemetry.live import LiveView, plain_line
from swarm.telemetry.records import METRICS_FILE, EvaluationEvent, NoteEvent, PauseEvent, RoundEvent, SuiteEvent
from swarm.telemetry.report import write_report
from swarm.telemetry.summary import swarm_summary
from swarm.training.objective import check_own_code
from swarm.types import MAX_NAME_CHARS, NetworkStatus, RunManifest

MAX_PLAN_CHARS = 2_000
REPORTED_IN_DETAIL = 4_096
"""Most rounds whose figures the report at the end reads: a node may have run for weeks."""


class Node(Protocol):
    """A role's node: works step by step, and writes events to its metrics file."""

    @property
    def done(self) -> bool:
        """Whether the node has finished."""
        ...

    def begin(self) -> None:
        """Write the start event and prepare the first step."""
        ...

    def step(self) -> None:
        """One round, step or batch. Raises `Interrupted` in a consistent state."""
        ...

    def note(self, text: str, level: str = "info", alert: str = "") -> None:
        """Put a line for people into the metrics file; `alert`: see `NoteEvent`."""
        ...

    def end(self, reason: EndReason) -> None:
        """Save, and write the end event."""
        ...

    def close(self) -> None:
        """Stop background work; always called, possibly twice."""
        ...


class MakeNode(Protocol):
    """Creates the node of a role. Raises `SwarmError`."""

    def __call__(
        self,
        config: NodeConfig,
        identity: Identity,
        transport: Transport,
        verifier: Verifier,
        cancelled: Callable[[], bool],
        progress: Callable[[int, int], None] | None,
        ranks: Ranks | None,
    ) -> Node:
        """The node on an open transport."""
        ...


@dataclass(frozen=True)
class Role:
    """The role of a node in a swarm."""

    name: RoleName
    make: MakeNode
    plan: Callable[[NodeConfig], list[tuple[str, str]]]
    """Lines that describe its plan."""
    alone: str
    """Its activity while no peer is connected, for messages."""
    invites: str = "join"
    """The subcommand with which others join it."""
    sets_terms: bool = False
    """Whether those who join must share its terms."""
    keeps_terms: bool = False
    """Whether it must share those of the run's founder."""


def launch(
    role: Role,
    file: Path | None,
    overrides: Sequence[tuple[str, str]],
    console: Console,
    live: bool,
    report: bool,
    supervised: bool,
) -> int:
    """Run a node of this role until it is done or asked to stop.

    Returns the process's exit code. Among torchrun's processes, rank 0 is the node. Raises `SwarmError` for errors
    before the start.
    """
    with open_ranks() as ranks:
        if ranks.rank > 0:
            return follow(ranks)
        with leading(ranks):
            stop = StopRequest(supervised)
            return _launch(role, file, overrides, console, live, report, stop, ranks)


def _launch(
    role: Role,
    file: Path | None,
    overrides: Sequence[tuple[str, str]],
    console: Console,
    live: bool,
    report: bool,
    stop: StopRequest,
    ranks: Ranks,
) -> int:
    with opened(role, file, overrides, console, stop, ranks) as running:
        config = running.config
        live = live and console.is_terminal
        # Skip an earlier process's lines; memory is bounded, since a node may run for weeks.
        name = config.called(running.transport.peer_id)
        history = PeerHistory.read(config.out / METRICS_FILE, name, KEPT_ROUNDS)
        view = LiveView([history], title=name)
        with view.shown(console) if live else contextlib.nullcontext():
            code = _rounds(running, stop, None if live else console, history)
    if report:
        history = PeerHistory.read(config.out / METRICS_FILE, name, max_detailed=REPORTED_IN_DETAIL)
        _report(config, history, console)
    return code


class Running:
    """A node on an open network, step by step."""

    def __init__(
        self, config: NodeConfig, node: Node, transport: Transport, alone: str, failures: Callable[[], dict[str, str]]
    ) -> None:
        """`alone`: see `Role`. `failures`: see `VerificationPool.take_texts`."""
        self.config = config
        self.node = node
        self.transport = transport
        self._failures = failures
        self._watch = _NetworkWatch(node, alone, transport.manifest(), config.generation.group_size)

    def step(self) -> None:
        """One round, step or batch; then note what has changed in the network. Raises what the node does."""
        self.node.step()
        for key, text in self._failures().items():  # they are in the log already
            self.node.note(text, "debug", alert=key.partition(" ")[0])
        self._watch.look(self.transport.status(), self.transport.manifest())
        if sealed := self.transport.sealed_manifest():
            remember(self.config.out, sealed)


@contextlib.contextmanager
def opened(
    role: Role,
    file: Path | None,
    overrides: Sequence[tuple[str, str]],
    console: Console,
    stop: Callable[[], bool],
    ranks: Ranks,
) -> Iterator[Running]:
    """A node of this role, ready to begin, until the block ends. Raises `SwarmError`."""
    loaded = load_config(file, None, os.environ, overrides)
    if loaded.config.policy.model == SMOLLM2:
        check_smollm2()
    check_policy(loaded.config.policy)
    check_own_code(loaded.config.update, loaded.config.generation.group_size)
    if (rate := loaded.config.update.learning_rate) >= HIGH_LEARNING_RATE:
        warn(
            f"update.learning_rate {rate:g} is high: Adam moves every weight by about this much in each update, and a "
            "trained policy seldom survives it; usual are 1e-6 to 1e-3",
            console,
        )
    sealed = ask_bootstraps(loaded.config.network, console)
    terms = terms_of(loaded.config) if role.sets_terms else None
    home = claim_home(loaded.config, "out" in loaded.origins, sealed, terms)
    with contextlib.ExitStack() as stack:
        stack.callback(home.identity.close)
        check_no_twin(loaded.config.network, home.identity.peer_id, loaded.config.network.identity or home.out)
        manifest = reopen(home.sealed) if home.sealed else None
        if sealed and sealed != home.sealed:
            warn("the bootstrap sent an older manifest of this run; keeping the stored one", console)
        if manifest and not (loaded.config.network.bootstrap or role.sets_terms):
            _say_whose(role, manifest, home.identity.peer_id, console)
        warn_of_readers(home.out, console)
        if home.warning:
            warn(home.warning, console)
        if manifest and role.sets_terms:
            check_only_learner(home.identity.peer_id, manifest)
        asked = manifest_values(manifest, loaded, role.keeps_terms) if manifest else None
        loaded = load_config(file, asked, os.environ, [*overrides, ("out", str(home.out))])
        tasks_of_the_run = loaded.origins.get("tasks") == "manifest"
        if manifest and role.keeps_terms:
            check_terms(loaded.config, manifest)
        config = _judgeable(loaded.config, tasks_of_the_run, console)
        config = _without(config, _unreadable(config), tasks_of_the_run, console)
        if (going_on := resumed(config, role.name, tasks_of_the_run)) is not None:
            warn(going_on, console)
        if short := check_start(config, role.name, ranks.size):
            warn(short, console)
        _show_plan(role, config, home.identity, manifest, ranks.size, console)
        if manifest and tasks_of_the_run:
            for name, reason in _omitted(manifest, loaded.config).items():
                warn(f"omitting the run's task {name}: {reason}", console)
        elif manifest and manifest.founder != home.identity.peer_id:
            for difference in other_files(manifest, loaded.config.tasks):
                warn(f"{difference}, or learn only from rows that agree", console)
            for difference in other_options(manifest, loaded.config.tasks):
                warn(f"{difference}: groups of members that differ count for neither; take the run's", console)
        yield _open(role, config, home, tasks_of_the_run, stop, console, ranks, stack)


def _say_whose(role: Role, manifest: RunManifest, peer_id: str, console: Console) -> None:
    """Say whose run a node is in that was given no address."""
    whose = (
        f"no address was given: this node founds a run, and is {role.alone} until others join it; to join another's: "
        f"swarm {role.invites} ADDRESS, which a member prints at its start"
        if manifest.founder == peer_id
        else f"no address was given: this node goes on in the run {manifest.run_id}, in which its directory was before"
    )
    _say(console, whose)


def _omitted(manifest: RunManifest, config: NodeConfig) -> dict[str, str]:
    return left_out(manifest.tasks, config.files, config.code, config.trusted)


def _judgeable(config: NodeConfig, tasks_of_the_run: bool, console: Console) -> NodeConfig:
    """The configuration without the run's tasks for which this node has no judge. Raises `ConfigError`."""
    for difference in other_judges(config.tasks, config.judge):
        warn(f"{difference}: groups may be rated differently here", console)
    return _without(config, lacking_judge(config.tasks, config.judge), tasks_of_the_run, console)


def _unreadable(config: NodeConfig) -> dict[str, str]:
    """By name: which tasks this node's policy cannot read. Raises `PolicyError`."""
    needed = {task.name: needs for task in config.tasks if (needs := modalities(task))}
    if not needed:
        return {}
    readable = modalities_of(config.policy)
    return {
        name: f"its questions have media ({', '.join(sorted(needs))}) that {config.policy.model} cannot read"
        for name, needs in needed.items()
        if needs - readable
    }


def _without(config: NodeConfig, lacking: Mapping[str, str], tasks_of_the_run: bool, console: Console) -> NodeConfig:
    """The configuration without some of the run's tasks, and why. Raises `ConfigError` if they are the node's own, or
    all."""
    kept = tuple(task for task in config.tasks if task.name not in lacking)
    if lacking and not (tasks_of_the_run and kept):
        raise ConfigError("; ".join(f"task {name}: {reason}" for name, reason in lacking.items()))
    for name, reason in lacking.items():
        warn(f"omitting the run's task {name}: {reason}", console)
    return config.model_copy(update={"tasks": kept})


def _open(
    role: Role,
    config: NodeConfig,
    home: Home,
    tasks_of_the_run: bool,
    stop: Callable[[], bool],
    console: Console,
    ranks: Ranks,
    stack: contextlib.ExitStack,
) -> Running:
    """Open network, verification and policy; `stack` closes them."""
    network = config.network.model_copy(update={"remember": config.network.remember or config.out / PEERS_FILE})
    network = on_same_ports(network, config.out, console)
    transport = open_transport(network, home.identity, profile=_profile(role, config), manifest=home.sealed)
    if config.telemetry.ui:
        stack.enter_context(page_of(config.out, config.telemetry.ui_port, partial(_say, console)))
    # A run may list tasks unknown to the local library version; the node's own list must be complete.
    pool = VerificationPool(config.tasks, config.verification, tasks_of_the_run, config.files)
    stack.callback(pool.close)
    for name, reason in pool.wait_until_ready().items():
        warn(f"omitting the run's task {name}: {reason}", console)
    graders = with_own_tools(pool, config.tasks)
    stack.callback(graders.close)
    verifier = with_judge(graders, config.tasks, config.judge)
    stack.callback(verifier.close)
    unprotected = pool.unprotected()
    line = f"other peers' answers are graded in a sandbox: {in_words(unprotected)}"
    console.print(line, style="yellow" if unprotected else None, highlight=False, soft_wrap=True)
    serve_diagnosis(transport)
    transport.start()
    stack.callback(transport.close)
    if (shown := shown_address(network, transport.multiaddrs())) is not None:
        _say(console, shown)
    if (sharing := sharing_of_own_tools(config, home.identity.peer_id)) is not None:
        console.print(sharing, highlight=False, soft_wrap=True)
    if config.policy.model not in MADE_HERE:
        where = "" if Path(config.policy.model).exists() else "; from the hub first, if it is not in the cache"
        text = f"loading {config.policy.model}{where}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    with policy_progress(console, config.policy.model) as progress:
        node = role.make(config, home.identity, transport, verifier, stop, progress, ranks)
    stack.callback(node.close)
    write_addresses(config.out, transport.multiaddrs(), network.address_file)
    command = f"swarm {role.invites} {best_address(transport.multiaddrs())}"
    console.print(Text("others can join with: ").append(command, "bold"), soft_wrap=True)
    return Running(config, node, transport, role.alone, pool.take_texts)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _rounds(running: Running, stop: StopRequest, plain: Console | None, history: PeerHistory) -> int:
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
            if plain is not None and not _is_told(plain, history, running.config.telemetry.log_every_rounds):
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
        _is_told(plain, history, 1)
    if code == exits.DONE:
        history.tail()
        code = exits.FAILED if history.figures.useless else exits.DONE
    return exits.INTERRUPTED if stop() else code


class _NetworkWatch:
    """Reports changes of the network's state as notes."""

    def __init__(self, node: Node, doing_alone: str, manifest: RunManifest | None, group_size: int) -> None:
        self._node = node
        self._doing_alone = doing_alone
        self._run_known = manifest is not None
        self._group_size = group_size
        self._alone: bool | None = None
        self._detail = ""
        self._split = ""

    def look(self, status: NetworkStatus, manifest: RunManifest | None) -> None:
        """Note when and why the node is alone, when it is connected again, and its run.

        And when most of the others speak another version of the protocol.
        """
        if manifest is not None and not self._run_known:
            self._run_known = True
            self._node.note(
                f"joined run {manifest.run_id}; tasks, group size and mix stay unchanged until this node restarts"
            )
            try:
                check_group_size(self._group_size, manifest)
            except ConfigError as error:
                self._node.note(str(error), "warning")
        alone = status.alone_since is not None
        if alone != self._alone and (alone or self._alone is not None):
            self._node.note(
                f"{self._doing_alone}: {status.detail}" if alone else status.detail, "warning" if alone else "info"
            )
        elif alone and _without_numbers(status.detail) != _without_numbers(self._detail):
            self._node.note(f"still alone: {status.detail}", "warning")
        if status.split and _without_numbers(status.split) != _without_numbers(self._split):
            self._node.note(status.split, "warning")
        self._alone, self._detail, self._split = alone, status.detail, status.split


def _without_numbers(detail: str) -> str:
    """Ignore numbers, so that a countdown is not a change."""
    return "".join(char for char in detail if not char.isdigit())


def _is_told(console: Console, history: PeerHistory, every: int) -> bool:
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


def _show_plan(
    role: Role,
    config: NodeConfig,
    identity: Identity,
    manifest: RunManifest | None,
    num_processes: int,
    console: Console,
) -> None:
    """Print the plan before the start."""
    founded = manifest is not None and manifest.founder == identity.peer_id
    unknown = "unknown until a bootstrap answers"
    processes = f", shared by {num_processes} processes" if num_processes > 1 else ""
    rows = [
        ("run", manifest.run_id + (" (founded here)" if founded else "") if manifest else unknown),
        ("peer id", identity.peer_id),
        ("policy", f"{config.policy.model} on {config.policy.device}{processes}"),
        ("tasks", ", ".join(task.name for task in config.tasks)),
        *role.plan(config),
        ("rounds", str(config.rounds) if config.rounds else "until Ctrl-C"),
        ("directory", str(config.out)),
    ]
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(name, Text(clean(value, MAX_PLAN_CHARS)))
    console.print(table)


def _report(config: NodeConfig, history: PeerHistory, console: Console) -> None:
    summary = swarm_summary([history], config.model_dump(mode="json"), versions())
    write_report(config.out, [history], summary)
    print_end(console, summary, [history])
    console.print(Text(f"report: {config.out / 'report.html'}"), soft_wrap=True)


def _profile(role: Role, config: NodeConfig) -> Profile:
    tasks = tuple(task.name for task in config.tasks)
    own_name = config.name if is_name(config.name, MAX_NAME_CHARS) else ""
    return Profile(
        model=public_name(config.policy.model), tasks=tasks, role=role.name, version=own_version(), name=own_name
    )
