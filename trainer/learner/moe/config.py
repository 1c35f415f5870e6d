"""How mixtures of experts are trained."""

from pydantic import BaseModel, ConfigDict, Field


class MoeConfig(BaseModel):
    """What only concerns a mixture of experts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replay: bool = Field(
        False,
        description="Train each token through the experts that the engine chose for it (R3); "
        "needs serving.capture_routing",
    )
