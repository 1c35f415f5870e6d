"""What goes on, on the page of a flow run: nothing of it is lost when the flow ends."""

import asyncio

from flows.deployed import artifacts
from flows.deployed.artifacts import showing
from tasks.collection import LABEL
from tasks.progress import Event, emit

SCORE = {
    "step": 3, "scored": 8, "launched": 8,
    "pass_at": {"1": {"value": 0.5, "low": 0.2, "high": 0.8, "scored": 4, "tasks": 4}},
}  # fmt: skip


async def test_the_last_score_is_written_before_the_flow_ends(monkeypatch):
    written = []

    async def slowly(text, key, description):
        await asyncio.sleep(0.01)
        written.append((key, text))

    monkeypatch.setattr(artifacts, "acreate_markdown_artifact", slowly)
    async with showing("evaluate"):
        emit(Event("eval", "", done=3, data=SCORE))
    ((key, text),) = written
    assert key == "evaluate-evaluation-3" and "| pass@1 | 0.500 | 0.200 to 0.800 | 4 of 4 |" in text


async def test_a_collection_has_a_bar(monkeypatch):
    bars = []

    async def bar(percent, key, text):
        bars.append((percent, key, text))

    monkeypatch.setattr(artifacts, "acreate_progress_artifact", bar)
    async with showing("collect-look"):
        emit(Event("collect", LABEL, done=1, total=4, data={}))
    assert bars == [(25.0, "collect-look-collect", "trials of collect")]
