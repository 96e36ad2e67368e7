"""The `swarm` command. Each subcommand imports its modules when it runs, so that help and errors appear at once."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodes import exits
from nodes.command_line import Fields, rewrite
from swarm.errors import ConfigError, IdentityError, SwarmError, TaskError, TransportError
from swarm.foreign import CleanFormatter, clean_lines
from swarm.types import SCHEMA_VERSION

if TYPE_CHECKING:
    from swarm.config import LoadedConfig
    from swarm.preflight.need import RoleName

MULTIADDR_STARTS = ("/ip4/", "/ip6/", "/dns/", "/dns4/", "/dns6/", "/dnsaddr/")
DEFAULT_HOME = Path("runs/peer")
DEFAULT_MIXES = ("8/0", "6/2", "4/4", "2/6", "auto")
"""Those of SAPO's paper, and the policy that combines the others."""

app = typer.Typer(
    name="swarm",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Show or describe configurations.", no_args_is_help=True)
app.add_typer(config_app, name="config")

tasks_app = typer.Typer(help="List what can be learned; try what a configuration asks.")
app.add_typer(tasks_app, name="tasks")

service_app = typer.Typer(help="Have the machine run a node.", no_args_is_help=True)
app.add_typer(service_app, name="service")

identity_app = typer.Typer(help="Show, back up and restore a node's key.", no_args_is_help=True)
app.add_typer(identity_app, name="identity")

ConfigArgument = Annotated[Path | None, typer.Argument(help="YAML configuration; default: the built-in one.")]
SupervisedOption = Annotated[bool, typer.Option("--supervised", hidden=True, help="Stop when standard input ends.")]
HomeArgument = Annotated[Path, typer.Argument(help="A node's directory, or its key file.")]
PassphraseOption = Annotated[Path | None, typer.Option(help="File whose first line is the backup's passphrase.")]
EngineOption = Annotated[str | None, typer.Option(help="Generation engine: auto, transformers or vllm.")]
TargetArgument = Annotated[
    str | None, typer.Argument(help="YAML configuration, or the multiaddr of any member of a run.")
]
BootstrapOption = Annotated[list[str] | None, typer.Option(help="Multiaddr of a member of the run; repeatable.")]
ModelOption = Annotated[str | None, typer.Option(help="Hub id, local directory, or tiny.")]
RunNameOption = Annotated[str | None, typer.Option(help="Name of the run to found when none is joined.")]
LiveOption = Annotated[bool, typer.Option(help="Draw a live view when there is a terminal.")]
UiOption = Annotated[
    bool | None, typer.Option("--ui/--no-ui", help="Serve a page about this node for browsers on this machine.")
]
ReportOption = Annotated[bool, typer.Option(help="Write report.html and summary.json at the end.")]
OutOption = Annotated[Path | None, typer.Option(help="Directory for identity, checkpoints, metrics and reports.")]


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"swarm {version('swarm')}, schema {SCHEMA_VERSION}")
        raise typer.Exit


@app.callback()
def swarm(
    shown: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Collaborative RL post-training without a centre: train a policy, share rollouts, learn from others'."""


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
            help="sparse: a policy that is hardly ever right at first; dense: one that often is. "
            "Default: sparse, with --mode learner dense."
        ),
    ] = None,
    control: Annotated[
        bool, typer.Option(help="Run one more node, which learns alone: what the others gain over it is the answer.")
    ] = True,
    ui: Annotated[bool, typer.Option(help="Serve a page about all nodes for browsers on this machine.")] = True,
) -> None:
    """Run a swarm on this machine, and one node alone: is it better to learn arithmetic together?"""
    if transport not in ("hivemind", "memory"):
        raise ConfigError(f"--transport must be hivemind or memory, got {transport!r}")
    if mode not in ("swarm", "learner"):
        raise ConfigError(f"--mode must be swarm or learner, got {mode!r}")
    if mode == "learner" and (transport == "memory" or peers < 2):
        raise ConfigError("--mode learner needs --peers of at least 2 and --transport hivemind")
    if start not in (None, "sparse", "dense"):
        raise ConfigError(f"--start must be sparse or dense, got {start!r}")
    if start is not None and model is not None:
        raise ConfigError(f"--start chooses between two embedded policies: leave it out with --model, got {model!r}")
    # Fields of the environment stand for options that are not given.
    loaded = _check(None, _given({"policy.model": model, "generation.engine": engine, "rounds": rounds}))
    config, chosen = loaded.config, loaded.origins
    policy = config.policy.model if "policy.model" in chosen else None
    from nodes.commands.demo import DemoOptions
    from nodes.commands.demo import demo as run
    from nodes.real_models.settings import num_rounds

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
        start="dense" if start == "dense" or (start is None and mode == "learner") else "sparse",
        policy=policy,
        control=control,
        ui=ui,
        ui_port=config.telemetry.ui_port,
    )
    raise typer.Exit(run(options, _console()))


