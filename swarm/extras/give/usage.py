"""What became of a giver's groups, as its peers say (`swarm/net/services/usage.py`): figures for people, and demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from swarm.errors import PeerUnreachable
from swarm.extras.give.demand import EXPLORED, TaskDemand, groups_wanted
from swarm.files import replace_file
from swarm.net.services.usage import GroupUsage, ask_usage
from swarm.protocols import Transport

USAGE_FILE = "given.json"
ASK_EVERY_S = 10.0
ASK_TIMEOUT_S = 5.0
CLOSE_S = 0.5
MAX_ASKED = 64
"""Peers asked at a time, of those that are connected."""
MAX_KNOWN = 256
"""Peers whose last answers are kept."""


class Given(Struct, frozen=True):
    """What became of a giver's groups, as its peers say; `OUT/given.json`."""

    shared: int = 0
    peers: dict[str, GroupUsage] = {}
    """Use of the groups, by peer id."""

    @property
    def used(self) -> int:
        """Uses by all peers; one group may be used by several."""
        return sum(each.used for each in self.peers.values())

    @property
    def num_users(self) -> int:
        """Peers that used any."""
        return sum(each.used > 0 for each in self.peers.values())


def read_given(out: Path) -> Given:
    """The file in a giver's directory; empty without one."""
    try:
        return msgspec.json.decode((out / USAGE_FILE).read_bytes(), type=Given)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return Given()


def write_given(out: Path, given: Given) -> None:
    """Replace the file in a giver's directory. Raises `OSError`."""
    replace_file(out / USAGE_FILE, msgspec.json.encode(given))


def given_in_words(given: Given) -> str:
    """One line: "812 groups given, 530 uses by 6 peers, as they say; worth 0.40 of their own each"."""
    if not given.peers:
        return f"{given.shared} groups given; no peer has said what it used"
    known = [usage.worth.value for usage in given.peers.values() if usage.worth]
    worth = f"; worth {sum(known) / len(known):.2f} of their own each" if known else "; their worth is not known yet"
    peers = f"{given.num_users} peer{'s' * (given.num_users != 1)}"
    return f"{given.shared} groups given, {given.used} uses by {peers}, as they say{worth if given.used else ''}"


class UsageWatch:
    """Asks connected peers now and then, in a thread, what they did with this node's groups: that is the demand."""

    def __init__(self, transport: Transport, tasks: TaskDemand) -> None:
        """Begins at once. `tasks` hears what peers want of each."""
        self.known: dict[str, GroupUsage] = {}
        """Last answers by peer id; replaced as a whole."""
        self.allowed = EXPLORED
        """Groups that it makes sense to have given by the next answers."""
        self._transport = transport
        self._tasks = tasks
        self._stopped = threading.Event()
        self._asking = threading.Lock()
        self._num_shared = self._before = 0
        """Groups given by now, and by the last answers."""
        self._silent: set[str] = set()
        """Connected peers that did not answer last time. They are asked last: silence takes time from the others."""
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)
        self._thread.start()

    def counters(self) -> dict[str, int]:
        """Uses, and peers that used groups."""
        given = Given(peers=self.known)
        return {"used": given.used, "peers": given.num_users}

    def look(self, num_shared: int) -> None:
        """Note how many groups were given by now."""
        self._num_shared = num_shared

    def ask(self, deadline: float, stopped: Callable[[], bool] = lambda: False) -> None:
        """Ask every connected peer once, until a time of `time.monotonic` or until `stopped`. One call at a time."""
        left = deadline - time.monotonic()
        if left <= 0 or not self._asking.acquire(timeout=left):
            return
        try:
            connected = self._transport.status().connected
            self._silent.intersection_update(connected)
            num_shared = self._num_shared
            given, self._before = num_shared - self._before, num_shared
            uses: list[int] = []
            wants: list[Mapping[str, float]] = []
            for peer_id in sorted(connected, key=self._silent.__contains__)[:MAX_ASKED]:
                left = min(ASK_TIMEOUT_S, deadline - time.monotonic())
                if left <= 0 or stopped():
                    break
                try:
                    found = ask_usage(self._transport, peer_id, left)
                except PeerUnreachable:
                    self._silent.add(peer_id)
                    continue  # gone, or of a version that does not say
                self._silent.discard(peer_id)
                if found.received:  # other givers take none
                    uses.append(self._keep(peer_id, found))
                    wants.append(found.wants)
            self.allowed = num_shared + groups_wanted(uses, given)
            self._tasks.heard(wants)
        finally:
            self._asking.release()

    def last_word(self, seconds: float) -> None:
        """Ask once more, and then no more: an answer that is under way is awaited no longer than this.

        While nobody has said anything, again: the only groups may be under way.
        """
        self._stopped.set()
        deadline = time.monotonic() + seconds
        self.ask(deadline)
        while not self.known and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(1.0, left))
            self.ask(deadline)

    def close(self) -> None:
        """Ask no more. An answer that is under way is not awaited for long."""
        self._stopped.set()
        self._thread.join(CLOSE_S)

    def _keep(self, peer_id: str, found: GroupUsage) -> int:
        """Keep a peer's answer; the uses since its last one. Fewer than then are none: it has begun again, or lies."""
        kept = dict(self.known)
        before = kept.pop(peer_id, GroupUsage())
        kept[peer_id] = replace(found, wants={})  # as many names as it likes, in a file
        self.known = dict(list(kept.items())[-MAX_KNOWN:])
        return max(0, found.used - before.used)

    def _run(self) -> None:
        while not self._stopped.wait(ASK_EVERY_S):
            self.ask(time.monotonic() + ASK_EVERY_S, self._stopped.is_set)
