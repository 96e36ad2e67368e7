"""Generation with the very weights that are trained: no copy, no transfer.

    prompts ─▶ drafts ─▶ scheduler ─▶ rows of the slot cache ─▶ one step: model, sample, stop? ─┐
                               ▲                                                                   │
                               └────────── a finished row's slot is taken at the next step ◀───────┘
                                                                                                   ▼
                                                                             groups, as soon as they are whole

Every step feeds each row its newest token, the prompt's last one at first. So reading a past gives keys and values
only, every token is sampled at one place, and a row that lost its slot or its past is read again like a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from swarm.engines.config import GenerationSettings
from swarm.engines.decoder import READ_TOKENS, Decoder
from swarm.engines.memory import token_budget
from swarm.engines.sampling import check_sampling, completion_seed, sample, uniforms
from swarm.engines.scheduler import BLOCK, Draft, Plan, Scheduler
from swarm.engines.slots import Prefix, SlotCache
from swarm.engines.stopping import Stops
from swarm.errors import EngineError, Interrupted
from swarm.policy.loading import Policy
from swarm.policy.weights import swap_weights
from swarm.types import Answers, Completion, Rejection, Sampling


class TransformersEngine:
    """Continuous batching: a prompt is read once for all its completions, a finished row's place is filled at once."""

    def __init__(
        self, policy: Policy, settings: GenerationSettings, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """`cancelled` is asked between decode steps; once true, generation raises `Interrupted`.

        Raises `EngineError` when the model's architecture is not one this engine can serve.
        """
        self._policy = policy
        self._settings = settings
        self._cancelled = cancelled
        self._decoder = Decoder(policy)

    def check(self, sampling: Sampling) -> None:
        """Raises `SamplingError` for settings that cannot be used with this policy."""
        check_sampling(sampling)
        Stops(self._policy, sampling)

    def generate(self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int) -> list[Answers]:
        """G completions for each of P prompts, [P][G], or why a prompt has none. See `RolloutEngine`."""
        answers = dict(self.stream(prompts, num_completions, sampling, seed))
        return [answers[i] for i in range(len(prompts))]

    def stream(
        self, prompts: Sequence[str], num_completions: int, sampling: Sampling, seed: int
    ) -> Iterator[tuple[int, Answers]]:
        """Each prompt's index and its G completions as soon as it has them all. See `RolloutEngine`."""
        self.check(sampling)
        stops = Stops(self._policy, sampling)
        max_rows = min(self._settings.max_batch_sequences, max(1, len(prompts) * num_completions))
        max_tokens = token_budget(
            self._policy.device,
            self._settings.memory_fraction,
            max_rows,
            self._decoder.bytes_per_token,
            self._decoder.vocabulary,
            self._settings.max_batch_tokens,
        )
        encoded = [self._policy.encode_prompt(prompt) for prompt in prompts]
        refused = {i: r for i, ids in enumerate(encoded) if (r := self._refusal(i, ids, sampling, max_tokens))}
        drafts = [
            Draft(question, completion, ids, completion_seed(seed, question, completion))
            for question, ids in enumerate(encoded)
            if question not in refused
            for completion in range(num_completions)
        ]
        yield from refused.items()
        run = _Run(self._policy, self._decoder, self._settings.kv, sampling, stops, drafts, max_rows, max_tokens)
        groups: dict[int, list[Draft]] = {}
        while not run.done:
            if self._cancelled():
                raise Interrupted("generation was cancelled")
            for draft in run.step():
                group = groups.setdefault(draft.question, [])
                group.append(draft)
                if len(group) == num_completions:
                    yield draft.question, self._completions(groups.pop(draft.question))

    def swap(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Go on with other weights from the next decode step; any thread may call. See `swap_weights`."""
        swap_weights(self._policy, weights, version)

    def _refusal(self, index: int, ids: list[int], sampling: Sampling, max_tokens: int) -> Rejection | None:
        if not ids:
            return Rejection("prompt_empty", f"prompt {index} has no tokens")
        needed = len(ids) + sampling.max_new_tokens
        asked = f"prompt {index} has {len(ids)} tokens and may grow by {sampling.max_new_tokens}"
        if needed > self._policy.max_positions:
            limit = f"{self._policy.name} has {self._policy.max_positions} positions"
            return Rejection("prompt_too_long", f"{asked}, {limit}")
        if needed + BLOCK > max_tokens:
            return Rejection("prompt_too_long", f"{asked}, there is memory for {max_tokens} less {BLOCK} to spare")
        return None

    def _completions(self, group: list[Draft]) -> tuple[Completion, ...]:
        return tuple(
            Completion(
                text=self._policy.decode(draft.ids),
                finish_reason=draft.finish_reason or "length",
                token_ids=tuple(draft.ids),
                logprobs=tuple(draft.logprobs),
                versions=draft.spans(),
            )
            for draft in sorted(group, key=lambda draft: draft.completion)
        )


class _Run:
    """One call's sequences on their way through the slots."""

    def __init__(
        self,
        policy: Policy,
        decoder: Decoder,
        kv: str,
        sampling: Sampling,
        stops: Stops,
        drafts: list[Draft],
        max_rows: int,
        max_tokens: int,
    ) -> None:
        self._policy = policy
        self._decoder = decoder
        self._kv = kv
        self._sampling = sampling
        self._stops = stops
        self._scheduler = Scheduler(drafts, max_rows, max_tokens)
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._cache = self._new_cache()
        self._prompts: dict[int, Prefix] = {}
        """Prompts that have been read and whose completions have not all begun, by question."""
        self._changes = policy.gate.changes

    @property
    def done(self) -> bool:
        return self._scheduler.done

    def step(self) -> list[Draft]:
        """One token for every row; the sequences that it finished."""
        with self._policy.gate.use(), torch.no_grad():
            if self._changes != self._policy.gate.changes:
                self._weights_changed()
            try:
                return self._decode()
            except torch.OutOfMemoryError as error:
                self._make_do_with_less(error)
                return []

    def _decode(self) -> list[Draft]:
        plan = self._scheduler.plan()
        rows = self._scheduler.rows
        self._cache.arrange(plan)
        if plan.admitted:
            self._fill(plan)
        logits = self._decoder.step(self._cache, [row.last for row in rows], [row.num_tokens - 1 for row in rows])
        uniform = uniforms([row.seed for row in rows], [len(row.ids) for row in rows])
        tokens, logprobs = (values.tolist() for values in sample(logits, self._sampling, uniform))
        if math.isnan(sum(logprobs)):
            raise EngineError(f"{self._policy.name} gives logits that are not finite: its weights are broken")
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            row.append(token, logprob, self._policy.version)
            row.finish_reason = self._stops.reason(row.ids)
        return [row for row in rows if row.finish_reason is not None]

    def _fill(self, plan: Plan) -> None:
        """Give newcomers their past: that of their prompt, or their own if they had a slot before."""
        begun = [row for row in plan.admitted if row.ids]
        fresh = [row for row in plan.admitted if not row.ids]
        self._read_prompts({row.question for row in fresh} - set(self._prompts), fresh)
        own = dict(zip((id(row) for row in begun), self._decoder.read([row.read for row in begun]), strict=True))
        places: dict[int, tuple[Prefix, list[int]]] = {}
        for place, row in enumerate(plan.admitted, start=plan.num_kept):
            prefix = own[id(row)] if row.ids else self._prompts[row.question]
            places.setdefault(id(prefix), (prefix, []))[1].append(place)
        for prefix, rows in places.values():
            self._cache.fill(rows, prefix)
        open_questions = {row.question for row in self._scheduler.upcoming()}
        self._prompts = {q: prefix for q, prefix in self._prompts.items() if q in open_questions}

    def _read_prompts(self, needed: set[int], fresh: list[Draft]) -> None:
        """Read the prompts that are needed now and, in the same pass, those that come next."""
        if not needed:
            return
        prompts = {row.question: row.read for row in fresh if row.question in needed}
        for row in self._scheduler.upcoming():
            if row.question in self._prompts or row.question in prompts or row.ids:
                continue
            longest = max(row.num_tokens, *(len(prompt) for prompt in prompts.values()))
            if (len(prompts) + 1) * longest > READ_TOKENS // 4:
                break
            prompts[row.question] = row.read
        self._prompts |= zip(prompts, self._decoder.read(list(prompts.values())), strict=True)

    def _weights_changed(self) -> None:
        """What has been read ahead is read again with the new weights; what rows hold, if asked for."""
        self._changes = self._policy.gate.changes
        self._prompts.clear()
        if self._kv == "recompute":
            self._scheduler.requeue()

    def _make_do_with_less(self, error: torch.OutOfMemoryError) -> None:
        if not self._scheduler.halve():
            raise EngineError(f"not even one sequence has room on {self._policy.device}: {error}") from error
        self._prompts.clear()
        self._cache = self._new_cache()
        if self._policy.device.type == "cuda":
            torch.cuda.empty_cache()

    def _new_cache(self) -> SlotCache:
        return self._decoder.cache(self._max_rows, self._max_tokens)
