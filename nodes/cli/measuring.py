"""Subcommands that check a machine, measure a policy or the software, and compute what is needed."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from nodes import exits
from nodes.cli.options import (
    BootstrapOption,
    EngineOption,
    ModelOption,
    OutOption,
    TargetArgument,
    check_config,
    extra_fields,
    find_target,
    given_fields,
)
from nodes.console import make_console
from swarm.errors import ConfigError
from swarm.kinds import extra

COMMANDS = {"peer": "join", "learner": "learn", "worker": "work"}
"""The command of each role with a policy."""


class GgufType(StrEnum):
    """See `swarm.extras.export.gguf`, which loads torch."""

    F16 = "F16"
    BF16 = "BF16"
    Q8_0 = "Q8_0"


app = typer.Typer()


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
    if role not in COMMANDS:
        raise ConfigError(f"--role must be peer, learner or worker, got {role!r}")
    file, pairs = find_target(target, bootstrap)
    pairs += [*given_fields({"policy.model": model, "out": out}), *extra_fields(context)]
    check_config(file, pairs)
    from nodes.commands.doctor import doctor as run

    raise typer.Exit(run(file, pairs, COMMANDS[role], as_json, make_console()))


@app.command()
def evaluate(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL_OR_RUN", help="A checkpoint, a node's directory, a model directory, tiny, or a hub id."
        ),
    ] = None,
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
    endpoint: Annotated[
        str | None, typer.Option(help="Ask the OpenAI-compatible server at this address, and load no model.")
    ] = None,
    name: Annotated[str | None, typer.Option("--model", help="The model's name at the endpoint.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure accuracy, or suites' avg@k and pass@k, on held-out questions, per task, with 95% intervals."""
    from nodes.commands.evaluate import Asked, evaluate as run, evaluate_endpoint

    pairs = [*given_fields({"generation.engine": engine}), *extra_fields(context)]
    if endpoint is not None or name is not None:
        if model is not None:
            raise ConfigError(f"name a model to load or an endpoint to ask, got {model} and --endpoint")
        pairs += given_fields({"endpoint.url": endpoint, "endpoint.model": name})
        asked = Asked(name or "", config, pairs, tuple(suite or ()), questions)
        raise typer.Exit(evaluate_endpoint(asked, as_json, make_console()))
    if model is None:
        raise ConfigError("name a model or run to evaluate, or a server by --endpoint URL --model NAME")
    raise typer.Exit(run(Asked(model, config, pairs, tuple(suite or ()), questions), as_json, make_console()))


@app.command()
def export(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a peer's directory with checkpoints.")],
    directory: Annotated[Path, typer.Argument(help="Directory to write; must not exist yet.")],
    gguf: Annotated[
        list[GgufType] | None,
        typer.Option(help="Also write a file for llama.cpp, Ollama and LM Studio. Takes several."),
    ] = None,
    push: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Send it to this repository of the Hugging Face hub.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Let everybody read it there. Default: private.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written and sent, and keep nothing.")
    ] = False,
) -> None:
    """Write a checkpoint's policy as a directory that from_pretrained loads, with a model card; adapters are merged."""
    from nodes.commands.export import Wanted, export_checkpoint

    wanted = Wanted(tuple(kind.value for kind in gguf or ()), push, public, dry_run)
    export_checkpoint(checkpoint, directory, make_console(), wanted)


@app.command()
def plan(
    rollouts: Annotated[int | None, typer.Option(min=1, help="R: rollouts per learner step.")] = None,
    train_s: Annotated[float | None, typer.Option(help="Seconds per learner step.")] = None,
    broadcast_s: Annotated[
        float | None, typer.Option(help="Seconds until the workers have installed a snapshot.")
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            help="Workers, as in 8x1.5@0.40*0.95: eight, each 1.5 rollouts/s, 0.40 an hour, present 95% of the time. "
            "Only the rate is needed; repeatable."
        ),
    ] = None,
    publish_every: Annotated[int | None, typer.Option(min=1, help="kappa: learner steps between snapshots.")] = None,
    max_staleness: Annotated[int | None, typer.Option(min=0, help="S; kappa is max(1, S - 1) unless given.")] = None,
    headroom: Annotated[float, typer.Option(min=1.0, help="Multiple of the least rate to aim for.")] = 1.1,
    learner_price: Annotated[float, typer.Option(min=0.0, help="The learner's price per hour.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compute the rollout rate that a learner needs, the cheapest workers for it, idle time, cost and staleness.

    Exits with 1 when they cannot keep the learner busy.
    """
    capacity = extra("learner.capacity")
    if rollouts is None or train_s is None or broadcast_s is None or not worker:
        raise ConfigError(capacity.NEEDED)
    demand = capacity.demand_of(rollouts, train_s, broadcast_s, publish_every, max_staleness)
    chosen = capacity.CapacityPlan(demand, headroom, learner_price, capacity.parse_workers(worker), max_staleness)
    capacity.show_plan(chosen, as_json, make_console())
    raise typer.Exit(exits.DONE if chosen.feasible else exits.FAILED)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Name, such as network; default: list them.")] = None,
) -> None:
    """Run a benchmark from a source checkout, e.g. `swarm bench network --quick`."""
    from nodes.commands.bench import bench as run

    raise typer.Exit(run(name, context.args))
