"""What is done where the probabilities of the engine that sampled differ from the trainer's."""

from collections import Counter
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class RejectionRule(BaseModel):
    """Rollouts whose statistic lies outside [low, high] are rejected.

    k1 is -log rho, k2 log(rho)^2 / 2, k3 rho - 1 - log rho; rho is the trainer's probability of a token over the
    engine's. Bounds are in nats: verl's "0.999_1.001" of seq_mean_k1 is low -0.001, high 0.001.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    over: Literal["sum", "mean", "max"] = Field(description="How the statistic of tokens becomes that of a rollout")
    statistic: Literal["k1", "k2", "k3"] = Field(description="Statistic of a token")
    low: float | None = Field(None, description="Smallest accepted sum or mean of k1; no other can be negative")
    high: float = Field(description="Largest accepted value")

    @model_validator(mode="after")
    def _accepts_equal_policies(self) -> Self:
        if not self.high > 0:
            raise ValueError(f"high is {self.high}; where both policies agree every statistic is 0: set it above 0")
        two_sided = self.statistic == "k1" and self.over != "max"
        if two_sided and (self.low is None or not self.low < 0):
            raise ValueError(
                f"low is {self.low}, but {self.name} has two sides: set it below 0, "
                f"as {-self.high:g}, or to -.inf to test one side only"
            )
        if not two_sided and self.low is not None:
            raise ValueError(f"low is {self.low}, but a small {self.name} means that both policies agree: leave it out")
        return self

    @property
    def name(self) -> str:
        """As in metric names: `seq_mean_k1`."""
        return f"seq_{self.over}_{self.statistic}"


class RolloutCorrectionConfig(BaseModel):
    """Importance weights between the policy that sampled and the one that ratios compare with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["off", "decoupled", "bypass"] = Field(
        "decoupled",
        description="decoupled: weights correct from the engine to the old policy; bypass: the engine's log-probs are "
        "taken as the old policy's, so that the loss's own ratio corrects; off: differences are measured only",
    )
    weights: Literal["none", "token", "sequence"] = Field(
        "token", description="decoupled: an importance weight for each token, or their product for the rollout"
    )
    low: float | None = Field(None, gt=0, description="Smallest weight that is kept; below, see outside")
    high: float = Field(2.0, gt=0, allow_inf_nan=False, description="Largest weight that is kept; above, see outside")
    outside: Literal["truncate", "mask"] = Field(
        "truncate", description="truncate weights to the range (TIS), or drop what lies outside of it (IcePop)"
    )
    reject: list[RejectionRule] = Field([], description="Rollouts that any rule rejects lose their gradient")

    @model_validator(mode="after")
    def _range_holds_one(self) -> Self:
        if self.low is not None and not self.low < self.high:
            raise ValueError(f"low is {self.low}, not below high, {self.high}")
        if self.high < 1 or (self.low is not None and self.low > 1):
            raise ValueError(
                f"weights are kept in [{self.low or 0}, {self.high}], which lacks 1, the weight where both policies "
                "agree: set low <= 1 <= high"
            )
        if self.outside == "mask" and 1 in (self.low, self.high):
            raise ValueError("outside is mask, and a bound is 1: about every second token would be dropped; widen it")
        return self

    @model_validator(mode="after")
    def _rules_apply(self) -> Self:
        if self.reject and self.mode == "off":
            raise ValueError("reject has rules, but mode is off: set mode to decoupled (with weights: none, say)")
        twice = [name for name, times in Counter(rule.name for rule in self.reject).items() if times > 1]
        if twice:
            raise ValueError(f"reject has two rules named {', '.join(twice)}: merge their bounds")
        return self

    @property
    def weighted(self) -> bool:
        """Whether weights other than 1 are applied."""
        return self.mode == "decoupled" and self.weights != "none"

    @property
    def lower_threshold(self) -> float:
        """Below it a weight is counted as low: `low`, or as far below 1 as `high` is above."""
        return 1 / self.high if self.low is None else self.low
