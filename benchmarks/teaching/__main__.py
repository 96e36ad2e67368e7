"""Distillation over text: a small student with a stronger teacher, against rewards alone and against lying teachers.

The embedded policy learns in turns with a teacher that does not change: a checkpoint of the same policy, or of another,
that trained longer, whose answers travel as over a network, without one. The kinds of students:

    alone      own groups alone
    text       and the groups that the teacher shares, like any other member's
    imitated   the same with `distill.imitate`
    taught     own groups, and the teacher's opinion of them
    both       all of it
    random     taught by a liar that says random numbers, the same whenever it is asked about a text
    inverted   taught by one that prefers what its model finds unlikely

Accuracy on held-out questions by rounds, sampled tokens and the student's processor seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch

from nodes.boot.directory import IDENTITY_FILE
from nodes.simulation.configs import Member, as_fields
from nodes.simulation.in_memory import MemoryRun, Turns, take_turns
from nodes.stop import StopRequest
from swarm.config import Values, load_config
from swarm.environments.verification.inline import InlineVerifier
from swarm.extras.distill.teacher import Teaching
from swarm.net.in_memory import MemoryTransport
from swarm.net.records.identity import Identity
from swarm.policy.config import PolicySettings
from swarm.policy.loading import load_policy
from swarm.sapo.mixing import MixSettings
from swarm.teaching import TeachSettings
from swarm.telemetry.records import METRICS_FILE, EvaluationEvent, RoundEvent, decode
from swarm.training.config import UpdateSettings
from swarm.training.updater import PolicyUpdater
from swarm.types import GradedGroup, ReadTurn

LIES = ("random", "inverted")
KINDS = ("alone", "text", "imitated", "taught", "both", *LIES)


class Liar(PolicyUpdater):
    """Reads texts as it should, and says something else."""

    lie = LIES[0]

    def read(
        self, groups: Sequence[GradedGroup], wanted: Sequence[Sequence[bool]] | None = None
    ) -> list[list[list[ReadTurn]]]:
        """See `Updater`."""
        return [[[self._said(turn) for turn in turns] for turns in texts] for texts in super().read(groups, wanted)]

    def _said(self, turn: ReadTurn) -> ReadTurn:
        chance = random.Random(str(turn.ids))  # whoever asks twice hears the same
        if self.lie == "random":
            return ReadTurn(turn.ids, [-chance.expovariate(1.0) for _ in turn.ids])
        return ReadTurn(turn.ids, [min(0.0, -6.0 - each) for each in turn.logprobs])


class LyingTeacher:
    """Teaches and does nothing else, in turns with the student."""

    def __init__(self, model: str, lie: str) -> None:
        self.identity = Identity.generate()
        self.seconds = 0.0
        policy = load_policy(PolicySettings(model=model, system_prompt="", threads=1, device="cpu"))
        self._updater = Liar(policy, UpdateSettings(), MixSettings(), 1.0)
        self._updater.lie = lie
        self._teaching: Teaching | None = None

    def join(self, run: MemoryRun, verifier: InlineVerifier) -> None:
        """Teach whoever asks, from the first turn on."""

        def teach() -> None:
            if self._teaching is None:
                transport = MemoryTransport(run.hub, self.identity.peer_id)
                transport.start()
                settings, decode = TeachSettings(passes_per_min=1e6), self._updater._policy.decode
                self._teaching = Teaching(settings, self.identity, transport, verifier, self._updater, decode)
            time.sleep(0.02)  # for the student's threads to ask
            began = time.process_time()
            self._teaching.teach()
            self.seconds += time.process_time() - began

        run.guests.append(teach)


def _identity(folder: Path) -> str:
    """The peer id of the node in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Identity.load_or_create(folder / IDENTITY_FILE)) as identity:
        return identity.peer_id


def _configured(file: Path | None, values: Values, changes: Sequence[str] = ()) -> Member:
    """Of the configuration `file`, with these values instead, and `changes` instead of them."""
    changed = [(field, value) for field, _, value in (each.partition("=") for each in changes)]
    return Member(load_config(file, command_line=[*as_fields(values), *changed]).config)