@app.command()
def join(
    context: typer.Context,
    target: TargetArgument = None,
    bootstrap: BootstrapOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    name: Annotated[str | None, typer.Option(help="Name of this peer in views and reports.")] = None,
    run_name: RunNameOption = None,
    rounds: Annotated[int | None, typer.Option(help="Stop after this many rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="Stream of questions and samples.")] = None,
    follow: Annotated[
        str | None, typer.Option(help="Peer id of a learner; its snapshots are adopted when they answer better.")
    ] = None,
    out: OutOption = None,
    live: LiveOption = True,
    ui: UiOption = None,
    report: ReportOption = True,
    supervised: SupervisedOption = False,
) -> None:
    """Train as one peer of a swarm. Set any configuration field with --path.to.field VALUE.

    `swarm config show` lists the fields with their values, docs/configuration.md what they mean.
    """
    file, pairs = _target(target, bootstrap)
    pairs += _given(
        {
            "policy.model": model,
            "generation.engine": engine,
            "name": name,
            "run_name": run_name,
            "rounds": rounds,
            "seed": seed,
            "out": out,
        }
    )
    pairs += _given({"follow.learner": follow, "telemetry.ui": ui})
    pairs += _fields(context)
    _check_start(file, pairs)
    from nodes.roles.join import PEER
    from nodes.roles.launch import launch

    raise typer.Exit(launch(PEER, file, pairs, _console(), live, report, supervised))


@app.command()
def learn(
    context: typer.Context,
    target: TargetArgument = None,
    bootstrap: BootstrapOption = None,
    model: ModelOption = None,
    name: Annotated[str | None, typer.Option(help="Name of this learner in views and reports.")] = None,
    run_name: RunNameOption = None,
    rounds: Annotated[int | None, typer.Option(help="Stop after this many steps.")] = None,
    out: OutOption = None,
    live: LiveOption = True,
    ui: UiOption = None,
    report: ReportOption = True,
    supervised: SupervisedOption = False,
) -> None:
    """Train one policy on its workers' rollouts. Set any configuration field with --path.to.field VALUE.

    `swarm config show` lists the fields with their values, docs/configuration.md what they mean.
    """
    file, pairs = _target(target, bootstrap)
    pairs += _given({"policy.model": model, "name": name, "run_name": run_name, "rounds": rounds, "out": out})
    pairs += _given({"telemetry.ui": ui})
    pairs += _fields(context)
    _check_start(file, pairs)
    from nodes.roles.launch import launch
    from nodes.roles.learner import LEARNER

    raise typer.Exit(launch(LEARNER, file, pairs, _console(), live, report, supervised))


@app.command()
def work(
    context: typer.Context,
    target: TargetArgument = None,
    bootstrap: BootstrapOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    name: Annotated[str | None, typer.Option(help="Name of this worker in views and reports.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Stop after this many batches of questions.")] = None,
    seed: Annotated[int | None, typer.Option(help="Stream of questions and samples.")] = None,
    out: OutOption = None,
    live: LiveOption = True,
    ui: UiOption = None,
    report: ReportOption = True,
    supervised: SupervisedOption = False,
) -> None:
    """Sample rollouts for a learner with its snapshots. Set any configuration field with --path.to.field VALUE.

    `swarm config show` lists the fields with their values, docs/configuration.md what they mean.
    """
    file, pairs = _target(target, bootstrap)
    pairs += _given(
        {
            "policy.model": model,
            "generation.engine": engine,
            "name": name,
            "rounds": rounds,
            "seed": seed,
            "out": out,
            "telemetry.ui": ui,
        }
    )
    pairs += _fields(context)
    _check_start(file, pairs)
    from nodes.roles.launch import launch
    from nodes.roles.worker import WORKER

    raise typer.Exit(launch(WORKER, file, pairs, _console(), live, report, supervised))


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
    pairs = [("out", "runs/bootstrap"), *_given({"out": out, "run_name": run_name})]
    pairs += [*([("network.serve_relay", "true")] if relay else []), *_fields(context)]
    _check_start(config, pairs)
    from nodes.roles.bootstrap import bootstrap as run

    raise typer.Exit(run(config, pairs, _console(), supervised))


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="File to write; must not exist yet.")] = Path("swarm.yaml"),
    bootstrap: BootstrapOption = None,
    run_name: Annotated[str | None, typer.Option(help="Start a run of this name instead of joining one.")] = None,
    model: ModelOption = None,
    name: Annotated[str | None, typer.Option(help="Name that the run's members see.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port for others to connect to; 0: any free one.")] = None,
) -> None:
    """Write a configuration that fits this machine, and say what it will cost. Asks four questions, or takes flags."""
    from nodes.commands.init.answers import Given
    from nodes.commands.init.command import init as run

    given = Given(tuple(bootstrap) if bootstrap else None, run_name, model, name, port)
    run(file, given, _console())


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
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each peer.")] = 100,
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
    from nodes.commands.sweep import SweepOptions
    from nodes.commands.sweep import sweep as run
    from swarm.machine import num_cores

    options = SweepOptions(
        file=config,
        fields=_fields(context),
        mixes=tuple(dict.fromkeys(mix or DEFAULT_MIXES)),
        num_seeds=seeds,
        peers=peers,
        rounds=rounds,
        out=out,
        transport="hivemind" if transport == "hivemind" else "memory",
        jobs=jobs or (num_cores() if transport == "memory" else 1),
    )
    raise typer.Exit(run(options, _console()))


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
    from nodes.simulation.demo_in_memory import simulate_in_memory as run

    raise typer.Exit(run(config, out, peers, first_seed, control, supervised))


