"""Subcommands that run nodes."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from nodes.cli.options import (
    DEFAULT_HOME,
    BootstrapOption,
    ConfigArgument,
    EngineOption,
    Fields,
    LiveOption,
    ModelOption,
    Options,
    OutOption,
    RunsArgument,
    SupervisedOption,
    TargetArgument,
    check_config,
    check_node,
    extra_fields,
    find_target,
    given_fields,
    say_starting,
)
from nodes.console import make_console
from nodes.roles import ROLES
from swarm.errors import ConfigError
from swarm.kinds import extra

if TYPE_CHECKING:
    from swarm.config import LoadedConfig

DEFAULT_MIXES = ("8/0", "6/2", "4/4", "2/6", "auto")
"""Those of SAPO's paper, and the policy that combines the others."""

app = typer.Typer()
service_app = typer.Typer(help="Have the machine run a node.", no_args_is_help=True)
identity_app = typer.Typer(help="Show, back up and restore a node's key.", no_args_is_help=True)
app.add_typer(service_app, name="service")
app.add_typer(identity_app, name="identity")

HomeArgument = Annotated[Path, typer.Argument(help="A node's directory, or its key file.")]
EndpointOption = Annotated[
    str | None, typer.Option(help="Address of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1.")
]
EndpointModelOption = Annotated[str | None, typer.Option("--model", help="The model's name there.")]
PassphraseOption = Annotated[Path | None, typer.Option(help="File whose first line is the backup's passphrase.")]


@app.command()
def demo(
    mode: Annotated[
        str, typer.Option(help="swarm: peers that learn from each other; learner: one learner with workers.")
    ] = "swarm",
    peers: Annotated[int, typer.Option(min=1, max=64, help="Number of peers; each is a process.")] = 4,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds of each peer, or steps of the learner. Default: 200, with a real model 24."),
    ] = None,
    local: Annotated[int | None, typer.Option(min=0, help="I: local groups per update. Default: 4.")] = None,
    external: Annotated[int | None, typer.Option(min=0, help="J: external groups per update. Default: 4.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every peer's questions and samples.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Directory for results; default: a new one under runs/.")] = None,
    live: LiveOption = True,
    model: Annotated[
        str | None,
        typer.Option(
            help="smollm2, a local directory or a hub id: a real language model. Default: the embedded policy."
        ),
    ] = None,
    engine: EngineOption = None,
    transport: Annotated[
        str, typer.Option(help="hivemind: real processes and network; memory: one process, repeatable.")
    ] = "hivemind",
    start: Annotated[
        str | None,
        typer.Option(
            help="sparse: a policy that is hardly ever right at first; dense: one that often is; sees: a sparse one, "
            "asked about pictures. Default: sparse, with --mode learner dense."
        ),
    ] = None,
    control: Annotated[
        bool, typer.Option(help="Run one more node, which learns alone: what the others gain over it is the answer.")
    ] = True,
    ui: Annotated[bool, typer.Option(help="Serve a page about all nodes for browsers on this machine.")] = True,
) -> None:
    """Run a swarm on this machine, and one node alone: is it better to learn together?"""
    if transport not in ("hivemind", "memory"):
        raise ConfigError(f"--transport must be hivemind or memory, got {transport!r}")
    if mode not in ("swarm", "learner"):
        raise ConfigError(f"--mode must be swarm or learner, got {mode!r}")
    if mode == "learner" and (transport == "memory" or peers < 2):
        raise ConfigError("--mode learner needs --peers of at least 2 and --transport hivemind")
    if mode == "learner":
        extra("learner")
    if start not in (None, "sparse", "dense", "sees"):
        raise ConfigError(f"--start must be sparse, dense or sees, got {start!r}")
    if start is not None and model is not None:
        raise ConfigError(f"--start chooses between embedded policies: leave it out with --model, got {model!r}")
    say_starting("a swarm on this machine")
    # Fields of the environment stand for options that are not given.
    loaded = check_config(None, given_fields({"policy.model": model, "generation.engine": engine, "rounds": rounds}))
    config, chosen = loaded.config, loaded.origins
    policy = config.policy.model if "policy.model" in chosen else None
    from nodes.commands.demo import DemoOptions, Start, demo as run
    from nodes.simulation.configs import num_rounds

    options = DemoOptions(
        peers=peers,
        rounds=config.rounds or num_rounds(policy),
        local=config.mix.local if local is None else local,
        external=config.mix.external if external is None else external,
        seed=seed,
        out=out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S"),
        live=live,
        transport="memory" if transport == "memory" else "hivemind",
        mode="learner" if mode == "learner" else "swarm",
        engine=config.generation.engine if "generation.engine" in chosen else None,
        start=cast(Start, start or ("dense" if mode == "learner" else "sparse")),
        policy=policy,
        control=control,
        ui=ui,
        ui_port=config.telemetry.ui_port,
    )
    raise typer.Exit(run(options, make_console()))


