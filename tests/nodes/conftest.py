from __future__ import annotations

import pytest

from swarm.policy.tiny import ensure_tiny


@pytest.fixture(scope="session", autouse=True)
def _embedded_policy() -> None:
    """Made once before the processes of the tests would race to make it."""
    ensure_tiny()
