"""A node in a process of its own, for tests that kill it: prints its address and daemon, then echoes what arrives."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from swarm.net.hivemind.transport import HivemindTransport
from swarm.net.records.wire import SealedManifest, seal_manifest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from net.records import drained, fast_settings, make_identity, make_manifest, signed

    identity = make_identity(Path(sys.argv[1]), "process")
    manifest = make_manifest(identity)
    sealed = SealedManifest(seal_manifest(identity, manifest), manifest)
    node = HivemindTransport(fast_settings(listen=(sys.argv[2],)), identity, sealed)
    node.start()
    try:
        print(node.multiaddrs()[0], flush=True)
        while True:
            for record in drained(node):
                node.publish(signed(node, record))
            time.sleep(0.02)
    except KeyboardInterrupt:
        node.close()
        sys.exit(130)
