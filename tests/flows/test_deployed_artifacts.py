"""What goes on, on the page of a flow run: nothing of it is lost when the flow ends."""

import asyncio

from support.diagnosed import write_run

from flows.deployed import artifacts
from flows.deployed.artifacts import show_earlier_steps, showing
from tasks.collection import LABEL
from tasks.journal import step_label
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


async def test_the_table_goes_on_with_the_steps_that_a_run_had_made(monkeypatch, tmp_path):
    journal = write_run(tmp_path, steps=2)
    tables = []

    async def table(rows, key, description):
        tables.append((key, rows))

    monkeypatch.setattr(artifacts, "acreate_table_artifact", table)
    async with showing("train-run"):
        show_earlier_steps(journal)
        emit(
            Event(
                "step",
                step_label(3),
                done=3,
                data={
                    "critic/score/mean": 0.5,
                    "outcome/completed": 6.0,
                    "outcome/overlong": 2.0,
                    "outcome/infra_error": 0.0,
                },
            )
        )
    ((key, rows),) = tables
    assert key == "train-run-steps" and [row["step"] for row in rows] == [1, 2, 3], "all of them, written once"
    assert (rows[-1]["trials"], rows[-1]["score"]) == ("completed 6, overlong 2", 0.5)
