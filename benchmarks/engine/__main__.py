"""How fast the engine generates, and how accurate its log-probabilities are.

`swarm bench engine`: tokens per second against transformers' two generation loops and, with --vllm-python, against
vLLM, under one token budget; sampled log-probabilities against a teacher-forced pass; the effect of a weight change
within a completion; episodes of several turns against single ones; the gain from generating during updates and grading
during generation; the effect of replaying expert choices; the size from which bfloat16 is faster on this CPU.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.common.report import Report, row
from benchmarks.common.running import Result, at_least_one, conclude, measure, option_parser, scratch, wide_console
from benchmarks.engine import ahead, dtypes as precision, flowing, routing as replaying, turns as playing
from benchmarks.engine.generation import (
    Contender,
    Outcome,
    Vllm,
    VllmAlone,
    Workload,
    continuous_batches,
    ours,
    random_policy,
    static_batches,
    timed,
)
from swarm.engines.config import GenerationSettings
from swarm.engines.transformers.engine import TransformersEngine
from swarm.policy.config import PolicySettings
from swarm.policy.loading import Policy, load_policy
from swarm.types import Rejection, Sampling
from tests.engines.reference import teacher_forced

CONTENDERS: dict[str, Contender] = {
    "swarm": ours,
    "generate()": static_batches,
    "generate_batch()": continuous_batches,
}
MAX_DIFFERENCE = 1e-4
SAMPLINGS = {
    "T = 1": Sampling(max_new_tokens=32),
    "T = 0.7": Sampling(max_new_tokens=32, temperature=0.7),
    "T = 1.3, top-p 0.9": Sampling(max_new_tokens=32, temperature=1.3, top_p=0.9),
    "T = 0.8, top-k 20, min-p 0.02": Sampling(max_new_tokens=32, temperature=0.8, top_k=20, min_p=0.02),
}
QUESTIONS = [f"Calculate {a} + {b}. Give only the result as your final answer." for a in (3, 41, 250) for b in (7, 999)]
STEP = 3e-4
"""Largest change of a weight by one AdamW step at the embedded policy's learning rate."""


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    quick: bool
    repeats: int
    vllm_python: Path | None = None

    @property
    def workload(self) -> Workload:
        """At full size, or small to check that it works."""
        return Workload(4, 4, (8, 16), 32, 64, 8) if self.quick else Workload()


def tiny(plan: Plan) -> Result:
    """Speed at the embedded policy's size."""
    return _speed("0.13 M", plan)


def small(plan: Plan) -> Result:
    """Speed at a size where arithmetic dominates Python overhead."""
    return _speed("25 M", plan)


def _speed(size: str, plan: Plan) -> Result:
    policy, workload = random_policy(size), plan.workload
    outcomes: dict[str, list[Outcome]] = {name: [] for name in CONTENDERS}
    for repeat in range(plan.repeats):
        for name, contender in CONTENDERS.items():
            outcomes[name].append(timed(contender, policy, workload, repeat))
    speeds = {name: [outcome.tokens_per_s for outcome in runs] for name, runs in outcomes.items()}
    best = [max(static, continuous) for _, static, continuous in zip(*speeds.values(), strict=True)]
    gains = [mine / other for mine, other in zip(speeds["swarm"], best, strict=True)]
    rows = [row(f"{size} parameters: {name}", values, "tokens/s") for name, values in speeds.items()]
    rows.append(row(f"{size} parameters: against the faster of the two", gains, "x", target=2.0))
    return rows, [_describe(workload, outcomes)]


