from __future__ import annotations

import threading

import pytest
import torch

from swarm.policy.loading import Policy, WeightGate
from swarm.policy.weights import swap_weights


def test_a_change_waits_for_the_step_and_goes_before_the_next() -> None:
    gate, events = WeightGate(), []
    changing = threading.Event()

    def change() -> None:
        changing.set()
        with gate.change():
            events.append("change")

    thread = threading.Thread(target=change)
    with gate.use():
        thread.start()
        changing.wait(30)
        # Whether it has reached the gate yet or not, it may not pass.
        thread.join(0.05)
        events.append("step")
    thread.join(30)
    with gate.use():
        events.append("step")
    assert events == ["step", "change", "step"]
    assert gate.changes == 1


def test_many_threads_never_meet_within() -> None:
    gate, inside, met = WeightGate(), [], []

    def enter(turns: int, changes: bool) -> None:
        for _ in range(turns):
            with gate.change() if changes else gate.use():
                inside.append(1)
                met.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=enter, args=(200, changes)) for changes in (True, True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(met) == 1 and len(met) == 600 and gate.changes == 400


def test_a_failed_change_opens_the_gate_again() -> None:
    gate = WeightGate()
    with pytest.raises(RuntimeError), gate.change():
        raise RuntimeError
    with gate.use():
        assert gate.changes == 1, "what it may have changed is no longer what was computed with"


def test_all_weights_of_a_policy_can_be_swapped_in(policy: Policy) -> None:
    saved = {name: value.clone() for name, value in policy.model.state_dict().items()}
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(1.0)
    swap_weights(policy, saved, version=5)
    assert policy.version == 5
    for name, value in policy.model.state_dict().items():
        torch.testing.assert_close(value, saved[name], atol=0, rtol=0)
