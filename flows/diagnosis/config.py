"""What the verdict on the first step may do."""

from pydantic import BaseModel, ConfigDict, Field


class DiagnosisConfig(BaseModel):
    """The verdict on a run's first step."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stop: bool = Field(
        True,
        description="Stop after a first step that leaves nothing to go on with: no trial could be trained on because "
        "of infrastructure, or the learning rate is 0. Off: the verdict is told, and the run goes on",
    )
