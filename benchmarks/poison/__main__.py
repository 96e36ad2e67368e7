"""Poison by correctly signed groups: the reward of an attacked swarm compared with one without attack.

Everything except network and clock is real: nodes as `swarm join` creates them, in turn in one process. A round
advances the clock by its real duration, so that results depend only on the seed. The poisoner knows every answer. Its
groups are right in a way that it wants policies to take up (`attacks.py`), and wrong in the honest format, which a
policy that learns from them unlearns. An adaptive one runs a node of its own, and publishes only what this node would
learn from.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import torch
from msgspec import structs
from rich.console import Console

from benchmarks.common.report import Report, Row, row
from benchmarks.common.running import conclude, option_parser, wide_console
from benchmarks.poison import cost, workers
from benchmarks.poison.gemma import GEMMA, ensure_gemma
from nodes.simulation.cells import read, write
from swarm.policy.config import TINY
from tests.attacks.attackers import ATTACKS, LANGUAGE_MODEL_ATTACKS, WORKER_ATTACKS, Attack, PeerAttack, WorkerAttack
from tests.attacks.poisoned_swarm import LAST, Outcome, Plan, simulate

WITHIN = 0.97
MARKED = 0.02
PARTS = (0.25, 0.5, 0.75)
"""Of a run, after which the sign is counted, too."""
AROUND = 0.05
LEARNER = Plan(nodes=3, rounds=150, learner=True)
"""Three honest workers, of whom there is a fourth instead of the hostile one in the control."""
LARGE = Plan(rounds=24, rounds_per_s=0.05)
"""Of a real language model: a cell takes about ten minutes of a core."""


def rows(name: str, attack: Attack, attacked: Sequence[Outcome], left_alone: Sequence[Outcome]) -> list[Row]:
    """The effect of one attack, against the same nodes without it."""
    parts = [ours.reward / theirs.reward for ours, theirs in zip(attacked, left_alone, strict=True)]

    def compared(what: str, figure: Callable[[Outcome], float]) -> Row:
        return row(f"{name}: {what}", [*map(figure, attacked)], "", baseline=[*map(figure, left_alone)])

    risen = [ours.signed(attack) - theirs.signed(attack) for ours, theirs in zip(attacked, left_alone, strict=True)]
    who = sorted({author for each in left_alone for author in each.authors})
    stages = sorted({stage for each in attacked for stage in each.seconds})
    return [
        compared("reward at the end", lambda each: each.reward),
        row(f"{name}: reward, fraction of the control's", parts, "", target=WITHIN),
        *(compared(f"completions with the sign, after {at:.0%}", partial(_around, attack, at)) for at in PARTS),
        compared("completions with the sign at the end", lambda each: each.signed(attack)),
        row(f"{name}: the same, less the control's", risen, "", target=MARKED, better="lower"),
        row(f"{name}: the poisoner's fraction of external groups used", [o.used("poisoner") for o in attacked], ""),
        row(f"{name}: its groups, drawn and refused", [o.refused("poisoner") for o in attacked], ""),
        row(f"{name}: its reputation at the end", [o.reputation for o in attacked], ""),
        compared("alarms of the watch", lambda each: each.alarms),
        *(compared(f"groups of {author}, drawn and refused", partial(_refused, author)) for author in who),
        *(compared(name, partial(_mean_of_mix, name)) for name in sorted({n for each in attacked for n in each.mix})),
        *(compared(f"time of a round for {stage}", partial(_part_of_time, stage)) for stage in stages),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the attacks, each against a control that runs once per seed."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    report, console = Report("poison", peer="no poison"), wide_console()
    attacks: Mapping[str, Attack] = ATTACKS if options.model == TINY else LANGUAGE_MODEL_ATTACKS
    if options.learner:
        attacks = WORKER_ATTACKS
    plan = _plan(options)
    seeds = options.seeds[:1] if options.quick else options.seeds
    unknown = set(options.only or ()) - set(attacks)
    if unknown:
        _parser().error(f"--only is one of {', '.join(attacks)} here; got {', '.join(sorted(unknown))}")

    def outcomes(name: str, attack: Attack | None) -> list[Outcome]:
        console.print(f"{name} ...", highlight=False)
        return [_outcome(plan, attack, seed, options.cells, console) for seed in seeds]

    def take() -> int:
        if options.cost is not None:
            report.add(cost.measure(plan, options.cost, console), [f"{plan.nodes} nodes, {plan.rounds} rounds"])
            return 0
        left_alone = outcomes("no poison", None)
        for name in options.only or ["marker"]:
            attack = _changed(attacks[name], options.attack)
            found = rows(name, attack, outcomes(name, attack), left_alone)
            # Targets apply to full sizes only.
            report.add([replace(each, target=None, met=None) for each in found] if options.quick else found)
        report.add([], [f"{plan.nodes} honest nodes, {plan.rounds} rounds; the last {LAST:.0%} of them are the end."])
        return 0

    return conclude(take, report, options, console)


def _parser() -> argparse.ArgumentParser:
    parser = option_parser("poison", __doc__, {**ATTACKS, **LANGUAGE_MODEL_ATTACKS, **WORKER_ATTACKS}, default="marker")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, help=f"of each node, {Plan().rounds_per_s:g} in a simulated second")
    parser.add_argument("--learner", action="store_true", help="the nodes are workers, and one of them attacks")
    parser.add_argument(
        "--cost", type=int, metavar="ROUNDS", help="what screening takes without an attacker, after that many rounds"
    )
    parser.add_argument("--honest", type=int, help=f"nodes; default {Plan().nodes}, of a learner {LEARNER.nodes}")
    parser.add_argument("--model", default=TINY, help="their policy: the embedded one, or smollm2 or a directory")
    parser.add_argument(
        "--others", nargs="+", default=[], metavar="MODEL", help=f"policies of further honest nodes: {GEMMA}"
    )
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="configuration of the nodes")
    parser.add_argument(
        "--attack", nargs="+", default=[], metavar="FIELD=VALUE", help="of the attack, e.g. identities=4"
    )
    parser.add_argument(
        "--cells", type=Path, help="a folder that keeps the outcome of each swarm, to go on after a stop"
    )
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    plan = LEARNER if options.learner else Plan() if options.model == TINY else LARGE
    rounds = options.rounds or (12 if options.quick else plan.rounds)
    settings = tuple((field, value) for field, _, value in (each.partition("=") for each in options.set))
    others = tuple(str(ensure_gemma()) if each == GEMMA else each for each in options.others)
    return structs.replace(
        plan, model=options.model, others=others, nodes=options.honest or plan.nodes, rounds=rounds, settings=settings
    )


def _changed(attack: Attack, changes: Sequence[str]) -> Attack:
    """The attack with fields of other values."""
    values = dict(each.split("=", 1) for each in changes)
    return msgspec.convert({**structs.asdict(attack), **values}, type(attack), strict=False)


def _outcome(plan: Plan, attack: Attack | None, seed: int, folder: Path | None, console: Console) -> Outcome:
    """Of one swarm, from the folder if it is there."""
    if folder is None:
        return _simulated(plan, attack, seed, console)
    digest = hashlib.sha256(msgspec.json.encode((plan, attack, seed))).hexdigest()[:16]
    file = folder / f"{digest}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(file, _simulated(plan, attack, seed, console))
    return read(file, Outcome)


def _simulated(plan: Plan, attack: Attack | None, seed: int, console: Console) -> Outcome:
    if plan.learner:
        assert attack is None or isinstance(attack, WorkerAttack)
        return workers.simulate(plan, attack, seed, console)
    assert attack is None or isinstance(attack, PeerAttack)
    return simulate(plan, attack, seed, console)


def _around(attack: Attack, at: float, outcome: Outcome) -> float:
    return outcome.signed(attack, at - AROUND, at + AROUND)


def _refused(author: str, outcome: Outcome) -> float:
    return outcome.refused(author)


def _mean_of_mix(name: str, outcome: Outcome) -> float:
    return outcome.mix.get(name, 0.0) / len(outcome.rewards)


def _part_of_time(stage: str, outcome: Outcome) -> float:
    return outcome.seconds.get(stage, 0.0) / sum(outcome.seconds.values())


if __name__ == "__main__":
    sys.exit(main())
