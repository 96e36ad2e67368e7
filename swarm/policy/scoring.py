"""Log-probabilities of chosen tokens from hidden states, without all logits in memory at once.

Only the chosen token's log-probability is needed, but its gradient needs the softmax over all V tokens. The head
processes tokens in chunks: it computes, uses and drops each chunk's logits, and recomputes them for the gradient,
except for a few kept chunks. With CUDA, one compiled kernel reads a chunk's logits, and another turns them into their
gradient.

Logits are float32 even where the forward pass computes in half precision. Rounded to bfloat16, logits near 16 are
multiples of 1/8, and two engines whose hidden states differ by rounding differ by 0.03 nats a token. The matrix product
keeps its half-precision inputs, which make it fast, and returns the sum that it accumulates in float32 anyway.

Filters of sampling exclude tokens: for engines that sample, and for checks of what they report. Code for GPUs with CUDA
is compiled: several small operations become one kernel, for any number of tokens, kept on disk for the next start.
Where kernels cannot be made, for example without a C compiler, a warning says so and the code runs as it is.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from swarm.errors import PolicyError
from swarm.machine import num_cores
from swarm.policy.cache import cached
from swarm.policy.out_of_memory import is_out_of_memory
from swarm.types import Sampling

logger = logging.getLogger(__name__)

CHUNK_NUMBERS = {"cpu": 2**24, "cuda": 2**28}
"""Logits in memory at a time, by type of device: 64 MiB and 1 GiB in float32; more is hardly faster there."""
CHUNK_NUMBERS_ELSEWHERE = 2**27
BLOCK = 128
"""Tokens of a kernel's block: for fewer, kernels are neither made nor chosen."""
KEPT_CHUNKS = 4
"""Chunks whose probabilities are kept for the gradient; those of other chunks are computed twice, and with CUDA all."""
HALF = (torch.bfloat16, torch.float16)
PROBE_LOGIT = 100.0
"""Large enough to reveal a soft cap, which hardly changes small logits."""


def project(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """hidden weight^T + bias [N, V] of `hidden` [N, H], `weight` [V, H] and `bias` [V].

    In float32 for inputs in half precision, else in their type. Without gradient for half precision.
    """
    if hidden.dtype not in HALF:
        return nn.functional.linear(hidden, weight, None if bias is None else bias.to(hidden.dtype))
    if hidden.is_cuda:
        product = torch.mm(hidden, weight.T, out_dtype=torch.float32)
    elif hidden.device.type == "cpu":
        product = _with_remainder(hidden, weight.T)
    else:
        product = hidden.float() @ weight.T.float()
    return product if bias is None else product.add_(bias)


def give_float32_logits(model: PreTrainedModel) -> None:
    """Make a linear output head return float32 where it computes in half precision, with or without autocast."""
    head = model.get_output_embeddings()
    if type(head) is nn.Linear:
        # An instance's attribute takes precedence; a module of another class would leave its FSDP group.
        head.forward = MethodType(_forward, head)  # type: ignore[method-assign]


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
        self,
        hidden: Tensor,
        targets: Tensor,
        temperature: float,
        dtype: torch.dtype,
        filters: Sampling | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities [N] of `targets` [N] given `hidden` [N, H], and entropies [N] without gradient, in nats.

        The head's inputs are rounded to `dtype`; logits, divided by `temperature`, and softmax are at least float32.
        With `filters`, the softmax is over the tokens that they leave, and the targets.
        """
        if self._linear and not (filters and filters.is_filtered):
            linear = cast(nn.Linear, self._module)
            with torch.autocast(hidden.device.type, enabled=False):
                return selected_logprobs(hidden.to(dtype), linear.weight, linear.bias, targets, temperature)
        size = tokens_of_chunk(hidden.device.type, self._model.config.get_text_config().vocab_size)
        parts = [
            checkpoint(self._own_logprobs, h, t, temperature, filters, use_reentrant=False)
            for h, t in zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
        ]
        logprobs, entropies = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    @torch.no_grad()
    def spreads(
        self,
        hidden: Tensor,
        targets: Tensor,
        temperature: float,
        dtype: torch.dtype,
        filters: Sampling | None,
        powers: Sequence[float],
    ) -> tuple[Tensor, ...]:
        """Log-probabilities as of `logprobs`, and for each of the positive `powers` a, log sum p^a over the
        distribution p of each token, [N]; without entropies and without gradient."""
        size = tokens_of_chunk(hidden.device.type, self._model.config.get_text_config().vocab_size)
        parts = []
        for h, t in zip(torch.split(hidden, size), torch.split(targets, size), strict=True):
            scores = self._scores(h, t, temperature, dtype, filters)
            chosen = scores.gather(-1, t[:, None])[:, 0]
            parts.append((chosen, *(torch.logsumexp(power * scores, dim=-1) for power in powers)))
        return tuple(torch.cat(values) for values in zip(*parts, strict=True))

    def _scores(
        self, hidden: Tensor, targets: Tensor, temperature: float, dtype: torch.dtype, filters: Sampling | None
    ) -> Tensor:
        """Log-probabilities [N, V] of all tokens, minus infinity for those that the filters exclude."""
        if self._linear:
            linear = cast(nn.Linear, self._module)
            with torch.autocast(hidden.device.type, enabled=False):
                logits = _logits(hidden.to(dtype), linear.weight.to(dtype), linear.bias, temperature)
        else:
            logits = self._own_logits(hidden)
            logits = logits.to(_accurate(logits.dtype)) / temperature
        if filters is not None and filters.is_filtered:
            logits = keep_likely_and(targets, logits, filters)
        return torch.log_softmax(logits, dim=-1)

    def _own_logprobs(
        self, hidden: Tensor, targets: Tensor, temperature: float, filters: Sampling | None
    ) -> tuple[Tensor, Tensor]:
        logits = self._own_logits(hidden)
        logits = logits.to(_accurate(logits.dtype)) / temperature
        if filters is not None:
            logits = keep_likely_and(targets, logits, filters)
        scores = torch.log_softmax(logits, dim=-1)
        chosen = scores.gather(-1, targets[:, None])[:, 0]
        return chosen, torch.special.entr(scores.detach().exp()).sum(-1)

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

    `hidden` [N, H] in the dtype that `weight` [V, H] is rounded to, `bias` [V], `targets` [N]; logits are divided by
    `temperature`. At most `chunk_tokens` x V logits exist at a time; training also keeps those of `kept_chunks` chunks.
    Supports one first-order backward pass; entropies have no gradient.
    """
    size = chunk_tokens or tokens_of_chunk(hidden.device.type, weight.shape[0])
    result: tuple[Tensor, Tensor] = _SelectedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, targets, temperature, size, kept_chunks
    )
    return result


