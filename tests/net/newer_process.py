"""A node of a later version in a process of its own: rounds until its input ends, one line of JSON after each."""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent.parent))
    from swarm.net.backends import open_transport
    from tests.net.newer import make_peer, newer_wire
    from tests.net.records import fast_settings, make_identity, until

    folder, name, seed, transport_name, bootstrap = sys.argv[1:]
    identity = make_identity(Path(folder), name)
    settings = fast_settings((bootstrap,)).model_copy(update={"transport": transport_name})
    transport = open_transport(settings, identity)
    transport.start()
    try:
        with newer_wire():
            until(transport.manifest, "the run is known")
            peer = make_peer(transport, identity, True, int(seed))
            while not select.select([sys.stdin], [], [], 0.2)[0]:
                peer.node.run_round()
                learned = {author: sorted(kind.__name__ for kind in kinds) for author, kinds in peer.learned().items()}
                hints = sorted({getattr(group, "hint", "") for group in peer.groups()})
                print(json.dumps({"peer_id": identity.peer_id, "learned": learned, "hints": hints}), flush=True)
    finally:
        transport.close()
