"""A learner and its worker as people run them, and `kill -9` of either: real processes, real network."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from swarm.extras.learner.roles.adoption import FOLDER
from swarm.extras.learner.roles.learner import PUBLISHED_FILE, Published
from swarm.extras.learner.snapshots.store import MANIFEST
from swarm.telemetry.records import METRICS_FILE, RoundEvent, decode
from tests.nodes.processes import LOOPBACK, Swarm, address_of, balanced, gone, swarm, until

pytestmark = [pytest.mark.slow, pytest.mark.network]

MAX_STALENESS = 2
CHECKPOINT_EVERY = 3
LEARNER = (
    f"--learner.max_staleness={MAX_STALENESS}",
    "--learner.rollouts_per_step=16",
    f"--checkpoint.every_rounds={CHECKPOINT_EVERY}",
    "--evaluation.num_questions=0",
)
WORKER = ("--follow.questions=1000",)
"""A batch takes many learner steps."""


@pytest.fixture
def stack() -> ExitStack:
    with ExitStack() as stack:
        yield stack


def _start(stack: ExitStack, out: Path, role: str, *arguments: str) -> Swarm:
    (out / "multiaddrs").unlink(missing_ok=True)
    return stack.enter_context(swarm(out, role, *arguments, "--out", str(out), "--no-report", *LOOPBACK))


def _steps(node: Swarm) -> list[RoundEvent]:
    """All of its rounds, those made again after a restart too."""
    events = map(decode, (node.out / METRICS_FILE).read_bytes().splitlines())
    return [event for event in events if isinstance(event, RoundEvent)]


def _num_steps(node: Swarm) -> int:
    return (node.out / METRICS_FILE).read_bytes().count(b'"event":"round"')


def _sampled_by(step: RoundEvent) -> int:
    """The oldest version that sampled what the step trained on."""
    return step.learning.version - 1 - step.figures["sampling/lag_max"]


def _published(learner: Swarm) -> int:
    """The highest version given to anyone."""
    return msgspec.json.decode((learner.out / PUBLISHED_FILE).read_bytes(), type=Published).version


def _manifests(node: Swarm) -> dict[int, bytes]:
    """What the learner signed as each version, as far as the node still has it."""
    folders = (node.out / FOLDER).glob("[0-9]*")
    return {int(folder.name): (folder / MANIFEST).read_bytes() for folder in folders}


def _kill(process: Swarm) -> None:
    everything = process.tree()
    process.kill()
    assert gone(everything), "daemon and verifiers do not outlive a killed node"


def test_versions_rise_over_a_learners_death_and_nothing_waits_for_a_dead_worker(
    tmp_path: Path, stack: ExitStack
) -> None:
    learner = _start(stack, tmp_path / "learner", "learn", *LEARNER)
    worker = _start(stack, tmp_path / "worker", "work", address_of(learner), *WORKER)

    def ahead_of_its_checkpoint() -> bool:
        """Whether it has learned from what published snapshots sampled, and published what no checkpoint has."""
        step = learner.history().latest
        return (
            step is not None
            and step.round > CHECKPOINT_EVERY
            and step.round % CHECKPOINT_EVERY == 1
            and _sampled_by(step) >= 1
        )

    until(ahead_of_its_checkpoint, learner, "a step on what a published snapshot sampled")
    _kill(learner)
    lost, published, signed = _steps(learner), _published(learner), _manifests(learner)
    checkpoint = int(max((learner.out / "checkpoints").glob("round-*")).name.removeprefix("round-"))
    assert checkpoint < published

    until(lambda: "waiting for it" in worker.text(), worker, "a word about the learner")
    kept = worker.history().latest.following.version
    assert 1 <= kept <= published
    assert f"the learner does not answer: waiting for it, keeping version {kept}" in worker.text()
    batches = worker.round()

    learner = _start(stack, learner.out, "learn", *LEARNER)
    until(lambda: _num_steps(learner) > len(lost), learner, "a step after the resume")
    assert learner.history().start.resumed_from == checkpoint
    until(lambda: "the learner answers again" in worker.text(), worker, "a word about the learner")

    def in_a_batch() -> bool:
        """Whether the last step was all sampled under snapshots that the worker's last whole batch did not have."""
        return _sampled_by(learner.history().latest) > max(published, worker.history().latest.following.version)

    def held_in_a_batch() -> bool:
        """As before, and the worker stands still."""
        if not in_a_batch():
            return False
        worker.process.send_signal(signal.SIGSTOP)
        if not in_a_batch():  # the batch has just ended
            worker.process.send_signal(signal.SIGCONT)
            return False
        return True

    until(held_in_a_batch, learner, "a step on new snapshots alone")
    assert worker.history().phase == "running", worker.text()
    _kill(worker)
    waiting = _num_steps(learner)
    assert worker.round() >= batches
    worker = _start(stack, worker.out, "work", address_of(learner), *WORKER)
    # More than what the dead worker had sent can give.
    until(lambda: _num_steps(learner) > waiting + MAX_STALENESS + 1, learner, "steps without waiting for the dead")
    assert worker.stop() == 130
    assert learner.stop() == 130

    steps, again = _steps(learner), _manifests(learner)
    versions = [step.learning.version for step in steps]
    assert versions == sorted(set(versions)), "steps that were made again have numbers of their own"
    assert versions[len(lost)] > published + 1, "the weights it went on from have a number of their own too"
    assert all(again[version] == signed[version] for version in again.keys() & signed.keys())
    assert all(version > published for version in again.keys() - signed.keys())
    assert all(step.figures["sampling/lag_max"] <= MAX_STALENESS for step in steps)
    assert not {"wrong_version", "wrong_logprobs"} & steps[-1].groups["dropped"].keys()
    assert balanced(learner.history().peer_summary())
