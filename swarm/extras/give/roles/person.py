"""`swarm answer`: a giver whose answers a person types, and a model beside them if there is an endpoint."""

from __future__ import annotations

import math
import sys
import threading
from typing import ClassVar

from msgspec.structs import replace
from rich.console import Console

from swarm.config import NodeConfig
from swarm.environments.answering import FindSettings
from swarm.extras.give.giving import GivenRound, GivingPlan
from swarm.extras.give.person import Asked, ChosenTask, PersonEngine, Terminal
from swarm.extras.give.roles.giver import GiverNode
from swarm.extras.give.usage import Given, given_in_words
from swarm.groups.credit import has_signal
from swarm.groups.episodes import Stream
from swarm.telemetry.samples import why
from swarm.types import GradedGroup

OWN_ANSWERS = 2
"""To each question without an endpoint: a right and a wrong one teach something."""
PERSON = "human"
"""Name of the policy of groups without a model's answers."""
MAX_FOUND_CHARS = 500
LOOKED_FOR = {
    "tags": "what stands between <answer> and </answer>",
    "last_number": "the last number",
    "boxed": "the last \\boxed{}",
    "regex": "what matches the task's find_pattern",
    "whole": "the whole text",
}
"""What counts as the answer, by the task's `find`."""


class AnswerNode(GiverNode):
    """One person, on an open transport."""

    quiet_s: ClassVar[float] = 2.0

    @classmethod
    def model(cls, config: NodeConfig) -> str:
        """See `RoleNode`."""
        return f"{PERSON}+{config.endpoint.public_model}" if config.endpoint.url else PERSON

    @classmethod
    def plan(cls, config: NodeConfig) -> list[tuple[str, str]]:
        """See `RoleNode`."""
        size = cls._group_size(config)
        if config.endpoint.url:
            answers = f"1 of yours and {size - 1} of {config.endpoint.model} at {config.endpoint.url}"
        else:
            answers = (
                f"{size} of yours, since there is no --endpoint: give a wrong one, too, because answers that are all "
                "right or all wrong teach nothing and are not shared"
            )
        return [("answers to each question", answers)]

    @staticmethod
    def _group_size(config: NodeConfig) -> int:
        return config.generation.group_size if config.endpoint.url else OWN_ANSWERS

    def _make_demand(self) -> ChosenTask:
        return ChosenTask()

    def _make_plan(self, first: int) -> GivingPlan:
        plan = super()._make_plan(first)
        size = self._group_size(self._config)
        return replace(plan, num_questions=1, group_size=size, slots=size, patience=math.inf, most_open=1)

    def _make_stream(self) -> Stream:
        config, cancelled, demand = self._config, self._cancelled, self._demand
        assert isinstance(demand, ChosenTask)
        self._terminal = Terminal(
            sys.stdin.fileno(), Console(markup=False, emoji=False), config.network.max_completion_chars, cancelled
        )
        self._tasks = {task.name: task for task in config.tasks if task.weight > 0}
        abandoned = threading.Event()
        if config.endpoint.url:
            self._engine = self._make_engine(
                None, lambda: cancelled() or abandoned.is_set(), lambda text, level: self._terminal.show(text, "yellow")
            )
        person = PersonEngine(
            self._terminal, self._group_size(config), self._question, [*self._tasks], demand, self._engine, abandoned
        )
        self._num_own = person.num_own
        self._open.callback(person.close)
        return person.stream

    def _question(self, episode: int) -> Asked:
        question = self._giver.asked(episode // self._group_size(self._config))
        task = self._tasks.get(question.ref.task)
        in_tags = isinstance(task, FindSettings) and task.find in (None, "tags") and not task.scored_by_code
        return Asked(question, self._rounds + 1, in_tags)

    def _play(self) -> GivenRound:
        """One question; then how its answer was graded, and what became of all groups."""
        report = super()._play()
        for group in report.groups:
            self._terminal.show(self._graded(group))
            shared = "its group is shared" if report.num_shared else self._unshared(group)
            self._terminal.show(f"{shared}; {given_in_words(Given(self._num_shared, self._usage.known))}", "dim")
        return report if report.groups else replace(report, problem="")

    def _graded(self, group: GradedGroup) -> str:
        """The rewards of the person's answers, and why."""
        lines = []
        for index in range(self._num_own):
            reward = group.rewards[index]
            found = group.found[index] if group.found else None
            reason = why(reward, group.expected, found)
            which = f"answer {index + 1}: " if self._num_own > 1 else ""
            lines.append(f"{which}reward {reward:g}{f'; {reason}' if reason else ''}"[:MAX_FOUND_CHARS])
        task = self._tasks.get(group.group.question.task)
        if isinstance(task, FindSettings) and not task.scored_by_code:
            counts = LOOKED_FOR[task.find or "tags"]
        else:
            counts = "all of it"
        lines.append(f"expected: {group.expected[:MAX_FOUND_CHARS] or 'no single answer'}; of a text, {counts} counts")
        if others := group.rewards[self._num_own :]:
            lines.append(f"the model's {len(others)} answers: reward {sum(others) / len(others):.2f} on average")
        return "\n".join(lines)

    def _unshared(self, group: GradedGroup) -> str:
        if has_signal(group.rewards):
            return "its group is not shared: the swarm carries no more for now"
        return "its group is not shared: all its answers have the same reward, which teaches nothing"
