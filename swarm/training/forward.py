"""Forward passes over rows: split to fit memory, divided among the ranks, with layers compiled or checkpointed.

The number of tokens of a pass follows from what it keeps for each and from the free memory. A pass keeps its
activations until the gradient has used them, or with checkpointing each layer's input, and one layer's activations at a
time. The output head also keeps the probabilities of a few chunks. `policy/out_of_memory.py` recovers when memory runs
out.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from swarm.errors import PolicyError
from swarm.policy.experts import are_cast
from swarm.policy.loading import Policy
from swarm.policy.logprobs import Scorer, Scores, choose_batching, logprobs_by_row
from swarm.policy.out_of_memory import TokenBudget, free_bytes
from swarm.policy.reading import has_encoder
from swarm.policy.scoring import KEPT_CHUNKS, compiled as compiled_once, tokens_of_chunk
from swarm.training.config import OptimizerName, UpdateSettings
from swarm.training.optimizers import MOMENT_BYTES
from swarm.training.rows import Row
from swarm.training.sketches import Sketcher

logger = logging.getLogger(__name__)

MICRO_BATCH_TOKENS = defaultdict(lambda: 16_384, cpu=1_024)
"""Default tokens per forward pass, by type of device."""
LIMITED = ("cuda", "mps")
"""Types of device where the default is bounded by free memory."""
ENOUGH_TOKENS = 4_096
"""Tokens of a pass from which on a GPU is busy: layers are checkpointed only where fewer would fit."""


T = TypeVar("T")


class ForwardRunner:
    """Scores rows with the trained policy or its reference, one micro-batch at a time."""

    def __init__(self, policy: Policy, settings: UpdateSettings, temperature: float, sketcher: Sketcher) -> None:
        """Log-probabilities are taken at the sampling `temperature`. Raises `PolicyError`."""
        self._policy = policy
        self._sketcher = sketcher
        self._temperature = temperature
        self._batching = choose_batching(policy, settings.batching)
        self._scorer = Scorer(policy, temperature, self._batching)
        self._compiled = is_compiled(settings.compile, policy)
        if self._compiled:
            logger.info("layers are compiled: the first update takes longer, the first one on this machine by a minute")
        self._layers = TrainingLayers(policy.model, self._compiled, settings.gradient_checkpointing)
        alone = policy.ranks.size == 1
        budget = settings.micro_batch_tokens or MICRO_BATCH_TOKENS[policy.device.type]
        self._budget = TokenBudget(budget, alone, self._recompute)
        self._optimizer = settings.optimizer
        limited = alone and policy.device.type in LIMITED
        self._chooses_layers = limited and self._layers.checkpointed and settings.gradient_checkpointing is None
        self._chooses_tokens = limited and settings.micro_batch_tokens is None
        self._memory: tuple[PassMemory, PassMemory] | None = None
        """Plain and checkpointed, to be compared with the free memory before the first pass; None: all stays."""
        if self._chooses_layers or self._chooses_tokens:
            with self._batching.attention(policy.model):
                self._memory = measure(policy, self._scorer, self._compiled)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Configure the model for training, from the first forward pass to the last backward pass. This sets compiled
        or checkpointed layers, the batching's attention, and recorded experts.

        """
        routers = self._policy.routers
        replaying = routers.replaying() if routers is not None else nullcontext()
        with self._layers.active(), self._batching.attention(self._policy.model), replaying:
            yield

    def attempt(self, work: Callable[[int], T], rows: Sequence[Row]) -> T:
        """Return `work(max_tokens)`; retries with half the tokens when memory runs out. Raises `OutOfMemory`."""
        if self._memory is not None:  # only now has the engine taken its share
            self._fit(*self._memory, max((row.length for row in rows), default=1))
            self._memory = None
        return self._budget.attempt(work, rows)

    def _fit(self, plain: PassMemory, checkpointed: PassMemory, longest: int) -> None:
        """Choose what is not configured by the free memory: `longest` is the most tokens of a row."""
        room = bytes_for_a_pass(self._policy, self._optimizer)
        if self._chooses_layers:
            enough = max(min(self._budget.tokens, ENOUGH_TOKENS), longest)
            self._layers.checkpointed = plain.tokens_within(room) < enough
        if self._chooses_tokens:
            memory = checkpointed if self._layers.checkpointed else plain
            self._budget.tokens = min(self._budget.tokens, memory.tokens_within(room))

    def _recompute(self) -> bool:
        """Checkpoint layers from now on; says whether that was a choice, and not yet made."""
        saved = self._chooses_layers and not self._layers.checkpointed
        self._layers.checkpointed |= saved
        if saved:
            logger.warning("out of memory; recomputing activations from now on, as update.gradient_checkpointing does")
        return saved

    def micro_batches(self, rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
        """This rank's micro-batches, padded with empty ones to the same number on every rank: all ranks join each
        pass. Equal rows are side by side, and count once in `max_tokens`."""
        equal: dict[Hashable, list[Row]] = {}
        for row in rows:
            equal.setdefault(self._input(row), []).append(row)
        ranks = self._policy.ranks
        distinct = [first for first, *_ in equal.values()]
        mine = [distinct[i] for i in ranks.share([row.length for row in distinct])]
        batches = [
            [row for first in batch for row in equal[self._input(first)]]
            for batch in self._batching.cut(mine, max_tokens)
        ]
        return batches + [[] for _ in range(ranks.most(len(batches)) - len(batches))]

    def scores(self, rows: Sequence[Row]) -> Scores:
        """The policy's scores of a micro-batch's tokens, with gradient."""
        self._layers.compiled = self._compiled and not self._sketcher.active  # compiled layers call no hooks
        if self._sketcher.active:
            distinct = [first for first, *_ in self._side_by_side(rows)]
            self._sketcher.follow(distinct, self._batching.lay_out(distinct).pieces)
        return self._score(self._scorer, rows)

    def _side_by_side(self, rows: Sequence[Row]) -> list[list[Row]]:
        """The rows of a micro-batch, equal ones together."""
        return [list(each) for _, each in groupby(rows, self._input)]

    def _input(self, row: Row) -> Hashable:
        """Equal for rows that a pass computes once: a sketch keeps groups apart, and must not change the update."""
        return (row.key, self._sketcher.owner(row)) if self.reads_tokens_alone(row) else id(row)

    def reads_tokens_alone(self, row: Row) -> bool:
        """Whether rows with equal tokens have equal scores: not with media, nor with experts that are replayed."""
        return self._policy.media is None and row.routing is None

    def logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """The policy's log-probabilities of each row's tokens, each row computed on one rank."""
        return self._read(self._scorer, rows)

    def reference_logprobs(self, reference: Policy, rows: Sequence[Row]) -> list[list[float]]:
        """The same for another policy of the same architecture."""
        with self._batching.attention(reference.model):
            return self._read(Scorer(reference, self._temperature, self._batching), rows)

    def _read(self, scorer: Scorer, rows: Sequence[Row]) -> list[list[float]]:
        return self.attempt(lambda max_tokens: self._logprobs(scorer, rows, max_tokens), rows)

    @torch.no_grad()
    def _logprobs(self, scorer: Scorer, rows: Sequence[Row], max_tokens: int) -> list[list[float]]:
        mine = logprobs_by_row(rows, self.micro_batches(rows, max_tokens), partial(self._score, scorer))
        found = dict(pair for part in self._policy.ranks.gather(mine) for pair in part)
        return [found[i] for i in range(len(rows))]

    def _score(self, scorer: Scorer, rows: Sequence[Row]) -> Scores:
        """Equal rows are computed once. An empty micro-batch is scored with a dummy row."""
        nothing = [self._policy.pad_id]
        equal = self._side_by_side(rows) or [[Row(nothing, nothing, 0.0, None)]]
        scores = scorer([first for first, *_ in equal])
        return scores.repeated([len(each) for each in equal]) if len(equal) < len(rows) else scores


Forward = Callable[..., object]
COMPILED_PARAMETERS = 50_000_000
"""Least parameters of a model whose layers are compiled by default: passes of smaller ones are short already."""


class TrainingLayers:
    """Replaces the forward functions of a model's repeated layers while gradients are computed.

    The model stays in evaluation mode: transformers' own checkpointing needs training mode, which enables dropout.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        compiled: bool,
        checkpointed: bool | None,
        compile_code: Callable[[Forward], Forward] = compiled_once,
    ) -> None:
        """`checkpointed` None: with CUDA, where possible. `compile_code` compiles a forward function.

        Raises `PolicyError` when either is requested and the model's layers cannot be identified.
        """
        self._layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        self.compiled = compiled
        """May be changed between passes, and so may `checkpointed`."""
        self.checkpointed = is_checkpointed(checkpointed, model.device.type, bool(self._layers))
        self._compile = compile_code
        self._thread: int | None = None
        """The one that trains; others generate meanwhile."""
        if (self.compiled or self.checkpointed) and not self._layers:
            raise PolicyError(
                f"the layers of {type(model).__name__} cannot be identified; set update.compile and "
                "update.gradient_checkpointing to false"
            )

    @contextmanager
    def active(self) -> Iterator[None]:
        """From the first forward pass of an update to its last backward pass."""
        self._thread = threading.get_ident()
        for layer in self._layers:
            layer.forward = partial(self._run, layer)  # an instance attribute takes precedence over the class's
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward

    def _run(self, layer: nn.Module, hidden: Tensor, *args: object, **kwargs: object) -> object:
        code: Forward = type(layer).forward
        if threading.get_ident() != self._thread:
            return code(layer, hidden, *args, **kwargs)
        learns = torch.is_grad_enabled()
        if self.compiled:
            code = self._compile(code)
            if learns and not hidden.requires_grad:
                hidden = hidden.detach().requires_grad_()  # the first layer behind frozen embeddings: as all others
        if self.checkpointed and learns:
            return checkpoint(partial(code, layer, **kwargs), hidden, *args, use_reentrant=False)
        return code(layer, hidden, *args, **kwargs)


def is_checkpointed(chosen: bool | None, device: str, possible: bool = True) -> bool:
    """Whether layers are checkpointed on this type of device: as chosen, by default with CUDA where possible."""
    return possible and device == "cuda" if chosen is None else chosen


def is_compiled(chosen: bool | None, policy: Policy) -> bool:
    """Whether a policy's layers are compiled: as chosen, by default where that is known to pay."""
    return chosen if chosen is not None else policy.ranks.size == 1 and pays(policy.model, policy.device.type)


def pays(model: PreTrainedModel, device: str) -> bool:
    """Whether compiled layers are worth the wait on this type of device: with CUDA, for a dense model of some size
    that reads text only."""
    return (
        device == "cuda"
        and not has_encoder(model.config)
        and sum(weight.numel() for weight in model.parameters()) >= COMPILED_PARAMETERS
        and not any(map(are_cast, model.modules()))
        and any(isinstance(module, GradientCheckpointingLayer) for module in model.modules())
    )


PROBE_TOKENS = (16, 48)
"""Passes whose kept bytes are counted: the difference is that of their tokens alone."""
USED_FRACTION = 0.85
"""Usable fraction of the free memory; the allocator's rounding needs some."""
GRADIENT_BYTES = 4
"""Per trained weight, float32 as the weight itself."""
COMPILED_SHARE = 0.7
"""At most so much of what plain layers keep is kept by compiled ones: 0.60 to 0.67 of Qwen2's, with and without
adapters."""
HEAD_CHUNKS = KEPT_CHUNKS + 3
"""Chunks of logits at the same time: those kept, and three while another is read."""
HEAD_CHUNKS_CUDA = 2
"""One, and its gradient in half precision."""


@dataclass(frozen=True)
class PassMemory:
    """Memory of one forward and backward pass."""

    fixed_bytes: int
    """Bytes of a pass of any size, for example weights cast for it."""
    token_bytes: int
    head_token_bytes: int
    """Logits of a token, while there are less than `most_head_bytes`."""
    most_head_bytes: int

    def tokens_within(self, num_bytes: int) -> int:
        """The most tokens of a pass that needs at most `num_bytes`; at least 1."""
        left = num_bytes - self.fixed_bytes
        few = left // (self.token_bytes + self.head_token_bytes)
        many = (left - self.most_head_bytes) // self.token_bytes
        return max(1, few, many)


def measure(policy: Policy, scorer: Scorer, compiled: bool = False) -> tuple[PassMemory, PassMemory]:
    """The memory of this policy's passes as they are and with checkpointed layers, by counting what two small ones
    keep; their layers must be plain, even where they will be `compiled`."""
    small, large = (_kept_bytes(policy, scorer, count) for count in PROBE_TOKENS)
    activations = (large - small) // (PROBE_TOKENS[1] - PROBE_TOKENS[0])
    activations = round(activations * (COMPILED_SHARE if compiled else 1))
    config = policy.model.config.get_text_config()
    inputs = config.num_hidden_layers * config.hidden_size * torch.float32.itemsize
    logit_bytes = config.vocab_size * torch.float32.itemsize
    chunks = HEAD_CHUNKS_CUDA if policy.device.type == "cuda" else HEAD_CHUNKS
    plain = PassMemory(
        fixed_bytes=max(0, small - activations * PROBE_TOKENS[0]),
        token_bytes=activations,
        head_token_bytes=logit_bytes,
        most_head_bytes=chunks * tokens_of_chunk(policy.device.type, config.vocab_size) * logit_bytes,
    )
    return plain, replace(plain, token_bytes=inputs + activations // config.num_hidden_layers)


def bytes_for_a_pass(policy: Policy, optimizer: OptimizerName) -> int:
    """Free bytes on the policy's device beyond what the step itself will take."""
    each = GRADIENT_BYTES + MOMENT_BYTES[optimizer]
    pending = sum(p.numel() * each for p in policy.trained if p.grad is None)
    return int(USED_FRACTION * max(0, free_bytes(policy.device) - pending))


def _kept_bytes(policy: Policy, scorer: Scorer, num_tokens: int) -> int:
    """Bytes that a pass of one row with so many tokens keeps for the gradient."""
    prompt, completion = [policy.pad_id], [policy.pad_id] * (num_tokens - 1)
    with _counted(policy) as sizes, torch.enable_grad():
        scores = scorer([Row(prompt, completion, 0.0, None)])
        del scores
    return sum(sizes.values())


@contextmanager
def _counted(policy: Policy) -> Iterator[dict[int, int]]:
    """Sizes of the memory that is kept for the gradient within the block, by address; the model's own does not
    count."""
    own = {held.untyped_storage().data_ptr() for held in (*policy.model.parameters(), *policy.model.buffers())}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield sizes
