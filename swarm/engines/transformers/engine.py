"""Generation with the trained weights themselves: no copy, no transfer.

prompts ─▶ drafts ─▶ scheduler ─▶ rows of the slot cache ─▶ a step: model, sample, stop? ─▶ groups, once whole
             ▲           ▲                                              │
             │           └──── a finished row's slot is free again ◀────┤
           turns that are ready ◀── environment ◀── an episode's turn ◀─┘
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

from torch import Tensor

from swarm.engines.base import PolicyEngine
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.batch import Batch
from swarm.engines.transformers.budget import find_room
from swarm.engines.transformers.decoder import Decoder
from swarm.engines.transformers.intake import Intake
from swarm.engines.transformers.probe import most_rows
from swarm.engines.transformers.recorded import cuda_recorder
from swarm.engines.transformers.scheduler import Draft
from swarm.errors import Interrupted
from swarm.policy.loading import Policy
from swarm.policy.weights import swap_weights
from swarm.protocols import Turns
from swarm.types import Answers, Completion, Context, Rejection, Sampling


class TransformersEngine(PolicyEngine):
    """Continuous batching: a prompt is prefilled once for all its completions, and a free slot is refilled at once."""

    def __init__(
        self, policy: Policy, settings: GenerationSettings, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """`cancelled` is polled between decode steps; once true, generation raises `Interrupted`.

        Raises `EngineError` for an unsupported model architecture, found by a probe of its code.
        """
        super().__init__(policy)
        self._settings = settings
        self._cancelled = cancelled
        self._decoder = Decoder(policy, cuda_recorder(policy.device) if settings.records(policy.device.type) else None)
        self._most_rows = most_rows(policy)

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, Answers]]:
        """Yield each prompt's index and its G completions as soon as they are complete. See `RolloutEngine`."""
        stops = self._stops(sampling)
        num_sequences = len(prompts) * num_completions + (turns.num_episodes if turns else 0)
        num_rows = min(num_sequences, self._most_rows or num_sequences)
        room = find_room(self._settings, self._decoder, self._policy.device, num_rows)
        intake = Intake(self._policy, sampling, seed, room)
        batch = Batch(self._policy, self._decoder, self._settings.kv, stops, sampling, room)
        try:
            yield from self._answers(batch, intake, prompts, num_completions, turns)
        finally:
            batch.close()

    def _answers(
        self, batch: Batch, intake: Intake, prompts: Sequence[Context], num_completions: int, turns: Turns | None
    ) -> Generator[tuple[int, Answers]]:
        for index, prompt in enumerate(prompts):
            if isinstance(drafts := intake.prompt(index, prompt, num_completions), Rejection):
                yield index, drafts
            else:
                batch.add(drafts)
        groups: dict[int, list[Draft]] = {}
        while True:
            ready = turns.take(wait=batch.done) if turns else ()
            if batch.done and not ready:
                return
            for turn in ready:
                if isinstance(draft := intake.turn(turn), Rejection):
                    yield turn.episode, draft
                else:
                    batch.add([draft])
            if turns:
                batch.expect(turns.continuing)
            if self._cancelled():
                raise Interrupted("generation was cancelled")
            for draft in batch.step() if not batch.done else ():
                if draft.episode is not None:
                    yield draft.episode, self._completions([draft])
                    continue
                group = groups.setdefault(draft.question, [])
                group.append(draft)
                if len(group) == num_completions:
                    yield draft.question, self._completions(groups.pop(draft.question))

    def swap(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Use other weights from the next decode step on; any thread may call it. See `swap_weights`."""
        swap_weights(self._policy, weights, version)

    def close(self) -> None:
        """Nothing to do: the policy owns model and memory."""

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