@tasks_app.command("list")
def tasks_list(
    pattern: Annotated[str, typer.Argument(help="Only tasks whose name contains this.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the available tasks, each with an example: what `swarm tasks` does by default."""
    from nodes.commands.tasks.listing import list_tasks

    list_tasks(pattern, as_json, _console())


@tasks_app.command("try")
def tasks_try(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML configuration.")],
    model: ModelOption = None,
    questions: Annotated[int, typer.Option(min=1, help="Questions to ask, once each.")] = 5,
    engine: EngineOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask a model some questions of a configuration's tasks; show each with the completion and its reward."""
    pairs = [*_given({"policy.model": model, "generation.engine": engine}), *_fields(context)]
    _check(config, pairs)
    from nodes.commands.tasks.trial import try_tasks

    try_tasks(config, pairs, questions, as_json, _console())


@tasks_app.command("strategy")
def tasks_strategy(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="YAML configuration with a task of Kuhn poker.")],
    model: ModelOption = None,
    hands: Annotated[int, typer.Option(min=1, help="Hands to play.")] = 2_000,
    name: Annotated[str, typer.Option(help="Name of the opponent.")] = "earlier",
) -> None:
    """Print how a model plays Kuhn poker: an opponent for a later run's `strategies`."""
    pairs = [*_given({"policy.model": model}), *_fields(context)]
    _check(config, pairs)
    from nodes.commands.tasks.strategy import print_strategy

    print_strategy(config, pairs, hands, name)


@app.command()
def losses() -> None:
    """List the objectives with equation and paper."""
    from nodes.commands.losses import list_losses

    list_losses(_console())


@app.command()
def plan(
    rollouts: Annotated[int, typer.Option(min=1, help="R: rollouts per learner step.")],
    train_s: Annotated[float, typer.Option(help="Seconds per learner step.")],
    broadcast_s: Annotated[float, typer.Option(help="Seconds until the workers have installed a snapshot.")],
    worker: Annotated[
        list[str],
        typer.Option(
            help="Workers, as in 8x1.5@0.40*0.95: eight, each 1.5 rollouts/s, 0.40 an hour, present 95% of the time. "
            "Only the rate is needed; repeatable."
        ),
    ],
    publish_every: Annotated[int | None, typer.Option(min=1, help="kappa: learner steps between snapshots.")] = None,
    max_staleness: Annotated[int | None, typer.Option(min=0, help="S: kappa becomes max(1, S - 1).")] = None,
    headroom: Annotated[float, typer.Option(min=1.0, help="Multiple of the least rate to aim for.")] = 1.1,
    learner_price: Annotated[float, typer.Option(min=0.0, help="The learner's price per hour.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute the rollout rate that a learner needs, the cheapest workers for it, idle time, cost and staleness.

    Exits with 1 when they cannot keep the learner busy.
    """
    from nodes.commands.plan import CapacityPlan, demand_of, parse_workers, show_plan

    demand = demand_of(rollouts, train_s, broadcast_s, publish_every, max_staleness)
    chosen = CapacityPlan(demand, headroom, learner_price, parse_workers(worker))
    raise typer.Exit(show_plan(chosen, as_json, _console()))


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

    show_peers(target, target.startswith(MULTIADDR_STARTS), as_json, watch, _console())


@app.command()
def ui(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Directories of nodes, or of a demo; default: every node running on this machine."),
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Default: 8787, or a free one.")] = None,
    socket: Annotated[int | None, typer.Option(hidden=True, help="An inherited listening socket.")] = None,
    supervised: SupervisedOption = False,
) -> None:
    """Serve a page about nodes for browsers on this machine: does the swarm help, who shares what, what is wrong."""
    from nodes.commands.watching.ui import UiOptions, show_ui

    raise typer.Exit(show_ui(UiOptions(tuple(runs or ()), port, socket, supervised), _console()))


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
    addresses = [target for target in targets or () if target.startswith(MULTIADDR_STARTS)]
    if addresses:
        from nodes.commands.peers import show_peers

        if len(targets or ()) > 1:
            raise ConfigError("name one address, or directories")
        console = _console()
        show_peers(addresses[0], True, False, console.is_terminal and not once, console)
        return
    from nodes.commands.watching.top import show_top

    show_top([Path(target) for target in targets or ()], once, _console())


@app.command()
def pause(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Directories of nodes, or of a demo; default: every node running on this machine."),
    ] = None,
    lasting: Annotated[str | None, typer.Option("--for", help="How long, such as 90m, 8h or 2d.")] = None,
    until: Annotated[str | None, typer.Option(help="Until when, in local time, such as 18:00.")] = None,
) -> None:
    """Let nodes pause when their round is finished, until `swarm resume`. They stay members of their run."""
    from nodes.commands.running.pause import pause_nodes

    pause_nodes(runs or [], lasting, until, _console())


@app.command()
def resume(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Directories of nodes, or of a demo; default: every node running on this machine."),
    ] = None,
) -> None:
    """End what `swarm pause` began; a node's schedule still holds."""
    from nodes.commands.running.pause import resume_nodes

    resume_nodes(runs or [], _console())


@app.command()
def logs(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Directories of nodes, or of a demo; default: every node running on this machine."),
    ] = None,
    last: Annotated[int, typer.Option(min=1, help="Most lines to show, the latest.")] = 40,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    rounds: Annotated[bool, typer.Option("--rounds", help="A line for each round, too.")] = False,
    level: Annotated[str, typer.Option(help="The least to show: info, warning or error.")] = "info",
) -> None:
    """Show what happened to nodes: starts, notes, warnings, evaluations, checkpoints, ends."""
    from nodes.commands.watching.logs import LEVELS, LogOptions, show_logs

    if level not in LEVELS:
        raise ConfigError(f"--level must be one of {', '.join(LEVELS)}, got {level!r}")
    show_logs(LogOptions(tuple(runs or ()), last, follow, rounds, level), _console())


@app.command()
def docs(
    where: Annotated[str | None, typer.Argument(help="A document, or a section of it: operate.md#logs.")] = None,
) -> None:
    """Show a document of swarm, or a section of it; without a name, which ones there are."""
    from nodes.commands.watching.docs import show_document

    show_document(where, _console())


@app.command()
def doctor(
    context: typer.Context,
    target: TargetArgument = None,
    bootstrap: BootstrapOption = None,
    model: ModelOption = None,
    role: Annotated[str, typer.Option(help="What memory must suffice for: peer, learner or worker.")] = "peer",
    out: OutOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine and its network for problems, and suggest fixes. Exits with 1 if a check fails."""
    if role not in ("peer", "learner", "worker"):
        raise ConfigError(f"--role must be peer, learner or worker, got {role!r}")
    file, pairs = _target(target, bootstrap)
    pairs += [*_given({"policy.model": model, "out": out}), *_fields(context)]
    _check(file, pairs)
    from nodes.commands.doctor import doctor as run

    raise typer.Exit(run(file, pairs, cast("RoleName", role), as_json, _console()))


@app.command()
def evaluate(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RUN", help="A checkpoint, a node's directory, a model directory, tiny, or a hub id."
        ),
    ],
    config: Annotated[
        Path | None, typer.Option(help="Configuration with tasks, suites and sampling; default: its own.")
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help="Suite of evaluation.suites, or all: avg@k and pass@k. Takes several. Default: accuracy on the tasks."
        ),
    ] = None,
    questions: Annotated[
        int | None, typer.Option(min=1, help="Held-out questions, or at most of each task of a suite. Default: 900.")
    ] = None,
    engine: EngineOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure accuracy, or suites' avg@k and pass@k, on held-out questions, per task, with 95% intervals."""
    from nodes.commands.evaluate import Asked
    from nodes.commands.evaluate import evaluate as run

    pairs = [*_given({"generation.engine": engine}), *_fields(context)]
    raise typer.Exit(run(Asked(model, config, pairs, tuple(suite or ()), questions), as_json, _console()))


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
    from nodes.commands.samples import SampleFilter, show_samples

    show_samples(run, SampleFilter(task, sender, outcome, last), as_json, _console())


@app.command()
def health(
    out: Annotated[
        Path | None, typer.Argument(help="A node's directory; default: every node running on this machine.")
    ] = None,
    within: Annotated[float, typer.Option(min=0, help="Maximum seconds since a peer's last round.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that nodes make progress: exits with 0 if so, 1 if one does not or none runs. For health checks."""
    from nodes.commands.health import report_health

    raise typer.Exit(report_health(out, within, as_json, _console()))


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a peer's directory with checkpoints.")],
    directory: Annotated[Path, typer.Argument(help="Directory to write; must not exist yet.")],
) -> None:
    """Write a checkpoint's policy as a directory that from_pretrained loads."""
    from nodes.commands.checkpoints import export_checkpoint

    export_checkpoint(checkpoint, directory, _console())


@app.command()
def reasons() -> None:
    """Print the reasons for refusing groups, records and peers, in Markdown."""
    from swarm.reasons_reference import reference

    print(reference(), end="")


@app.command()
def families() -> None:
    """Print which model families can generate and train here, in Markdown; takes a minute or two."""
    from nodes.commands.families import reference

    print(reference(lambda family: typer.echo(family, err=True)), end="")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Name, such as network; default: list them.")] = None,
) -> None:
    """Run a benchmark from a source checkout, e.g. `swarm bench network --quick`."""
    from nodes.commands.bench import bench as run

    raise typer.Exit(run(name, context.args))


@config_app.command("show")
def config_show(
    context: typer.Context,
    config: ConfigArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the effective configuration and the origin of each value."""
    from swarm.config import describe_config

    rows = describe_config(_check(config, _fields(context)))
    if as_json:
        print(json.dumps([{"field": path, "value": value, "origin": origin} for path, value, origin in rows], indent=1))
        return
    table = Table("field", "value", "from", box=None, pad_edge=False)
    for path, value, origin in rows:
        table.add_row(Text(path), Text(value), Text(origin), style="" if origin != "default" else "dim")
    _console().print(table)


@config_app.command("check")
def config_check(config: Annotated[Path, typer.Argument(help="YAML configuration.")]) -> None:
    """Check a file alone; what is wrong is told with its line."""
    from swarm.config import load_config

    origins = load_config(config).origins.values()
    number = sum(origin == str(config) for origin in origins)
    _console().print(f"{config} is valid and sets {number} fields", markup=False, highlight=False, soft_wrap=True)


@config_app.command("schema")
def config_schema() -> None:
    """Print the configuration's JSON schema, for editors."""
    from swarm.config import NodeConfig

    print(json.dumps(NodeConfig.model_json_schema(), indent=2))


@config_app.command("reference")
def config_reference() -> None:
    """Print the configuration reference in Markdown."""
    from swarm.config_reference import reference

    print(reference(), end="")


@config_app.command("sizing")
def config_sizing() -> None:
    """Print which models fit on which GPUs, in Markdown."""
    from swarm.preflight.page import page

    print(page(), end="")


@identity_app.command("show")
def identity_show(
    where: HomeArgument = DEFAULT_HOME,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show peer id, key file, its mode and age, and whether a node is using it."""
    from nodes.commands.identity import show_identity

    show_identity(where, as_json, _console())


@identity_app.command("export")
def identity_export(
    backup: Annotated[Path, typer.Argument(help="File to write; must not exist yet.")],
    where: Annotated[Path, typer.Option("--from", help="A node's directory, or its key file.")] = DEFAULT_HOME,
    passphrase_file: PassphraseOption = None,
) -> None:
    """Back up a node's key; the node may be running."""
    from nodes.commands.identity import export_identity

    export_identity(backup, where, passphrase_file, _console())


@identity_app.command("import")
def identity_import(
    backup: Annotated[Path, typer.Argument(help="A file written by `swarm identity export`.")],
    where: Annotated[Path, typer.Option("--to", help="A node's directory, or a key file.")] = DEFAULT_HOME,
    passphrase_file: PassphraseOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace another identity; its file is kept.")] = False,
) -> None:
    """Restore a key, which gives the directory's node that peer id."""
    from nodes.commands.identity import import_identity

    import_identity(backup, where, passphrase_file, force, _console())


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
    from nodes.commands.running.service import install_service

    install_service(command, name, show, _console())


def main() -> None:
    """Entry point: turns typed errors into one message and an exit code."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(CleanFormatter())
    try:
        arguments, fields = rewrite(sys.argv[1:])
        app(args=arguments, obj=fields)
    except (ConfigError, TaskError, IdentityError) as error:
        _fail(error, exits.USAGE)
    except TransportError as error:
        _fail(error, exits.NETWORK)
    except SwarmError as error:
        _fail(error, exits.FAILED)
    except OSError as error:
        from nodes.refusals import disk_problem

        if (problem := disk_problem(error)) is None:
            raise
        _fail(problem, exits.FAILED)


def _fail(error: SwarmError | str, code: int) -> None:
    text = f"error: {clean_lines(str(error))}"
    Console(stderr=True).print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _console() -> Console:
    # Without a terminal, lines are not wrapped.
    return Console(width=None if sys.stdout.isatty() else 160)


def _check(file: Path | None, pairs: Sequence[tuple[str, str]]) -> LoadedConfig:
    """Validate before any slow import, download or start."""
    from swarm.config import load_config

    return load_config(file, None, os.environ, pairs)


def _check_start(file: Path | None, pairs: Sequence[tuple[str, str]]) -> None:
    """The same for a node, with what else can be refused at once."""
    from nodes.refusals import check_start

    check_start(_check(file, pairs))


def _target(target: str | None, bootstraps: Sequence[str] | None) -> tuple[Path | None, Fields]:
    """The configuration file and bootstraps in a command's arguments. Raises `ConfigError` for a wrong address."""
    from swarm.net.addresses.bootstrap import Bootstraps  # light: a wrong address is refused before anything is read

    is_address = target is not None and target.startswith(MULTIADDR_STARTS)
    addresses = [*(bootstraps or ()), *([target] if target is not None and is_address else [])]
    Bootstraps(addresses)
    return None if target is None or is_address else Path(target), [("network.bootstrap", each) for each in addresses]


def _given(values: dict[str, object]) -> list[tuple[str, str]]:
    return [(path, str(value)) for path, value in values.items() if value is not None]


def _fields(context: typer.Context) -> Fields:
    fields: Fields = context.find_root().obj
    return fields


if __name__ == "__main__":
    main()
