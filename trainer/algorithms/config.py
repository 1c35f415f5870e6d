"""Which algorithm turns rewards into gradients."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, POLICY_LOSSES, load_builtin

LossAggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]

load_builtin()


class AlgorithmConfig(BaseModel):
    """Advantage estimator, policy loss and aggregation. The defaults of clipping are GSPO's, of order 1e-4."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    adv_estimator: str = Field("grpo", description="Advantage estimator")
    norm_adv_by_std: bool = Field(True, description="GRPO divides by the group's standard deviation; Dr.GRPO does not")
    policy_loss: str = Field("gspo", description="Policy loss: gspo clips a sequence's ratio, ppo a token's")
    clip_ratio_low: float = Field(3e-4, gt=0, lt=1, description="The ratio is clipped below 1 - this")
    clip_ratio_high: float = Field(4e-4, gt=0, description="The ratio is clipped above 1 + this")
    clip_ratio_c: float = Field(
        3.0, gt=1, description="Dual clip of ppo: bound of the loss where the advantage is negative"
    )
    loss_agg: LossAggregation = Field("seq-mean-token-mean", description="How token losses become one number")

    @model_validator(mode="after")
    def _known(self) -> Self:
        for field, registry in (("adv_estimator", ADVANTAGE_ESTIMATORS), ("policy_loss", POLICY_LOSSES)):
            if getattr(self, field) not in registry:
                raise ValueError(f"{field} is {getattr(self, field)!r}; known are {', '.join(sorted(registry))}")
        if self.policy_loss == "gspo" and self.loss_agg != "seq-mean-token-mean":
            raise ValueError(
                f"loss_agg is {self.loss_agg!r}, but gspo is defined with seq-mean-token-mean; "
                "set that, or policy_loss: ppo"
            )
        if self.policy_loss == "ppo" and self.clip_ratio_high < 0.01:
            raise ValueError(
                f"clip_ratio_high is {self.clip_ratio_high}, made for gspo's sequence ratios; ppo clips token ratios: "
                "set clip_ratio_low: 0.2 and clip_ratio_high: 0.2"
            )
        return self
