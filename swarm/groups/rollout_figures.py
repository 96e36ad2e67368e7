"""Figures of the groups of a round, batch or step, by TRL's names."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import pstdev

from swarm.figures import Figure, joined
from swarm.types import Completion, GradedGroup
from swarm.types.thoughts import parts_of


def rollout_figures(groups: Sequence[GradedGroup]) -> dict[str, Figure]:
    """Figures of a peer's or worker's own completions, or of those a learner trained on; none without groups.

    `reward/std` is the mean over groups of each group's standard deviation. A completion's length is in tokens;
    `completions/clipped_ratio` counts those cut off at `generation.max_new_tokens`. `rewards/NAME/mean` is the mean of
    a named reward, over the completions of tasks that have it. `thoughts/` has the length of thoughts, and the
    fractions that have no end, or one that the engine inserted.
    """
    if not groups:
        return {}
    spreads = [pstdev(graded.rewards) for graded in groups]
    completions = [completion for graded in groups for completion in graded.group.completions]
    lengths = [len(completion.token_ids) for completion in completions]
    cut_off = [completion.finish_reason == "length" for completion in completions]
    return {
        "reward/std": Figure("sequence_mean", sum(spreads), len(groups)),
        "frac_reward_zero_std": Figure("sequence_mean", sum(spread == 0 for spread in spreads), len(groups)),
        "completions/mean_length": Figure("sequence_mean", sum(lengths), len(completions)),
        "completions/max_length": Figure("max", max(lengths)),
        "completions/clipped_ratio": Figure("sequence_mean", sum(cut_off), len(completions)),
        **_thoughts(completions),
        **joined(_named_rewards(graded) for graded in groups),
    }


def _thoughts(completions: Sequence[Completion]) -> dict[str, Figure]:
    """Figures of the turns that begin with a thought; none without any."""
    turns = [turn for completion in completions for turn in completion.by_turn()]
    parts = [(turn, found) for turn in turns if (found := parts_of(turn.text)).thought is not None]
    if not parts:
        return {}
    return {
        "thoughts/mean_chars": Figure("sequence_mean", sum(len(found.thought or "") for _, found in parts), len(parts)),
        "thoughts/unfinished_ratio": Figure(
            "sequence_mean", sum(found.answer is None for _, found in parts), len(parts)
        ),
        "thoughts/forced_ratio": Figure("sequence_mean", sum(turn.forced is not None for turn, _ in parts), len(parts)),
    }


def _named_rewards(graded: GradedGroup) -> dict[str, Figure]:
    return {
        f"rewards/{name}/mean": Figure("sequence_mean", sum(values), len(values))
        for name, values in graded.parts.items()
    }


def rewards_by_task(groups: Sequence[GradedGroup]) -> dict[str, tuple[float, int]]:
    """(sum of rewards, completions) of graded groups by task."""
    found: dict[str, tuple[float, int]] = {}
    for graded in groups:
        total, count = found.get(graded.group.question.task, (0.0, 0))
        found[graded.group.question.task] = (total + sum(graded.rewards), count + len(graded.rewards))
    return found
