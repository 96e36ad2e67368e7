from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def policy():
    """A small random policy with the embedded tokenizer: real architecture, nothing learned."""
    from transformers import Qwen3ForCausalLM

    from swarm.policy.loading import Policy
    from swarm.policy.tiny import tiny_config, tiny_tokenizer

    torch.manual_seed(0)
    return Policy("random", Qwen3ForCausalLM(tiny_config()), tiny_tokenizer(), system_prompt=None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first: a mistake shows within seconds."""

    def cost(item: pytest.Item) -> int:
        return 2 * (item.get_closest_marker("network") is not None) + (item.get_closest_marker("slow") is not None)

    items.sort(key=cost)
