"""The end of a run in MLflow."""

import asyncio

import pytest
from support.journals import make_run

from tasks import track_run
from tasks.progress import watching
from tasks.track_run import end_tracking, tracked
from tasks.tracking import Tracker


async def test_a_server_that_is_away_at_the_end_hides_no_error_and_keeps_no_engine(tmp_path, monkeypatch):
    def refuse(run):
        raise OSError("away")

    monkeypatch.setattr(Tracker, "open", refuse)
    notes = []
    with watching(lambda event: notes.append(event.text)):
        await end_tracking(make_run(tmp_path), "FAILED")
    assert notes == ["MLflow does not know that the run is FAILED (OSError: away)"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "FINISHED"), (ValueError, "FAILED"), (asyncio.CancelledError, "KILLED"), (KeyboardInterrupt, "KILLED")],
)
async def test_it_has_ended_as_the_work_did(tmp_path, monkeypatch, error, status):
    told = []

    async def start(run, config):
        told.append(config)

    async def end(run, status):
        told.append(status)

    monkeypatch.setattr(track_run, "start_tracking", start)
    monkeypatch.setattr(track_run, "end_tracking", end)
    try:
        async with tracked(make_run(tmp_path), {"a": 1}):
            if error is not None:
                raise error
    except (ValueError, asyncio.CancelledError, KeyboardInterrupt) as raised:
        assert type(raised) is error
    assert told == [{"a": 1}, status]
