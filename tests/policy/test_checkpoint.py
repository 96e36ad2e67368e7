from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from swarm.errors import CheckpointError
from swarm.policy.config import PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.received.pool import PooledGroup
from swarm.sapo.mixing import MixSettings
from swarm.telemetry.ledger import Ledger
from swarm.training.checkpoint import MODEL, OPTIMIZER, STATE, CheckpointStore, TrainingState, go_back, restore, verify
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from tests.example_groups import graded


def _state(round_: int) -> TrainingState:
    pool = [PooledGroup("id", graded("other"), 12.5, uses=1)]
    return TrainingState("12D3", "random", round_, round_, round_ * 8, pool, Ledger().snapshot(), 99)


def _learn(policy: Policy, updater: PolicyUpdater) -> None:
    updater.update([], [graded("other", rewards=(1.0, 0.0, 0.0))])


def _updater(policy: Policy) -> PolicyUpdater:
    return PolicyUpdater(policy, UpdateSettings(learning_rate=1e-3), MixSettings(), 1.0)


def test_training_goes_on_exactly_as_without_a_break(policy: Policy, tmp_path: Path) -> None:
    unbroken = copy.deepcopy(policy)
    its_updater = _updater(unbroken)
    for _ in range(4):
        _learn(unbroken, its_updater)
    updater = _updater(policy)
    for _ in range(2):
        _learn(policy, updater)
    path = CheckpointStore(tmp_path).save(policy, updater, _state(2), "{}")
    resumed = load_policy(PolicySettings(system_prompt=""), path / MODEL)
    resumed_updater = _updater(resumed)
    state = restore(path, resumed_updater)
    assert state == _state(2) and resumed_updater.version == 2
    for _ in range(2):
        _learn(resumed, resumed_updater)
    for ours, theirs in zip(resumed.model.parameters(), unbroken.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), RuntimeError("unexpected pos 64 vs 0\n at inline_container.cc")]
)
def test_a_full_disk_is_said_and_leaves_the_checkpoints_as_they_were(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    store, updater = CheckpointStore(tmp_path), _updater(policy)
    first = store.save(policy, updater, _state(1), "{}")

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(CheckpointError, match="round-00000002 cannot be written: .*; free disk space, or") as caught:
        store.save(policy, updater, _state(2), "{}")
    assert len(str(caught.value).splitlines()) == 1
    assert store.newest() == first and list(tmp_path.iterdir()) == [first]


@pytest.mark.parametrize("file", [f"{MODEL}/model.safetensors", OPTIMIZER, STATE, "manifest.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_torn_checkpoint_is_passed_over_for_the_one_before(
    policy: Policy, tmp_path: Path, file: str, damage: str
) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    updater = _updater(policy)
    _learn(policy, updater)
    good = store.save(policy, updater, _state(1), "{}")
    torn = store.save(policy, updater, _state(2), "{}")
    target = torn / file
    content = target.read_bytes()
    if damage == "missing":
        target.unlink()
    elif damage == "truncated":
        target.write_bytes(content[: len(content) // 2])
    else:
        target.write_bytes(content[:10] + bytes([content[10] ^ 1]) + content[11:])
    if (file, damage) != ("manifest.json", "flipped"):  # white space may flip without harm
        assert store.newest() == good
        with pytest.raises(CheckpointError, match="torn"):
            verify(torn)


def test_where_all_are_torn_nothing_starts_over_unasked(policy: Policy, tmp_path: Path) -> None:
    store, updater = CheckpointStore(tmp_path), _updater(policy)
    for round_ in (1, 2):
        (store.save(policy, updater, _state(round_), "{}") / "optimizer.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"round-00000001 is torn.*to start over, move"):
        store.newest()


def test_a_checkpoint_of_another_format_is_no_torn_one(policy: Policy, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save(policy, _updater(policy), _state(1), "{}")
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        store.newest()


def test_a_killed_writer_leaves_nothing_that_counts(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / ".round-00000009.123.partial").mkdir(parents=True)
    store = CheckpointStore(tmp_path)
    assert store.newest() is None
    store.save(policy, _updater(policy), _state(1), "{}")
    assert [p.name for p in tmp_path.iterdir()] == ["round-00000001"], "what the killed writer left is gone"


def test_only_the_last_few_are_kept_and_a_repeated_round_replaces(policy: Policy, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    updater = _updater(policy)
    for round_ in (1, 2, 3, 3):
        store.save(policy, updater, _state(round_), json.dumps({"round": round_}))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-00000002", "round-00000003"]


def test_a_checkpoint_of_another_model_is_refused(policy: Policy, tmp_path: Path) -> None:
    updater = _updater(policy)
    _learn(policy, updater)
    path = CheckpointStore(tmp_path).save(policy, updater, _state(1), "{}")
    other = copy.deepcopy(policy)
    other.model.lm_head = torch.nn.Linear(64, 7)
    with pytest.raises(CheckpointError, match="does not fit"):
        restore(path, _updater(other))


def test_going_back_is_training_as_if_nothing_had_come_after(policy: Policy, tmp_path: Path) -> None:
    policy.system_prompt = ""
    updater = _updater(policy)
    for _ in range(2):
        _learn(policy, updater)
    path = CheckpointStore(tmp_path).save(policy, updater, _state(2), "{}")
    straight = copy.deepcopy(policy)
    its_updater = _updater(straight)
    restore(path, its_updater)
    for _ in range(3):
        updater.update([], [graded("poisoner", index=3, rewards=(0.0, 1.0, 0.0))])
    go_back(path, policy, updater, PolicySettings(system_prompt=""))
    assert (updater.version, updater.num_updates) == (6, 2), "versions only rise, the learning rate goes back"
    for each, its in ((policy, updater), (straight, its_updater)):
        _learn(each, its)
    for ours, theirs in zip(policy.model.parameters(), straight.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=0)


def test_a_checkpoint_is_good_once_another_was_written_while_all_was_well(policy: Policy, tmp_path: Path) -> None:
    store, updater = CheckpointStore(tmp_path, keep=1), _updater(policy)

    def save(round_: int, well: bool) -> Path:
        return store.save(policy, updater, _state(round_), "{}", well)

    first = save(1, well=True)
    assert store.good is None
    save(2, well=True)
    assert store.good == first
    save(3, well=False)
    save(4, well=False)
    assert store.good == first and first.is_dir(), "what is gone back to outlives the newest"
    store.distrust()
    fifth = save(5, well=True)
    assert store.good == first
    save(6, well=True)
    assert store.good == fifth
    seventh = save(7, well=False)
    assert fifth.is_dir() and not first.exists()
    resumed = CheckpointStore(tmp_path, keep=1)
    resumed.resume(restore(seventh, updater))
    assert resumed.good == fifth, "a restart forgets nothing"


@pytest.mark.parametrize("keep", [1, 2])
def test_what_was_just_written_is_kept_and_torn_ones_of_later_rounds_go(
    policy: Policy, tmp_path: Path, keep: int
) -> None:
    store, updater = CheckpointStore(tmp_path, keep), _updater(policy)
    for round_ in (50, 100, 150):
        store.save(policy, updater, _state(round_), "{}")
    for path in sorted(tmp_path.glob("round-*"))[-keep:]:
        (path / "state.msgpack").write_bytes(b"")
    written = store.save(policy, updater, _state(75), "{}")
    assert store.newest() == written
    assert written in tmp_path.iterdir() and all(path <= written for path in tmp_path.iterdir())


def test_the_optimizer_has_the_settings_of_now(policy: Policy, tmp_path: Path) -> None:
    updater = _updater(policy)
    _learn(policy, updater)
    path = CheckpointStore(tmp_path).save(policy, updater, _state(1), "{}")
    settings = UpdateSettings(learning_rate=1e-3, betas=(0.8, 0.95), weight_decay=0.1)
    changed = PolicyUpdater(policy, settings, MixSettings(), 1.0)
    restore(path, changed)
    (group,) = changed.optimizer.param_groups
    assert tuple(group["betas"]) == (0.8, 0.95) and group["weight_decay"] == 0.1
    assert changed.optimizer.state, "moments are those of the checkpoint"
