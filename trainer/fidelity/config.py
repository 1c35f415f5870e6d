"""When a step counts as unfaithful, and how many such steps a run goes through."""

from pydantic import BaseModel, ConfigDict, Field


class FidelityConfig(BaseModel):
    """The gate on the agreement of engine and trainer.

    Both give a probability to every sampled token, and both should mean the same weights, temperature, tokens and
    experts. Where they do not, the loss is of another policy than the one that acted, and nothing else will say so.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    threshold: float = Field(
        0.99, ge=-1, le=1, description="Least Pearson correlation of the probabilities of engine and trainer"
    )
    max_mean_diff: float | None = Field(
        None, gt=0, le=1, description="Largest mean |difference| of the probabilities; no limit if unset"
    )
    max_diff: float | None = Field(
        None, gt=0, le=1, description="Largest |difference| of a token's probabilities; no limit if unset"
    )
    patience: int | None = Field(
        3,
        ge=1,
        description="Unfaithful steps in a row that stop the run; null to warn only. The steps that follow an "
        "unfaithful one are scored by the learner, a forward pass more, so that a cause can be named",
    )