def _start(
    command: str,
    context: typer.Context,
    target: TargetArgument = None,
    bootstrap: BootstrapOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    name: Annotated[str | None, typer.Option(help="Name of this {role} in views and reports.")] = None,
    run_name: Annotated[str | None, typer.Option(help="Name of the run to found when none is joined.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Stop after this many {rounds}.")] = None,
    seed: Annotated[int | None, typer.Option(help="Stream of questions and samples.")] = None,
    follow: Annotated[
        str | None, typer.Option(help="Peer id of a learner; its snapshots are adopted when they answer better.")
    ] = None,
    out: OutOption = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from a checkpoint with another objective, other tasks or another role."),
    ] = False,
    live: LiveOption = True,
    ui: Annotated[
        bool | None, typer.Option("--ui/--no-ui", help="Serve a page about this node for browsers on this machine.")
    ] = None,
    report: Annotated[bool, typer.Option(help="Write report.html and summary.json at the end.")] = True,
    supervised: SupervisedOption = False,
) -> None:
    """Start a node, unless something can be refused at once: the commands join, learn and work."""
    say_starting(f"`swarm {command}`")
    options: Options = {
        "policy.model": model,
        "generation.engine": engine,
        "name": name,
        "run_name": run_name,
        "rounds": rounds,
        "seed": seed,
        "follow.learner": follow,
        "out": out,
        "telemetry.ui": ui,
        "checkpoint.resume_changed": resume or None,
    }
    file, pairs = find_target(target, bootstrap)
    pairs += [*given_fields(options), *extra_fields(context)]
    loaded = check_node(file, pairs)
    if command == "join" and file is None and run_name is None and not supervised and (asked := _asked(loaded)):
        loaded = check_config(file, [*pairs, *asked])
    if command not in ROLES or loaded.config.follow.learner is not None:
        extra("learner")
    if command == "work":
        from nodes.boot.directory import check_joins

        check_joins(loaded)
    from nodes.boot.loop import launch

    role = ROLES[command]
    raise typer.Exit(launch(role, loaded, make_console(), live=live, report=report, supervised=supervised))


def _node_command(command: str, role: str, summary: str, rounds: str, without: Sequence[str] = ()) -> None:
    """Add a command that starts a node, with the options of `_start` but some."""

    def run(**given: Any) -> None:
        _start(command, **given)

    parameters = list(inspect.signature(_start, eval_str=True).parameters.values())[1:]
    for parameter in parameters:
        for info in getattr(parameter.annotation, "__metadata__", ()):
            info.help = info.help.replace("{role}", role).replace("{rounds}", rounds)
    kept = [parameter for parameter in parameters if parameter.name not in without]
    run.__signature__ = inspect.Signature(kept)  # type: ignore[attr-defined]  # the parser reads it
    run.__doc__ = (
        f"{summary} Set any configuration field with --path.to.field VALUE.\n\n"
        "`swarm config show` lists the fields with their values, docs/configuration.md what they mean."
    )
    app.command(command)(run)


_node_command("join", "peer", "Train as one peer of a swarm.", "rounds")
_node_command("learn", "learner", "Train one policy on its workers' rollouts.", "steps", ("engine", "seed", "follow"))
_node_command(
    "work",
    "worker",
    "Sample rollouts for a learner with its snapshots.",
    "batches of questions",
    ("run_name", "follow"),
)


@app.command()
def give(
    context: typer.Context,
    target: TargetArgument = None,
    bootstrap: BootstrapOption = None,
    endpoint: EndpointOption = None,
    model: EndpointModelOption = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Load the model here, without an endpoint: auto, transformers, or vllm; --model as in join."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of this giver in views and reports.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Stop after this many rounds of questions.")] = None,
    groups: Annotated[int | None, typer.Option(min=1, help="Stop after this many groups are given.")] = None,
    out: OutOption = None,
    live: LiveOption = True,
    supervised: SupervisedOption = False,
) -> None:
    """Give a swarm the graded answers of any model behind an endpoint: no GPU, no torch. Trains nothing.

    With --engine, the model is loaded here instead. Set any configuration field with --path.to.field VALUE, such as
    --endpoint.api_key_env OPENAI_API_KEY.
    """
    from nodes.commands.give import give as run

    if engine is not None and endpoint is not None:
        raise ConfigError("--engine loads the model here, and --endpoint asks a server for it: give one of the two")
    if engine is not None and model is None:
        raise ConfigError("--engine needs --model: a hub id, a local directory, or tiny")
    say_starting("`swarm give`")
    options: Options = {
        "out": out or "runs/giver",
        "endpoint.url": endpoint,
        **({"endpoint.model": model} if engine is None else {"generation.engine": engine, "policy.model": model}),
        "endpoint.groups": groups,
        "name": name,
        "rounds": rounds,
    }
    loaded = _check_giver(context, target, bootstrap, options)
    raise typer.Exit(run(loaded, make_console(), live=live, supervised=supervised))


