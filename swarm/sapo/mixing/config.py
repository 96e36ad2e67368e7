"""Settings of the mix."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from swarm.sapo.mixing.base import MixPolicy
from swarm.sapo.mixing.policies import POLICIES
from swarm.sapo.mixing.policies.fixed import Fixed
from swarm.settings import Settings


def find_policy(name: str) -> type[MixPolicy]:
    """The policy that `mix.policy` names. Raises `ValueError`."""
    return POLICIES.find(name)


class MixSettings(Settings):
    """I local + J external groups per update."""

    local: int = Field(4, ge=0)
    """I: local groups per update."""
    external: int = Field(4, ge=0)
    """J: external groups per update."""
    policy: str = "fixed"
    """Decides I, J and the candidates' weights in every round: `fixed`, `scheduled`, `scarcity`, `advantage`, `edge`,
    `novelty`, `worth`, `positive`, `auto`, or the place of your own: `file.py:MyMix` or `mypackage.mymodule:MyMix`."""
    settings: SerializeAsAny[MixPolicy] = Field({}, validate_default=True)
    """Settings of the policy."""
    fill: Literal["none", "local"] = "none"
    """What replaces missing external groups: nothing (the shortfall is reported), or more local groups."""
    external_old_logprobs: Literal["receiver", "behaviour", "none"] = "receiver"
    """Old log-probabilities of external groups: this node's own when the batch is built (`receiver`, as in the paper),
    the sender's (`behaviour`; only with the same tokenizer, else `receiver`), or `none`: the ratio is 1."""
    external_negative_weight: float = Field(0.25, ge=0, le=1)
    """Weight of external completions with negative advantage; 1 as in the paper. A lower value limits how far wrong
    answers in this policy's format can drive it away from that format. The policy `positive` sets it to 0."""

    @model_validator(mode="before")
    @classmethod
    def _weight_of_the_policy(cls, values: object) -> object:
        """A policy that trains on positive advantages only sets the weight of the others."""
        if not isinstance(values, dict):
            return values
        try:
            positive_only = find_policy(str(values.get("policy", "fixed"))).positive_only
        except ValueError:
            return values  # the policy's own validator reports the error
        return {"external_negative_weight": 0.0, **values} if positive_only else values

    @model_validator(mode="after")
    def _one_weight(self) -> MixSettings:
        if self.settings.positive_only and self.external_negative_weight > 0:
            raise ValueError(
                f"external_negative_weight must be 0 with policy {self.policy}, got {self.external_negative_weight:g}: "
                "leave it out"
            )
        return self

    @model_validator(mode="after")
    def _something_to_train_on(self) -> MixSettings:
        if self.local + self.external == 0:
            raise ValueError("local + external must be at least 1, got 0 + 0: nothing would ever be trained on")
        return self

    @field_validator("policy")
    @classmethod
    def _policy_exists(cls, policy: str) -> str:
        find_policy(policy)
        return policy

    @field_validator("settings", mode="before", json_schema_input_type=dict[str, object])
    @classmethod
    def _settings_of_the_policy(cls, values: object, info: ValidationInfo) -> object:
        """The policy that `policy` names, with these settings."""
        if "policy" not in info.data:
            return Fixed()  # the policy's own validator reports the error
        return find_policy(info.data["policy"]).model_validate(values)