def trained(out: Path, arguments: argparse.Namespace, kind: str, seed: int) -> dict[str, object]:
    """The curve of one student."""
    liar = LyingTeacher(arguments.teacher, kind) if kind in LIES else None
    lab = out.with_name(f"{out.name}-teacher")
    teacher = liar.identity.peer_id if liar else _identity(lab)
    common = {"rounds": arguments.rounds, "checkpoint": {"every_rounds": 100_000}}
    values = {
        **common,
        "name": kind,
        "out": str(out),
        "seed": seed,
        "policy": {"model": arguments.model},
        "mix": {"local": 4, "external": 4 if kind in ("text", "imitated", "both") else 0},
        "evaluation": {"num_questions": arguments.questions, "every_rounds": arguments.every},
        "learn_from": [] if kind in ("alone", "text") else [teacher],
        "distill": {
            "weight": arguments.weight,
            "groups": arguments.groups if kind in ("taught", "both", *LIES) else 1,
            "untested": arguments.untested,
            "imitate": arguments.imitate if kind in ("imitated", "both") else 0,
        },
    }
    members = [_configured(arguments.config, values, arguments.set)]
    if kind not in ("alone", *LIES):
        others = {
            **common,
            "name": "teacher",
            "out": str(lab),
            "seed": 1_000 + seed,
            "policy": {"model": arguments.teacher, "system_prompt": "", "threads": 1},
            "generation": {"max_new_tokens": members[0].config.generation.max_new_tokens},
            "update": {"learning_rate": 1e-12},
            "mix": {"local": 1, "external": 0},  # an update that changes nothing
            "evaluation": {"num_questions": 0},
            "teach": {"passes_per_min": 1e6 if kind in ("taught", "both") else 0},
        }
        members.append(_configured(arguments.config, others))
    stop, turns = StopRequest(), Turns()
    run = MemoryRun(members, stop, turns)
    if liar is not None:
        liar.join(run, InlineVerifier(members[0].config.tasks))
    take_turns([run], turns, stop)
    found: dict[str, object] = {"kind": kind, "seed": seed, "teacher_s": liar.seconds if liar else 0.0}
    curve, tokens, seconds, last = [], 0, 0.0, None
    for line in (out / METRICS_FILE).read_bytes().splitlines():
        event = decode(line)
        if isinstance(event, RoundEvent):
            tokens, seconds, last = event.tokens_generated, seconds + (event.processor_s or 0.0), event
        elif isinstance(event, EvaluationEvent) and event.accuracy is not None:
            curve.append((event.round, tokens, round(seconds, 2), event.accuracy))
    assert last is not None
    figures = {name: value for name, value in last.figures.items() if name.startswith("distill")}
    counts = {name: count for name, count in last.counters.items() if name.startswith("distill")}
    return {**found, "curve": curve, "figures": figures, "counters": counts}


def main() -> None:
    """Print and write the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", help="directory of the teacher's model")
    parser.add_argument("--model", default="tiny-sparse")
    parser.add_argument("--config", type=Path, help="configuration of student and teacher, as for `swarm join`")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--questions", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--weight", type=float, default=1.0)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--untested", type=float, default=0.0)
    parser.add_argument("--imitate", type=float, default=1.0)
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="configuration of the student")
    parser.add_argument("--out", type=Path, default=Path("runs/teaching"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for seed in range(arguments.seeds):
        for kind in arguments.kinds.split(","):
            results.append(trained(arguments.out / f"{kind}-{seed}", arguments, kind, seed))
            print(json.dumps(results[-1]), flush=True)
    (arguments.out / "results.json").write_text(json.dumps(results, indent=1))
    for kind in arguments.kinds.split(","):
        curves = [each["curve"] for each in results if each["kind"] == kind]
        for rows in zip(*curves, strict=True):
            means = [fmean(column) for column in zip(*rows, strict=True)]
            print(f"{kind:10} round {means[0]:4.0f} {means[1]:9.0f} tokens {means[2]:7.1f} s accuracy {means[3]:.3f}")


if __name__ == "__main__":
    main()
