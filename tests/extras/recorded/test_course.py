"""Supervised steps: against an independent cross-entropy, in a fixed order, and resumed without repeating any."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import torch

from nodes.boot.manifest import found_run
from nodes.roles.peer import PeerNode
from nodes.roles.runtime import NodeParts
from swarm.config import load_config
from swarm.environments.verification.inline import InlineVerifier
from swarm.errors import Interrupted
from swarm.extras.recorded.course import Course
from swarm.net.in_memory import MemoryHub, MemoryTransport
from swarm.net.records.identity import Identity
from swarm.policy.loading import Policy
from swarm.sapo.mixing import MixSettings
from swarm.telemetry.history import PeerHistory
from swarm.telemetry.records import METRICS_FILE
from swarm.training.config import DemonstrationSettings, UpdateSettings
from swarm.training.imitation import Demonstration
from swarm.training.updater import PolicyUpdater
from swarm.types import Completion

SHOWN = [Demonstration("4 + 7", "11"), Demonstration("Calculate 20 - 2.", "It is 18.")]


def cross_entropy(policy: Policy, demonstrations: list[Demonstration]) -> torch.Tensor:
    """Mean over all tokens of the completions, each row by itself with torch's own function."""
    losses = []
    for each in demonstrations:
        prompt = policy.encode_prompt(each.prompt)
        (completion,) = policy.encode_completions([Completion(each.completion, "stop")])
        logits = policy.model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].float()
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(completion), reduction="none"))
    return torch.cat(losses).mean()


@pytest.mark.parametrize("micro_batch_tokens", [1, 1_000])
def test_a_step_descends_the_cross_entropy_of_the_completions_alone(policy: Policy, micro_batch_tokens: int) -> None:
    settings = UpdateSettings(learning_rate=1e-6, max_grad_norm=1e9, micro_batch_tokens=micro_batch_tokens)
    updater = PolicyUpdater(policy, settings, MixSettings(), 1.0)
    expected = cross_entropy(policy, SHOWN)
    gradients = torch.autograd.grad(expected, list(policy.trained), allow_unused=True)
    step = updater.imitate(SHOWN, 1e-3, last=False)
    assert step.loss == pytest.approx(expected.item(), rel=1e-4) and step.num_too_long == 0
    for parameter, gradient in zip(policy.trained, gradients, strict=True):
        if gradient is not None:  # Adam's first moment after one step
            moment = updater.optimizer.state[parameter]["exp_avg"] / (1 - settings.betas[0])
            torch.testing.assert_close(moment, gradient, atol=1e-5, rtol=1e-3)
    for _ in range(20):
        updater.imitate(SHOWN, 1e-3, last=False)
    assert updater.imitate(SHOWN, 1e-3, last=True).loss < expected.item() / 2
    assert updater.version == 0 and not updater.optimizer.state, "updates begin as without it"


def test_a_demonstration_without_room_is_left_out(policy: Policy) -> None:
    updater = PolicyUpdater(policy, UpdateSettings(), MixSettings(), 1.0)
    endless = Demonstration("4 + 7", "1 " * policy.max_positions)
    step = updater.imitate([endless, SHOWN[0]], 1e-3, last=False)
    assert step.num_too_long == 1 and step.num_tokens > 0
    before = [each.detach().clone() for each in policy.trained]
    assert updater.imitate([endless], 1e-3, last=False).num_tokens == 0
    assert all(torch.equal(*pair) for pair in zip(before, policy.trained, strict=True))


def test_an_epoch_has_each_demonstration_once_in_an_order_of_the_seed() -> None:
    demonstrations = [Demonstration("?", str(k)) for k in range(10)]
    settings = DemonstrationSettings(batch=4, epochs=2)
    course = Course(demonstrations, settings, 7, lambda text, level: None)
    assert course.num_steps == 6
    batches = [course.batch(step) for step in range(6)]
    assert [len(batch) for batch in batches] == [4, 4, 2] * 2
    for epoch in (batches[:3], batches[3:]):
        assert Counter(chain.from_iterable(epoch)) == Counter(demonstrations)
    assert batches[:3] != batches[3:]
    assert Course(demonstrations, settings, 7, lambda text, level: None).batch(4) == batches[4]
    few = settings.model_copy(update={"max_steps": 5})
    assert Course(demonstrations, few, 7, lambda text, level: None).num_steps == 5


def node(folder: Path, identity: Identity, stop_after: int = 99) -> PeerNode:
    """A node that is asked to stop after so many steps."""
    rows = [{"prompt": f"{k} + 1", "completion": str(k + 1)} for k in range(12)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "evaluation": {"num_questions": 0},
        "generation": {"questions_per_round": 4, "group_size": 4},
        "checkpoint": {"every_rounds": 2},
        "demonstrations": {"path": str(folder / "rows.jsonl"), "batch": 4, "epochs": 2},
    }
    config = load_config(None, values).config.model_copy(update={"out": folder, "seed": 3})
    transport = MemoryTransport(MemoryHub(), identity.peer_id, found_run(config, identity))
    transport.start()
    made: list[PeerNode] = []

    def stops() -> bool:
        return bool(made) and made[0]._imitated >= stop_after

    made.append(PeerNode(NodeParts(config, identity, transport, InlineVerifier(config.tasks), stops)))
    return made[0]


def weights(made: PeerNode) -> list[torch.Tensor]:
    return [each.detach().clone() for each in made.policy.trained]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_a_node_that_is_stopped_in_between_resumes_where_it_was(tmp_path: Path) -> None:
    identity = Identity.generate()
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    whole = node(tmp_path / "whole", identity)
    raw = weights(whole)
    whole.begin()
    learned = weights(whole)
    assert whole._imitated == 6 and not same(raw, learned)
    first = node(tmp_path / "stopped", identity, stop_after=3)
    with pytest.raises(Interrupted):
        first.begin()
    first.end("interrupted")
    second = node(tmp_path / "stopped", identity)
    assert second._imitated == 3 and not same(weights(second), raw)
    second.begin()
    assert second._imitated == 6 and same(weights(second), learned)
    second.step()
    second.end("interrupted")
    third = node(tmp_path / "stopped", identity)
    before = weights(third)
    third.begin()
    assert same(weights(third), before), "nothing is repeated"
    third.end("interrupted")
    whole.end("interrupted")
    texts = [moment.text for moment in PeerHistory.read(tmp_path / "stopped" / METRICS_FILE).moments]
    assert any("learning from 12 demonstrations" in text and "6 steps of 4" in text for text in texts)
    assert any(text.startswith("learned from demonstrations in 6 steps: loss ") for text in texts)


def test_a_killed_node_resumes_from_the_last_checkpoint_in_between(tmp_path: Path) -> None:
    identity = Identity.generate()
    killed = node(tmp_path, identity, stop_after=3)
    with pytest.raises(Interrupted):
        killed.begin()
    killed.close()
    again = node(tmp_path, identity)
    assert again._imitated == 2
    again.close()
