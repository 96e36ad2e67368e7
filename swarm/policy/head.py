"""Log-probabilities of chosen tokens from hidden states, without all logits in memory at once.

Only the chosen token's log-probability is needed, but its gradient needs the softmax over all V tokens. The head
processes tokens in chunks: it computes, uses and drops each chunk's logits, and recomputes them for the gradient,
except for a few kept chunks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from swarm.errors import PolicyError

CHUNK_NUMBERS = {"cpu": 2**24}
"""Logits in memory at a time, by type of device: 64 MiB in float32; more is not faster there."""
CHUNK_NUMBERS_ELSEWHERE = 2**27
KEPT_CHUNKS = 4
"""Chunks whose probabilities are kept for the gradient; those of other chunks are computed twice."""
PROBE_LOGIT = 100.0
"""Large enough to reveal a soft cap, which hardly changes small logits."""


class OutputHead:
    """Computes logits from a model's last hidden states with its output embedding.

    A plain linear map uses `selected_logprobs`. If the model also scales or caps its logits, or the head is not a
    linear layer, the model's own code computes them, also in chunks.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Raises `PolicyError` for a model without an output embedding."""
        self._model = model
        module = model.get_output_embeddings()
        if not isinstance(module, nn.Module):
            raise PolicyError(f"{type(model).__name__} has no output embedding to take hidden states from")
        self._module = module
        self._linear = type(module) is nn.Linear and self._is_all()

    def hidden_states(self, **inputs: object) -> Tensor:
        """The head's input [B, L, H] when the model runs on `inputs`; logits are not computed.

        With `past_key_values` among them, the model continues from that cache and adds to it.
        """
        found: list[Tensor] = []

        def keep(hidden: Tensor) -> Tensor:
            found.append(hidden)
            return hidden[:, :1]

        with _given(self._module, keep):
            self._model(**inputs, use_cache="past_key_values" in inputs)
        if len(found) != 1:
            raise PolicyError(f"{type(self._model).__name__} uses its output embedding {len(found)} times, not once")
        return found[0]

    def logprobs(
        self, hidden: Tensor, targets: Tensor, temperature: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [N] of `targets` [N] given `hidden` [N, H], and entropies [N] without gradient, in nats.

        Logits are computed in `dtype`, divided by `temperature`; the softmax is at least float32.
        """
        if self._linear:
            linear = cast(nn.Linear, self._module)
            with torch.autocast(hidden.device.type, enabled=False):
                return selected_logprobs(hidden.to(dtype), linear.weight, linear.bias, targets, temperature)
        size = max(1, _chunk_numbers(hidden.device) // self._model.config.get_text_config().vocab_size)
        parts = [
            checkpoint(self._own_logprobs, h, t, temperature, use_reentrant=False)
            for h, t in zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
        ]
        logprobs, entropies = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def _own_logprobs(self, hidden: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logits = self._own_logits(hidden)
        scores = torch.log_softmax(logits.to(_accurate(logits.dtype)) / temperature, dim=-1)
        chosen = scores.gather(-1, targets[:, None])[:, 0]
        return chosen, -(scores.detach().exp() * scores.detach()).sum(-1)

    def _own_logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] by the model's own code: it runs on one token, and its head receives `hidden` [N, H]
        instead."""
        ids = torch.zeros(1, 1, dtype=torch.long, device=hidden.device)
        with _given(self._module, lambda _: hidden[None]):
            logits: Tensor = self._model(input_ids=ids, use_cache=False).logits
        return logits[0]

    @torch.no_grad()
    def _is_all(self) -> bool:
        """Whether the model returns its linear head's output unchanged."""
        weight = cast(Tensor, self._module.weight)
        raw: list[Tensor] = []
        hook = self._module.register_forward_hook(lambda module, args, output: raw.append(output[0]))
        try:
            hidden = torch.randn(2, weight.shape[1], device=weight.device, dtype=weight.dtype)
            self._own_logits(hidden)
            hidden *= PROBE_LOGIT / raw.pop().abs().max()
            logits = self._own_logits(hidden)
        finally:
            hook.remove()
        return torch.equal(raw[0].float(), logits.float())


def selected_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float = 1.0,
    chunk_tokens: int | None = None,
    kept_chunks: int = KEPT_CHUNKS,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden weight^T + bias)[targets] [N], at least float32, and the softmax's entropies [N].

    `hidden` [N, H] in the dtype to compute logits in, `weight` [V, H], `bias` [V], `targets` [N]; logits are divided by
    `temperature`. At most `chunk_tokens` x V logits exist at a time; training also keeps those of `kept_chunks` chunks.
    Supports one first-order backward pass; entropies have no gradient.
    """
    size = chunk_tokens or max(1, _chunk_numbers(hidden.device) // weight.shape[0])
    # Dividing the smaller inputs avoids a pass over the logits.
    bias = None if bias is None else bias / temperature
    result: tuple[Tensor, Tensor] = _SelectedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden / temperature, weight, bias, targets, size, kept_chunks
    )
    return result


class _Context(FunctionCtx):
    """State of `_SelectedLogprobs` between forward and backward."""

    saved_tensors: tuple[Tensor, Tensor, Tensor | None, Tensor]
    needs_input_grad: tuple[bool, ...]
    size: int
    kept: list[Tensor]


class _SelectedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        size: int,
        kept_chunks: int,
    ) -> tuple[Tensor, Tensor]:
        training = any(ctx.needs_input_grad)
        ctx.size, ctx.kept = size, []
        logprobs = hidden.new_empty(len(hidden), dtype=_accurate(hidden.dtype))
        entropies = torch.empty_like(logprobs)
        for part in _parts(len(hidden), size):
            logprobs[part], entropies[part], probabilities = _read(hidden[part], weight, bias, targets[part])
            if training and len(ctx.kept) < kept_chunks:
                ctx.kept.append(probabilities)
            del probabilities
        ctx.save_for_backward(hidden, weight, bias, targets)  # type: ignore[arg-type]  # None may be saved
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        grad_bias = torch.zeros_like(bias) if bias is not None and wants_bias else None
        matrix = weight.to(hidden.dtype)
        for part in _parts(len(hidden), ctx.size):
            probabilities = ctx.kept.pop(0) if ctx.kept else None
            if probabilities is None:
                probabilities = torch.softmax(_logits(hidden[part], weight, bias), dim=-1, dtype=grad.dtype)
            upstream = grad[part, None]
            # d logprob / d logits = onehot(target) - softmax
            slope = probabilities.mul_(-upstream).scatter_add_(-1, targets[part, None], upstream).to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(slope, matrix, out=grad_hidden[part])
            if grad_weight is not None:
                _add_product(grad_weight, slope.T, hidden[part])
            if grad_bias is not None:
                grad_bias += slope.sum(dim=0)
        return grad_hidden, grad_weight, grad_bias, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits [C, V] in the dtype of `hidden`."""
    return nn.functional.linear(hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype))


def _read(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities [C] of the targets, entropies [C] and probabilities [C, V]; two [C, V] at a time."""
    scores = torch.log_softmax(_logits(hidden, weight, bias), dim=-1, dtype=_accurate(hidden.dtype))
    probabilities = scores.exp()
    return (
        scores.gather(-1, targets[:, None])[:, 0],
        -torch.einsum("cv,cv->c", probabilities, scores),
        probabilities,
    )


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left right; sums over chunks stay in the dtype of `total`."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _accurate(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _parts(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _chunk_numbers(device: torch.device) -> int:
    return CHUNK_NUMBERS.get(device.type, CHUNK_NUMBERS_ELSEWHERE)


@contextmanager
def _given(module: nn.Module, replace: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace the input of `module`, in this thread only: another thread may be generating."""
    thread = threading.get_ident()

    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (replace(args[0]), *args[1:]) if threading.get_ident() == thread else None

    handle = module.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
