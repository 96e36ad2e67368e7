"""Subcommands that describe configurations, and what there is to choose from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from nodes.cli.options import ConfigArgument, EngineOption, ModelOption, check_config, extra_fields, given_fields
from nodes.console import make_console
from nodes.roles import ROLES

app = typer.Typer()
config_app = typer.Typer(help="Show or describe configurations.", no_args_is_help=True)
tasks_app = typer.Typer(help="List what can be learned; try what a configuration asks.")
app.add_typer(config_app, name="config")
app.add_typer(tasks_app, name="tasks")


@app.command()
def docs(
    where: Annotated[str | None, typer.Argument(help="A document, or a section of it: operate#logs.")] = None,
) -> None:
    """Show a document of swarm, or a section of it; without a name, which ones there are."""
    from nodes.commands.reference import show_document

    show_document(where, make_console())


@app.command()
def losses() -> None:
    """List the objectives with equation and paper."""
    from nodes.commands.reference import list_losses

    list_losses(make_console())


@app.command()
def reasons() -> None:
    """Print the reasons for refusing groups, records and peers, in Markdown."""
    from nodes.commands.reference import reasons_reference

    print(reasons_reference(), end="")


@app.command()
def families() -> None:
    """Print which model families can generate and train here, in Markdown; takes a minute or two."""
    from nodes.commands.families import reference

    print(reference(lambda family: typer.echo(family, err=True)), end="")


@config_app.command("show")
def config_show(
    context: typer.Context,
    config: ConfigArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the effective configuration and the origin of each value."""
    from nodes.boot.resolve import described
    from swarm.config import describe_config, describe_tasks

    loaded, lines = described(check_config(config, extra_fields(context)))
    rows = describe_config(loaded)
    if as_json:
        print(json.dumps([{"field": path, "value": value, "origin": origin} for path, value, origin in rows], indent=1))
        return
    table = Table("field", "value", "from", box=None, pad_edge=False)
    for path, value, origin in rows:
        shown = describe_tasks(loaded.config) if path == "tasks" else value
        table.add_row(Text(path), Text(shown), Text(origin), style="" if origin != "default" else "dim")
    console = make_console()
    console.print(table)
    for line in lines:
        console.print(Text(line))


@config_app.command("check")
def config_check(config: Annotated[Path, typer.Argument(help="YAML configuration.")]) -> None:
    """Check a file alone; errors name their lines."""
    from nodes.boot.resolve import check_recorded
    from swarm.config import load_config

    loaded = load_config(config)
    check_recorded(loaded.config)
    number = sum(origin == str(config) for origin in loaded.origins.values())
    make_console().print(f"{config} is valid and sets {number} fields", markup=False, highlight=False, soft_wrap=True)


@config_app.command("schema")
def config_schema() -> None:
    """Print the configuration's JSON schema, for editors."""
    from nodes.commands.reference import json_schema
    from swarm.config import NodeConfig

    print(json.dumps(json_schema(NodeConfig), indent=2))


@config_app.command("reference")
def config_reference() -> None:
    """Print the configuration reference in Markdown."""
    from nodes.commands.reference import config_reference as reference

    print(reference(), end="")


@config_app.command("sizing")
def config_sizing() -> None:
    """Print which models fit on which GPUs, in Markdown."""
    from nodes.commands.init import recipes
    from swarm.config import load_config
    from swarm.kinds import extra

    sizing = extra("preflight.sizing")
    offered = [sizing.Recipe(name, each.command, load_config(each.file).config) for name, each in recipes().items()]
    print(sizing.page(lambda command: ROLES[command].duties, offered), end="")


@tasks_app.command("list")
def tasks_list(
    pattern: Annotated[str, typer.Argument(help="Only tasks whose name contains this.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the available tasks, each with an example: what `swarm tasks` does by default."""
    from nodes.commands.tasks import list_tasks

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
    from nodes.commands.tasks import try_tasks

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
