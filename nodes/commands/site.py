"""`swarm site`: a swarm's page as files for any web host, made of what members say and of nodes on this machine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console

from nodes import exits
from nodes.boot.directory import ADDRESS_FILE, remembered, running_nodes
from nodes.commands.peers import STALE_AFTER_S, Listing, asking
from nodes.commands.runs import Listed, look, own_bootstraps, terms
from nodes.commands.watching import check_named, find_nodes
from nodes.console import say, warn
from nodes.page import INDEX, NICENESS, PUBLIC, site_folder
from nodes.stop import Stop, StopRequest
from swarm.errors import PeerUnreachable, SwarmError
from swarm.files import replace_file
from swarm.kinds import extra
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.net.roster import PeerRow, Roster
from swarm.net.services.runs import FoundRun
from swarm.sanitize import clean
from swarm.telemetry.nodes import Arrivals, NodeReader

DATA = "swarm.json"
FOR_EVERYBODY = 0o644
POLL_S = 0.2
RETRY_S = 10.0
NOBODY = "(no address yet)"
BOOTSTRAP = "bootstrap"
"""A role that trains nothing."""


class SiteOptions(Struct, frozen=True):
    """Options of the command line."""

    out: Path
    addresses: tuple[str, ...]
    runs: tuple[Path, ...]
    """Directories of nodes. Without any target, the user's list of bootstraps has the addresses."""
    every_s: float | None
    supervised: bool


class _Run(Struct):
    """A run, and what is known of it."""

    listed: Listed
    at: str
    """A member's address, as it was given."""
    nodes: list[NodeReader] = []


def write_site(options: SiteOptions, console: Console) -> int:
    """Write the files, and again every `every_s` until Ctrl-C; returns the exit code.

    What is not known now is left out; where nothing is known, the files stay. Raises `ConfigError`, and then, without
    `every_s`, `PeerUnreachable`.
    """
    page = extra(PUBLIC)
    if options.runs:
        check_named(options.runs)
    elif not options.addresses:
        options = replace(options, addresses=Bootstraps(own_bootstraps()).multiaddrs())
    Bootstraps(options.addresses)
    with site_folder(options.out):
        return _keep_up_to_date(options, page, console)


def _keep_up_to_date(options: SiteOptions, page: Any, console: Console) -> int:
    stop: Stop = StopRequest(options.supervised) if options.every_s is not None else lambda: False
    if options.supervised:
        os.nice(NICENESS)
    here = _Here(options.runs)
    said: dict[str, str] = {}
    while True:
        problems: dict[str, str] = {}
        found = here.read(problems)
        for address in options.addresses:
            try:
                found += _visited(address, problems)
            except SwarmError as error:
                problems[address] = str(error)
        try:
            if found:
                _write(options, page, found)
        except OSError as error:
            problems[str(options.out)] = f"cannot be written: {error.strerror or error}"
            found = []
        for where, problem in problems.items():
            if said.get(where) != problem:
                warn(console, f"{where}: {clean(problem)}")
        said = problems
        if options.every_s is None:
            if not found:
                raise PeerUnreachable(f"{options.out} is as it was: nothing is known of any run")
            say(console, f"written: {options.out / INDEX}")
            return exits.DONE
        again_at = time.monotonic() + (options.every_s if found else min(RETRY_S, options.every_s))
        while time.monotonic() < again_at:
            if stop():
                return exits.INTERRUPTED
            time.sleep(POLL_S)


def _write(options: SiteOptions, page: Any, found: Sequence[_Run]) -> None:
    try:
        before = (options.out / DATA).read_bytes()
    except OSError:
        before = b""
    runs: dict[str, _Run] = {}
    for each in sorted(found, key=lambda run: not run.nodes):
        known = runs.setdefault(each.listed.run.manifest.run_id, replace(each, nodes=[]))
        known.nodes.extend(each.nodes)
    files: Mapping[str, bytes] = page.make_site(
        [_open(run, page) for run in runs.values()], before, time.time(), options.every_s
    )
    for name, content in files.items():
        replace_file(options.out / name, content, mode=FOR_EVERYBODY)


def _open(run: _Run, page: Any) -> object:
    found = run.listed.run
    manifest = found.manifest
    learner = manifest.terms is not None
    # A run that a bootstrap only lists is joined there by its id, which names its founder's key.
    at = run.at or f"{manifest.run_id}@{run.listed.at}"
    return page.OpenRun(
        run_id=manifest.run_id,
        founder=manifest.founder,
        created_at=manifest.created_at,
        tasks=[task.name for task in manifest.tasks],
        models=found.models,
        members=found.members,
        terms=terms(manifest),
        join=("swarm", "work" if learner else "join", at if run.at or not learner else run.listed.address),
        give=() if learner else ("swarm", "give", run.at or run.listed.address),
        nodes=run.nodes,
    )


class _Here:
    """The nodes whose directories are on this machine."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._arrivals = Arrivals(partial(find_nodes, folders) if folders else lambda: [])
        self._nodes: list[NodeReader] = []

    def read(self, problems: dict[str, str]) -> list[_Run]:
        """What is new of all of them; those that are in no run yet, or stopped, are `problems`."""
        new = (each for each in self._arrivals.new() if not each.control)
        self._nodes += [NodeReader(each.folder, each.name) for each in new]
        runs = []
        for node in self._nodes:
            node.read()
            address = NOBODY
            with contextlib.suppress(OSError, IndexError):
                address = (node.folder / ADDRESS_FILE).read_text().splitlines()[0]
            if (sealed := remembered(node.folder)) is None:
                problems[str(node.folder)] = f"this node is in no run yet; of a bootstrap, give the address: {address}"
                continue
            seen_at = max(node.roster.time if node.roster else 0.0, node.history.alive_at or 0.0)
            # A round may be longer.
            if time.time() - seen_at > STALE_AFTER_S and node.folder.resolve() not in _running():
                problems[str(node.folder)] = "this node is not running"
                continue
            rows = _members(node.roster.peers if node.roster else ())
            found = FoundRun(sealed.manifest, "", len(rows) + 1, _models(rows))
            runs.append(_Run(Listed(found, address, address), address, [node]))
        return runs


def _running() -> set[Path]:
    return {folder.resolve() for folder in running_nodes()}


def _members(rows: Sequence[PeerRow]) -> list[PeerRow]:
    """Those with a valid record of a role that trains, as a visited member counts them."""
    now = time.time()
    return [row for row in rows if row.expires_at is not None and row.expires_at > now and row.role != BOOTSTRAP]


def _models(rows: Sequence[PeerRow]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.model for row in rows if row.model))


def _visited(address: str, problems: dict[str, str]) -> list[_Run]:
    """The run of the member at an address with its members, and those that it lists. Raises `PeerUnreachable`."""
    with asking(address) as ask:
        listing = ask()
    listed, unknown = look([address])
    problems |= unknown
    runs = [_Run(each, "") for each in listed]
    for run in runs:
        if run.listed.run.manifest.run_id == listing.run_id:
            run.at = address
            run.nodes = [_as_node(listing)]
    return runs


def _as_node(listing: Listing) -> NodeReader:
    """A member's list in the place of a node's files, of which there are none."""
    node = NodeReader(Path("/nowhere"))
    rows = tuple(
        PeerRow(
            peer_id=each.peer_id,
            model=each.model,
            role=each.role,
            version=each.version,
            name=each.name,
            summary=each.summary,
            credit=listing.credit.get(each.peer_id),
        )
        for each in listing.peers
    )
    node.roster = Roster(time=listing.time, run_id=listing.run_id, self_id="", peers=rows)
    return node
