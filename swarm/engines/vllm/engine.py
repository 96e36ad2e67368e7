"""Generation by vLLM in a separate process, with a copy of the weights.

prompts ─▶ token ids ─▶ VllmService ─socket─▶ server.py: vLLM ─▶ completions ─▶ groups, once whole
                            ▲ weights or adapters as files, when changed
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from torch import Tensor

from swarm.engines.base import PolicyEngine
from swarm.engines.config import GenerationSettings
from swarm.engines.sampling import completion_seed
from swarm.engines.stopping import Stops
from swarm.engines.vllm.messages import Abort, Generate, Ready, Sampled, Unanswered, Wanted
from swarm.engines.vllm.service import VllmService
from swarm.errors import EngineCrashed, EngineError, Interrupted
from swarm.policy.loading import Policy
from swarm.policy.weights import swap_weights
from swarm.protocols import Turns
from swarm.reasons import Reason
from swarm.types import Answers, Completion, Context, Rejection, Sampling

SEEDS = 2**63
"""vLLM's seeds are below this."""

Groups = dict[int, dict[int, Completion]]
"""Completions so far, by index of the prompt and index in its group."""


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
        """Yield each prompt's index and its G completions as soon as they are complete.

        See `RolloutEngine`. Raises `EngineError` when vLLM crashed too often.
        """
        stops = self._stops(sampling)
        _, limits = self._service.running(self._cancelled)
        encoded = dict(enumerate(self._policy.encode(prompt) for prompt in prompts))
        refused = {i: r for i, ids in encoded.items() if (r := self._refusal(i, ids, sampling, limits))}
        yield from refused.items()
        unfinished: Groups = {i: {} for i in encoded if i not in refused}
        try:
            while unfinished:
                wanted = [
                    Wanted(i, k, completion_seed(seed, i, k) % SEEDS)
                    for i, group in unfinished.items()
                    for k in range(num_completions)
                    if k not in group
                ]
                try:
                    for reply in self._sample(encoded, wanted, sampling, stops):
                        yield from self._settle(reply, unfinished, num_completions, stops)
                except EngineCrashed as crash:
                    self._service.crashed(crash)
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
        self, encoded: Mapping[int, list[int]], wanted: Sequence[Wanted], sampling: Sampling, stops: Stops
    ) -> Iterator[Sampled | Unanswered]:
        """The result of each completion, in any order. Raises `EngineCrashed`, `Interrupted`."""
        process, _ = self._service.running(self._cancelled)
        call = process.call(
            lambda id: Generate(
                id=id,
                prompts={one.prompt: tuple(encoded[one.prompt]) for one in wanted},
                wanted=tuple(wanted),
                sampling=sampling,
                stop_ids=tuple(sorted(stops.token_ids)),
                max_sequences=self._settings.max_batch_sequences,
            )
        )
        missing = len(wanted)
        try:
            while missing:
                if self._cancelled():
                    raise Interrupted("generation was cancelled")
                reply = call.receive(self._settings.vllm.silence_timeout_s)
                if isinstance(reply, Sampled | Unanswered):
                    missing -= 1
                    self._service.worked()
                    yield reply
        finally:
            call.close()
            if missing:
                process.tell(Abort(call.id))

    def _settle(
        self, reply: Sampled | Unanswered, unfinished: Groups, num_completions: int, stops: Stops
    ) -> Iterator[tuple[int, Answers]]:
        """Record one completion; yields its group if complete."""
        group = unfinished.get(reply.prompt)
        if group is None:
            return
        if isinstance(reply, Unanswered):
            del unfinished[reply.prompt]
            yield reply.prompt, Rejection(Reason.ENGINE_REFUSED, f"prompt {reply.prompt}: {reply.reason}")
            return
        group[reply.completion] = self._completion(reply, stops)
        if len(group) == num_completions:
            del unfinished[reply.prompt]
            yield reply.prompt, tuple(group[k] for k in range(num_completions))

    def _refusal(self, index: int, ids: list[int], sampling: Sampling, limits: Ready) -> Rejection | None:
        if not ids:
            return Rejection(Reason.PROMPT_EMPTY, f"prompt {index} has no tokens")
        asked = f"prompt {index} has {len(ids)} tokens and may grow by {sampling.max_new_tokens}"
        if len(ids) + sampling.max_new_tokens > self._policy.max_positions:
            limit = f"{self._policy.name} has {self._policy.positions}"
            return Rejection(Reason.PROMPT_TOO_LONG, f"{asked}, {limit}")
        if len(ids) + sampling.max_new_tokens > limits.max_positions:
            return Rejection(Reason.PROMPT_TOO_LONG, f"{asked}, vLLM has room for {limits.max_positions}")
        return None

    def _completion(self, sampled: Sampled, stops: Stops) -> Completion:
        ids = list(sampled.token_ids)
        if not math.isfinite(sum(sampled.logprobs)):
            raise EngineError(f"{self._policy.name} gives logits that are not finite: its weights are broken")
        # If the two disagree on the text, vLLM's decides, because it stopped there.
        return Completion(
            text=self._policy.decode(ids),
            finish_reason=stops.reason(ids) or "stop_sequence",
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            versions=sampled.versions,
        )
