"""Settings of policy updates."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from swarm.algorithms.advantages import ADVANTAGES, BY_REWARD, find_advantage
from swarm.algorithms.importance import ImportanceName
from swarm.algorithms.losses import LOSSES, BehaviourKlEstimatorName, Grpo, KlEstimatorName, Loss
from swarm.policy.config import BatchingName
from swarm.sanitize import clean
from swarm.settings import Settings

ScheduleName = Literal["constant", "linear", "cosine"]
MAX_LEARNING_RATE = 1.0
MINIBATCHES = 4
"""Optimizer steps of an update where none are configured."""
OptimizerName = Literal["adamw", "adamw_8bit", "adamw_offloaded"]
CORRECTIONS = {"icepop": "token_mask", "mis": "sequence_mask"}
"""Values of `importance` by the names of their papers, which others count among the objectives."""


class DemonstrationSettings(Settings):
    """Recorded answers that `swarm join` imitates before its first round: supervised steps of cross-entropy on the
    completions' tokens."""

    path: Path | None = None
    """JSONL or Parquet with `prompt` and `completion`, `messages`, or `prompt` and `chosen`, as TRL and verl have them;
    or the directory or `samples.jsonl` of an earlier node, of which right answers are taken. Default: none."""
    epochs: int = Field(1, ge=1)
    """Passes over the demonstrations, at most."""
    max_steps: int = Field(200, ge=1)
    """Most steps, whatever `epochs` says."""
    batch: int = Field(32, ge=1)
    """Demonstrations a step."""
    learning_rate: float = Field(1e-5, gt=0, le=MAX_LEARNING_RATE)
    """Constant; 1e-3 for the embedded policies."""
    min_reward: float = Field(0.99, ge=0, le=1)
    """The least reward of a completion that is imitated, where the demonstrations are samples."""


