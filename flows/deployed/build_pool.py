"""The deployment `build-pool`."""

from pathlib import Path
from typing import Any, Literal

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field

from flows.build_pool import build_pool as build
from flows.config import NAME, ConfigError
from flows.deployed.worker import on_worker
from flows.form_order import in_order
from harness.pool.builder import BuildConfig, PackageSource
from harness.sandbox import SandboxConfig


class BuildForm(BaseModel):
    """A pool of tasks, made from Python packages that have tests."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=in_order)

    pool: str = Field(
        "built", pattern=NAME, title="Pool", description="Name of the pool: a folder in the root's pools/"
    )
    source: Literal["package", "folder", "git"] = Field(
        "package", title="Source", description="Source distributions by pip, folders, or commits of local checkouts"
    )
    names: list[str] = Field(
        min_length=1, title="Names", description="name==version of each package; a folder; or folder@commit"
    )
    tasks_per_package: int = Field(
        40, ge=1, title="Tasks", description=BuildConfig.model_fields["tasks_per_package"].description
    )
    seed: int = Field(0, ge=0, title="Seed", description=BuildConfig.model_fields["seed"].description)
    advanced: dict[str, Any] = Field(
        {}, title="Advanced", description=f"More settings by name: {', '.join(sorted(BuildConfig.model_fields))}"
    )


@flow(name="build-pool", flow_run_name="build-pool-{build.pool}")
async def build_pool(build: BuildForm) -> dict[str, Any]:
    """Build tasks from packages, each proven by its hidden tests. What an earlier build has done is not done again.

    Args:
        build: Which packages, and how many tasks.
    """
    sources, config = plan(build)
    async with on_worker(f"build-pool-{build.pool}") as root:
        folder = root / "pools" / build.pool
        results = await _build(folder, sources, config)
    return {
        "index": str(folder / "index.parquet"),
        "tasks": {result.label: len(result.tasks) for result in results},
        "problems": {result.label: result.problem for result in results if result.problem},
    }


def plan(form: BuildForm) -> tuple[list[PackageSource], BuildConfig]:
    """What the form asks for.

    Raises:
        ConfigError: a setting is unknown, or given twice.
        SourceError: a name is none.
    """
    taken = sorted({"tasks_per_package", "seed"} & form.advanced.keys())
    if taken:
        raise ConfigError(f"advanced names {', '.join(taken)}, which have fields of their own")
    make = {"package": PackageSource.package, "folder": PackageSource.folder, "git": PackageSource.git}[form.source]
    config = BuildConfig(tasks_per_package=form.tasks_per_package, seed=form.seed, **form.advanced)
    return [make(name) for name in form.names], config


async def _build(folder: Path, sources: list[PackageSource], config: BuildConfig) -> Any:
    return await build(folder, sources, config, SandboxConfig())
