"""Threads that are the first to decode a record do so at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RUNS = 8
AT_ONCE = """
import sys, threading
import msgspec
from msgspec import msgpack
from swarm import types
from swarm.net.records.envelope import Body, Envelope

RECORDS = (types.RolloutGroup, types.RunManifest, types.SnapshotManifest, types.PeerRecord, Body, Envelope)
start = threading.Barrier(4)
sys.setswitchinterval(1e-6)

def decode():
    for record in RECORDS:
        start.wait()
        try:
            msgpack.decode(b"\\x81\\xa8question\\x81\\xa4type\\xa9procedural", type=record)
        except msgspec.ValidationError:
            pass

threads = [threading.Thread(target=decode) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_records_are_described_before_threads_decode_them() -> None:
    """Without `swarm.types.complete` about one process in three died of it."""
    root = Path(__file__).parent.parent.parent
    codes = [subprocess.run([sys.executable, "-c", AT_ONCE], cwd=root, check=False).returncode for _ in range(RUNS)]
    assert codes == [0] * RUNS