def vllm(plan: Plan) -> Result:
    """Speed of both engines of this project and of vLLM alone, at a size with CPU kernels in vLLM."""
    if plan.vllm_python is None:
        return [], ["vLLM was not measured: set --vllm-python to a Python that has it."]
    policy, workload = random_policy("22 M"), plan.workload  # its vocabulary needs few stop tokens
    num_sequences = workload.num_prompts * workload.num_completions
    with ExitStack() as stack:
        theirs = stack.enter_context(closing(Vllm(policy, plan.vllm_python, num_sequences, workload.budget_tokens)))
        folder = Path(stack.enter_context(scratch()))
        alone = stack.enter_context(closing(VllmAlone(policy, plan.vllm_python, workload, folder)))
        contenders: dict[str, tuple[Contender, Callable[[], float]]] = {
            "transformers": (ours, time.process_time),
            "vllm": (theirs, theirs.process_time),
            "vLLM alone": (alone, alone.process_time),
        }
        runs, walls = _by_both_clocks(contenders, policy, workload, plan.repeats)
    rows = []
    for unit, outcomes in (("tokens/s of processor time", runs), ("tokens/s by the clock", walls)):
        speeds = {name: [outcome.tokens_per_s for outcome in of_engine] for name, of_engine in outcomes.items()}
        rows += [row(f"22 M parameters: engine {name}", values, unit) for name, values in speeds.items()]
        for one, other in (("transformers", "vllm"), ("vllm", "vLLM alone")):
            gains = [mine / theirs for mine, theirs in zip(speeds[one], speeds[other], strict=True)]
            rows.append(row(f"22 M parameters: {one} against {other}, {unit}", gains, "x"))
    return rows, [
        "vLLM: its CPU build, without compilation, one thread, float32, the same KV cache size; its process's time is "
        "counted with the node's. vLLM alone reports no log-probabilities, and has one seed for all of a prompt. "
        "They sample different completions of like length."
    ]


