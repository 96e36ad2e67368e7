"""Subcommands that look at nodes and what they wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nodes.cli.options import DEFAULT_HOME, RunsArgument, SupervisedOption, is_address
from nodes.console import make_console
from swarm.errors import ConfigError

app = typer.Typer()


@app.command()
def peers(
    target: Annotated[
        str, typer.Argument(help="Directory of a running node, or the multiaddr of any member of a run.")
    ] = str(DEFAULT_HOME),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh in a terminal until Ctrl-C.")] = False,
) -> None:
    """Show the peers of a run, what they send, and how useful it was to this node."""
    from nodes.commands.peers import show_peers

    show_peers(target, is_address(target), as_json, watch, make_console())


@app.command()
def runs(
    addresses: Annotated[
        list[str] | None,
        typer.Argument(
            help="Multiaddrs of bootstraps or members; default: those in ~/.config/swarm/bootstraps, one a line."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs that can be joined: those that bootstraps list, signed by their founders."""
    from nodes.commands.runs import show_runs

    raise typer.Exit(show_runs(addresses or (), as_json, make_console()))


@app.command()
def ui(
    runs: RunsArgument = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: 8787, or a free one.")] = None,
    socket: Annotated[int | None, typer.Option(hidden=True, help="An inherited listening socket.")] = None,
    supervised: SupervisedOption = False,
) -> None:
    """Serve a page about nodes for browsers on this machine: does the swarm help, who shares what, what is wrong."""
    from nodes.commands.watching import UiOptions, show_ui

    raise typer.Exit(show_ui(UiOptions(tuple(runs or ()), port, socket, supervised), make_console()))


@app.command()
def site(
    out: Annotated[Path, typer.Argument(help="Folder of the web host; its index.html and swarm.json are replaced.")],
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Multiaddrs of members of runs, or directories of nodes; default: ~/.config/swarm/bootstraps."
        ),
    ] = None,
    every: Annotated[float | None, typer.Option(min=10, help="Write it every so many seconds until Ctrl-C.")] = None,
    supervised: SupervisedOption = False,
) -> None:
    """Write a swarm's page as files for any web host: how to join, how it is, a leaderboard by measured credit."""
    from nodes.commands.site import SiteOptions, write_site

    found = targets or ()
    addresses = tuple(target for target in found if is_address(target))
    runs = tuple(Path(target) for target in found if target not in addresses)
    raise typer.Exit(write_site(SiteOptions(out, addresses, runs, every, supervised), make_console()))


@app.command()
def top(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Directories of nodes, or of a demo, or the multiaddr of a member of a run; default: every node "
            "running on this machine."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print once.")] = False,
) -> None:
    """Show nodes live in a terminal, with what is wrong and what to do. Of a run's member: whom it knows."""
    addresses = [target for target in targets or () if is_address(target)]
    if addresses:
        from nodes.commands.peers import show_peers

        if len(targets or ()) > 1:
            raise ConfigError("name one address, or directories")
        console = make_console()
        show_peers(addresses[0], True, False, console.is_terminal and not once, console)
        return
    from nodes.commands.watching import show_top

    show_top([Path(target) for target in targets or ()], once, make_console())


@app.command()
def logs(
    runs: RunsArgument = None,
    last: Annotated[int, typer.Option(min=1, help="Most lines to show, the latest.")] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    rounds: Annotated[bool, typer.Option("--rounds", help="A line for each round, too.")] = False,
    level: Annotated[str, typer.Option(help="The least to show: info, warning or error.")] = "info",
) -> None:
    """Show what happened to nodes: starts, notes, warnings, evaluations, checkpoints, ends."""
    from nodes.commands.watching import LEVELS, LogOptions, show_logs

    if level not in LEVELS:
        raise ConfigError(f"--level must be one of {', '.join(LEVELS)}, got {level!r}")
    show_logs(LogOptions(tuple(runs or ()), last, follow, rounds, level), make_console())


@app.command()
def samples(
    run: Annotated[Path, typer.Argument(help="A node's directory.")] = DEFAULT_HOME,
    task: Annotated[str | None, typer.Option(help="Only groups of this task.")] = None,
    sender: Annotated[str | None, typer.Option(help="Only of this peer: beginning or end of its id.")] = None,
    outcome: Annotated[
        str | None,
        typer.Option(help="Only with this: used_local, used_external, no_signal, unused, refused, or a reason."),
    ] = None,
    last: Annotated[int, typer.Option(min=1, help="Most groups to show, the latest.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show questions and answers of a node and its peers, with rewards and what became of them."""
    from nodes.commands.watching import SampleFilter, show_samples

    show_samples(run, SampleFilter(task, sender, outcome, last), as_json, make_console())


@app.command()
def health(
    out: Annotated[
        Path | None, typer.Argument(help="A node's directory; default: every node running on this machine.")
    ] = None,
    within: Annotated[float, typer.Option(min=0, help="Maximum seconds since a peer's last round.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that nodes make progress: exits with 0 if so, 1 if one does not or none runs. For health checks."""
    from nodes.commands.control import report_health

    raise typer.Exit(report_health(out, within, as_json, make_console()))
