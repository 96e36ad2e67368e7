"""Generation with the trained weights themselves: no copy, no transfer.

prompts ─▶ drafts ─▶ scheduler ─▶ rows of the slot cache ─▶ a step: model, sample, stop? ─▶ groups, once whole
                         ▲                                              │
                         └──── a finished row's slot is free again ◀────┘
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

from torch import Tensor

from swarm.engines.base import PolicyEngine
from swarm.engines.config import GenerationSettings
from swarm.engines.sampling import completion_seed
from swarm.engines.transformers.batch import Batch
from swarm.engines.transformers.budget import find_room
from swarm.engines.transformers.decoder import Decoder
from swarm.engines.transformers.scheduler import BLOCK, Draft, Room
from swarm.errors import Interrupted
from swarm.policy.loading import Policy
from swarm.policy.weights import swap_weights
from swarm.reasons import Reason
from swarm.types import Answers, Completion, Prompt, Rejection, Sampling


class TransformersEngine(PolicyEngine):
    """Continuous batching: a prompt is prefilled once for all its completions, and a free slot is refilled at once."""

    def __init__(
        self, policy: Policy, settings: GenerationSettings, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """`cancelled` is polled between decode steps; once true, generation raises `Interrupted`.

        Raises `EngineError` for an unsupported model architecture.
        """
        super().__init__(policy)
        self._settings = settings
        self._cancelled = cancelled
        self._decoder = Decoder(policy)

    def stream(
        self, prompts: Sequence[Prompt], num_completions: int, sampling: Sampling, seed: int
    ) -> Generator[tuple[int, Answers]]:
        """Yield each prompt's index and its G completions as soon as they are complete. See `RolloutEngine`."""
        stops = self._stops(sampling)
        room = find_room(self._settings, self._decoder, self._policy.device, len(prompts) * num_completions)
        encoded = [self._policy.encode_prompt(prompt) for prompt in prompts]
        refused = {i: r for i, ids in enumerate(encoded) if (r := self._refusal(i, ids, sampling, room))}
        drafts = [
            Draft(question, completion, ids, completion_seed(seed, question, completion))
            for question, ids in enumerate(encoded)
            if question not in refused
            for completion in range(num_completions)
        ]
        yield from refused.items()
        batch = Batch(self._policy, self._decoder, self._settings.kv, stops, sampling, drafts, room)
        groups: dict[int, list[Draft]] = {}
        while not batch.done:
            if self._cancelled():
                raise Interrupted("generation was cancelled")
            for draft in batch.step():
                group = groups.setdefault(draft.question, [])
                group.append(draft)
                if len(group) == num_completions:
                    yield draft.question, self._completions(groups.pop(draft.question))

    def swap(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Use other weights from the next decode step on; any thread may call it. See `swap_weights`."""
        swap_weights(self._policy, weights, version)

    def close(self) -> None:
        """Nothing to do: the policy owns model and memory."""

    def _refusal(self, index: int, ids: list[int], sampling: Sampling, room: Room) -> Rejection | None:
        if not ids:
            return Rejection(Reason.PROMPT_EMPTY, f"prompt {index} has no tokens")
        needed = len(ids) + sampling.max_new_tokens
        asked = f"prompt {index} has {len(ids)} tokens and may grow by {sampling.max_new_tokens}"
        if needed > self._policy.max_positions:
            limit = f"{self._policy.name} has {self._policy.max_positions} positions"
            return Rejection(Reason.PROMPT_TOO_LONG, f"{asked}, {limit}")
        if not room.fits(needed):
            return Rejection(
                Reason.PROMPT_TOO_LONG, f"{asked}, there is room for {room.tokens} less a block of {BLOCK}"
            )
        return None

    def _completions(self, group: list[Draft]) -> tuple[Completion, ...]:
        return tuple(
            Completion(
                text=self._policy.decode(draft.ids),
                finish_reason=draft.finish_reason or "length",
                token_ids=tuple(draft.ids),
                logprobs=tuple(draft.logprobs),
                versions=draft.spans(),
                routing=b"".join(experts.tobytes() for experts in draft.routing),
            )
            for draft in sorted(group, key=lambda draft: draft.completion)
        )
