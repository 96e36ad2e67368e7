"""Pairs of a completion and a reference with known truth.

`cases` are public bug reports, `own` and `adversarial` were written for this project, `math_verify` are the pairs of
Math-Verify's own tests (`SOURCES.md`), whose references and completions may be prose.
"""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct, convert

from swarm.environments.answering import FindRule, MatchRule
from swarm.environments.scoring.finding import finder
from swarm.environments.scoring.grading import matches
from swarm.environments.sources.dataset import DatasetTask


class Pair(Struct, frozen=True):
    """A completion, and whether it is right."""

    kind: str
    match: MatchRule
    find: FindRule | None
    completion: str
    reference: str
    right: bool
    question: str | None = None


def graded(pair: Pair) -> bool:
    """Whether a data set's task grades the completion as right."""
    find = {} if pair.find is None else {"find": pair.find}
    answer = finder(DatasetTask(kind="dataset", name="pairs", path="pairs.jsonl", match=pair.match, **find))(
        pair.completion
    )
    return answer is not None and matches(pair.match, answer, pair.reference, pair.question)


def _read(name: str) -> tuple[Pair, ...]:
    lines = (Path(__file__).parent / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(convert(json.loads(line), Pair) for line in lines)


SETS = {name: _read(name) for name in ("math_verify", "own", "cases", "adversarial")}