@app.command()
def answer(
    context: typer.Context,
    target: TargetArgument = None,
    bootstrap: BootstrapOption = None,
    endpoint: EndpointOption = None,
    model: EndpointModelOption = None,
    name: Annotated[str | None, typer.Option(help="Name of this member in views and reports.")] = None,
    groups: Annotated[int | None, typer.Option(min=1, help="Stop after this many groups are given.")] = None,
    out: OutOption = None,
) -> None:
    """Answer a run's questions yourself, in this terminal, and give the graded answers to its members.

    A group of answers teaches by its differences: with --endpoint and --model a model adds others to each of yours;
    without, you give two to each question, of which one should be wrong. Without a terminal, lines of standard input
    are the answers.
    """
    from nodes.commands.give import answer as run

    options: Options = {
        "out": out or "runs/answers",
        "endpoint.url": endpoint,
        "endpoint.model": model,
        "endpoint.groups": groups,
        "name": name,
        "telemetry.log_every_rounds": 1_000_000,  # the person sees each question anyway
    }
    raise typer.Exit(run(_check_giver(context, target, bootstrap, options), make_console()))


def _check_giver(
    context: typer.Context, target: str | None, bootstrap: list[str] | None, options: Options
) -> LoadedConfig:
    from swarm.policy.config import BEHIND_ENDPOINT

    file, pairs = find_target(target, bootstrap)
    return check_node(
        file, [*pairs, *given_fields({"policy.model": BEHIND_ENDPOINT, **options}), *extra_fields(context)]
    )


@app.command()
def bootstrap(
    context: typer.Context,
    config: ConfigArgument = None,
    run_name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    relay: Annotated[bool, typer.Option("--relay", help="Also relay connections of peers behind NAT.")] = False,
    out: OutOption = None,
    supervised: SupervisedOption = False,
) -> None:
    """Start a run and print the command that others join it with. Trains nothing."""
    pairs = [("out", "runs/bootstrap"), *given_fields({"out": out, "run_name": run_name})]
    pairs += [*([("network.serve_relay", "true")] if relay else []), *extra_fields(context)]
    loaded = check_node(config, pairs)
    from nodes.roles.bootstrap import bootstrap as run

    raise typer.Exit(run(loaded, make_console(), supervised=supervised))


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="File to write; must not exist yet.")] = Path("swarm.yaml"),
    bootstrap: BootstrapOption = None,
    run_name: Annotated[str | None, typer.Option(help="Start a run of this name instead of joining one.")] = None,
    model: ModelOption = None,
    name: Annotated[str | None, typer.Option(help="Name that the run's members see.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port for others to connect to; 0: any free one.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Begin with an example, such as gsm8k.")] = None,
) -> None:
    """Write a configuration that fits this machine, and say what it will cost. Asks five questions, or takes flags."""
    from nodes.commands.init import Given, init as run

    given = Given(tuple(bootstrap) if bootstrap else None, run_name, model, name, port, recipe)
    run(file, given, make_console())


@app.command()
def pause(
    runs: RunsArgument = None,
    lasting: Annotated[str | None, typer.Option("--for", help="How long, such as 90m, 8h or 2d.")] = None,
    until: Annotated[str | None, typer.Option(help="Until when, in local time, such as 18:00.")] = None,
) -> None:
    """Let nodes pause when their round is finished, until `swarm resume`. They stay members of their run."""
    from nodes.commands.control import pause_nodes

    pause_nodes(runs or [], lasting, until, make_console())


@app.command()
def resume(runs: RunsArgument = None) -> None:
    """End what `swarm pause` began; a node's schedule still holds."""
    from nodes.commands.control import resume_nodes

    resume_nodes(runs or [], make_console())


