"""Questions that a benchmark can solve without the task library, and a policy that answers half of them correctly."""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Generator, Sequence

from swarm.environments.sources.reasoning_gym import ReasoningGymTask
from swarm.protocols import Turns
from swarm.types import Completion, Context, Past, Prompt, Rejection, Sampling, as_text

SLOW_TASK = "futoshiki"
"""A task whose questions take 0.1 to 1 s to make."""
ARITHMETIC = (
    ReasoningGymTask(name="products", options={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}),
    ReasoningGymTask(
        name="basic_arithmetic",
        options={
            "min_terms": 2,
            "max_terms": 2,
            "min_digits": 1,
            "max_digits": 2,
            "operators": ["+", "-"],
            "allow_parentheses": False,
            "allow_negation": False,
        },
    ),
)
TASKS = (*ARITHMETIC, ReasoningGymTask(name=SLOW_TASK, weight=0.001))
GROUP_SIZE = 4

_EXPRESSION = re.compile(r"(\d+) ([-+*]) (\d+)")
_ANSWER = re.compile(r"<answer>(.*?)</answer>")


def solve(prompt: Prompt) -> int | None:
    """The answer to a question of `ARITHMETIC`; None for any other."""
    found = _EXPRESSION.search(as_text(prompt))
    if found is None:
        return None
    left, operator, right = int(found[1]), found[2], int(found[3])
    return {"+": left + right, "-": left - right, "*": left * right}[operator]


def is_right(prompt: Prompt, text: str) -> bool:
    """Whether a completion answers a question of `ARITHMETIC` correctly."""
    answers = _ANSWER.findall(text)
    return bool(answers) and answers[-1] == str(solve(prompt))


def answer(value: int | None, num_chars: int, source: random.Random) -> str:
    """A completion with an answer after some incompressible reasoning."""
    reasoning = base64.b64encode(source.randbytes(num_chars * 3 // 4 + 3)).decode()[:num_chars]
    return f"{reasoning} <answer>{value}</answer>"


class HalfRight:
    """`RolloutEngine` without a model: the first half of each group's completions is right."""

    def __init__(self, num_chars: int) -> None:
        """Completions of about `num_chars` characters."""
        self.num_chars = num_chars

    def generate(
        self, prompts: Sequence[Context], num_completions: int, sampling: Sampling, seed: int
    ) -> list[tuple[Completion, ...] | Rejection]:
        """[P][G]; the same seed gives the same completions."""
        source = random.Random(seed)
        asked = [each.prompt if isinstance(each, Past) else each for each in prompts]
        return [self._group(solve(prompt), num_completions, source) for prompt in asked]

    def stream(
        self,
        prompts: Sequence[Context],
        num_completions: int,
        sampling: Sampling,
        seed: int,
        turns: Turns | None = None,
    ) -> Generator[tuple[int, tuple[Completion, ...] | Rejection]]:
        """The same, group by group."""
        yield from enumerate(self.generate(prompts, num_completions, sampling, seed))

    def _group(self, right: int | None, num_completions: int, source: random.Random) -> tuple[Completion, ...]:
        wrong = None if right is None else right + 1
        values = [right if index < num_completions // 2 else wrong for index in range(num_completions)]
        return tuple(Completion(answer(value, self.num_chars, source), "stop") for value in values)
