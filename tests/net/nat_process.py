"""A node for the NAT test: obeys JSON lines on standard input, tells in JSON lines what happens to it."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue

from msgspec.structs import replace

from swarm.errors import PeerUnreachable
from swarm.net.config import NetworkSettings
from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.records.identity import Identity
from swarm.net.trust.exchange import Exchange

PROTOCOL = "/test/echo"
LOOK_EVERY_S = 0.05


def tell(**what: object) -> None:
    print(json.dumps({"at": time.time(), **what}), flush=True)


def main(folder: Path, bootstrap: str, listen: str = "/ip4/0.0.0.0/tcp/0") -> None:
    from net.records import make_group

    identity = Identity.load_or_create(folder / "identity.key")
    settings = NetworkSettings(
        bootstrap=tuple(bootstrap.split(",")),
        listen=tuple(listen.split(",")),
        nat_port_map=False,
        retry_s=0.5,
        announce_every_s=2.0,
    )
    node = HivemindTransport(settings, identity)
    exchange = Exchange(node, identity)
    node.serve(PROTOCOL, lambda remote, request: request)
    node.start()
    tell(peer_id=node.peer_id)
    orders: SimpleQueue[dict[str, object]] = SimpleQueue()
    threading.Thread(target=lambda: [orders.put(json.loads(line)) for line in sys.stdin], daemon=True).start()
    before: object = None
    while True:
        members = sorted(record.peer_id for record in node.peers())
        now = (node.status().detail, node.multiaddrs(), members, [node.observed(peer_id) for peer_id in members])
        if now != before:
            tell(detail=now[0], multiaddrs=now[1], peers=members, connections=dict(zip(members, now[3], strict=True)))
            before = now
        for group in (each.group for each in exchange.receive()[0]):
            tell(group=group.sequence, by=group.peer_id)
        while node.manifest() is not None and not orders.empty():
            order = orders.get()
            if "publish" in order:
                group = make_group(sequence=int(str(order["publish"])))
                exchange.share(replace(group, created_at=time.time()))
            else:
                payload = b"x" * int(str(order["bytes"]))
                began = time.monotonic()
                try:
                    echo = node.request(str(order["request"]), PROTOCOL, payload, 20.0)
                    tell(echoed=echo == payload, s=time.monotonic() - began)
                except PeerUnreachable as error:
                    tell(failed=str(error))
        time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main(Path(sys.argv[1]), *sys.argv[2:])