def _by_both_clocks(
    contenders: Mapping[str, tuple[Contender, Callable[[], float]]], policy: Policy, workload: Workload, repeats: int
) -> tuple[dict[str, list[Outcome]], dict[str, list[Outcome]]]:
    """Outcomes in processor time and by the clock, after a run that is not timed: a first batch allocates memory."""
    runs: dict[str, list[Outcome]] = {name: [] for name in contenders}
    walls: dict[str, list[Outcome]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, (contender, clock) in contenders.items():
            began = time.monotonic()
            outcome = timed(contender, policy, workload, repeat, clock)
            if repeat:
                runs[name].append(outcome)
                walls[name].append(Outcome(outcome.lengths, time.monotonic() - began))
    return runs, walls


def _describe(workload: Workload, outcomes: dict[str, list[Outcome]]) -> str:
    lengths = sorted(length for run in outcomes["swarm"] for length in run.lengths)
    return (
        f"{workload.num_prompts} prompts of {workload.prompt_tokens[0]} to {workload.prompt_tokens[1]} tokens, "
        f"{workload.num_completions} completions each, at most {workload.max_new_tokens} tokens; lengths: mean "
        f"{statistics.mean(lengths):.0f}, median {statistics.median(lengths):.0f}, 95th percentile "
        f"{lengths[int(0.95 * len(lengths))]}, longest {lengths[-1]}. Budget: keys and values of "
        f"{workload.budget_tokens} tokens at once. One thread, float32, random weights; seconds are processor time of "
        "the process, so that other load on the machine does not count."
    )


def logprobs(plan: Plan) -> Result:
    """Largest difference between a sampled token's log-probability and that of one full float32 pass."""
    rows = []
    for size, policy in (("0.13 M", load_policy(PolicySettings(threads=1))), ("25 M", random_policy("25 M"))):
        for name, sampling in SAMPLINGS.items():
            engine = TransformersEngine(policy, GenerationSettings(max_batch_sequences=13))
            answers = engine.generate(QUESTIONS, 2 if plan.quick else 8, sampling, seed=0)
            errors = []
            for question, group in zip(QUESTIONS, answers, strict=True):
                for completion in group if not isinstance(group, Rejection) else ():
                    expected = teacher_forced(policy, question, completion, sampling)
                    errors += [abs(a - b) for a, b in zip(completion.logprobs, expected, strict=True)]
            what = f"{size} parameters, {name}: error of log-probabilities, largest"
            rows.append(row(what, [max(errors)], "nats", target=MAX_DIFFERENCE, better="lower"))
    return rows, ["Errors are differences from one float32 pass over prompt and completion, without a cache."]


def swaps(plan: Plan) -> Result:
    """Log-probabilities of tokens sampled after a swap, against a pass with the new weights alone."""
    rows = []
    for steps in (1, 10):
        for kv in ("recompute", "keep"):
            errors = _errors_after_swap(kv, steps, 2 if plan.quick else 16)
            what = f"weights moved by {steps} AdamW step{'s' * (steps > 1)} in flight, kv {kv}: error, "
            target = MAX_DIFFERENCE if kv == "recompute" else None
            rows.append(row(what + "largest", [max(errors)], "nats", target=target, better="lower"))
            rows.append(row(what + "mean", [statistics.mean(errors)], "nats"))
    return rows, [
        f"In flight: {STEP:g} a step is added to or taken from every weight of the embedded policy, at random, before "
        "the 3rd token of each completion; errors are those of the tokens from there on."
    ]


def _errors_after_swap(kv: str, steps: int, num_completions: int) -> list[float]:
    policy = load_policy(PolicySettings(threads=1))
    torch.manual_seed(0)
    new = {
        name: value + steps * STEP * torch.randn_like(value).sign()
        for name, value in copy.deepcopy(policy.model.state_dict()).items()
    }
    asked = iter(range(10**6))

    def between_steps() -> bool:
        if next(asked) == 2:
            engine.swap(new, version=1)
        return False

    engine = TransformersEngine(policy, GenerationSettings.model_validate({"kv": kv}), between_steps)
    sampling = Sampling(max_new_tokens=16)
    errors: list[float] = []
    for question, group in zip(QUESTIONS, engine.generate(QUESTIONS, num_completions, sampling, 0), strict=True):
        for completion in group if not isinstance(group, Rejection) else ():
            old = sum(span.num_tokens for span in completion.versions if span.version == 0)
            expected = teacher_forced(policy, question, completion, sampling)
            errors += [abs(a - b) for a, b in zip(completion.logprobs[old:], expected[old:], strict=True)]
    return errors


def turns(plan: Plan) -> Result:
    """Speed of episodes with several turns."""
    parts = [playing.turns(size, plan.quick, plan.repeats) for size in playing.LOADS]
    if plan.vllm_python is not None:
        parts.append(playing.turns_by_vllm(plan.vllm_python, plan.quick, plan.repeats))
    return [each for rows, _ in parts for each in rows], [note for _, notes in parts for note in notes]


def overlap(plan: Plan) -> Result:
    """Rounds per second when the next groups are generated during an update."""
    parts = [ahead.overlap(size, plan.quick, plan.repeats) for size in ahead.LOADS]
    return [each for rows, _ in parts for each in rows], [note for _, notes in parts for note in notes]


def flow(plan: Plan) -> Result:
    """How full the slots are when batches flow into each other."""
    return flowing.flowing(plan.quick, plan.repeats)


def grading(plan: Plan) -> Result:
    """Time that verification adds to a round when groups are graded as they finish."""
    return ahead.grading(plan.quick, plan.repeats)


def routing(plan: Plan) -> Result:
    """The effect of replaying a mixture-of-experts model's choices."""
    return replaying.routing(plan.quick, plan.repeats)


def dtypes(plan: Plan) -> Result:
    """The size from which bfloat16 is faster on this CPU."""
    return precision.dtypes(plan.quick, plan.repeats)


MEASUREMENTS: dict[str, Callable[[Plan], Result]] = {
    "tiny": tiny,
    "small": small,
    "vllm": vllm,
    "logprobs": logprobs,
    "swaps": swaps,
    "turns": turns,
    "overlap": overlap,
    "flow": flow,
    "grading": grading,
    "routing": routing,
    "dtypes": dtypes,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 130 when interrupted."""
    parser = option_parser("engine", __doc__, MEASUREMENTS)
    parser.add_argument("--repeats", type=at_least_one, help="of the speeds; default 3, with --quick 1")
    parser.add_argument("--vllm-python", type=Path, help="a Python that has vLLM, to measure that too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    report, console = Report("engine"), wide_console()
    plan = Plan(options.quick, options.repeats or (1 if options.quick else 3), options.vllm_python)
    return conclude(
        lambda: measure(MEASUREMENTS, options.only, plan, report, console, quick=plan.quick), report, options, console
    )


if __name__ == "__main__":
    sys.exit(main())
