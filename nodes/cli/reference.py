"""Subcommands that describe configurations, and what there is to choose from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from nodes.cli.options import ConfigArgument, check_config, extra_fields
from nodes.cli.tasks import tasks_app
from nodes.console import make_console

app = typer.Typer()
config_app = typer.Typer(help="Show or describe configurations.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(tasks_app, name="tasks")


@app.command()
def docs(
    where: Annotated[str | None, typer.Argument(help="A document, or a section of it: operate#logs.")] = None,
) -> None:
    """Show a document of swarm, or a section of it; without a name, which ones there are."""
    from nodes.commands.reference.docs import show_document

    show_document(where, make_console())


@app.command()
def losses() -> None:
    """List the objectives with equation and paper."""
    from nodes.commands.reference.losses import list_losses

    list_losses(make_console())


@app.command()
def reasons() -> None:
    """Print the reasons for refusing groups, records and peers, in Markdown."""
    from nodes.commands.reference.reasons import reference

    print(reference(), end="")


@app.command()
def families() -> None:
    """Print which model families can generate and train here, in Markdown; takes a minute or two."""
    from nodes.commands.reference.families import reference

    print(reference(lambda family: typer.echo(family, err=True)), end="")


@config_app.command("show")
def config_show(
    context: typer.Context,
    config: ConfigArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the effective configuration and the origin of each value."""
    from swarm.config import describe_config

    rows = describe_config(check_config(config, extra_fields(context)))
    if as_json:
        print(json.dumps([{"field": path, "value": value, "origin": origin} for path, value, origin in rows], indent=1))
        return
    table = Table("field", "value", "from", box=None, pad_edge=False)
    for path, value, origin in rows:
        table.add_row(Text(path), Text(value), Text(origin), style="" if origin != "default" else "dim")
    make_console().print(table)


@config_app.command("check")
def config_check(config: Annotated[Path, typer.Argument(help="YAML configuration.")]) -> None:
    """Check a file alone; what is wrong is told with its line."""
    from swarm.config import load_config

    origins = load_config(config).origins.values()
    number = sum(origin == str(config) for origin in origins)
    make_console().print(f"{config} is valid and sets {number} fields", markup=False, highlight=False, soft_wrap=True)


@config_app.command("schema")
def config_schema() -> None:
    """Print the configuration's JSON schema, for editors."""
    from nodes.commands.reference.schema import json_schema
    from swarm.config import NodeConfig

    print(json.dumps(json_schema(NodeConfig), indent=2))


@config_app.command("reference")
def config_reference() -> None:
    """Print the configuration reference in Markdown."""
    from nodes.commands.reference.config import reference

    print(reference(), end="")


@config_app.command("sizing")
def config_sizing() -> None:
    """Print which models fit on which GPUs, in Markdown."""
    from swarm.preflight.page import page

    print(page(), end="")
