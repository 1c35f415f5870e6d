"""How old tokens are when they are trained on, in weight versions, and what those beyond the bound still weigh."""

from collections.abc import Mapping
from typing import Literal, Self

import numpy as np
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer.metrics import distribution


class StalenessConfig(BaseModel):
    """How far the policy that samples may be behind the one that is trained. A step in mode sync has no old tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_staleness: int = Field(
        1,
        ge=0,
        description="Oldest age, in weight versions, that a token may have when it is trained on; async samples so "
        "many steps ahead",
    )
    too_old: Literal["drop", "down_weight"] = Field(
        "drop",
        description="What becomes of a group with older tokens: drop the whole group, or down_weight those tokens",
    )
    too_old_weight: float = Field(
        0.0, ge=0, lt=1, description="down_weight: what multiplies the advantage of an older token, for each version"
    )

    @model_validator(mode="after")
    def _weight_is_used(self) -> Self:
        if self.too_old_weight and self.too_old == "drop":
            raise ValueError(
                f"too_old_weight is {self.too_old_weight}, but groups that are too old are dropped; set too_old: "
                "down_weight, or too_old_weight: 0"
            )
        return self


class StaleTokens(ValueError):
    """Tokens of weights that the policy to be trained does not come from, or that are too old to be trained on."""


def ages(versions: Int[np.ndarray, " N"], trained: int) -> Int[np.ndarray, " N"]:
    """How many versions each token is behind version `trained`, the one that is about to be updated.

    Raises:
        StaleTokens: a token is of a later version.
    """
    behind = trained - versions
    if len(behind) and behind.min() < 0:
        raise StaleTokens(
            f"a token was sampled from weight version {int(versions.max())}, but version {trained} is to be updated: "
            "the replicas are ahead of the learner"
        )
    return behind


def age_weights(behind: Int[np.ndarray, " N"], config: StalenessConfig) -> Float[np.ndarray, " N"]:
    """1 within the bound; beyond it `too_old_weight` to the power of the versions that are too many.

    Raises:
        StaleTokens: groups that are too old are dropped, and this token should have been.
    """
    beyond = np.maximum(behind - config.max_staleness, 0)
    if config.too_old == "drop" and beyond.any():
        raise StaleTokens(
            f"a token is {int(behind.max())} weight versions old, and staleness.max_staleness is "
            f"{config.max_staleness}: its group should have been dropped"
        )
    return np.where(beyond > 0, np.float64(config.too_old_weight) ** beyond, 1.0)


def age_metrics(behind: Int[np.ndarray, " N"], config: StalenessConfig) -> dict[str, float]:
    """Ages of a step's sampled tokens: mean, extremes, the share of each age, and of those beyond the bound.

    `trained/max` is over tokens with a weight, which is what the bound is about.
    """
    if not len(behind):
        return {}
    weights = age_weights(behind, config)
    shares = np.bincount(behind) / len(behind)
    return (
        distribution("staleness/age", behind.astype(float).tolist())
        | {f"staleness/age_share/{age}": float(share) for age, share in enumerate(shares)}
        | {
            "staleness/trained_age/max": float(behind[weights > 0].max(initial=0)),
            "staleness/down_weighted": float((weights < 1).mean()),
        }
    )


def age_warnings(metrics: Mapping[str, float], config: StalenessConfig) -> list[str]:
    """Sentences for the log of a step that could not use, or not fully, what was sampled for it."""
    warnings = []
    if dropped := metrics.get("staleness/dropped_groups", 0.0):
        warnings.append(
            f"{dropped:.0f} groups had tokens more than staleness.max_staleness of {config.max_staleness} weight "
            "versions old and were dropped. Raise it, or let fewer trials wait for a slot (rollout.concurrency)."
        )
    if share := metrics.get("staleness/down_weighted", 0.0):
        warnings.append(
            f"{share:.0%} of the tokens are more than staleness.max_staleness of {config.max_staleness} weight "
            f"versions old, and weigh {config.too_old_weight:g} for each version that is too many."
        )
    return warnings
