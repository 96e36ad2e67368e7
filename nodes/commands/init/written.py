"""The file that `swarm init` writes: YAML with a comment above every field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from msgspec import Struct
from pydantic import JsonValue

from nodes.commands.init.answers import Answers
from swarm.config import CONFIG_VERSION

if TYPE_CHECKING:
    from swarm.preflight.check import Changes

INDENT = "  "
TO_FIT = "Set so that the node fits into this machine's memory."


class Field(Struct, frozen=True):
    """A field with its reason."""

    path: str
    value: JsonValue
    comment: str


def fields_of(answers: Answers, changes: Changes) -> list[Field]:
    """The fields in the order of the file; `changes` make the node fit."""
    fields = [Field("version", CONFIG_VERSION, "Version of the format, so that a later program can tell.")]
    if answers.name:
        fields.append(Field("name", answers.name, "Shown to the run's members."))
    if answers.run_name and not answers.bootstrap:
        fields.append(Field("run_name", answers.run_name, "Name of the run that this node founds."))
    fields.append(
        Field("out", "runs/peer", "Identity, checkpoints, metrics and reports: with it a node resumes as itself.")
    )
    model = [Field("policy.model", answers.model, "A hub id, a local directory, smollm2, or tiny, which is embedded.")]
    network = []
    if answers.bootstrap:
        members = "Members to find the run by; any will do, and more than one is safer."
        network.append(Field("network.bootstrap", list(answers.bootstrap), members))
    if answers.port:
        port = "The port that others connect to: let it through the firewall, and forward it in the router."
        network.append(Field("network.listen", [f"/ip4/0.0.0.0/tcp/{answers.port}"], port))
    rest = [Field(path, list(value) if isinstance(value, tuple) else value, TO_FIT) for path, value in changes]
    # Fields of one group stand together.
    return [*fields, *sorted([*network, *model, *rest], key=lambda field: field.path.split(".")[:-1])]


def in_yaml(fields: Sequence[Field], machine: str, date: str, file: Path) -> str:
    """The whole file."""
    head = [
        f"# Written by `swarm init` on {date} for {machine}.",
        f"# Start the node:            swarm join {file}",
        f"# Check this file:           swarm config check {file}",
        f"# All fields and defaults:   swarm config show {file}, and docs/configuration.md",
        "# Tasks, group size and mix are the run's, unless you set them here.",
        "",
    ]
    return "\n".join([*head, *_lines(fields), ""])


def _lines(fields: Sequence[Field]) -> Iterator[str]:
    inside: list[str] = []
    for field in fields:
        *groups, leaf = field.path.split(".")
        for depth, group in enumerate(groups):
            if inside[: depth + 1] != groups[: depth + 1]:
                yield f"{INDENT * depth}{group}:"
        inside = groups
        indent = INDENT * len(groups)
        yield f"{indent}# {field.comment}"
        yield f"{indent}{leaf}: {_flow(field.value)}"


def _flow(value: JsonValue) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.strip().removesuffix("\n...").strip()
