"""What earlier processes wrote is read, or refused in words that say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from swarm.config import CONFIG_VERSION, NodeConfig, load_config
from swarm.errors import BackupError, CheckpointError, ConfigError, IdentityError
from swarm.net.records.identity import Identity, open_backup
from swarm.telemetry.ledger import Ledger
from swarm.training.checkpoint import FORMAT, TrainingState, verify

from . import formats

TODAY: dict[str, str] = json.loads(formats.FILE.read_text())


def test_an_identity_stays_the_same_peer() -> None:
    assert Identity.parse(bytes.fromhex(TODAY["identity"])).peer_id == formats.identity().peer_id
    for name, passphrase in (("backup", None), ("encrypted", formats.PASSPHRASE)):
        assert open_backup(TODAY[name], passphrase).encoded == formats.identity().encoded()


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_a_key_of_another_kind_is_refused(kind: int) -> None:
    other = bytes.fromhex(TODAY["identity"])
    other = other[:1] + bytes([kind]) + other[2:]
    with pytest.raises(IdentityError, match="must hold an Ed25519 key .* move the file away to have a new key made"):
        Identity.parse(other)


@pytest.mark.parametrize("version", ["0", "2"])
def test_a_backup_of_another_format_is_refused(version: str) -> None:
    with pytest.raises(BackupError, match=f"must be of format 1, got '{version}'"):
        open_backup(TODAY["backup"].replace("Format: 1", f"Format: {version}"), None)


def test_the_state_in_a_checkpoint_is_read_with_everything_in_it() -> None:
    assert TODAY["checkpoint_format"] == str(FORMAT), "then migrate or refuse this one, and keep it beside a new one"
    encoded = bytes.fromhex(TODAY["checkpoint_state"])
    read, expected = msgspec.msgpack.decode(encoded, type=TrainingState), formats.state()
    ledger = Ledger()
    ledger.restore(read.ledger)
    assert ledger.snapshot() == expected.ledger, "counts that were added since are 0"
    assert len(read.pool) == 1
    assert replace(read, pool=[], ledger=expected.ledger) == replace(expected, pool=[])


@pytest.mark.parametrize(
    ("version", "fix"), [(FORMAT + 1, "update swarm, or choose"), (FORMAT - 1, "; choose another")]
)
def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path, version: int, fix: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format": version, "files": {}}))
    with pytest.raises(CheckpointError, match=f"has format {version}, this version reads {FORMAT}") as caught:
        verify(tmp_path)
    assert fix in str(caught.value)


def test_a_configuration_with_every_field_of_today_is_read(tmp_path: Path) -> None:
    (tmp_path / "kept.yaml").write_text(TODAY["configuration"])
    loaded = load_config(tmp_path / "kept.yaml").config
    assert loaded.name == "kept" and loaded.version == CONFIG_VERSION
    known = set(yaml.safe_load(TODAY["configuration"]))
    assert known <= set(NodeConfig.model_fields), "a field that goes needs another CONFIG_VERSION"


@pytest.mark.parametrize(
    ("version", "fix"),
    [(CONFIG_VERSION + 1, "update swarm"), (CONFIG_VERSION - 1, "write it again: `swarm config show`")],
)
def test_a_configuration_of_another_version_is_refused_in_one_line(tmp_path: Path, version: int, fix: str) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(f"version: {version}\nfield_of_that_version: 3\n")
    with pytest.raises(ConfigError, match=f"must be {CONFIG_VERSION}, got {version}; {fix}") as caught:
        load_config(file)
    assert len(str(caught.value).splitlines()) == 1
