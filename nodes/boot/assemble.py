"""Opens the parts of a node: network, verification, page and role. The only place that composes a node."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodes.boot.directory import (
    LISTEN_FILE,
    PEERS_FILE,
    RunDirectory,
    best_address,
    claim_directory,
    remember,
    remembered,
    write_addresses,
)
from nodes.boot.listing import Lister
from nodes.boot.manifest import check_group_size, sharing_of_own_tools
from nodes.boot.resolve import Notice, ResolvedNode, check_recorded, check_settings, fitted, resolve
from nodes.console import policy_progress, say, warn
from nodes.page import page_of, site_of
from nodes.roles.role import RoleNode
from nodes.roles.runtime import NodeParts
from swarm.config import LoadedConfig, NodeConfig
from swarm.distribution import own_version
from swarm.environments.judge import with_raters
from swarm.environments.sandbox.confinement import in_words
from swarm.environments.tools.custom import with_custom_tools
from swarm.environments.verification.pool import VerificationPool
from swarm.errors import ConfigError, IdentityInUse, OtherRun, PeerUnreachable
from swarm.net.addresses.bootstrap import DNSADDR, Bootstraps
from swarm.net.addresses.dial import Backoff, is_name as is_host_name, is_private_run
from swarm.net.addresses.listening import keep_ports, same_ports
from swarm.net.backends import fetch_manifest, open_transport
from swarm.net.config import NetworkSettings
from swarm.net.membership.member import Profile
from swarm.net.records.wire import SealedManifest
from swarm.net.services.diagnosis import serve_diagnosis
from swarm.net.services.runs import serve_runs
from swarm.policy.config import MADE_HERE
from swarm.protocols import Transport
from swarm.sanitize import clean, is_name
from swarm.types import MAX_NAME_CHARS, NetworkStatus, RunManifest

if TYPE_CHECKING:
    from swarm.policy.ranks import Ranks

ASK_TIMEOUT_S = 20.0
MAX_PLAN_CHARS = 2_000


class RunningNode:
    """A node on an open network, step by step."""

    def __init__(
        self,
        config: NodeConfig,
        node: RoleNode,
        transport: Transport,
        alone: str,
        failures: Callable[[], dict[str, str]],
    ) -> None:
        """`alone`: see `RoleNode`. `failures`: see `VerificationPool.take_texts`."""
        self.config = config
        self.node = node
        self.transport = transport
        self._failures = failures
        self._watch = NetworkWatch(node, alone, transport.manifest(), config.generation.group_size)

    def step(self) -> None:
        """One round, step or batch; then note what has changed in the network. Raises what the node does."""
        self.node.step()
        for key, text in self._failures().items():  # they are in the log already
            self.node.note(text, "debug", alert=key.partition(" ")[0])
        self._watch.look(self.transport.status(), self.transport.manifest())
        if sealed := self.transport.sealed_manifest():
            remember(self.config.out, sealed)


class NetworkWatch:
    """Reports changes of the network's state as notes."""

    def __init__(self, node: RoleNode, doing_alone: str, manifest: RunManifest | None, group_size: int) -> None:
        """`doing_alone`: see `RoleNode.alone`; `group_size` is this node's."""
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


@contextlib.contextmanager
def opened(
    role: type[RoleNode],
    loaded: LoadedConfig,
    console: Console,
    stop: Callable[[], bool],
    ranks: Ranks | None,
    asking: contextlib.AbstractContextManager[None] | None = None,
) -> Iterator[RunningNode]:
    """A node of this role, ready to begin, until the block ends.

    `loaded` is its own configuration, without a run's values. `ranks`: None for a role without a policy. `asking` is
    entered while members are asked for the run. Raises `SwarmError`.
    """
    if role.has_policy:
        if warning := check_settings(loaded.config):
            warn(console, warning)
        loaded, lines = fitted(loaded)
        for line in lines:
            say(console, line)
    if role.role == "peer":
        check_recorded(loaded.config)
    network = loaded.config.network
    with asking or contextlib.nullcontext():
        awaits = role.awaits_run and bool(network.bootstrap) and remembered(loaded.config.out) is None
        asked = ask_bootstraps(network, role.alone, console, awaits)
    terms = role.terms(loaded.config)
    directory = claim_directory(loaded.config, "out" in loaded.origins, asked, terms, role=role.role)
    with contextlib.ExitStack() as stack:
        stack.callback(directory.identity.close)
        check_no_twin(network, directory.identity.peer_id, network.identity or directory.out)
        notices: list[Notice] = []
        num_processes = ranks.size if ranks else 1
        try:
            resolved = resolve(role, loaded, directory, asked, num_processes, notices)
        finally:
            for notice in notices:
                (warn if notice.is_warning else say)(console, notice.text)
        if directory.run:
            remember(directory.out, directory.run.sealed)
        console.print(plan_table(resolved, num_processes))
        for difference in resolved.differences():
            warn(console, difference)
        yield _assemble(resolved, console, stop, ranks, stack)