@app.command()
def stop(runs: RunsArgument = None) -> None:
    """End nodes as Ctrl-C does: with a checkpoint, from which the same command goes on."""
    from nodes.commands.control import stop_nodes

    stop_nodes(runs or [], make_console())


@app.command()
def sweep(
    context: typer.Context,
    config: ConfigArgument = None,
    mix: Annotated[
        list[str] | None,
        typer.Option(
            help="I/J: own and others' groups per update; or a mix.policy. The first is the baseline. Takes several."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each mix.")] = 5,
    peers: Annotated[int, typer.Option(min=1, max=64, help="Peers of each swarm.")] = 8,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of each peer; default: the configuration's, or else 100.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for results; a sweep that was stopped there goes on.")] = Path(
        "runs/sweep"
    ),
    transport: Annotated[
        str, typer.Option(help="memory: a swarm is one process, repeatable; hivemind: real processes and network.")
    ] = "memory",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Swarms at a time; default: one per core, with hivemind one.")
    ] = None,
) -> None:
    """Compare mixes of own and others' groups, a swarm for each and seed. Set any field with --path.to.field VALUE."""
    if transport not in ("memory", "hivemind"):
        raise ConfigError(f"--transport must be memory or hivemind, got {transport!r}")
    from nodes.commands.sweep import SweepOptions, sweep as run
    from nodes.simulation.configs import named
    from swarm.machine import num_cores

    options = SweepOptions(
        file=config,
        fields=extra_fields(context),
        mixes=named(mix or DEFAULT_MIXES),
        num_seeds=seeds,
        peers=peers,
        rounds=rounds,
        out=out,
        transport="hivemind" if transport == "hivemind" else "memory",
        jobs=jobs or (num_cores() if transport == "memory" else 1),
    )
    raise typer.Exit(run(options, make_console()))


@app.command("simulate-in-memory", hidden=True)
def simulate_in_memory(
    config: Path,
    out: Path,
    peers: int,
    first_seed: int,
    control: Annotated[Path | None, typer.Option()] = None,
    supervised: SupervisedOption = False,
) -> None:
    """Run all nodes of a demo in this process."""
    from nodes.simulation.in_memory import simulate_in_memory as run

    raise typer.Exit(run(config, out, peers, first_seed, control, supervised))


@service_app.command("install", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
def service_install(
    command: Annotated[
        list[str], typer.Argument(help="The command to run with its options: join, learn, work or bootstrap.")
    ],
    name: Annotated[str, typer.Option(help="Of the service: swarm-NAME.")] = "node",
    show: Annotated[bool, typer.Option("--print", help="Print the file instead of writing it.")] = False,
) -> None:
    """Write a systemd unit, or on macOS a launchd list, that runs a node for this user and restarts it when it fails.

    Options of the service come first: swarm service install --name home join /ip4/... --out runs/peer
    """
    from nodes.commands.service import install_service

    install_service(command, name, show, make_console())


@identity_app.command("show")
def identity_show(
    where: HomeArgument = DEFAULT_HOME,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show peer id, key file, its mode and age, and whether a node is using it."""
    from nodes.commands.identity import show_identity

    show_identity(where, as_json, make_console())


@identity_app.command("export")
def identity_export(
    backup: Annotated[Path, typer.Argument(help="File to write; must not exist yet.")],
    where: Annotated[Path, typer.Option("--from", help="A node's directory, or its key file.")] = DEFAULT_HOME,
    passphrase_file: PassphraseOption = None,
) -> None:
    """Back up a node's key; the node may be running."""
    from nodes.commands.identity import export_identity

    export_identity(backup, where, passphrase_file, make_console())


@identity_app.command("import")
def identity_import(
    backup: Annotated[Path, typer.Argument(help="A file written by `swarm identity export`.")],
    where: Annotated[Path, typer.Option("--to", help="A node's directory, or a key file.")] = DEFAULT_HOME,
    passphrase_file: PassphraseOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace another identity; its file is kept.")] = False,
) -> None:
    """Restore a key, which gives the directory's node that peer id."""
    from nodes.commands.identity import import_identity

    import_identity(backup, where, passphrase_file, force, make_console())


def _asked(loaded: LoadedConfig) -> Fields:
    """The address of a member, asked for where there is a terminal and the directory belongs to no run yet."""
    from nodes.boot.directory import remembered
    from nodes.commands.init import ask_address

    config = loaded.config
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty() and "WORLD_SIZE" not in os.environ
    if config.network.bootstrap or not at_terminal or remembered(config.out) is not None:
        return []
    return [("network.bootstrap", address) for address in ask_address(make_console())]
