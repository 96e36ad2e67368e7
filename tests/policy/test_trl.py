"""What an update minimises against TRL 1.16's own `GRPOTrainer._compute_loss`, values and gradients.

What TRL calls by other names or divides by other constants:

- `gspo` is its `grpo` with `importance_sampling_level="sequence"`;
- `dapo` divides by `num_items_in_batch`, the tokens of all micro-batches and processes, times accumulation steps /
  steps per generation, over the number of processes: 1 in one process that steps once a generation;
- the others divide each micro-batch's mean by the number of accumulation steps: a mean over the whole batch as long as
  micro-batches have equally many sequences;
- `dr_grpo` divides by `max_completion_length`, ours by `max_completion_tokens`;
- its KL term is `k3` under the objective's own mean; `use_bias_correction_kl`, on by default, multiplies it by the
  importance ratio: off here, as in arXiv:2402.03300, eq. 4;
- its importance ratio is not limited to exp(20).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from swarm.algorithms.losses import CLIPPED, LOSSES, LossBatch, k3
from swarm.policy.batching import Packed
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer, pad
from swarm.training.config import UpdateSettings
from swarm.training.gradient import Objective
from swarm.training.rows import Row
from tests.policy.completions import completion_logprobs

if TYPE_CHECKING:
    from trl import GRPOTrainer

pytestmark = pytest.mark.slow

OBJECTIVES = ("grpo", "dapo", "dr_grpo", "gspo", "cispo")
BETAS = (0.0, 0.04)
CLIP_LOW, CLIP_HIGH, LONGEST = 0.2, 0.28, 24
TEMPERATURE = 0.8
Trainers = Callable[[str, float, int], "GRPOTrainer"]


@pytest.fixture
def trainers(policy: Policy, tmp_path: Path) -> Trainers:
    """Makes a real trainer of a copy of `policy`, from objective, KL coefficient and accumulation steps."""
    pytest.importorskip("trl", reason="TRL is part of the extra `dev`")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    policy.save(tmp_path)

    def make(objective: str, beta: float, accumulation: int) -> GRPOTrainer:
        model = copy.deepcopy(policy.model)
        model.config._name_or_path = str(tmp_path)  # where TRL loads the reference model from
        arguments = GRPOConfig(
            output_dir=str(tmp_path / "out"),
            loss_type="grpo" if objective == "gspo" else objective,
            importance_sampling_level="sequence" if objective == "gspo" else "token",
            epsilon=CLIP_LOW,
            epsilon_high=1 + CLIP_HIGH if objective == "cispo" else CLIP_HIGH,
            max_completion_length=LONGEST,
            beta=beta,
            use_bias_correction_kl=False,
            temperature=TEMPERATURE,
            num_generations=4,
            per_device_train_batch_size=8 // accumulation,
            gradient_accumulation_steps=accumulation,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            report_to="none",
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": "1 + 1"}] * 8),
            processing_class=policy.tokenizer,
        )
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = accumulation  # its training loop sets this
        return trainer

    return make


def _noise(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """[B, T] normal, half of it shared by the tokens of a completion: ratios of whole sequences spread as well."""
    return torch.randn(shape, generator=generator) + torch.randn(shape[0], 1, generator=generator)


class Ragged:
    """Eight completions in groups of four, prompts of several lengths; with `hole` the last one is masked out."""

    def __init__(self, policy: Policy, hole: bool) -> None:
        generator = torch.Generator().manual_seed(3)

        def ids(length: int) -> list[int]:
            return torch.randint(2, len(policy.tokenizer), (length,), generator=generator).tolist()

        self.prompts = [row for length in (5, 11) for row in [ids(length)] * 4]
        self.completions = [ids(length) for length in (3, 24, 1, 9, 17, 6, 20, 4)]
        self.prompt_ids, self.prompt_mask = pad(self.prompts, policy.pad_id, left=True)
        self.completion_ids, self.mask = pad(self.completions, policy.pad_id)
        self.mask[-1] *= not hole
        self.advantages = torch.tensor([1.5, -0.5, -0.5, -0.5, 0.9, 0.9, -0.9, -0.9])

    def inputs(self, old: Tensor, reference: Tensor, rows: slice = slice(None)) -> dict[str, Tensor]:
        """What TRL's loss takes, of some of the rows."""
        of_rows = {
            "prompt_ids": self.prompt_ids,
            "prompt_mask": self.prompt_mask,
            "completion_ids": self.completion_ids,
            "completion_mask": self.mask,
            "advantages": self.advantages.to(old.dtype),
            "old_per_token_logps": old,
            "ref_per_token_logps": reference,
        }
        return {name: values[rows] for name, values in of_rows.items()} | {"num_items_in_batch": self.mask.sum()}

    def rows(self, old: Tensor, reference: Tensor) -> list[Row]:
        """What our objectives take."""
        advantages = self.advantages.tolist()
        return [
            Row(prompt, ids, advantage, None, old=known[: len(ids)], reference=frozen[: len(ids)])
            for prompt, ids, advantage, known, frozen in zip(
                self.prompts, self.completions, advantages, old.tolist(), reference.tolist(), strict=True
            )
        ]

    def logprobs(self, policy: Policy) -> Tensor:
        """[B, T]"""
        return completion_logprobs(policy, self.prompts, self.completions, TEMPERATURE)


