"""Whether and how the policy is held near a reference policy."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class KLConfig(BaseModel):
    """KL divergence from the reference policy, which is the run's initial model, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    place: Literal["none", "loss", "reward", "both"] = Field(
        "none", description="Where the divergence enters; `both` counts it twice, on purpose"
    )
    estimator: str = Field("k3", description="Estimator of a token's divergence; `testgrad algorithms` lists them")
    coef: float = Field(0.001, gt=0, description="Weight of the divergence; the first one, if adaptive")
    controller: Literal["fixed", "adaptive"] = Field(
        "fixed", description="Whether the weight in the reward follows the measured divergence"
    )
    target: float = Field(0.1, gt=0, description="Divergence per token that the adaptive controller aims at, in nats")
    horizon: int = Field(10_000, ge=1, description="Rollouts over which the adaptive controller corrects")

    @property
    def in_loss(self) -> bool:
        return self.place in ("loss", "both")

    @property
    def in_reward(self) -> bool:
        return self.place in ("reward", "both")
