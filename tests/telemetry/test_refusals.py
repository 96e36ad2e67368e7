"""Groups that are dropped because nodes differ are not dropped in silence."""

from __future__ import annotations

from swarm.reasons import Reason
from swarm.telemetry.alerts import FIRST, REMEDIES, RefusalWatch


def test_each_reason_is_said_at_ever_rarer_counts_with_what_helps() -> None:
    for reason, remedy in REMEDIES.items():
        watch = RefusalWatch()
        lines = [line for count in range(12 * FIRST) for line in watch.look({str(reason): count})]
        assert lines == [
            f"{FIRST} groups of others were dropped as {reason}: {remedy}",
            f"{10 * FIRST} groups of others were dropped as {reason}: {remedy}",
        ]


def test_many_at_once_are_said_once() -> None:
    watch = RefusalWatch()
    (line,) = watch.look({"other_sampling": 6_338})
    assert line.startswith("6338 groups")
    assert list(watch.look({"other_sampling": 6_400})) == []


def test_what_no_configuration_explains_is_not_said() -> None:
    assert list(RefusalWatch().look({str(reason): 10**6 for reason in Reason if reason not in REMEDIES})) == []
