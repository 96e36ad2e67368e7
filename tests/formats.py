"""What this version writes to disk, kept in `formats.json`: `python -m tests.formats` writes it anew.

A later version must read it, or migrate it, or refuse it in words; then the file of the version before stays beside it.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from swarm.config import NodeConfig
from swarm.net.records.identity import Backup, Identity, seal_backup
from swarm.received.pool import PooledGroup
from swarm.sapo.mixing import MixState
from swarm.telemetry.ledger import Ledger
from swarm.training.checkpoint import FORMAT, TrainingState
from tests.example_groups import graded

FILE = Path(__file__).with_name("formats.json")
PASSPHRASE = b"correct horse"


def identity() -> Identity:
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


def state() -> TrainingState:
    pool = [PooledGroup("id", graded("other"), 12.5, uses=1)]
    mix = MixState("auto", [], {"drawdown": 0.5})
    return TrainingState("12D3", "tiny", 50, 51, 400, pool, Ledger().snapshot(), 99, {"12D4": 5}, 1, mix)


def written() -> dict[str, str]:
    key = identity()
    backup = Backup(key.peer_id, 1_700_000_000, key.encoded())
    return {
        "identity": key.encoded().hex(),
        "backup": seal_backup(backup, None),
        "encrypted": seal_backup(backup, PASSPHRASE),
        "checkpoint_format": str(FORMAT),
        "checkpoint_state": msgspec.msgpack.encode(state()).hex(),
        "configuration": yaml.safe_dump(NodeConfig(name="kept").model_dump(mode="json"), sort_keys=False),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(written(), indent=1) + "\n")
