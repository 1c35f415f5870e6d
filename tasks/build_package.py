"""A Prefect task for each package of a pool that is built; what it has done already, the pool's folder says."""

import asyncio
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from harness.pool.builder import BuildConfig, PackageResult, PackageSource, Progress, SourceError, Store, build_package
from harness.sandbox import SandboxConfig
from harness.sandbox.owner import owned_by
from tasks.policy import worth_retrying
from tasks.progress import Event, emit


@task(
    name="build_package",
    task_run_name="build {label}",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=worth_retrying,
)
async def build_one_package(
    label: str, source: PackageSource, root: Path, config: BuildConfig, sandbox: SandboxConfig
) -> PackageResult:
    """Build the tasks of one package in the pool folder `root`, which the flow holds.

    A package that cannot be had or tested is a result as well: it says why. `sandbox.max_concurrent_execs` bounds the
    commands of all packages together.
    """

    def tell(progress: Progress) -> None:
        data = {"tried": progress.tried}
        emit(Event("build", label, progress.stage, progress.admitted, progress.wanted, data))

    store = Store(root)
    try:
        with owned_by(project="pool", run=label):
            result = await build_package(source, store, config, sandbox, asyncio.Semaphore(config.at_a_time), tell)
    except SourceError as error:
        result = PackageResult(label, label, "", "", problem=str(error))
        store.put_result(result)
    emit(Event("build", label, "done", len(result.tasks), config.tasks_per_package, {"problem": result.problem}))
    return result
