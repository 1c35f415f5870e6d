"""The deployment `export`."""

import asyncio
from pathlib import Path

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field

from flows.config import ConfigError
from flows.deployed.evaluate import EvaluateForm, choose
from flows.deployed.worker import on_worker
from flows.form_order import in_order
from trainer.learner.export import export_checkpoint


class ExportForm(BaseModel):
    """Weights of a run as a Hugging Face folder."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=in_order)

    run: str = Field(
        title="Run", min_length=3, description="project/experiment for its newest checkpoint, or with @STEP"
    )
    target: str = Field(
        "", title="Folder", description="Where it is written; exports/<run>/<step> in the root of runs if empty"
    )


@flow(name="export", flow_run_name="export-{export.run}")
async def export(export: ExportForm) -> str:
    """Turn a checkpoint into a Hugging Face folder, verified against its base model.

    Args:
        export: Which one, and where to.
    """
    async with on_worker("export") as root:
        checkpoint = choose(EvaluateForm(what="run", name=export.run), root)
        if checkpoint is None:
            raise ConfigError(f"run: {export.run} has no checkpoint yet")
        run = checkpoint.parent.parent
        own = root / "exports" / run.parent.name / run.name / checkpoint.name
        target = Path(export.target).expanduser() if export.target else own
        target.parent.mkdir(parents=True, exist_ok=True)
        return str(await asyncio.to_thread(export_checkpoint, checkpoint, target.resolve()))
