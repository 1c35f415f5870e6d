"""Build a pool of tasks from packages: one Prefect task a package, all in one folder."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from prefect import flow

from harness.pool.builder import BuildConfig, PackageResult, PackageSource, Store
from harness.pool.index import PoolError
from harness.sandbox import SandboxConfig, require_isolation, sweep
from tasks.build_package import build_one_package
from tasks.groups import task_group

PACKAGES_AT_A_TIME = 2
"""While one waits for its sandboxes, the next one's files are read."""


@flow(name="build_pool", flow_run_name="build {target.name}", validate_parameters=False)
async def build_pool(
    target: Path, sources: Sequence[PackageSource], config: BuildConfig, sandbox: SandboxConfig
) -> list[PackageResult]:
    """Build the tasks of `sources` in the folder `target` and write its index, which names those of earlier builds too.

    What an earlier build has done, one that was killed as well, is not done again.

    Raises:
        PoolError: another build runs on `target`, it holds something else, or a package is named twice.
        SandboxError: no sandbox can be made.
    """
    labels = [source.label for source in sources]
    if repeated := sorted({label for label in labels if labels.count(label) > 1}):
        raise PoolError(f"packages {repeated} are named more than once; name each once")
    store = Store(target)
    sandbox = sandbox.model_copy(update={"max_concurrent_execs": config.at_a_time})
    with store.held():
        await asyncio.to_thread(sweep)
        await asyncio.to_thread(require_isolation, sandbox)
        turns = asyncio.Semaphore(PACKAGES_AT_A_TIME)

        async def one(source: PackageSource) -> PackageResult:
            async with turns:
                result: PackageResult = await build_one_package(source.label, source, store.root, config, sandbox)
            await asyncio.to_thread(store.write_index)
            return result

        async with task_group() as group:
            builds = [group.create_task(one(source)) for source in sources]
    return [build.result() for build in builds]
