"""Givers: one trainer alone against the same with two givers, whose endpoint is right in half of its answers.

Real processes and network. Accuracy on held-out questions by the trainer's rounds and its own processor seconds; what
givers and their endpoint take is not counted, as it is another machine's.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

from swarm.telemetry.records import METRICS_FILE, EvaluationEvent, RoundEvent, decode
from tests.chat_server import MODEL, chat_server
from tests.extras.give.server import solver
from tests.nodes.processes import LOOPBACK, Swarm, address_of, swarm

EVERY = 50
MIXES = {"alone": (8, 0), "with givers": (4, 4)}
WAIT_S = 0.05


def trained(out: Path, model: str, seed: int, rounds: int, right: float, givers: int) -> dict[str, list[float]]:
    """Accuracy and processor seconds of the trainer, every `EVERY` rounds."""
    local, external = MIXES["with givers" if givers else "alone"]
    options = [
        *LOOPBACK,
        f"--seed={seed}",
        f"--rounds={rounds}",
        f"--mix.local={local}",
        f"--mix.external={external}",
        f"--evaluation.every_rounds={EVERY}",
        "--evaluation.num_questions=512",
        "--checkpoint.every_rounds=100000",
        "--telemetry.worth_every_rounds=2",
    ]
    with ExitStack() as stack:
        trainer: Swarm = stack.enter_context(
            swarm(out / "trainer", "join", "--out", str(out / "trainer"), "--model", model, *options)
        )
        if givers:
            address = address_of(trainer)
            server = stack.enter_context(chat_server(solver(right, WAIT_S, seed=seed)))
            for number in range(givers):
                folder = out / f"giver-{number}"
                command = ["give", address, "--endpoint", server.url, "--model", MODEL, "--out", str(folder)]
                stack.enter_context(swarm(folder, *command, *LOOPBACK))
        trainer.wait(3_000)
    return read(out / "trainer" / METRICS_FILE)


def read(metrics: Path) -> dict[str, list[float]]:
    """The curve in a metrics file, and what became of others' groups at its end."""
    found: dict[str, list[float]] = {"round": [], "accuracy": [], "processor_s": []}
    seconds = 0.0
    last: RoundEvent | None = None
    for line in metrics.read_bytes().splitlines():
        event = decode(line)
        if isinstance(event, RoundEvent):
            seconds += event.processor_s or 0.0
            last = event
        elif isinstance(event, EvaluationEvent) and event.accuracy is not None:
            found["round"].append(event.round)
            found["accuracy"].append(event.accuracy)
            found["processor_s"].append(seconds)
    if last is not None:
        groups = last.groups
        print(
            f"  received {groups['received']}, used {groups['used_external']}, dropped {groups['dropped']}", flush=True
        )
    return found


def main() -> None:
    """Print and write the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny-sparse")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--right", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=Path("runs/giving"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    rounds, seeds = (EVERY, 1) if given.quick else (given.rounds, given.seeds)
    curves: dict[str, list[dict[str, list[float]]]] = {name: [] for name in MIXES}
    for seed in range(seeds):
        for name in MIXES:
            print(f"{name}, seed {seed}", flush=True)
            givers = 2 if name != "alone" else 0
            folder = given.out / f"{name.replace(' ', '-')}-{seed}"
            curve = trained(folder, given.model, seed, rounds, given.right, givers)
            curves[name].append(curve)
            for at, accuracy, seconds in zip(*curve.values(), strict=True):
                print(f"  round {at:4.0f}  accuracy {accuracy:.3f}  processor {seconds:6.1f} s", flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "curves.json").write_text(json.dumps(curves, indent=1))
    for name, found in curves.items():
        last = [each["accuracy"][-1] for each in found]
        spent = [each["processor_s"][-1] for each in found]
        print(f"{name}: accuracy {fmean(last):.3f} ({', '.join(f'{each:.3f}' for each in last)}), {fmean(spent):.0f} s")


if __name__ == "__main__":
    main()
