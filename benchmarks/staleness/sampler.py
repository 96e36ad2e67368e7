"""Samples batches of graded groups with the policy as it is at the time."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.staleness.subject import Subject
from swarm.engines.transformers.engine import TransformersEngine
from swarm.evaluation import evaluate
from swarm.groups.expectation import log_group_expectation
from swarm.policy.loading import Policy
from swarm.types import HELD_OUT_STREAMS, Grade, GradedGroup, PolicyId, Rejection, RolloutGroup


class Sampler:
    """Questions and samples of a batch are functions of the seed and the batches that are sampled with it."""

    def __init__(self, policy: Policy, subject: Subject, per_batch: int, group_size: int, seed: int) -> None:
        """`per_batch` questions make a batch; each gets `group_size` completions."""
        self._policy = policy
        self._engine = TransformersEngine(policy, subject.generation)
        self._subject = subject
        self._per_batch = per_batch
        self._group_size = group_size
        self._seed = seed

    def sample(self, batches: Sequence[int]) -> dict[int, list[GradedGroup]]:
        """P groups for each of these batches."""
        if not batches:
            return {}
        subject, size = self._subject, self._per_batch
        questions = [question for b in batches for question in subject.verifier.draw(self._seed, b * size, size)]
        prompts = [question.prompt for question in questions]
        seed = self._seed * 1_000_003 + batches[0]
        generated = self._engine.generate(prompts, self._group_size, subject.sampling, seed)
        answers = [completions for completions in generated if not isinstance(completions, Rejection)]
        assert len(answers) == len(questions), "the questions fit the policy"
        grades = subject.verifier.grade(
            [(q.ref, [c.text for c in completions]) for q, completions in zip(questions, answers, strict=True)]
        )
        groups = []
        for question, completions, grade in zip(questions, answers, grades, strict=True):
            assert isinstance(grade, Grade)
            group = RolloutGroup(
                run_id="",
                peer_id="",
                sequence=0,
                created_at=0.0,
                policy=PolicyId(self._policy.name, "", self._policy.version),
                sampling=subject.sampling,
                question=question.ref,
                completions=completions,
                rewards=grade.rewards,
                log_expectation=log_group_expectation(completions),
            )
            groups.append(GradedGroup(group, question.prompt, grade.rewards))
        return {batch: groups[i * size : (i + 1) * size] for i, batch in enumerate(batches)}

    def accuracy(self, step: int, num_questions: int) -> float:
        """On held-out questions, others at each step."""
        stream = HELD_OUT_STREAMS + 1_000 * self._seed + step
        found = evaluate(self._engine, self._subject.verifier, self._subject.sampling, num_questions, stream)
        return found.accuracy or 0.0
