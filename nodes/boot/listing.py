"""Keeps a node's run in the lists of bootstraps, which is how `swarm runs` finds it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence

from nodes.boot.directory import best_address
from nodes.boot.visits import visiting, visitor_settings
from swarm.errors import PeerUnreachable, SwarmError
from swarm.net.addresses.bootstrap import Bootstraps
from swarm.net.services.runs import LIFE_S, ListRequest, ask_listing, population
from swarm.protocols import Transport
from swarm.sanitize import clean

EVERY_S = LIFE_S / 3
RETRY_S = 30.0
TIMEOUT_S = 40.0
PORT = re.compile(r"/tcp/(\d+)")


class Lister:
    """Asks these bootstraps, in a thread, now and then."""

    def __init__(self, entries: Sequence[str], transport: Transport, note: Callable[[str, str], None]) -> None:
        """Begins at once, if there are any. `transport` is the node's; `note` takes lines for people, with their
        level."""
        self._bootstraps = Bootstraps(entries)
        self._transport = transport
        self._note = note
        self._stopped = threading.Event()
        self._said: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="listing", daemon=True)
        if entries:
            self._thread.start()

    def close(self) -> None:
        """Ask no more; a request that is under way is not awaited."""
        self._stopped.set()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopped.wait(wait_s):
            wait_s = EVERY_S if self._ask() else RETRY_S

    def _ask(self) -> bool:
        """Whether all bootstraps list the run."""
        manifest = self._transport.manifest()
        port = PORT.search(best_address(self._transport.multiaddrs()))
        if manifest is None or port is None:
            return False
        request = ListRequest(manifest.run_id, self._transport.peer_id, int(port[1]), *population(self._transport))
        self._bootstraps.look_up()
        peers = self._bootstraps.by_peer()
        if not peers:
            return False
        found: dict[str, str] = {}
        try:
            with visiting(visitor_settings(self._bootstraps.multiaddrs())) as visitor:
                for peer_id in peers:
                    try:
                        found[peer_id] = ask_listing(visitor, peer_id, request, TIMEOUT_S)
                    except PeerUnreachable as error:
                        found[peer_id] = str(error)
        except SwarmError as error:
            found = dict.fromkeys(peers, str(error))
        for peer_id, problem in found.items():
            if self._said.get(peer_id) != problem:
                self._said[peer_id] = problem
                if problem:
                    self._note(f"the bootstrap {peer_id} does not list this run: {clean(problem)}", "warning")
                else:
                    self._note(f"the bootstrap {peer_id} lists this run for `swarm runs`", "info")
        return not any(found.values())
