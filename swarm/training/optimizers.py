"""AdamW: as usual, with moments of 8 bits, or with moments in the CPU's memory; and the learning rate of each update.

Source: arXiv:1711.05101; 8 bits: arXiv:2110.02861, by torchao.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from swarm import torchao
from swarm.distribution import how_to_install
from swarm.errors import PolicyError
from swarm.policy.loading import Policy
from swarm.training.config import OptimizerName, UpdateSettings

CPU = torch.device("cpu")
FUSED = ("cpu", "cuda")
"""Devices with a fused optimizer kernel."""
MOMENT_BYTES: dict[OptimizerName, int] = {"adamw": 8, "adamw_8bit": 2, "adamw_offloaded": 0}
"""Bytes of a GPU's memory for each trained weight, both moments together."""


def make_optimizer(policy: Policy, settings: UpdateSettings) -> torch.optim.Optimizer:
    """The optimizer that `update.optimizer` names. Raises `PolicyError` when it does not fit the policy."""
    if settings.optimizer == "adamw_offloaded" and policy.ranks.size > 1:
        raise PolicyError("update.optimizer must not be adamw_offloaded with several processes")
    common = {"lr": settings.learning_rate, "betas": settings.betas, "weight_decay": settings.weight_decay}
    if settings.optimizer == "adamw_8bit":
        return _adamw_8bit(policy, common)
    kind = OffloadedAdamW if settings.optimizer == "adamw_offloaded" else torch.optim.AdamW
    return kind(policy.trained, **common, fused=policy.device.type in FUSED)  # type: ignore[arg-type]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use this learning rate from the next step on."""
    # torchao compiles its step, and takes the rate as a tensor so as not to compile it again.
    value = rate if isinstance(optimizer, torch.optim.AdamW) else torch.tensor(rate)
    for group in optimizer.param_groups:
        group["lr"] = value


def _adamw_8bit(policy: Policy, common: dict[str, object]) -> torch.optim.Optimizer:
    torchao.show()
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise PolicyError(
            f"update.optimizer adamw_8bit needs torchao: {how_to_install('torchao')}, or set it to adamw"
        ) from error
    optimizer: torch.optim.Optimizer = AdamW8bit(policy.trained, **common)
    return optimizer


class OffloadedAdamW(torch.optim.AdamW):
    """AdamW that computes on the CPU, one parameter after the other.

    A GPU then holds 8 bytes less for each trained weight, and a step moves 12 bytes for it between the two: its weight
    and its gradient there, the new weight back. Weights and states are those of `torch.optim.AdamW`.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; there is no `closure`."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Load a state of this optimizer or of AdamW. See `torch.optim.Optimizer`."""
        super().load_state_dict(state_dict)  # puts it on the parameters' device
        for state in self.state.values():
            state.update({name: value.to(CPU) for name, value in state.items()})

    def _update(self, parameter: Tensor, group: dict[str, object]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=CPU)
            state["exp_avg"] = torch.zeros_like(parameter, device=CPU)
            state["exp_avg_sq"] = torch.zeros_like(parameter, device=CPU)
        assert parameter.grad is not None
        weight = parameter.to(CPU)
        beta1, beta2 = cast(tuple[float, float], group["betas"])
        adamw(
            [weight],
            [parameter.grad.to(CPU)],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=cast(float, group["lr"]),
            weight_decay=cast(float, group["weight_decay"]),
            eps=cast(float, group["eps"]),
            maximize=False,
        )
        parameter.copy_(weight)


def learning_rate(settings: UpdateSettings, update: int) -> float:
    """Learning rate of the `update`-th update, counted from 0: a linear rise over `warmup_updates`, then the schedule.

    A falling schedule is at `final_learning_rate` from update `total_updates` on.
    """
    rising = (update + 1) / max(1, settings.warmup_updates)
    if rising < 1 or settings.total_updates is None:
        return settings.learning_rate * min(1.0, rising)
    span = settings.total_updates - settings.warmup_updates
    progress = min(1.0, max(0.0, (update - settings.warmup_updates) / span))
    remaining = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
    fall = settings.learning_rate - settings.final_learning_rate
    return settings.final_learning_rate + fall * remaining[settings.schedule]