class _Context(FunctionCtx):
    """State of `_SelectedLogprobs` between forward and backward."""

    saved_tensors: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]
    needs_input_grad: tuple[bool, ...]
    temperature: float
    size: int
    kept: list[Tensor]
    fused: bool


class _SelectedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        size: int,
        kept_chunks: int,
    ) -> tuple[Tensor, Tensor]:
        training = any(ctx.needs_input_grad)
        ctx.temperature, ctx.size, ctx.kept = temperature, size, []
        ctx.fused = hidden.is_cuda and len(hidden) >= BLOCK
        logprobs = hidden.new_empty(len(hidden), dtype=_accurate(hidden.dtype))
        entropies = torch.empty_like(logprobs)
        matrix = weight.to(hidden.dtype)
        for part in _parts(len(hidden), size):
            logits = _logits(hidden[part], matrix, bias, temperature)
            if ctx.fused:
                logprobs[part], entropies[part] = compiled(read_at_once)(logits, targets[part])
                continue
            logprobs[part], entropies[part], probabilities = _read(logits, targets[part])
            if training and len(ctx.kept) < kept_chunks:
                ctx.kept.append(probabilities)
            del probabilities
        ctx.save_for_backward(hidden, weight, bias, targets, logprobs)  # type: ignore[arg-type]  # None may be saved
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: _Context, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, logprobs = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        grad_bias = torch.zeros_like(bias) if bias is not None and wants_bias else None
        matrix = weight.to(hidden.dtype)
        for part in _parts(len(hidden), ctx.size):
            upstream = grad[part] / ctx.temperature
            if ctx.fused:
                logits = _logits(hidden[part], matrix, bias, ctx.temperature)
                slope = compiled(slope_at_once)(logits, targets[part], logprobs[part], upstream, hidden.dtype)
                del logits
            else:
                probabilities = ctx.kept.pop(0) if ctx.kept else None
                if probabilities is None:
                    probabilities = torch.softmax(_logits(hidden[part], matrix, bias, ctx.temperature), dim=-1)
                # d logprob / d logits = (onehot(target) - softmax) / temperature
                slope = probabilities.mul_(-upstream[:, None]).scatter_add_(-1, targets[part, None], upstream[:, None])
                slope = slope.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(slope, matrix, out=grad_hidden[part])
            if grad_weight is not None:
                _add_product(grad_weight, slope.T, hidden[part])
            if grad_bias is not None:
                grad_bias += slope.sum(dim=0)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """Logits [C, V] for the softmax, at least float32."""
    logits = project(hidden, weight, bias)
    return logits if temperature == 1 else logits.div_(temperature)


