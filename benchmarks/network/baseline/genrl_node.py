"""One node of the public peer: gensyn-genrl's `HivemindBackend`, run by the Python of a venv that has it.

It understands the commands and says the events of `benchmarks.network.node`, and imports nothing of ours. A round is
one `all_gather_object`: it shares one object and returns what the round's dictionary in the DHT holds. The
environment's `HIVEMIND_WORLD_SIZE` decides between its default mode (1: whatever is there) and the barrier (N).
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
from typing import Any


def emit(event: str, **fields: object) -> None:
    """One event to the driver."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def provide_missing_name() -> None:
    """`hivemind` 1.1.12, which an installation of the peer gets today, no longer re-exports a name the peer imports."""
    import hivemind
    from hivemind.utils import get_dht_time

    if not hasattr(hivemind, "get_dht_time"):
        hivemind.get_dht_time = get_dht_time


def read_commands(orders: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Commands as they come; `quit` when the driver is gone."""
    # Not `sys.stdin`: the backend forks, and the fork would wait for ever for the lock that a reading thread holds.
    with os.fdopen(os.dup(0), "rb") as commands:
        for line in commands:
            orders.put(json.loads(line))
    orders.put({"do": "quit"})


class GenrlNode:
    """A backend, and rounds with it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Start nothing yet."""
        self._spec = spec
        self._sequence = spec["first_sequence"]
        self._backend: Any = None
        self._size_bytes = 0
        self._every_s = 0.0
        self._next = float("inf")

    def start(self, bootstrap: list[str]) -> None:
        """Join the DHT. Everything the package lets one choose is left at its default."""
        from genrl.communication.hivemind.hivemind_backend import HivemindBackend, HivemindRendezvouz

        HivemindRendezvouz.init(is_master=self._spec["founder"])
        identity = f"{self._spec['folder']}/{self._spec['name']}.pem"
        self._backend = HivemindBackend(initial_peers=bootstrap or None, identity_path=identity, startup_timeout=120)
        addresses = [str(address) for address in self._backend.dht.get_visible_maddrs(latest=True)]
        emit("ready", at=time.time(), peer_id=self._backend.get_id(), addresses=addresses)

    def publish(self, size_bytes: int, every_s: float) -> None:
        """Rounds from now on, no more often than `every_s`."""
        self._size_bytes, self._every_s, self._next = size_bytes, every_s, time.monotonic()

    def quiet(self) -> None:
        """Go on with rounds to read what others said, but say little that counts."""
        self._next = float("inf")

    def once(self, size_bytes: int) -> bool:
        """One round with an object of this size; whether it came back with more than our own."""
        sequence, self._sequence = self._sequence, self._sequence + 1
        emit("published", sequence=sequence, at=time.time(), size_bytes=size_bytes)
        own = self._backend.get_id()
        try:
            found = self._backend.all_gather_object({"sequence": sequence, "text": bytes(size_bytes)})
        except Exception as error:
            traceback.print_exc()
            emit("round_failed", error=repr(error))
            return False
        others = [(key, value["sequence"]) for key, value in found.items() if key != own]
        emit("got", at=time.time(), groups=others)
        return bool(others)

    def step(self) -> float:
        """A round if one is due; seconds until there may be another."""
        now = time.monotonic()
        if self._backend is not None and now >= self._next:
            self._next = max(self._next + self._every_s, now)
            self.once(self._size_bytes)
            return 0.0
        return 0.01


def main() -> None:
    """Obey until told to quit."""
    provide_missing_name()
    import genrl.communication.hivemind.hivemind_backend  # noqa: F401  seconds that are not part of any figure

    node = GenrlNode(json.loads(sys.argv[1]))
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(orders,), daemon=True).start()
    emit("warm")
    while True:
        while not orders.empty():
            order = orders.get()
            do = order.pop("do")
            if do == "quit":
                return
            if do == "once":
                emit("once", shared=node.once(**order))
            elif do in ("start", "publish", "quiet"):
                getattr(node, do)(**order)
        time.sleep(node.step())


if __name__ == "__main__":
    main()
