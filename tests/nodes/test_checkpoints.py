"""`swarm export` of what a node with adapters wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from nodes.commands.checkpoints import export_checkpoint
from swarm.config import NodeConfig
from swarm.policy.config import LoraSettings, PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.sapo.mixing import MixSettings
from swarm.telemetry.ledger import Ledger
from swarm.training.checkpoint import CheckpointStore, TrainingState
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from tests.example_groups import graded


@pytest.mark.parametrize("rank", [0, 4])
def test_what_is_exported_is_a_whole_model_that_says_the_same(policy: Policy, tmp_path: Path, rank: int) -> None:
    policy.save(tmp_path / "base")
    config = NodeConfig(policy=PolicySettings(model=str(tmp_path / "base"), lora=LoraSettings(rank=rank)))
    trained = load_policy(config.policy)
    updater = PolicyUpdater(trained, UpdateSettings(learning_rate=1e-3), MixSettings(), 1.0)
    assert not updater.update([], [graded(rewards=(1.0, 0.0))]).skipped
    state = TrainingState("12D3", "base", 1, 1, 8, [], Ledger().snapshot(), 99)
    CheckpointStore(tmp_path / "run").save(trained, updater, state, config.model_dump_json())
    export_checkpoint(tmp_path / "run", tmp_path / "model", Console(quiet=True))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    ids = torch.tensor([policy.encode_prompt("Calculate 12 + 7.")])
    with torch.no_grad():
        torch.testing.assert_close(exported(ids).logits, trained.model(ids).logits, atol=1e-5, rtol=0)
        assert (exported(ids).logits - policy.model(ids).logits).abs().max() > 1e-4
