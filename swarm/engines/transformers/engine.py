"""Generation with the trained weights themselves: no copy, no transfer.

prompts ─▶ sequences ─▶ scheduler ─▶ rows of the slot cache ─▶ a step: model, sample, stop? ─▶ groups, once whole
             ▲              ▲                                              │
             │              └──── a finished row's slot is free again ◀────┤
           turns that are ready ◀── environment ◀── an episode's turn ◀────┘
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import count

import torch
from torch import Tensor

from swarm.engines.base import MOST_RECENT, Contexts, PolicyEngine
from swarm.engines.config import GenerationSettings
from swarm.engines.sampling import completion_seed
from swarm.engines.transformers.batch import Batch
from swarm.engines.transformers.cuda_graphs import cuda_recorder
from swarm.engines.transformers.decoder import Decoder
from swarm.engines.transformers.probe import most_rows
from swarm.engines.transformers.scheduler import Room, SequenceState
from swarm.errors import Interrupted, OutOfMemory
from swarm.lru import LruDict
from swarm.policy.loading import Policy
from swarm.policy.out_of_memory import free_bytes
from swarm.policy.weights import swap_weights
from swarm.protocols import Turns
from swarm.types import Answers, Completion, Context, NextTurn, Past, Prompt, Rejection, Sampling

LOGIT_COPIES = 6
"""Copies of the logits during sampling."""
RECORDED_COPIES = LOGIT_COPIES
"""Further copies in CUDA graphs, which have their own memory."""


def logit_copies(settings: GenerationSettings, device: str) -> int:
    """Most vocabulary-wide float32 rows at a time on this type of torch device."""
    return LOGIT_COPIES + (RECORDED_COPIES if settings.records(device) else 0)


def find_room(settings: GenerationSettings, decoder: Decoder, device: torch.device, num_sequences: int) -> Room:
    """The capacity by the settings, reduced when memory is short. Raises `OutOfMemory` when there is none."""
    free, fraction = free_bytes(device) + decoder.kept_bytes, settings.memory_fraction
    max_rows = min(settings.max_batch_sequences, max(1, num_sequences))
    for_logits = max_rows * decoder.vocabulary * logit_copies(settings, device.type) * torch.float32.itemsize
    affordable = int((fraction * free - for_logits) // decoder.bytes_per_token)
    if affordable < 1:
        raise OutOfMemory(
            f"{fraction:g} of the {free / 2**20:.0f} MiB free on {device} is too little for {max_rows} sequences; "
            "lower generation.max_batch_sequences, or raise generation.memory_fraction"
        )
    return Room(max_rows, min(affordable, settings.max_batch_tokens or affordable))


class Requests:
    """The sequences of one call."""

    def __init__(self, policy: Policy, sampling: Sampling, seed: int, room: Room) -> None:
        """`room` bounds each sequence."""
        self._contexts = Contexts(policy, sampling.max_new_tokens, ("the cache", room.longest))
        self._seed = seed
        self._places = policy.mrope_positions
        self._questions = count(-1, -1)
        """Numbers of turns' questions; a prompt's is its index."""
        self._starts = LruDict[Prompt, int](MOST_RECENT)
        """Question numbers of episodes' first prompts."""

    def prompt(self, index: int, prompt: Context, num_completions: int) -> list[SequenceState] | Rejection:
        """G sequences of one prompt."""
        ids = self._contexts.prompt(index, prompt)
        if isinstance(ids, Rejection):
            return ids
        following = self._following(ids)
        return [
            SequenceState(index, k, ids, completion_seed(self._seed, index, k), following=following)
            for k in range(num_completions)
        ]

    def turn(self, turn: NextTurn) -> SequenceState | Rejection:
        """The sequence of an episode's next turn."""
        ids = self._contexts.turn(turn)
        if isinstance(ids, Rejection):
            return ids
        seed = completion_seed(self._seed, turn.episode, turn.number)
        question = self._question(turn.context)
        return SequenceState(
            question,
            turn.episode,
            ids,
            seed,
            episode=turn.episode,
            turn=turn.number,
            following=self._following(ids),
        )

    def _following(self, ids: list[int]) -> int | None:
        return None if self._places is None else int(self._places(ids).max()) + 1

    def _question(self, context: Context) -> int:
        """Equal for turns that can share a prefill."""
        if isinstance(context, Past):
            return next(self._questions)
        if context not in self._starts:
            self._starts[context] = next(self._questions)
        return self._starts[context]


def open_engine(
    policy: Policy,
    settings: GenerationSettings,
    trust_remote_code: bool,
    device: torch.device | None,
    cancelled: Callable[[], bool],
) -> TransformersEngine:
    """The engine on the policy's own device and code. Raises `EngineError`."""
    return TransformersEngine(policy, settings, cancelled)


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
        requests = Requests(self._policy, sampling, seed, room)
        batch = Batch(self._policy, self._decoder, self._settings.kv, stops, sampling, room)
        try:
            yield from self._answers(batch, requests, prompts, num_completions, turns)
        finally:
            batch.close()

    def _answers(
        self, batch: Batch, requests: Requests, prompts: Sequence[Context], num_completions: int, turns: Turns | None
    ) -> Generator[tuple[int, Answers]]:
        for index, prompt in enumerate(prompts):
            if isinstance(sequences := requests.prompt(index, prompt, num_completions), Rejection):
                yield index, sequences
            else:
                batch.add(sequences)
        groups: dict[int, list[SequenceState]] = {}
        while True:
            ready = turns.next_turns(wait=batch.done) if turns else ()
            if batch.done and not ready:
                return
            for turn in ready:
                if isinstance(sequence := requests.turn(turn), Rejection):
                    yield turn.episode, sequence
                else:
                    batch.add([sequence])
            if turns:
                batch.expect(turns.continuing)
            if self._cancelled():
                raise Interrupted("generation was cancelled")
            for sequence in batch.step() if not batch.done else ():
                if sequence.episode is not None:
                    yield sequence.episode, self._completions([sequence])
                    continue
                group = groups.setdefault(sequence.question, [])
                group.append(sequence)
                if len(group) == num_completions:
                    yield sequence.question, self._completions(groups.pop(sequence.question))

    def swap(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Use other weights from the next decode step on; any thread may call it. See `swap_weights`."""
        swap_weights(self._policy, weights, version)

    def close(self) -> None:
        """Nothing to do: the policy owns model and memory."""

    def _completions(self, group: list[SequenceState]) -> tuple[Completion, ...]:
        return tuple(
            Completion(
                text=self._policy.said(sequence.sampled, sequence.forced),
                finish_reason=sequence.finish_reason or "length",
                token_ids=tuple(sequence.sampled),
                logprobs=tuple(sequence.logprobs),
                versions=sequence.spans(),
                routing=b"".join(experts.tobytes() for experts in sequence.routing),
                forced=sequence.forced,
            )
            for sequence in sorted(group, key=lambda sequence: sequence.completion)
        )
