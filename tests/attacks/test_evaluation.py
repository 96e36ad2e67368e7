"""One completion of a stranger, sent to live peers that verify it: text is compared, and never run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.environments.sources.reasoning_gym import ReasoningGymSource, ReasoningGymTask
from swarm.types import Completion, PolicyId, RolloutGroup, Sampling
from tests.net.records import until
from tests.nodes.processes import Swarm, address_of

from .stranger import Stranger

pytestmark = [pytest.mark.slow, pytest.mark.network]

EVALUATED = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
"""Data sets whose library scorers evaluate answers, without the `+` and `(` that others' rewriting would want."""


def escape(marker: Path) -> str:
    """An answer that creates a file when it is evaluated, without a single parenthesis.

    The target of a comprehension may be an attribute, and a subscript of a class calls its `__class_getitem__`.
    """
    system = "dataclass.__globals__['sys'].modules['os'].system"
    target = "dataclass.__globals__['_MISSING_TYPE']"
    command = f"touch {marker}".encode().hex()  # `/` is not among the characters that used to pass
    text = f"[{target}[x] for {target}.__class_getitem__ in [bytes.fromhex] for x in ['{command}']]"
    return f"[{target}[x] for x in {text} for {target}.__class_getitem__ in [{system}]]"


def poisoned(source: ReasoningGymSource, run_id: str, stranger: Stranger, sequence: int, answer: str) -> RolloutGroup:
    """A group with a right completion, so that it is worth an update, and one that carries the answer."""
    question = source.question(sequence, 0)
    texts = (source.oracle(question.ref), answer)
    return RolloutGroup(
        run_id=run_id,
        peer_id=stranger.peer_id,
        sequence=sequence,
        created_at=time.time(),
        policy=PolicyId("tiny", "", 0),
        sampling=Sampling(),
        question=question.ref,
        completions=tuple(Completion(f"<answer>{text}</answer>", "stop") for text in texts),
        rewards=(1.0, 0.0),
    )


def test_no_completion_runs_a_command_on_a_peer(
    tmp_path: Path, victims: Callable[..., Swarm], strangers: Callable[..., Stranger]
) -> None:
    config = tmp_path / "run.yaml"
    tasks = "".join(f"  - {{kind: reasoning_gym, name: {name}}}\n" for name in ("gcd", *EVALUATED))
    config.write_text(f"run_name: evaluation\npolicy: {{model: tiny}}\ntasks:\n{tasks}")
    address = address_of(victims(tmp_path / "bootstrap", "bootstrap", str(config)))
    peer = victims(tmp_path / "peer", "join", address, "--evaluation.num_questions=0")
    stranger = strangers()
    _, victim = stranger.connect(address, address_of(peer))
    run_id = stranger.manifest(victim).run_id
    stranger.follow(run_id)
    until(lambda: any(sender == victim for sender, _ in stranger.heard), "gossip of the peer")

    marker = tmp_path / "escaped"
    for sequence, name in enumerate(EVALUATED, start=1):
        source = ReasoningGymSource(ReasoningGymTask(name=name))
        group = poisoned(source, run_id, stranger, sequence, escape(marker))
        stranger.publish(run_id, stranger.seal(run_id, "group", group))

    def through() -> bool:
        """Whether the peer has the four groups and none of them is waiting any more."""
        latest = peer.history().latest
        return latest is not None and latest.groups["received"] >= len(EVALUATED) and latest.pending == 0

    until(lambda: marker.exists() or through(), "groups verified")
    assert not marker.exists(), "a completion ran a command on the peer"
    dropped = peer.history().latest.groups["dropped"]
    refused = {reason: count for reason, count in dropped.items() if reason.startswith("verifier")}
    assert refused == {}, "the groups were to be graded"
    assert peer.process.poll() is None
