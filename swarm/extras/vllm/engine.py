"""Generation by vLLM in a separate process, with a copy of the weights.

prompts ─▶ token ids ─▶ VllmService ─socket─▶ server.py: vLLM ─▶ completions ─▶ groups, once whole
               ▲            ▲ weights or adapters as files, when changed             │
               └─── turns that are ready ◀── environment ◀── an episode's turn ◀─────┘
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from swarm.engines.base import PolicyEngine, Stops
from swarm.engines.config import GenerationSettings
from swarm.errors import EngineCrashed, EngineError, Interrupted
from swarm.extras.vllm.messages import End, Generate, Refused, Request, Sampled, Unanswered
from swarm.extras.vllm.requests import PendingRequests
from swarm.extras.vllm.service import POLL_S, VllmProcess, VllmService
from swarm.policy.loading import Policy
from swarm.policy.weights import swap_weights
from swarm.protocols import Turns
from swarm.types import Answers, Context, Sampling

TURNS_POLL_S = 0.01
"""Between two looks for turns that have become ready."""


def open_engine(
    policy: Policy,
    settings: GenerationSettings,
    trust_remote_code: bool,
    device: torch.device | None,
    cancelled: Callable[[], bool],
) -> VllmEngine:
    """An engine whose process is ready, on `device`, by default the policy's. Raises `EngineError`, `Interrupted`."""
    service = VllmService(policy, settings, trust_remote_code, device)
    try:
        with policy.ranks.gathered():  # each rank has a separate vLLM with all weights
            service.running(cancelled)
    except BaseException:
        service.close()
        raise
    service.rest()
    return VllmEngine(policy, settings, service, cancelled)


class VllmEngine(PolicyEngine):
    """A `StreamingEngine`; it restarts its process after a crash and requests the missing completions again."""

    def __init__(
        self,
        policy: Policy,
        settings: GenerationSettings,
        service: VllmService,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """`service` has the same policy. `cancelled` is polled; once true, calls raise `Interrupted`."""
        super().__init__(policy)
        self._settings = settings
        self._service = service
        self._cancelled = cancelled

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """Yield each prompt's index and its G completions as soon as they are complete, and turns by episode.

        See `RolloutEngine`. Raises `EngineError` when vLLM crashed too often, or refuses the call.
        """
        stops = self._stops(sampling)
        _, limits = self._service.running(self._cancelled)
        pending = PendingRequests(self._policy, stops, sampling, seed, limits.max_positions)
        for index, prompt in enumerate(prompts):
            if refusal := pending.prompt(index, prompt, num_completions):
                yield index, refusal
        try:
            while True:
                try:
                    yield from self._sample(pending, turns, sampling, stops)
                except EngineCrashed as crash:
                    self._service.crashed(crash)
                else:
                    return
        finally:
            self._service.rest()

    def swap(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Use other weights from the next decode step on; any thread may call it. See `swap_weights`."""
        swap_weights(self._policy, weights, version)
        with contextlib.suppress(EngineCrashed):  # it gets them at its restart
            self._service.push(self._settings.kv)

    def close(self) -> None:
        """End the process."""
        self._service.close()

    def _sample(
        self, pending: PendingRequests, turns: Turns | None, sampling: Sampling, stops: Stops
    ) -> Iterator[tuple[int, Answers]]:
        """Ask for all that is missing, and for turns as they become ready. Raises `EngineCrashed`, `Interrupted`."""
        process, _ = self._service.running(self._cancelled)
        known: set[int] = set()
        stop_ids = tuple(sorted(stops.token_ids))
        call = process.call(lambda id: Generate(id, sampling, stop_ids, self._settings.max_batch_sequences))
        try:
            self._ask(process, pending.missing(call.id, pending.names, known))
            while True:
                ready = turns.next_turns(wait=not pending.names) if turns else ()
                if not pending.names and not ready:
                    return
                refused = {turn.episode: refusal for turn in ready if (refusal := pending.turn(turn))}
                yield from refused.items()
                if added := [turn.episode for turn in ready if turn.episode not in refused]:
                    self._ask(process, pending.missing(call.id, added, known))
                if self._cancelled():
                    raise Interrupted("generation was cancelled")
                reply = call.receive(self._settings.vllm.silence_timeout_s, TURNS_POLL_S if turns else POLL_S)
                if isinstance(reply, Refused):
                    raise EngineError(f"vLLM refused: {reply.reason}")
                if isinstance(reply, Sampled | Unanswered):
                    self._service.worked()
                    yield from pending.answer(reply)
                    if rests := pending.take_rests():
                        self._ask(process, pending.missing(call.id, rests, known))
        finally:
            call.close()
            process.tell(End(call.id))

    def _ask(self, process: VllmProcess, requests: Iterator[Request]) -> None:
        for request in requests:
            if self._cancelled():
                raise Interrupted("generation was cancelled")
            process.tell(request)
