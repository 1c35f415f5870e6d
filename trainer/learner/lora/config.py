"""What adapters look like, and what replicas are sent of them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class LoraConfig(BaseModel):
    """Low-rank adapters, trained instead of the policy's own weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(16, ge=1, description="Width of the adapters")
    alpha: float = Field(32.0, gt=0, description="Adapters count alpha / rank times")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Share of an adapter's inputs left out at random; above 0, ratios are noisy"
    )
    target_modules: list[str] | Literal["all-linear"] = Field(
        "all-linear", description="Names of the layers that get adapters, such as q_proj; or all-linear"
    )
    sync: Literal["merged", "adapters"] = Field(
        "merged", description="What replicas are sent: whole weights with the adapters merged in, or adapters alone"
    )
