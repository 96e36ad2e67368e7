"""A node in a process of its own, told what to do by lines of JSON: `{"do": NAME, ...}` in, one answer a line out.

Its first line is its peer id and addresses. Groups that arrive are noted as `[peer id, sequence, seconds since they
were made]`. Used where the two networks meet: they cannot be in one process.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from pathlib import Path

import psutil
from msgspec.structs import replace

from swarm.errors import PeerUnreachable
from swarm.net.backends import open_transport
from swarm.net.config import NetworkSettings
from swarm.net.trust.exchange import Exchange

Reply = dict[str, object]


class DrivenNode:
    def __init__(self, transport: str, folder: Path, name: str, listen: str, manifest: str, bootstrap: str) -> None:
        from net.records import make_identity, sealed_manifest

        identity = make_identity(folder, name)
        sealed = sealed_manifest(identity) if manifest == "founder" else None
        settings = NetworkSettings(
            transport="libp2p" if transport == "libp2p" else "hivemind",
            bootstrap=tuple(bootstrap.split(",")) if bootstrap else (),
            listen=(listen,),
            nat_port_map=False,
            retry_s=0.5,
            announce_every_s=2.0,
            repair_every_s=1.0,
            max_record_bytes=8 * 2**20,
        )
        self.transport = open_transport(settings, identity, sealed)
        if name.startswith("deaf"):
            # As if gossip lost everything.
            self.transport._member.records.receive_gossip = lambda helper, record: None  # type: ignore[method-assign]
        self.exchange = Exchange(self.transport, identity)
        self.arrived: list[tuple[str, int, float]] = []
        self.refused: dict[str, int] = {}

    def receive(self) -> None:
        groups, refused = self.exchange.receive()
        now = time.time()
        self.arrived += [(each.peer_id, each.group.sequence, now - each.group.created_at) for each in groups]
        for reason, count in refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count

    def answer(self, order: dict[str, object]) -> Reply:
        if order["do"] == "share":
            return {"shared": self._share(int(str(order["sequence"])), int(str(order["size"])))}
        if order["do"] == "request":
            try:
                reply = self.transport.request(str(order["peer"]), str(order["protocol"]), b"", 5.0)
            except PeerUnreachable as error:
                return {"error": str(error)}
            return {"size": len(reply)}
        if order["do"] == "ban":
            peers = order["peers"]
            assert isinstance(peers, list)
            self.transport.ban(peers)
            return {}
        if order["do"] == "publish_junk":
            self.transport.publish(os.urandom(int(str(order["size"]))))
            return {}
        status = self.transport.status()
        return {
            "connected": status.connected,
            "run": status.run_id,
            "arrived": self.arrived,
            "refused": self.refused,
            "counters": self.transport.counters(),
            "cpu_s": sum(
                sum(process.cpu_times()[:2])
                for process in (psutil.Process(), *psutil.Process().children())
                if process.is_running()
            ),
        }

    def _share(self, sequence: int, size: int) -> bool:
        from net.records import make_group

        group = make_group(sequence=sequence)
        # Text that does not compress, so that the size is about that of the record.
        text = "".join(chr(0x4E00 + (i * 2_654_435_761 + sequence * 97) % 20_000) for i in range(size // 3))
        completions = (replace(group.completions[0], text=text), group.completions[1])
        return self.exchange.share(replace(group, created_at=time.time(), completions=completions)) is not None


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    transport, folder, *rest = sys.argv[1:]
    node = DrivenNode(transport, Path(folder), *rest)
    node.transport.start()
    print(json.dumps([node.transport.peer_id, node.transport.multiaddrs()]), flush=True)
    orders: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            orders.put(line)
        orders.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        node.receive()
        try:
            line = orders.get(timeout=0.005)
        except queue.Empty:
            continue
        if not line:
            break
        print(json.dumps(node.answer(json.loads(line))), flush=True)
    node.transport.close()


if __name__ == "__main__":
    main()
