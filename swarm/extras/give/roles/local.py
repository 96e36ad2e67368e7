"""`swarm give --engine NAME`: a giver whose answers are those of a model that is loaded here, and not trained."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from msgspec.structs import replace

from nodes.roles.runtime import NodeParts
from swarm.config import NodeConfig
from swarm.engines.choice import open_untrained
from swarm.extras.give.giving import GivingPlan
from swarm.extras.give.roles.giver import GiverNode, questions_a_round
from swarm.groups.episodes import Stream
from swarm.preflight.duties import Duties
from swarm.types import Answers, Rejection


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
        """Load everything. Raises `PolicyError`, `ConfigError`, `EngineError`."""
        parts.check_one_process(self.role)
        self._progress = parts.progress
        super().__init__(parts)

    def _make_plan(self, first: int) -> GivingPlan:
        num_questions = questions_a_round(self._config, self._device.type)
        slots = self._config.generation.max_batch_sequences
        return replace(super()._make_plan(first), num_questions=num_questions, slots=slots)

    def _make_stream(self) -> Stream:
        config = self._config
        self._choice, self._device, _, engine = open_untrained(
            config.policy, config.generation, self._cancelled, self._progress
        )
        self._open.callback(engine.close)

        def stream(*asked: Any, **named: Any) -> Generator[tuple[int, Answers]]:
            for name, answers in engine.stream(*asked, **named):
                if not isinstance(answers, Rejection):
                    self._generated += sum(len(each.token_ids) for each in answers)
                yield name, answers

        return stream

    def begin(self) -> None:
        """Also say which engine it is, and why. Raises `Interrupted`."""
        super().begin()
        self.note(str(self._choice), self._choice.level)

    @property
    def _num_tokens(self) -> int:
        return self._generated
