"""What names a run: small and plain enough to cross every Prefect task boundary."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from tasks.journal import Journal


class RunRef(BaseModel):
    """A run's names and places.

    `nonce` is made with the journal: results that Prefect has cached for a journal that was deleted since never match.
    """

    model_config = ConfigDict(frozen=True)

    project: str
    experiment: str
    root: Path
    nonce: str
    tracking_uri: str

    @property
    def name(self) -> str:
        """Prefix of the names of the run's actors."""
        return f"{self.project}/{self.experiment}"

    @property
    def journal(self) -> Journal:
        return Journal(self.root / self.project / self.experiment)

    @property
    def log_file(self) -> Path:
        """One line a step, in verl's format."""
        return self.journal.logs / f"{self.experiment}.log"

    @property
    def engine_log_file(self) -> Path:
        return self.journal.logs / f"{self.experiment}_vllm.log"