def _assemble(
    resolved: ResolvedNode, console: Console, stop: Callable[[], bool], ranks: Ranks | None, stack: contextlib.ExitStack
) -> RunningNode:
    """Open network, verification and policy; `stack` closes them."""
    config, role, directory = resolved.config, resolved.role, resolved.directory
    network = config.network.model_copy(update={"remember": config.network.remember or directory.out / PEERS_FILE})
    transport, network = open_network(network, directory, profile_of(role, config), console)
    if config.telemetry.ui:
        stack.enter_context(page_of(config.out, config.telemetry.ui_port, partial(say, console)))
    if config.telemetry.site is not None:
        stack.enter_context(site_of(config.out, config.telemetry.site))
    # A run may list tasks unknown to the local library version; the node's own list must be complete.
    pool = VerificationPool(config.tasks, config.verification, resolved.tasks_of_the_run, config.files)
    stack.callback(pool.close)
    for name, reason in pool.wait_until_ready().items():
        warn(console, f"omitting the run's task {name}: {reason}")
    graders = with_custom_tools(pool, config.tasks)
    stack.callback(graders.close)
    verifier = with_raters(graders, config.tasks, config.raters)
    stack.callback(verifier.close)
    unprotected = pool.unprotected()
    line = f"other peers' answers are graded in a sandbox: {in_words(unprotected)}"
    console.print(line, style="yellow" if unprotected else None, highlight=False, soft_wrap=True)
    serve_diagnosis(transport)
    serve_runs(transport)
    transport.start()
    stack.callback(transport.close)
    for shown in (
        shown_address(network, transport.multiaddrs()),
        sharing_of_own_tools(config, directory.identity.peer_id),
    ):
        if shown is not None:
            say(console, shown)
    parts = NodeParts(config, directory.identity, transport, verifier, stop)
    if not role.has_policy:
        node = role(parts)
    else:
        if config.policy.model not in MADE_HERE:
            where = "" if Path(config.policy.model).exists() else "; from the hub first, if it is not in the cache"
            say(console, f"loading {config.policy.model}{where}")
        with policy_progress(console, config.policy.model) as progress:
            node = role(dataclasses.replace(parts, progress=progress, ranks=ranks))
    stack.callback(node.close)
    stack.callback(Lister(config.network.list_at, transport, node.note).close)
    write_addresses(config.out, transport.multiaddrs(), network.address_file)
    command = f"swarm {role.invites} {best_address(transport.multiaddrs())}"
    console.print(Text("others can join with: ").append(command, "bold"), soft_wrap=True)
    return RunningNode(config, node, transport, role.alone, pool.take_texts)


def open_network(
    network: NetworkSettings, directory: RunDirectory, profile: Profile, console: Console
) -> tuple[Transport, NetworkSettings]:
    """A transport that has not started, and the settings with the ports where it will listen.

    It listens where this directory's last process did: others have its address. Says which of these ports are taken
    meanwhile. Raises `ConfigError` or `TransportError`, as when a port that is configured is taken.
    """
    listen, lost = same_ports(network.listen, directory.out / LISTEN_FILE)
    keep_ports(listen, directory.out / LISTEN_FILE)
    for line in lost:
        warn(console, line)
    network = network.model_copy(update={"listen": listen})
    return open_transport(network, directory.identity, directory.run, profile), network


