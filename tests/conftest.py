from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def policy():
    """A small random policy with the embedded tokenizer: real architecture, nothing learned."""
    from tests.engines.models import random_policy

    return random_policy()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first: a mistake shows within seconds. Those of a file stay together on one of several processes, for
    what they share; those that start processes of their own are spread.
    """
    for item in items:
        if item.get_closest_marker("libp2p"):
            item.add_marker(pytest.mark.xdist_group("libp2p"))
        elif not item.get_closest_marker("network"):
            item.add_marker(pytest.mark.xdist_group(item.location[0]))

    def cost(item: pytest.Item) -> int:
        return 2 * (item.get_closest_marker("network") is not None) + (item.get_closest_marker("slow") is not None)

    items.sort(key=cost)
