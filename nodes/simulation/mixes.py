"""Mixes by name: `I/J` for I own and J others' groups in an update, or a policy that decides."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from swarm.config import NodeConfig, Values, load_config
from swarm.errors import ConfigError
from swarm.sapo.mixing.policies import find_policy

Fields = Sequence[tuple[str, str]]
"""(dotted path, text) of configuration fields."""
_FIXED = re.compile(r"(\d+)/(\d+)")


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
        find_policy(name)
    except ValueError as error:
        raise ConfigError(f"a mix must be I/J, such as 4/4, or the name of a policy: {error}") from error
    return name
