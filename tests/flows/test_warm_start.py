"""The flow of a warm start, with its stages away."""

import asyncio

import pytest
from support.journals import make_run
from support.tasks import write_task

from flows import warm_start as module
from flows.warm_start_config import WarmStartConfig
from harness.pool.index import TaskPointer, write_index


async def test_grading_ends_with_demonstrations_that_cannot_be_made(tmp_path, monkeypatch):
    index = tmp_path / "pool" / "index.parquet"
    write_index([TaskPointer("a", write_task(tmp_path / "pool" / "a"))], index)
    grading = []

    async def ready(*given):
        return {"demonstrations": 1}

    async def broken(*given):
        await asyncio.sleep(0)
        raise RuntimeError("no machine")

    async def grade(*given):
        grading.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            grading.append("ended")

    for name, stage in {"prepare_sandbox": ready, "plan_demonstrations": ready, "run_demonstrations": broken,
                        "verify_trials": grade}.items():  # fmt: skip
        monkeypatch.setattr(module, name, stage)
    config = WarmStartConfig(experiment="x", demonstrations={"index": str(index)})
    with pytest.raises(RuntimeError, match="no machine"):
        await module._demonstrate(make_run(tmp_path), config, tmp_path, [])
    assert grading == ["begun", "ended"], "it would go on without the lease"
