"""Subcommands of `swarm identity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nodes.cli.options import DEFAULT_HOME
from nodes.console import make_console

identity_app = typer.Typer(help="Show, back up and restore a node's key.", no_args_is_help=True)
HomeArgument = Annotated[Path, typer.Argument(help="A node's directory, or its key file.")]
PassphraseOption = Annotated[Path | None, typer.Option(help="File whose first line is the backup's passphrase.")]


@identity_app.command("show")
def identity_show(
    where: HomeArgument = DEFAULT_HOME,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show peer id, key file, its mode and age, and whether a node is using it."""
    from nodes.commands.running.identity import show_identity

    show_identity(where, as_json, make_console())


@identity_app.command("export")
def identity_export(
    backup: Annotated[Path, typer.Argument(help="File to write; must not exist yet.")],
    where: Annotated[Path, typer.Option("--from", help="A node's directory, or its key file.")] = DEFAULT_HOME,
    passphrase_file: PassphraseOption = None,
) -> None:
    """Back up a node's key; the node may be running."""
    from nodes.commands.running.identity import export_identity

    export_identity(backup, where, passphrase_file, make_console())


@identity_app.command("import")
def identity_import(
    backup: Annotated[Path, typer.Argument(help="A file written by `swarm identity export`.")],
    where: Annotated[Path, typer.Option("--to", help="A node's directory, or a key file.")] = DEFAULT_HOME,
    passphrase_file: PassphraseOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace another identity; its file is kept.")] = False,
) -> None:
    """Restore a key, which gives the directory's node that peer id."""
    from nodes.commands.running.identity import import_identity

    import_identity(backup, where, passphrase_file, force, make_console())
