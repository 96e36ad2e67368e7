"""Subcommands of `swarm tasks`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nodes.cli.options import (
    EngineOption,
    ModelOption,
    check_config,
    extra_fields,
    given_fields,
)
from nodes.console import make_console

tasks_app = typer.Typer(help="List what can be learned; try what a configuration asks.")


@tasks_app.command("list")
def tasks_list(
    pattern: Annotated[str, typer.Argument(help="Only tasks whose name contains this.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the available tasks, each with an example: what `swarm tasks` does by default."""
    from nodes.commands.tasks.listing import list_tasks

    list_tasks(pattern, as_json, make_console())


@tasks_app.command("try")
def tasks_try(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML configuration.")],
    model: ModelOption = None,
    questions: Annotated[int, typer.Option(min=1, help="Questions to ask.")] = 5,
    answers: Annotated[
        int, typer.Option(min=1, help="Answers to each: 1 is the most likely one, more are sampled as in training.")
    ] = 1,
    engine: EngineOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask a model some questions of a configuration's tasks; show each with the completion and its reward."""
    pairs = [*given_fields({"policy.model": model, "generation.engine": engine}), *extra_fields(context)]
    check_config(config, pairs)
    from nodes.commands.tasks.trial import try_tasks

    try_tasks(config, pairs, questions, answers, as_json, make_console())


@tasks_app.command("strategy")
def tasks_strategy(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML configuration with a task of Kuhn poker.")],
    model: ModelOption = None,
    hands: Annotated[int, typer.Option(min=1, help="Hands to play.")] = 2_000,
    name: Annotated[str, typer.Option(help="Name of the opponent.")] = "earlier",
) -> None:
    """Print how a model plays Kuhn poker: an opponent for a later run's `strategies`."""
    pairs = [*given_fields({"policy.model": model}), *extra_fields(context)]
    check_config(config, pairs)
    from swarm.kinds import extra

    extra("poker.strategy").print_strategy(config, pairs, hands, name)
