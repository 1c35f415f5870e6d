"""Bars on the page of a flow run: written in the flow's own context, however many events come from within its tasks."""

import asyncio
from contextvars import ContextVar
from uuid import uuid4

from flows.deployed import artifacts
from tasks.progress import Event, emit

client = ContextVar("client", default="none")


async def test_bars_are_written_by_the_flow_and_bursts_are_one_request(monkeypatch):
    written, gate = [], asyncio.Event()

    async def create(percent, key, text):
        await gate.wait()
        written.append((client.get(), percent))
        return uuid4()

    async def update(artifact, percent):
        written.append((client.get(), percent))

    monkeypatch.setattr(artifacts, "acreate_progress_artifact", create)
    monkeypatch.setattr(artifacts, "aupdate_progress_artifact", update)
    client.set("flow's")

    async def prefect_task():
        client.set("task's")
        for done in range(201):
            emit(Event("trials", "step_000001", done=done, total=200))
            await asyncio.sleep(0)
        client.set("closed")

    async with artifacts.showing("run"):
        await asyncio.create_task(prefect_task())
        gate.set()
        while len(written) < 2:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
    assert written == [("flow's", 0.0), ("flow's", 100.0)], "the newest state, once"
