from __future__ import annotations

import pytest
import torch

from swarm.policy.loading import Policy
from tests.policy.completions import completion_logprobs

PROMPTS = ["Calculate 12 + 7.", "Solve for x: 2*x = 4", "Calculate 1 + 1."]
ANSWERS = ["<answer>19</answer>", "4", "<answer>2"]


def _encode(policy: Policy) -> tuple[list[list[int]], list[list[int]]]:
    return [policy.encode_prompt(p) for p in PROMPTS], [policy.tokenizer.encode(a) for a in ANSWERS]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_padded_batch_agrees_with_single_sequences_in_float64(policy: Policy, temperature: float) -> None:
    prompts, completions = _encode(policy)
    batch = completion_logprobs(policy, prompts, completions, temperature)
    policy.model.double()
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        with torch.no_grad():
            logits = policy.model(torch.tensor([prompt + completion])).logits[0].double() / temperature
        for t, token in enumerate(completion):
            expected = torch.log_softmax(logits[len(prompt) - 1 + t], dim=-1)[token]
            assert batch[row, t].item() == pytest.approx(float(expected), abs=1e-5)
        assert (batch[row, len(completion) :] == 0).all()


def test_the_order_of_rows_does_not_matter(policy: Policy) -> None:
    prompts, completions = _encode(policy)
    forward = completion_logprobs(policy, prompts, completions, 1.0)
    backward = completion_logprobs(policy, prompts[::-1], completions[::-1], 1.0)
    torch.testing.assert_close(forward, backward.flip(0), atol=1e-5, rtol=0)
