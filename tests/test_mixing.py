from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from swarm.mixing import MixSettings, has_signal, mix
from tests.groups import graded


def test_signal_is_a_difference_between_rewards() -> None:
    assert has_signal([0.0, 0.0, 1.0])
    assert not has_signal([1.0, 1.0, 1.0])
    assert not has_signal([0.5])


@given(
    num_local=st.integers(0, 12),
    num_external=st.integers(0, 12),
    wanted_local=st.integers(0, 6),
    wanted_external=st.integers(1, 6),
    fill=st.sampled_from(["none", "local"]),
)
def test_what_is_missing_is_reported_and_filled_only_when_asked(
    num_local: int, num_external: int, wanted_local: int, wanted_external: int, fill: str
) -> None:
    local = [graded("me", k) for k in range(num_local)]
    external = [(f"id-{k}", graded("other", k)) for k in range(num_external)]
    settings = MixSettings(local=wanted_local, external=wanted_external, fill=fill)
    mixed = mix(local, external, settings, np.random.default_rng(0))
    assert len(mixed.external) == min(num_external, wanted_external)
    assert mixed.external_shortfall == wanted_external - len(mixed.external)
    assert mixed.local_shortfall == max(0, wanted_local - num_local)
    extra = mixed.external_shortfall if fill == "local" else 0
    assert len(mixed.local) == min(num_local, wanted_local + extra)
    assert mixed.filled == max(0, len(mixed.local) - wanted_local)
    assert len({id(group) for group in mixed.local}) == len(mixed.local), "no group twice"
    assert [dict(external)[i] for i in mixed.external_ids] == list(mixed.external)


def test_sampling_is_uniform_and_repeatable() -> None:
    external = [(str(k), graded("other", k)) for k in range(10)]
    settings = MixSettings(local=0, external=4)
    counts = dict.fromkeys((str(k) for k in range(10)), 0)
    for seed in range(2_000):
        chosen = mix([], external, settings, np.random.default_rng(seed)).external_ids
        assert chosen == mix([], external, settings, np.random.default_rng(seed)).external_ids
        for content_id in chosen:
            counts[content_id] += 1
    # 2000 draws of 4 of 10: 800 each, standard deviation sqrt(2000 * 0.4 * 0.6) = 22
    assert all(abs(count - 800) < 110 for count in counts.values()), counts


def test_a_mix_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least 1"):
        MixSettings(local=0, external=0)
