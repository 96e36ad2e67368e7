"""The whole command: its parts, the version, and what becomes of errors."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, cast

import typer

from nodes import exits
from nodes.cli import measuring, reference, running, watching
from nodes.cli.options import Command, check_known, rewrite, wrong_use
from nodes.console import literal_console, open_streams
from nodes.interrupts import Ending, end, end_by_the_first
from swarm import torchao
from swarm.children import spare_loopback
from swarm.distribution import own_version
from swarm.errors import ConfigError, IdentityError, SwarmError, TaskError, TransportError
from swarm.sanitize import CleanFormatter, clean_lines
from swarm.types import SCHEMA_VERSION

UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]  # what it extends, which typer does not export

app = typer.Typer(
    name="swarm",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for title, part in {
    "Run nodes": running.app,
    "Look at nodes": watching.app,
    "Check and measure": measuring.app,
    "Choose and configure": reference.app,
}.items():
    for command in part.registered_commands:
        command.rich_help_panel = title
    for group in part.registered_groups:
        group.rich_help_panel = title
    app.add_typer(part)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"swarm {own_version()}, schema {SCHEMA_VERSION}")
        raise typer.Exit


@app.callback()
def swarm(
    shown: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Collaborative RL post-training without a centre: train a policy, share rollouts, learn from others'."""


def main() -> None:
    """Entry point: turns typed errors, and Ctrl-C, into one message and an exit code."""
    try:
        try:
            _run()
        finally:
            end_by_the_first()  # while the interpreter ends
    except KeyboardInterrupt:
        end()


def _run() -> None:
    torchao.hide()  # before transformers is imported, which would import it
    open_streams()
    spare_loopback()
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(CleanFormatter())
    try:
        with Ending():
            arguments, fields = rewrite(sys.argv[1:])
            command = typer.main.get_command(app)
            check_known(cast(Command, command), arguments)
        sys.exit(command.main(arguments, "swarm", standalone_mode=False, obj=fields) or exits.DONE)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError" and error.ctx is not None:
            print(error.ctx.get_help(), file=sys.stderr)
            sys.exit(exits.USAGE)
        path = "swarm" if error.ctx is None else error.ctx.command_path
        _fail(f"{wrong_use(error.format_message(), arguments)}; see {path} --help", exits.USAGE)
    except typer.Abort:
        _fail("the input has ended", exits.USAGE)
    except BrokenPipeError:  # as of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered is not an error, either
        sys.exit(exits.FAILED)
    except (ConfigError, TaskError, IdentityError) as error:
        _fail(error, exits.USAGE)
    except TransportError as error:
        _fail(error, exits.NETWORK)
    except SwarmError as error:
        _fail(error, exits.FAILED)
    except OSError as error:
        from nodes.boot.directory import disk_problem

        if (problem := disk_problem(error)) is None:
            raise
        _fail(problem, exits.FAILED)


def _fail(error: SwarmError | str, code: int) -> None:
    text = f"error: {clean_lines(str(error))}"
    literal_console(stderr=True).print(text, style="red", highlight=False, soft_wrap=True)
    sys.exit(code)