class UpdateSettings(Settings):
    """GRPO on whole groups. Source: arXiv:2402.03300, section 4.1, with the settings of arXiv:2509.08721, section 4."""

    objective: str = "grpo"
    """The loss; `swarm losses` lists them with equation and paper. A custom one is named by
    its location:
    `file.py:MyLoss` or `mypackage.mymodule:MyLoss`."""
    loss: SerializeAsAny[Loss] = Field({}, validate_default=True)
    """Settings of the loss."""
    advantage: str = "grpo"
    """The function from a group's rewards to advantages: `grpo`, `dr_grpo`, `rloo`, `maxrl`, `gdpo`, or the location of
    a custom one: `file.py:name`."""
    credit: Literal["episode", "turn"] = "episode"
    """Credit of a turn's tokens: the reward of the whole episode, or only what this turn and later
    ones earned, compared with the same turn of the group's other episodes."""
    learning_rate: float = Field(1e-6, gt=0)
    """1e-6 suits models of 0.5 B parameters and more; the default for `tiny` is 3e-4, for `smollm2` 1e-5."""
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(0.0, ge=0)
    warmup_updates: int = Field(0, ge=0)
    """Updates over which the learning rate rises linearly from 0."""
    schedule: ScheduleName = "constant"
    """The learning rate after warm-up: constant, or falling until `total_updates` and constant from then on."""
    total_updates: int | None = Field(None, ge=1)
    """Updates, warm-up included, after which `linear` and `cosine` reach `final_learning_rate`."""
    final_learning_rate: float = Field(0.0, ge=0)
    """Learning rate at the end of the schedule."""
    importance: ImportanceName = "none"
    """Importance weighting of tokens that another policy or engine sampled; `swarm losses` lists the treatments. With a
    treatment, the clip is against this node's own log-probabilities when the batch is built."""
    importance_cap: float = Field(3.0, ge=1)
    """Largest importance weight, of a token or of a completion, before it is truncated or masked."""
    importance_floor: float = Field(0.0, ge=0, lt=1)
    """Smallest importance weight, likewise; 0: none. IcePop masks tokens outside [0.5, 5]."""
    behaviour_kl: float = Field(0.0, ge=0)
    """Coefficient of a divergence from the behaviour policy, which limits updates on stale groups; arXiv:2508.17850
    uses 0.005 under delay."""
    behaviour_kl_estimator: BehaviourKlEstimatorName = "cppo"
    """Estimator of that divergence: `cppo` as published, which overestimates it on stale groups; `weighted_k3` without
    bias."""
    reference_kl: float = Field(0.0, ge=0)
    """Coefficient of a divergence from the reference; above 0 the node keeps a frozen copy of it."""
    reference: Literal["initial", "best"] = "initial"
    """The initial model; or a peer's own policy of the round up to which the mean reward of `watch.window_rounds`
    rounds was highest so far: self-distillation from its best snapshot. A restart begins with the initial model."""
    kl_estimator: KlEstimatorName = "k3"
    """Estimator of the divergence from the reference; `swarm losses` lists the estimators."""
    max_grad_norm: float = Field(1.0, gt=0)
    epochs: int = Field(1, ge=1)
    """Passes over each mixed batch; clipping has an effect from the second step on."""
    minibatches: int | None = Field(None, ge=1)
    """Optimizer steps per epoch, whole groups each, or fewer where there are fewer groups. Default: 4; a learner's 1,
    because only the first is computed while groups arrive."""
    batching: BatchingName = "auto"
    """How rows share a forward pass: `packed` processes a prompt once for all its completions, without padding, but
    needs a model with plain attention; `padded` combines rows of similar length. `auto`: packed if the model allows it,
    on GPUs only with CUDA in half precision, else padded."""
    micro_batch_tokens: int | None = Field(None, ge=1)
    """Tokens per forward pass, padding included; it bounds memory and does not change the update. Halved when memory
    runs out. Default: 16,384 on GPUs, with CUDA at most what the free memory holds; 1,024 on the CPU, where more is not
    faster."""
    gradient_checkpointing: bool | None = None
    """Keep only each layer's input for the gradient and recompute the rest: less memory, a third more time. Default: on
    GPUs with CUDA where the free memory does not hold passes of 4,096 tokens without, for models whose layers are
    known."""
    optimizer: OptimizerName = "adamw"
    """`adamw` takes 8 bytes of a GPU's memory for each trained weight. `adamw_8bit` takes 2: blocks of 8-bit numbers
    with one scale each, for GPUs, with the extra `torchao`. `adamw_offloaded` takes none: its steps are those of
    `adamw`, on the CPU and slower; not with several processes (torchrun). A checkpoint with 8-bit numbers resumes only
    with `adamw_8bit`."""
    compile: bool | None = None
    """Compile the model's layers for updates; the first update takes longer, by up to a minute, or seconds where the
    kernels are on disk from an earlier start. Default: on a GPU with CUDA, for models of at least 50 million parameters
    without experts, images or sounds."""
    max_nonfinite_steps: int = Field(5, ge=1)
    """Stop, after writing a checkpoint, when this many consecutive optimizer steps had a non-finite loss or
    gradient."""

    @model_validator(mode="after")
    def _betas_in_range(self) -> UpdateSettings:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be in [0, 1), got {self.betas}")
        return self

    @model_validator(mode="after")
    def _a_reference_is_used(self) -> UpdateSettings:
        if self.reference != "initial" and self.reference_kl == 0:
            raise ValueError(f"reference {self.reference} needs reference_kl above 0, got 0")
        return self

    @property
    def num_minibatches(self) -> int:
        """Optimizer steps per epoch, of enough groups."""
        return self.minibatches or MINIBATCHES

    @property
    def has_penalty(self) -> bool:
        """Whether an update changes the policy on completions without an advantage, too."""
        return self.reference_kl > 0 or self.behaviour_kl > 0

    @field_validator("learning_rate", "final_learning_rate")
    @classmethod
    def _is_a_rate(cls, rate: float) -> float:
        if rate > MAX_LEARNING_RATE:
            raise ValueError(
                f"must be at most {MAX_LEARNING_RATE:g}, got {rate:g}: Adam moves every weight by about this much in "
                "each update; usual are 1e-6 to 1e-3"
            )
        return rate

    @field_validator("objective")
    @classmethod
    def _objective_exists(cls, objective: str) -> str:
        if objective in CORRECTIONS:
            raise ValueError(f"{objective} goes with any objective: update.importance {CORRECTIONS[objective]}")
        if objective in ADVANTAGES and objective not in LOSSES:
            raise ValueError(f"{objective} goes with any objective: update.advantage {objective}")
        LOSSES.find(objective)
        return objective

    @field_validator("loss", mode="before", json_schema_input_type=dict[str, object])
    @classmethod
    def _settings_of_the_objective(cls, values: object, info: ValidationInfo) -> object:
        """The loss that `objective` names, with these settings."""
        if "objective" not in info.data:
            return Grpo()  # the objective's own validator reports the error
        model = LOSSES.find(info.data["objective"])
        unknown = set(values) - set(model.model_fields) if isinstance(values, dict) else set()
        if unknown:
            raise ValueError(
                f"{info.data['objective']} has no {clean(str(min(unknown, key=str)))}, only "
                f"{', '.join(model.model_fields)}"
            )
        return model.model_validate(values)

    @field_validator("advantage")
    @classmethod
    def _advantage_exists(cls, advantage: str) -> str:
        find_advantage(advantage)
        return advantage

    @model_validator(mode="after")
    def _one_correction(self) -> UpdateSettings:
        if self.loss.needs_group_expectation and self.importance != "none":
            raise ValueError(
                f"importance must be none with objective {self.objective}, got {self.importance}: its weights are "
                "against the sampler already"
            )
        return self

    @model_validator(mode="after")
    def _credit_of_each_reward(self) -> UpdateSettings:
        if self.advantage in BY_REWARD and self.credit == "turn":
            raise ValueError(f"credit must be episode with advantage {self.advantage}: named rewards have no turns")
        if self.advantage == "maxrl" and self.credit == "turn":
            raise ValueError("credit must be episode with advantage maxrl: a turn's reward may be negative")
        return self

    @model_validator(mode="after")
    def _schedule_ends(self) -> UpdateSettings:
        if self.schedule == "constant":
            return self
        if self.total_updates is None or self.total_updates <= self.warmup_updates:
            raise ValueError(
                f"schedule {self.schedule} needs total_updates above warmup_updates ({self.warmup_updates}), "
                f"got {self.total_updates}"
            )
        if self.final_learning_rate > self.learning_rate:
            raise ValueError(
                f"final_learning_rate must be at most learning_rate ({self.learning_rate:g}), "
                f"got {self.final_learning_rate:g}"
            )
        return self
