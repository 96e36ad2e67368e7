"""The model's interface for the engine: prefill, and decode one token for every row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from swarm.engines.sampling import sample, uniforms
from swarm.engines.transformers.cuda_graphs import MOST_STEPS, Record, RecordedStep, can_record
from swarm.engines.transformers.generating import FusedStep, GeneratingModel, can_fuse
from swarm.engines.transformers.layout import (
    Draws,
    Layout,
    Unread,
    attending_to_slots,
    batches_of,
    can_attend_to_slots,
    layouts,
)
from swarm.engines.transformers.scheduler import BLOCK, Room, SequenceState, StepPlan
from swarm.engines.transformers.slots import LayerShape, Prefix, SlotCache
from swarm.errors import EngineError
from swarm.policy.experts import Routing, together
from swarm.policy.loading import Policy
from swarm.policy.logprobs import pad
from swarm.policy.out_of_memory import free_bytes, keeps_spare
from swarm.types import Sampling

FORWARD = ("input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep")
ATTENTION = ("sdpa", "eager")
PROBE_TOLERANCE = 0.02
"""Fraction of the largest logit: rounding of bfloat16; other attention differs by more."""
KEPT_SHARE = 8
"""A cache is kept from call to call if this many of its size would fit."""
FUSED_TOLERANCE = 1e-5
"""In nats."""


class Decoder:
    """Forward passes of one policy over a slot cache. Works with any causal model with a standard KV cache."""

    def __init__(self, policy: Policy, recorder: Callable[[], Record] | None = None) -> None:
        """`recorder`: what records decode steps on this device, if anything does.

        Raises `EngineError` for a model with an unsupported cache or attention.
        """
        self._policy = policy
        self._generating = GeneratingModel(policy)
        config = policy.model.config
        self._windows = windows(policy.name, type(policy.model), config)
        if config._attn_implementation not in ATTENTION:
            raise EngineError(
                f"{policy.name} attends with {config._attn_implementation!r}, this engine needs one of "
                f"{', '.join(ATTENTION)}: load the model with attn_implementation='sdpa'"
            )
        self.shapes = self._probe()
        self.bytes_per_token = sum(shape.num_bytes for shape in self.shapes)
        self.vocabulary = int(policy.model.get_output_embeddings().weight.shape[0])
        self._attends_to_slots = can_attend_to_slots(policy.model)
        self._kept: SlotCache | None = None
        self._can_join = self._attends_to_slots and policy.ranks.forward(self._joins)
        self._recorded_step = self._record_step(recorder)
        self._fused = self._fuse() if self._recorded_step is None else None
        keeps_spare(self)

    def refresh(self) -> None:
        """Take the policy's present weights, before a step; its gate must be held."""
        self._generating.refresh()
        if self._fused is not None:
            self._fused.refresh()

    def cache(self, room: Room) -> SlotCache:
        """An empty cache for this model."""
        kept, self._kept = self._kept, None
        if kept is not None and kept.num_slots * kept.capacity <= room.tokens:
            kept.reset(room)
            return kept
        return SlotCache(self.shapes, room, self._policy.device)

    def keep(self, cache: SlotCache) -> None:
        """Keep a cache for the next call if steps on it are recorded and it is small."""
        if self._recorded_step is not None and KEPT_SHARE * cache.num_bytes <= free_bytes(self._policy.device):
            self._kept = cache

    def release(self) -> None:
        """Free the kept cache."""
        self._kept = None

    @property
    def kept_bytes(self) -> int:
        """Bytes of the kept cache."""
        return 0 if (kept := self._kept) is None else kept.num_bytes

    def read(self, pasts: Sequence[list[int]]) -> list[Prefix]:
        """Keys and values of each prefix, in a few forward passes over prefixes of similar length."""
        prefixes = [Prefix(self._nothing(), 0)] * len(pasts)
        for batch in batches_of([len(past) for past in pasts]):
            for i, prefix in zip(batch, self._read_together([pasts[i] for i in batch]), strict=True):
                prefixes[i] = prefix
        return prefixes

    def sample(
        self, cache: SlotCache, rows: Sequence[Unread], draws: Draws
    ) -> tuple[Tensor, Tensor, list[Routing] | None]:
        """Feed the unread tokens of each row, by slot, and sample the next ones.

        Returns their ids and log-probabilities, [N, B] each with N from 1 to `draws.num`, and the experts of the fed
        tokens by row.
        """
        decoding = all(len(row.tokens) == 1 for row in rows)
        recorded = self._recorded_step if decoding else None
        if recorded is not None and (sampled := recorded.sample(cache, rows, draws)) is not None:
            return *sampled, None
        if decoding and self._fused is not None:
            logits, routing = self._fused.step(cache, rows), None
        else:
            logits, routing = self._step(cache, rows)
        tokens, logprobs = sample(logits, draws.sampling, uniforms(draws.seeds, draws.positions))
        return tokens[None], logprobs[None], routing

    @property
    def most_steps(self) -> int:
        """Most tokens per row in one call of `sample`."""
        return 1 if self._recorded_step is None else MOST_STEPS

    def _step(self, cache: SlotCache, rows: Sequence[Unread]) -> tuple[Tensor, list[Routing] | None]:
        """Logits [B, V] and experts by the model's own code."""
        order: list[int] = []
        logits: list[Tensor] = []
        routing: list[Routing] = []
        for layout in layouts(rows, self._can_join, self._policy.device):
            new_logits, experts = self._feed(cache, layout)
            order += (row.slot for row in layout.rows)
            logits.append(new_logits)
            routing += layout.by_row(experts) if experts is not None else ()
        if len(logits) == 1:
            return logits[0], routing or None
        index = sorted(range(len(order)), key=order.__getitem__)
        return torch.cat(logits)[index], [routing[i] for i in index] if routing else None

    def _experts_recorded(self) -> AbstractContextManager[list[Tensor]]:
        routers = self._generating.routers
        return routers.recorded() if routers is not None else nullcontext([])

    def _mask(self, positions: Tensor, width: int) -> Tensor | dict[str, Tensor]:
        """Attention mask [B, 1, T, width] of tokens at `positions` [B, T], 0 or minus infinity; by layer type if there
        are several."""
        columns = torch.arange(width, device=positions.device)
        masks = {}
        for kind, window in self._windows.items():
            hidden = columns > positions[:, :, None]
            if window is not None:
                hidden |= columns <= positions[:, :, None] - window
            mask = torch.zeros(hidden.shape, dtype=self.shapes[0].dtype, device=positions.device)
            masks[kind] = mask.masked_fill_(hidden, -torch.inf)[:, None]
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _feed(self, cache: SlotCache, layout: Layout) -> tuple[Tensor, Routing | None]:
        model = self._generating.model
        by_group = {"groups": layout.groups} if layout.groups else {}
        attention = attending_to_slots(model) if self._attends_to_slots else nullcontext()
        with self._policy.compute(), self._experts_recorded() as chosen, attention:
            output = model(
                **self._policy.inputs(layout.ids),
                attention_mask=self._mask(layout.positions, layout.width),
                position_ids=layout.positions if layout.placed is None else layout.placed,
                past_key_values=cache.at(layout),
                use_cache=True,
                logits_to_keep=layout.last,
                **by_group,
            )
        logits: Tensor = output.logits.flatten(0, 1)  # of one token per row, in either layout
        return logits, together(chosen) if chosen else None

    def _read_together(self, pasts: list[list[int]]) -> list[Prefix]:
        """One pass, padded on the right: causal attention ignores the padding, so it needs no mask."""
        ids, _ = pad(pasts, pasts[0][0])  # transformers warns about pad tokens without a mask
        with self._experts_recorded() as chosen:
            cache = self._read_padded(ids.to(self._policy.device), self._placed(pasts, ids.shape[1]))
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        routing = together(chosen).reshape(*ids.shape, len(chosen), -1) if chosen else None
        return [
            Prefix(
                [(keys[row, :, : len(past)], values[row, :, : len(past)]) for keys, values in layers],
                len(past),
                routing[row, : len(past)] if routing is not None else None,
            )
            for row, past in enumerate(pasts)
        ]

    def _placed(self, pasts: Sequence[list[int]], width: int) -> Tensor | None:
        """Positions [D, B, width] for the model; None if they count tokens."""
        if (places := self._policy.mrope_positions) is None:
            return None
        return torch.stack([functional.pad(places(past), (0, width - len(past))) for past in pasts], dim=1)

    def _read_padded(self, ids: Tensor, placed: Tensor | None = None) -> DynamicCache:
        cache = DynamicCache()
        positions = torch.arange(ids.shape[1])[None] if placed is None else placed
        with self._policy.compute():
            self._generating.model(
                **self._policy.inputs(ids),
                attention_mask=None,
                position_ids=positions.to(ids.device),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        return cache

    def _nothing(self) -> list[tuple[Tensor, Tensor]]:
        """The empty prefix of a one-token sequence."""
        return [
            (
                torch.zeros(shape.key[0], 0, shape.key[1], device=self._policy.device),
                torch.zeros(shape.value[0], 0, shape.value[1], device=self._policy.device),
            )
            for shape in self.shapes
        ]

    @torch.no_grad()
    def _joins(self) -> bool:
        """Whether rows that read and rows that decode may share a pass, tested on a few tokens."""
        rows = [Unread(0, 0, [0]), Unread(1, 0, [1, 2])]
        cache = self.cache(Room(2, 2 * BLOCK))
        cache.arrange(StepPlan([], [SequenceState(0, slot, row.tokens, 0) for slot, row in enumerate(rows)], 0, 2, 2))
        device = self._policy.device
        apart = torch.cat([self._feed(cache, layout)[0] for layout in layouts(rows, False, device)])
        try:
            (together,) = (self._feed(cache, layout)[0] for layout in layouts(rows, True, device))
        except (NotImplementedError, RuntimeError, TypeError, ValueError):  # `groups` are not passed on
            return False
        return bool((together - apart).abs().max() <= PROBE_TOLERANCE * apart.abs().max())

    @torch.no_grad()
    def _record_step(self, recorder: Callable[[], Record] | None) -> RecordedStep | None:
        """The recorded step, if this device records and a replay agrees with the model's own code."""
        if recorder is None or not can_record(self._policy):
            return None
        seen = torch.zeros(2, self.vocabulary, device=self._policy.device)

        def fed(cache: SlotCache, layout: Layout) -> Tensor:
            logits, _ = self._feed(cache, layout)
            seen.copy_(logits)
            return logits

        probed = RecordedStep(self._policy, fed, self._generating.tensors, recorder)
        draws = Draws([0, 0], [0, 0], Sampling(max_new_tokens=1))

        def step(cache: SlotCache, rows: Sequence[Unread]) -> Tensor:
            probed.sample(cache, rows, draws)
            return seen

        own = self._after_tokens(lambda cache, rows: self._step(cache, rows)[0])
        difference = (self._after_tokens(step) - own).abs().max()
        if probed.failed or difference > PROBE_TOLERANCE * own.abs().max():
            return None
        return RecordedStep(
            self._policy, lambda cache, layout: self._feed(cache, layout)[0], self._generating.tensors, recorder
        )

    @torch.no_grad()
    def _fuse(self) -> FusedStep | None:
        """The fused step, if there is one for this model that agrees with its own code."""
        if not can_fuse(self._policy):
            return None
        fused = FusedStep(self._policy)
        fused.refresh()
        own = self._after_tokens(lambda cache, rows: self._step(cache, rows)[0])
        difference = (self._after_tokens(fused.step) - own).abs().max()
        return fused if difference <= FUSED_TOLERANCE else None

    def _after_tokens(self, step: Callable[[SlotCache, Sequence[Unread]], Tensor]) -> Tensor:
        """Log-probabilities after steps of rows of unequal length, each of which reads what those before it wrote. The
        last two replay what the second recorded."""
        prompts = [[0, 1, 2], [3, 4, 5, 6, 7]]
        cache = self.cache(Room(2, 2 * BLOCK))
        cache.arrange(StepPlan([], [SequenceState(0, row, prompt, 0) for row, prompt in enumerate(prompts)], 0, 8, 2))
        for row, prefix in enumerate(self.read(prompts)):
            cache.fill([row], prefix)
        for token in range(4):
            logits = step(cache, [Unread(row, len(prompt) + token, [row]) for row, prompt in enumerate(prompts)])
        return logits.log_softmax(dim=-1)

    @torch.no_grad()
    def _probe(self) -> list[LayerShape]:
        """Shapes that each layer stores per token, found by running the model on one."""
        policy = self._policy
        token = torch.full((1, 1), policy.pad_id, device=policy.device)
        cache = policy.ranks.forward(lambda: self._read_padded(token))
        if len(cache.layers) != len(DynamicCache(config=policy.model.config).layers):
            raise EngineError(f"{policy.name} does not keep keys and values of every layer, which this engine needs")
        return [
            LayerShape(
                (layer.keys.shape[1], layer.keys.shape[3]),
                (layer.values.shape[1], layer.values.shape[3]),
                policy.compute_dtype,  # attention casts to it whatever the model gives
            )
            for layer in cache.layers
        ]


def windows(name: str, model_class: type[PreTrainedModel], config: PretrainedConfig) -> dict[str, int | None]:
    """The window of each of a model's attention types; None is unlimited.

    Raises `EngineError` for a model whose forward pass or cache this engine does not know.
    """
    parameters = inspect.signature(model_class.forward).parameters
    passed_on = {"use_cache"} if any(each.kind is each.VAR_KEYWORD for each in parameters.values()) else set()
    missing = [argument for argument in FORWARD if argument not in {*parameters, *passed_on}]
    if missing:
        raise EngineError(f"the forward pass of {name} takes no {', '.join(missing)}, which this engine needs")
    found: dict[str, int | None] = {}
    for layer in DynamicCache(config=config).layers:
        window = layer.sliding_window if type(layer) is DynamicSlidingWindowLayer else None
        kind = "full_attention" if window is None else "sliding_attention"
        known = type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
        # Chunked attention stores the same cache as a sliding window but attends differently.
        chunked = getattr(config, "attention_chunk_size", None) is not None
        if not known or (window and chunked) or found.setdefault(kind, window) != window:
            raise EngineError(
                f"{name} has layers of another kind than full attention and one sliding window, got "
                f"{type(layer).__name__} with a window of {window}: this engine cannot fill their cache"
            )
    return found
