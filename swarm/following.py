"""Settings of a central learner and of the nodes that follow it; `swarm/extras/learner` is what they set."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from swarm.settings import Settings


def publish_every(max_staleness: int) -> int:
    """kappa = max(1, S - 1): bounds staleness by S if the rate is `required_rate` or more and broadcast_s <= train_s.

    Source: arXiv:2602.02192, section 3.3 and appendix A.4.
    """
    return max(1, max_staleness - 1)


class LearnerSettings(Settings):
    """How `swarm learn` trains on its workers' rollouts."""

    workers: tuple[str, ...] | None = None
    """Peer ids of the workers whose groups are taken; those of others are refused before they are graded. Default: of
    anybody who joins the run."""
    max_staleness: int = Field(3, ge=0)
    """S: the most updates between the policy that sampled a token and the one that trains on it; 0: strictly
    on-policy."""
    publish_every: int | None = Field(None, ge=1)
    """kappa: updates between snapshots, at most S + 1. Default: max(1, S - 1)."""
    rollouts_per_step: int = Field(64, ge=1)
    """R: completions per update, in whole groups with signal."""
    micro_batch_rollouts: int = Field(8, ge=1)
    """Completions per micro-batch: the learner waits for this many before it computes their gradient, except at the end
    of an update and when the buffer is full."""
    buffer_groups: int = Field(256, ge=1)
    """Most groups that wait for an update; beyond it the oldest version leaves first."""
    precision: Literal["native", "bfloat16", "int8"] = "bfloat16"
    """Number format of snapshots; the learner's own weights stay float32. `bfloat16` changes in few weights per step,
    so that its deltas are small; `native` sends every bit; `int8` is the smallest whole. Workers sample from the
    rounded policy, and importance weights use its log-probabilities: `sampling/sampling_logp_difference/mean` contains
    the rounding."""
    spot_check: float = Field(0.05, ge=0, le=1)
    """Fraction of groups whose log-probabilities the learner recomputes under the snapshots they name, and of which it
    tests whether they can have been sampled from these. A worker's first eight groups are always checked, and all of
    its groups after a false claim, until one is true, and while something speaks against it. 0: no checks."""
    spot_check_nats: float = Field(0.1, gt=0)
    """Mean difference per token above which a claim is false; other kernels and dtypes cause smaller differences."""
    headroom: float = Field(1.1, ge=1)
    """alpha: workers are activated until their rate is alpha times the least that keeps the learner busy."""
    release_above: float = Field(1.3, ge=1)
    """Workers are released when their rate exceeds this multiple of that target."""
    min_workers: int = Field(3, ge=1)
    """Workers that stay active even if fewer would do, so that what one pushes can be compared with the others. Where
    `workers` are listed, only as many as needed are kept."""
    act_after_s: float = Field(30.0, ge=0)
    """Seconds for which a rate must be off target before the learner reacts."""
    reached_fraction: float = Field(0.9, gt=0, le=1)
    """Fraction of the active workers that must have installed a snapshot to complete its broadcast."""

    @model_validator(mode="after")
    def _check_period(self) -> Self:
        if self.period > self.max_staleness + 1:
            raise ValueError(
                f"publish_every must be at most {self.max_staleness + 1} (max_staleness + 1), got {self.period}: every "
                "worker would pause, its snapshot too old, before the next is published"
            )
        return self

    @property
    def period(self) -> int:
        """kappa."""
        return self.publish_every or publish_every(self.max_staleness)


class FollowSettings(Settings):
    """How `swarm work` samples for a learner, and how `swarm join --follow` uses its snapshots."""

    learner: str | None = None
    """Peer id of the learner whose signed snapshots are accepted. Default: the founder of the run for a worker, none
    for a peer."""
    adopt_questions: int = Field(128, ge=0)
    """`swarm join --follow`: questions that both policies answer; the node keeps the policy with more right answers. 0:
    never adopt a snapshot."""
    questions: int = Field(64, ge=1)
    """Questions per batch, which is what a line of the metrics is about. Free slots of the engine take the next
    question, of the next batch, too."""
    price: float = Field(0.0, ge=0)
    """Price of this worker per hour; at equal rates the learner prefers cheaper workers."""
    swap_in_flight: bool = True
    """Install a new snapshot between two decode steps; otherwise only between batches."""
