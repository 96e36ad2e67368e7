"""`swarm give --engine NAME`: a giver whose answers are those of a model that is loaded here, and not trained."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

from msgspec.structs import replace

from nodes.roles.runtime import NodeParts
from swarm.config import NodeConfig
from swarm.engines.choice import choose, look_for_vllm, open_engine
from swarm.extras.give.giving import GivingPlan
from swarm.extras.give.roles.giver import GiverNode
from swarm.groups.episodes import Stream
from swarm.policy.devices import find_device
from swarm.policy.loading import load_policy
from swarm.preflight.duties import Duties
from swarm.protocols import Turns
from swarm.types import Answers, Context, Rejection, Sampling


class LocalGiverNode(GiverNode):
    """One giver with its model, on an open transport."""

    has_policy = True
    duties = Duties(trains=False)
    _generated = 0
    """Tokens."""

    @classmethod
    def model(cls, config: NodeConfig) -> str:
        """See `RoleNode`."""
        return super(GiverNode, cls).model(config)

    @classmethod
    def plan(cls, config: NodeConfig) -> list[tuple[str, str]]:
        """See `RoleNode`."""
        return cls._plan_of_rounds(config)

    def __init__(self, parts: NodeParts) -> None:
        """Load everything. Raises `PolicyError`, `ConfigError`, `EngineError`, and `PeerUnreachable` without a run."""
        parts.check_one_process(self.role)
        self._progress = parts.progress
        self._device = find_device(parts.config.policy.device)
        super().__init__(parts)

    def _make_plan(self, first: int) -> GivingPlan:
        num_questions = self._config.num_questions(self._device.type)
        slots = self._config.generation.max_batch_sequences
        return replace(super()._make_plan(first), num_questions=num_questions, slots=slots)

    def _make_stream(self) -> Stream:
        generation, settings = self._config.generation, self._config.policy
        look = partial(look_for_vllm, generation.vllm.python)
        choice = choose(generation, settings.model, self._device.type, 1, look, settings.routing_replay)
        policy = load_policy(settings, progress=self._progress, only_handed_over=choice.name == "vllm")
        engine = open_engine(choice, policy, settings, generation, self._cancelled, self._device)
        self._open.callback(engine.close)
        engine.check(generation.sampling())

        def stream(
            prompts: Sequence[Context],
            num_completions: int,
            sampling: Sampling,
            seed: int,
            turns: Turns | None = None,
        ) -> Generator[tuple[int, Answers]]:
            for name, answers in engine.stream(prompts, num_completions, sampling, seed, turns):
                if not isinstance(answers, Rejection):
                    self._generated += sum(len(each.token_ids) for each in answers)
                yield name, answers

        return stream

    @property
    def _num_tokens(self) -> int:
        return self._generated