def _constants(objective: str) -> dict[str, float]:
    longest = {"max_completion_tokens": LONGEST} if objective == "dr_grpo" else {}
    return {"clip_low": 1.0 if objective == "cispo" else CLIP_LOW, "clip_high": CLIP_HIGH, **longest}


def _backward(policy: Policy, objective: str, beta: float, rows: list[Row]) -> tuple[float, float]:
    """Our gradient as an update accumulates it; the loss, and the part of the tokens that are clipped."""
    settings = UpdateSettings(objective=objective, loss=_constants(objective), reference_kl=beta)
    batching = Packed()
    score = Scorer(policy, TEMPERATURE, batching)
    num_tokens = sum(len(row.completion) for row in rows)
    loss = clipped = 0.0
    with batching.attention(policy.model):
        for micro in batching.cut(rows, 50):
            share, figures = Objective(settings).share(score(micro), micro, len(rows), num_tokens)
            share.backward()
            loss, clipped = loss + share.item(), clipped + float(figures[CLIPPED].total)
    return loss, clipped / num_tokens


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_and_its_gradient_are_those_of_trl_in_float64(
    trainers: Trainers, policy: Policy, objective: str, beta: float
) -> None:
    batch = Ragged(policy, hole=True)
    generator = torch.Generator().manual_seed(4)
    new = (-_noise(batch.mask.shape, generator).double().abs() - 0.1).requires_grad_()
    old, reference = (new.detach() + 0.4 * _noise(new.shape, generator) for _ in range(2))

    def model(**_: object) -> SimpleNamespace:
        """The network is left out: these are the log-probabilities it gives, one for each position but the first."""
        prompt = new.new_zeros(len(batch.prompts), batch.prompt_ids.shape[1] - 1)
        return SimpleNamespace(log_probs=torch.cat([prompt, new], 1), entropy=torch.cat([prompt, new.detach()], 1))

    theirs = trainers(objective, beta, 1)._compute_loss(model, batch.inputs(old, reference))
    output = LOSSES[objective](**_constants(objective))(LossBatch(new, old, batch.advantages.double(), batch.mask))
    ours = output.loss + beta * (k3(new, reference) * output.shares).sum()
    assert output.figures[CLIPPED].value > 0.1
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    (gradient,), (expected,) = (torch.autograd.grad(loss, new) for loss in (ours, theirs))
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
    assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_steps_on_one_batch_have_the_loss_and_gradients_of_trl(
    trainers: Trainers, policy: Policy, objective: str, beta: float
) -> None:
    """Both sides run the network themselves; after the first step the policy is not the one that sampled any more."""
    batch = Ragged(policy, hole=False)
    trainer = trainers(objective, beta, 1)
    with torch.no_grad():
        old = batch.logprobs(policy)
        reference = old + 0.2 * _noise(old.shape, torch.Generator().manual_seed(5))
    clipped = []
    for step in range(4):
        theirs = trainer._compute_loss(trainer.model, batch.inputs(old, reference))
        theirs.backward()
        ours, part = _backward(policy, objective, beta, batch.rows(old, reference))
        assert ours == pytest.approx(theirs.item(), abs=1e-6), f"loss of step {step}"
        for (name, parameter), twin in zip(policy.model.named_parameters(), trainer.model.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, twin.grad, atol=1e-6, rtol=0, msg=lambda m, n=name: f"{n}: {m}")
            with torch.no_grad():
                parameter -= 4e-4 * twin.grad.sign()
                twin.copy_(parameter)
            parameter.grad = twin.grad = None
        clipped.append(part)
    assert clipped[0] == 0 and any(0.01 < part < 0.99 for part in clipped), clipped


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_micro_batches_of_both_sides_add_up_to_the_same(trainers: Trainers, policy: Policy, objective: str) -> None:
    batch = Ragged(policy, hole=False)
    trainer = trainers(objective, 0.0, 4)
    with torch.no_grad():
        new = batch.logprobs(policy)
    old = new + 0.4 * _noise(new.shape, torch.Generator().manual_seed(6))
    parts = [batch.inputs(old, old, slice(at, at + 2)) for at in (0, 2, 4, 6)]
    losses = [trainer._compute_loss(trainer.model, part).item() for part in parts]
    ours, clipped = _backward(policy, objective, 0.0, batch.rows(old, old))
    assert clipped > 0
    assert ours == pytest.approx(sum(losses), abs=1e-6)