def ask_bootstraps(
    settings: NetworkSettings, alone: str, console: Console, awaits: bool = False
) -> SealedManifest | None:
    """The manifest of the bootstraps' run; None when there are none or none answers. `alone`: see `RoleNode`.

    `awaits`: they are asked until one answers, after pauses from `network.retry_s` to a minute. Raises `ConfigError`
    for a bootstrap address without a peer id, and when all are in another run than `network.run_id`.
    """
    pauses = Backoff(settings.retry_s)
    said = set[str]()
    while True:
        bootstraps = Bootstraps(settings.bootstrap)
        problems = [f"{entry}: {problem}" for entry, problem in bootstraps.look_up().items()]
        if multiaddrs := bootstraps.multiaddrs():
            asked = "a member" if len(multiaddrs) == 1 else f"{len(multiaddrs)} members"
            if not said:
                console.print(f"asking {asked} for the run, at most {ASK_TIMEOUT_S:g} s", highlight=False)
            try:
                return fetch_manifest(multiaddrs, ASK_TIMEOUT_S, run_id=settings.run_id, transport=settings.transport)
            except OtherRun as error:
                raise ConfigError(f"network.run_id is {settings.run_id}, but {error}") from error
            except PeerUnreachable as error:
                problems.append(f"{error}; {alone} until one answers")
        for problem in problems:
            if problem not in said:
                warn(console, problem)
        said.update(problems)
        if not awaits:
            return None
        pauses.failed("", time.monotonic())
        time.sleep(pauses.wait_s("", time.monotonic()))


def check_no_twin(settings: NetworkSettings, peer_id: str, kept: Path) -> None:
    """Raises `IdentityInUse` when a bootstrap has this node's own key, which is `kept` there: this node does not listen
    yet, so it is another one."""
    own = [f"{address}/p2p/{peer_id}" for address in Bootstraps(settings.bootstrap).by_peer().get(peer_id, ())]
    if not own:
        return
    try:
        fetch_manifest(own, ASK_TIMEOUT_S, transport=settings.transport)
    except PeerUnreachable:
        return
    raise IdentityInUse(
        f"this node's own key is at {own[0]}: a copied directory? Two nodes must not have the key in {kept}: give this "
        "one a directory of its own with --out, or end the other"
    )


def shown_address(network: NetworkSettings, multiaddrs: Sequence[str]) -> str | None:
    """A line for members of a public run, which a bootstrap's name counts as; None in a private run.

    `multiaddrs` are this node's.
    """
    named = Bootstraps(network.bootstrap).multiaddrs()
    by_name = any(map(is_host_name, named)) or any(entry.startswith(DNSADDR) for entry in network.bootstrap)
    if not by_name and is_private_run((*named, *network.announce, *network.listen), multiaddrs, {}):
        return None
    return (
        "other members of a public run will see this machine's public address, and pass it on to further members; "
        "addresses of its own network are not sent (swarm docs faq.md#who-sees-my-ip-address)"
    )


def plan_table(resolved: ResolvedNode, num_processes: int) -> Table:
    """The node's plan, for people."""
    role, config, manifest = resolved.role, resolved.config, resolved.manifest
    peer_id = resolved.directory.identity.peer_id
    founded = manifest is not None and manifest.founder == peer_id
    processes = f", shared by {num_processes} processes" if num_processes > 1 else ""
    unknown = "unknown until a bootstrap answers"
    device = "a GPU if there is one" if config.policy.device == "auto" else config.policy.device
    rows = [
        ("run", manifest.run_id + (" (founded here)" if founded else "") if manifest else unknown),
        ("peer id", peer_id),
        *([("policy", f"{config.policy.model} on {device}{processes}")] if role.has_policy else []),
        ("tasks", ", ".join(task.name for task in config.tasks)),
        *role.plan(config),
        ("rounds", str(config.rounds) if config.rounds else "until Ctrl-C"),
        ("directory", str(config.out)),
    ]
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(name, Text(clean(value, MAX_PLAN_CHARS)))
    return table


def profile_of(role: type[RoleNode], config: NodeConfig) -> Profile:
    """What members learn of this node."""
    return Profile(
        model=role.model(config),
        tasks=tuple(task.name for task in config.tasks),
        role=role.role,
        version=own_version(),
        name=config.name if is_name(config.name, MAX_NAME_CHARS) else "",
    )
