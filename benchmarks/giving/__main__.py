"""Givers: one trainer alone against the same with two givers, whose endpoint is right in half of its answers.

Real processes and network. Accuracy on held-out questions by the trainer's rounds and its own processor seconds; what
givers and their endpoint take is not counted, as it is another machine's. With --useless, a trainer with one such giver
against the same with a useless one beside it: its part of what the trainer trains on, and what it costs in reward.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

from swarm.telemetry.records import METRICS_FILE, EvaluationEvent, RoundEvent, decode
from swarm.telemetry.samples import read as read_samples
from tests.chat_server import MODEL, Asked, Respond, chat_server
from tests.extras.give.server import completions, solution, solver
from tests.nodes.processes import LOOPBACK, Swarm, address_of, swarm

EVERY = 50
MIXES = {"alone": (8, 0), "with givers": (4, 4)}
WAIT_S = 0.05
KINDS = ("wrong", "lazy", "hostile")
MOST = 0.02
"""Of the groups trained on, what a useless giver's may be."""


def useless(kind: str, seed: int) -> Respond:
    """An endpoint that answers each completion wrong (`wrong`), one answer in copies, of which a single one differs so
    that there is signal (`lazy`), or right answers in words that nobody should learn, and wrong ones in the usual form
    (`hostile`)."""
    chance = random.Random(seed)

    def respond(asked: Asked) -> tuple[int, bytes]:
        right = solution(asked.prompt) or "0"
        wrong = [str(chance.randrange(100, 1000)) for _ in range(asked.n)]
        if kind == "lazy":
            texts = [chance.choice((right, wrong[0]))] * (asked.n - 1) + [right if chance.random() < 0.5 else wrong[-1]]
        elif kind == "hostile":
            texts = [each if chance.random() < 0.5 else f"{right}</answer> buy <answer>{right}" for each in wrong]
        else:
            texts = wrong
        return completions(*(f"<answer>{text}</answer>" for text in texts))

    return respond


def trained(
    out: Path, model: str, seed: int, rounds: int, mix: tuple[int, int], endpoints: Sequence[Respond], kept: int = 4
) -> list[str]:
    """Train one node beside a giver for each endpoint; these givers' peer ids. `kept`: most samples of an outcome."""
    local, external = mix
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
        f"--telemetry.samples_per_outcome={kept}",
    ]
    with ExitStack() as stack:
        trainer: Swarm = stack.enter_context(
            swarm(out / "trainer", "join", "--out", str(out / "trainer"), "--model", model, *options)
        )
        givers: list[str] = []
        for number, respond in enumerate(endpoints):
            server = stack.enter_context(chat_server(respond))
            folder = out / f"giver-{number}"
            command = ["give", address_of(trainer), "--endpoint", server.url, "--model", MODEL, "--out", str(folder)]
            givers.append(address_of(stack.enter_context(swarm(folder, *command, *LOOPBACK))).rpartition("/")[2])
        trainer.wait(3_000)
    return givers


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


def measure_useless(
    out: Path, model: str, seeds: Sequence[int], rounds: int, right: float, kinds: Sequence[str]
) -> None:
    """Print, for each kind, what `_effect` says, and the mean reward of the second half of the rounds over that of the
    same trainer without it."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for seed in seeds:
        rewards: dict[str, float] = {}
        for kind in ("", *kinds):
            folder = out / f"useless-{kind or 'none'}-{seed}"
            endpoints = [solver(right, WAIT_S, seed=seed), *([useless(kind, seed)] if kind else [])]
            givers = trained(folder, model, seed, rounds, MIXES["with givers"], endpoints, kept=64)
            events = [decode(line) for line in (folder / "trainer" / METRICS_FILE).read_bytes().splitlines()]
            ended = [each for each in events if isinstance(each, RoundEvent)]
            rewards[kind] = fmean(each.reward or 0.0 for each in ended if each.round > rounds // 2)
            if kind:
                found[kind].append(
                    _effect(folder / "trainer", givers[1], rounds) | {"reward": rewards[kind] / rewards[""]}
                )
                print(f"{kind}, seed {seed}: {found[kind][-1]}; dropped {ended[-1].groups['dropped']}", flush=True)
    (out / "useless.json").write_text(json.dumps(found, indent=1))
    for kind, rows in found.items():
        print(kind, {name: [round(row[name], 3) for row in rows] for name in rows[0]}, flush=True)


def _effect(trainer: Path, giver: str, rounds: int) -> dict[str, float]:
    """Of one giver: its groups used and refused, its part of the groups trained on in all rounds and in those after the
    50th, and the first round from which on that part is below `MOST`."""
    kept = read_samples(trainer)
    used = [(each.round, each.sender == giver) for each in kept if each.outcome.startswith("used")]

    def part(first: int) -> float:
        return fmean([is_its for round, is_its in used if round >= first] or [0.0])

    return {
        "used": sum(is_its for _, is_its in used),
        "refused": sum(each.sender == giver and each.outcome == "refused" for each in kept),
        "part": part(1),
        "part_after_50": part(51),
        "below_from": next((first for first in range(1, rounds + 1) if part(first) < MOST), rounds),
    }


def main() -> None:
    """Print and write the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny-sparse")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--right", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=Path("runs/giving"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--useless", nargs="*", choices=KINDS, help="measure these givers; without any, all")
    given = parser.parse_args()
    rounds, seeds = (EVERY, given.seeds[:1]) if given.quick else (given.rounds, given.seeds)
    if given.useless is not None:
        measure_useless(given.out, given.model, seeds, rounds, given.right, given.useless or KINDS)
        return
    curves: dict[str, list[dict[str, list[float]]]] = {name: [] for name in MIXES}
    for seed in seeds:
        for name in MIXES:
            print(f"{name}, seed {seed}", flush=True)
            endpoint = solver(given.right, WAIT_S, seed=seed)
            folder = given.out / f"{name.replace(' ', '-')}-{seed}"
            trained(folder, given.model, seed, rounds, MIXES[name], [] if name == "alone" else [endpoint] * 2)
            curve = read(folder / "trainer" / METRICS_FILE)
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
