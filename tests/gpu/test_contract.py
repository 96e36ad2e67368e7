"""The contract of both engines with the policy on a GPU, new weights in the middle of completions included."""

from __future__ import annotations

import pytest
import torch

from tests.engines.test_contract import *  # noqa: F403  its tests, and their fixtures but those below

pytestmark = pytest.mark.gpu

SAME_DRAWS = {
    "test_turns_are_answered_as_they_become_ready",
    "test_an_episode_that_waits_for_its_environment_holds_up_no_other",
    "test_the_seed_decides",
    "test_a_completion_does_not_depend_on_the_batch_around_it",
    "test_finished_groups_come_before_the_others_are",
    "test_a_closed_stream_leaves_the_engine_usable",
    "test_refused_weights_leave_the_old_ones_in_use",
}
"""Those that sample the same tokens in batches of other sizes."""


@pytest.fixture(scope="module")
def place() -> torch.device:
    """Of the policies."""
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU and a torch with CUDA")
    return torch.device("cuda")


@pytest.fixture(params=["transformers", "vllm"])
def engine_name(request: pytest.FixtureRequest, place: torch.device) -> str:
    if request.param == "vllm":
        request.getfixturevalue("vllm_python")
        if request.function.__name__ in SAME_DRAWS:
            pytest.skip("vLLM's float32 kernels for GPUs round differently in other batches, which changes draws")
    return request.param


@pytest.fixture
def nats(engine_name: str) -> float:
    """vLLM's attention in float32 multiplies in TensorFloat32."""
    return 0.02 if engine_name == "vllm" else 1e-3