def _read(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities [C] of the targets, entropies [C] and probabilities [C, V]; three [C, V] at a time."""
    scores = torch.log_softmax(logits, dim=-1)
    probabilities = scores.exp()
    return (
        scores.gather(-1, targets[:, None])[:, 0],
        -torch.einsum("cv,cv->c", probabilities, scores),
        probabilities,
    )


def read_at_once(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities [C] of the targets and entropies [C]; compiled, one kernel that writes nothing else."""
    scores = torch.log_softmax(logits, dim=-1)
    return scores.gather(-1, targets[:, None])[:, 0], -(scores.exp() * scores).sum(dim=-1)


def slope_at_once(logits: Tensor, targets: Tensor, logprobs: Tensor, upstream: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient [C, V] of logits as `dtype`, (onehot(target) - softmax) x upstream, given the targets'
    `logprobs` [C]; compiled, one kernel that writes nothing else."""
    normaliser = logits.gather(-1, targets[:, None]) - logprobs[:, None]
    chosen = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    return ((chosen.to(logits.dtype) - (logits - normaliser).exp()) * upstream[:, None]).to(dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left right; sums over chunks stay in the dtype of `total`."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif total.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total += left @ right


def _accurate(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _parts(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def tokens_of_chunk(device: str, vocabulary: int) -> int:
    """Tokens whose logits are in memory at a time on this type of device; with CUDA multiples of a kernel's block."""
    tokens = max(1, CHUNK_NUMBERS.get(device, CHUNK_NUMBERS_ELSEWHERE) // vocabulary)
    return tokens - tokens % BLOCK if device == "cuda" and tokens > BLOCK else tokens


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


def _with_remainder(left: Tensor, right: Tensor) -> Tensor:
    """A product that CPUs return rounded only: a second one returns what the rounding lost, rounded in turn."""
    rounded = left @ right
    return rounded.float() + torch.addmm(rounded, left, right, beta=-1).float()


def _forward(head: nn.Linear, hidden: Tensor) -> Tensor:
    """The head's logits [..., V] of `hidden` [..., H]."""
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    if dtype not in HALF:
        return nn.functional.linear(hidden, head.weight, head.bias)
    flat: Tensor = _Projection.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, -2).to(dtype), head.weight.to(dtype), head.bias
    )
    return flat.view(*hidden.shape[:-1], -1)


class _Projected(FunctionCtx):
    """State of `_Projection` between forward and backward."""

    saved_tensors: tuple[Tensor, Tensor]
    needs_input_grad: tuple[bool, ...]


class _Projection(torch.autograd.Function):
    """`project` with a gradient, which is in half precision as that of a rounded product."""

    @staticmethod
    def forward(ctx: _Projected, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return project(hidden, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: _Projected, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        slope = grad.to(hidden.dtype)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            slope @ weight if wants_hidden else None,
            slope.T @ hidden if wants_weight else None,
            grad.sum(dim=0) if wants_bias else None,
        )


def keep_likely(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [B, V] with those of the tokens that `top_k`, `top_p` and `min_p` exclude at minus infinity."""
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest_kept = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest_kept, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered  # the most likely token is always kept
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= sampling.top_p)
        logits = logits.masked_fill(dropped, -torch.inf)
    if sampling.min_p > 0:
        logits = logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + math.log(sampling.min_p), -torch.inf)
    return logits


def keep_likely_and(tokens: Tensor, logits: Tensor, sampling: Sampling) -> Tensor:
    """`keep_likely`, but `tokens` [B], one in each row, always stay.

    A token that was sampled at the edge of what a filter leaves may be beyond it when rounding differs.
    """
    return keep_likely(logits, sampling).scatter(-1, tokens[:, None], logits.gather(-1, tokens[:, None]))


Code = Callable[..., Any]
KERNELS = "kernels"
"""The directory of kernels, among those that are made once on a machine."""
MAKERS = 4
"""Most processes that make kernels: those of a layer take one core seconds, and each process loads torch first."""


@cache
def compiled(code: Code) -> Code:
    """`code`, compiled at its first call; one for each function, so that its kernels are made once."""
    from torch._inductor import config

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cached(KERNELS)))
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        config.compile_threads = min(num_cores(), MAKERS)
    return _Compiled(code)


class _Compiled:
    def __init__(self, code: Code) -> None:
        self._code = code
        self._fast: Code | None = torch.compile(code, dynamic=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._fast is None:
            return self._code(*args, **kwargs)
        try:
            return self._fast(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, torch._dynamo.exc.TorchDynamoException) or is_out_of_memory(error):
                raise
            self._fast = None
            logger.warning("nothing can be compiled for this GPU, so that updates take longer: %s", error)
        return self._code(*args, **kwargs)
