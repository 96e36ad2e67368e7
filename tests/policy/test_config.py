"""What others may know of the model a node trains."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodes.boot.assemble import profile_of
from nodes.roles.peer import PeerNode
from swarm.config import load_config
from swarm.policy.config import public_name


@pytest.mark.parametrize("model", ["tiny", "Qwen/Qwen2.5-0.5B-Instruct"])
def test_a_model_of_the_hub_is_known_by_its_id(model: str) -> None:
    assert public_name(model) == model


def test_a_local_model_is_known_by_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "client-acme" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    names = {public_name(path) for path in (str(folder), "client-acme/model", f".{os.sep}client-acme{os.sep}model")}
    [name] = names
    assert name.startswith("local:") and "acme" not in name and len(name) == len("local:") + 8
    assert public_name("/nowhere/secret").startswith("local:") and "secret" not in public_name("/nowhere/secret")


def test_a_peers_record_tells_no_path(tmp_path: Path) -> None:
    config = load_config(command_line=[("policy.model", str(tmp_path))]).config
    profile = profile_of(PeerNode, config)
    assert profile.model.startswith("local:") and str(tmp_path) not in repr(profile)
