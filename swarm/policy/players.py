"""A language model that plays against the policy, in the process of the game: on the CPU, one decision at a time.

It is asked as a policy in its seat would be. An answer is a function of what was asked, so that a game can be replayed
by this process, and by others with the same software on such a processor.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import GenerationConfig

from swarm.errors import SwarmError, TaskError
from swarm.lru import LruDict
from swarm.policy.config import OpponentSettings
from swarm.policy.loading import load_policy
from swarm.policy.out_of_memory import is_out_of_memory
from swarm.types import Context, Observation, Past, Step, as_prompt
from swarm.types.thoughts import answer_of

REMEMBERED = 1_024
"""Answers; the same is asked again with every turn that is replayed."""

_opened: dict[str, Model | TaskError] = {}


class Model:
    """A loaded model."""

    def __init__(self, settings: OpponentSettings) -> None:
        """Load it from its directory. Raises `SwarmError`, and what an allocator does."""
        threads = torch.get_num_threads()
        self._policy = load_policy(settings.policy.model_copy(update={"threads": threads}), Path(settings.path))
        self._policy.model.generation_config = GenerationConfig(
            do_sample=settings.temperature > 0,
            temperature=settings.temperature or None,
            top_k=0 if settings.temperature else None,
            max_new_tokens=settings.max_new_tokens,
            eos_token_id=sorted(self._policy.stop_ids),
            pad_token_id=self._policy.pad_id,
        )
        self._longest = self._policy.max_positions - settings.max_new_tokens
        self._answers = LruDict[tuple[Context, int], tuple[int, ...]](REMEMBERED)

    def answer(self, context: Context, seed: int) -> tuple[tuple[int, ...], str, bool]:
        """Token ids, what they say after a thought, and whether it had not been asked. `seed` decides draws.

        Raises what model and template do.
        """
        known = self._answers.get((context, seed))
        ids = self._generate(self._policy.encode(context), seed) if known is None else known
        self._answers.put((context, seed), ids)
        return ids, answer_of(self._policy.said(ids)), known is None

    @torch.inference_mode()
    def _generate(self, prompt: list[int], seed: int) -> tuple[int, ...]:
        if len(prompt) > self._longest:
            raise ValueError(f"its {self._policy.max_positions} positions leave no room after {len(prompt)} tokens")
        given = torch.tensor([prompt])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found = self._policy.model.generate(given, attention_mask=torch.ones_like(given))
        return tuple(found[0, len(prompt) :].tolist())


class ModelPlayer:
    """A model in one game."""

    def __init__(self, model: Model, turn: Callable[[], None], unread: Callable[[], None]) -> None:
        """It has been asked nothing. `turn` counts its turns, `unread` those without a legal move: each once, however
        often its game is replayed."""
        self._model = model
        self._turn = turn
        self._unread = unread
        self._is_new = True
        """Whether the last turn was no replay."""
        self._context: Context | None = None
        self.said: tuple[int, ...] = ()
        """Token ids of its last turn."""

    def __call__(self, shown: Observation, seed: int) -> str:
        """What it says at its turn, where it is shown this. Raises what model and template do."""
        if self._context is None:
            self._context = as_prompt(shown)
        else:
            before = self._context if isinstance(self._context, Past) else Past(self._context, ())
            self._context = Past(before.prompt, (*before.steps, Step(self.said, shown)))
        self._is_new = True
        try:
            self.said, text, self._is_new = self._model.answer(self._context, seed)
        finally:
            if self._is_new:
                self._turn()
        return text

    def unread(self) -> None:
        """See `Speaker`."""
        if self._is_new:
            self._unread()


def open_model(task: str, settings: OpponentSettings) -> Model:
    """The model, which a process loads once. Raises `TaskError`, each time the same."""
    key = settings.model_dump_json()
    if key not in _opened:
        try:
            _opened[key] = Model(settings)
        except (SwarmError, RuntimeError, MemoryError) as error:
            _opened[key] = TaskError(f"task {task!r}: its opponent {settings.path} {_why(error)}")
    found = _opened[key]
    if isinstance(found, TaskError):
        raise found
    return found


def _why(error: Exception) -> str:
    if any(is_out_of_memory(each) for each in (error, error.__cause__) if each is not None):
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        return f"does not fit in the {limit >> 20} MiB of its process: raise verification.memory_limit_bytes"
    return f"cannot play: {error}"
