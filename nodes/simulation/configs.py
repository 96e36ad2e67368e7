"""Configurations of simulated nodes: members, seeds, mixes, and a demo's with a real language model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from pydantic import JsonValue

from swarm.config import NodeConfig, Values, load_config
from swarm.errors import ConfigError
from swarm.machine import num_cores
from swarm.policy.config import EMBEDDED
from swarm.sapo.mixing.policies import POLICIES

SEEDS_APART = 1_000
"""Between the first nodes of two swarms: more than there are nodes in one."""
Fields = Sequence[tuple[str, str]]
"""(dotted path, text) of configuration fields."""
_FIXED = re.compile(r"(\d+)/(\d+)")
ROUNDS = 24
ROUNDS_EMBEDDED = 200
GROUP_SIZE = 8
MAX_NEW_TOKENS = 24
MICRO_BATCH_TOKENS = 512
"""Half of a CPU's default: several nodes share the memory."""
EVALUATION_QUESTIONS = 64
TASKS: tuple[dict[str, JsonValue], ...] = (
    {
        "kind": "reasoning_gym",
        "name": "sums",
        "dataset": "basic_arithmetic",
        "find": "last_number",
        "ask": "",
        "options": {
            "min_terms": 2,
            "max_terms": 2,
            "min_digits": 1,
            "max_digits": 2,
            "operators": ["+"],
            "allow_parentheses": False,
            "allow_negation": False,
        },
    },
    {
        "kind": "reasoning_gym",
        "name": "gcd",
        "find": "last_number",
        "ask": "",
        "options": {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 20},
    },
)
"""The answer is a completion's last number: a small model states answers in sentences and never writes tags."""


class Member(Struct, frozen=True):
    """A node of a run."""

    config: NodeConfig
    """With its own `name`, `out` and `seed`."""
    joins_at: int = 0
    """Turns after which it joins."""


def node_seed(swarm_seed: int, node: int) -> int:
    """The seed of node `node`, from 0: no node of another swarm asks the same questions."""
    return swarm_seed * SEEDS_APART + node


def lone(num_groups: int) -> Values:
    """What makes a node the control of one in a swarm: as many groups in an update, all of them its own.

    Nobody would take its groups, so it gives none: the result is the same, and comes sooner.
    """
    return {"mix": {"local": num_groups, "external": 0}, "share": {"groups": "none"}}


def as_fields(values: Values) -> list[tuple[str, str]]:
    """Nested values as fields."""
    fields: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            fields += [(f"{key}.{path}", text) for path, text in as_fields(value)]
        else:
            fields.append((key, value if isinstance(value, str) else json.dumps(value)))
    return fields


def named(mixes: Sequence[str]) -> tuple[str, ...]:
    """Each mix once, by its usual name: `04/4` is `4/4`."""
    return tuple(dict.fromkeys(re.sub(r"\d+", lambda digits: str(int(digits[0])), mix) for mix in mixes))


def mix_configs(
    mixes: Sequence[str], file: Path | None, environment: Mapping[str, str], fields: Fields = ()
) -> dict[str, NodeConfig]:
    """The configuration of each mix, by name.

    All ask as many questions a round as the first mix has groups, or as configured if a policy decides that; a mix with
    more own groups, such as the control 20/0, asks as many as these. Raises `ConfigError`.
    """
    first = _FIXED.fullmatch(mixes[0])
    budget = int(first[1]) + int(first[2]) if first else None
    return {mix: _config(mix, budget, file, environment, fields) for mix in mixes}


def _config(
    mix: str, budget: int | None, file: Path | None, environment: Mapping[str, str], fields: Fields
) -> NodeConfig:
    fixed = _FIXED.fullmatch(mix)
    if fixed:
        chosen = [("mix.policy", "fixed"), ("mix.local", fixed[1]), ("mix.external", fixed[2])]
    else:
        chosen = [("mix.policy", _policy(mix))]
    num_questions = budget or load_config(file, None, environment, fields).config.num_questions("cpu")
    if fixed:
        num_questions = max(num_questions, int(fixed[1]))
    if fixed and int(fixed[2]) == 0:
        chosen.append(("share.groups", "none"))  # as `lone` does
    chosen.append(("generation.questions_per_round", str(num_questions)))
    return load_config(file, None, environment, [*fields, *chosen]).config


def _policy(name: str) -> str:
    """The name, if a policy has it. Raises `ConfigError`."""
    try:
        POLICIES.find(name)
    except ValueError as error:
        raise ConfigError(f"a mix must be I/J, such as 4/4, or the name of a policy: mix.policy {error}") from error
    return name


def real_model(model: str, num_groups: int, num_nodes: int) -> Values:
    """The configuration of nodes with this policy, where it differs from a demo's with the embedded one.

    A round asks as many questions as an update has groups, so that a lone node can train on as many of its own.
    """
    return {
        # Without a prompt for tags; every node gets its share of the cores.
        "policy": {"model": model, "system_prompt": "", "threads": max(1, num_cores() // num_nodes)},
        "tasks": [dict(task) for task in TASKS],
        "generation": {
            "questions_per_round": num_groups,
            "group_size": GROUP_SIZE,
            "max_new_tokens": MAX_NEW_TOKENS,
        },
        "update": {"micro_batch_tokens": MICRO_BATCH_TOKENS},
        "checkpoint": {"every_rounds": 25, "keep": 1},
        "evaluation": {"num_questions": EVALUATION_QUESTIONS},
    }


def num_rounds(model: str | None) -> int:
    """Rounds of a demo with this policy; None: the embedded one."""
    return ROUNDS_EMBEDDED if model is None or model in EMBEDDED else ROUNDS
