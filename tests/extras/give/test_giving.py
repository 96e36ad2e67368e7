"""When a giver asks its endpoint, with the endpoint and the verifier replaced."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from swarm.extras.give.giving import MAX_WAIT_S, PATIENCE, Giver, GivingPlan
from swarm.groups.building import Member
from swarm.net.in_memory import MemoryTransport
from swarm.net.records.identity import Identity
from swarm.net.trust.exchange import Exchange
from swarm.protocols import Turns
from swarm.types import Answers, Completion, PolicyId, Sampling
from tests.sapo.test_round import FakeVerifier, Swarm

GROUP_SIZE = 4


class Endpoint:
    """Answers at once; `right`: whether one completion of each question is."""

    def __init__(self) -> None:
        self.right = False
        self.num_asked = 0

    def stream(
        self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int, turns: Turns | None = None
    ) -> Generator[tuple[int, Answers]]:
        assert turns is not None
        while taken := turns.next_turns(wait=True):
            for turn in taken:
                self.num_asked += 1
                good = self.right and turn.episode % GROUP_SIZE == 0
                yield turn.episode, (Completion("good" if good else "bad", "stop"),)


def test_rounds_without_signal_are_further_and_further_apart() -> None:
    endpoint, now, swarm, identity = Endpoint(), 0.0, Swarm(), Identity.generate()
    transport = MemoryTransport(swarm.hub, identity.peer_id, swarm.run, offers_per_s=1e9)
    transport.start()
    me = Member(identity.peer_id, PolicyId("endpoint", "", 0), Sampling(), seed=1)
    plan = GivingPlan(num_questions=4, group_size=GROUP_SIZE, slots=8, tasks=("fake",))
    giver = Giver(plan, me, endpoint.stream, FakeVerifier(), Exchange(transport, identity), clock=lambda: now)
    pauses = []
    for _ in range(PATIENCE + 12):
        assert giver.run_round().num_informative == 0
        pauses.append(max(0.0, giver.waits_until - now))
        now += pauses[-1]
    assert pauses[:PATIENCE] == [0.0] * PATIENCE
    assert pauses[PATIENCE : PATIENCE + 3] == [2.0, 4.0, 8.0] and pauses[-1] == MAX_WAIT_S
    assert giver.wait_reason == f"no group had signal in the last {PATIENCE + 12} rounds"
    endpoint.right = True
    assert giver.run_round().num_informative > 0
    assert giver.waits_until <= now, "it goes on at once"
    giver.stop()
    transport.close()
