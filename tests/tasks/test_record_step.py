"""The end of a step: its record stands, whatever becomes of its traces."""

import pytest
from support.journals import make_run

from tasks import record_step as module
from tasks.journal import read_json
from tasks.progress import watching
from tasks.record_step import record_step
from tasks.tracing import TracingConfig

LABEL = "step_000001"


@pytest.fixture
def logged(monkeypatch):
    """What MLflow was told, without one."""
    logged = []

    class Tracker:
        open = classmethod(lambda cls, run: cls())

        def log_step(self, step, metrics):
            logged.append((step, dict(metrics)))

    monkeypatch.setattr(module, "Tracker", Tracker)
    return logged


async def test_traces_that_fail_cost_no_step(tmp_path, logged, monkeypatch):
    def trace_trials(*args):
        raise ConnectionError("the server takes no spans")

    monkeypatch.setattr(module, "trace_trials", trace_trials)
    run, events = make_run(tmp_path), []
    with watching(events.append):
        record = await record_step.fn(run, LABEL, 1, {"critic/score/mean": 0.5}, [])
    assert record == read_json(run.journal.stage_dir(LABEL) / "record.json")
    assert logged == [(1, {"critic/score/mean": 0.5})]
    notes = [event.text for event in events if event.kind == "note"]
    assert notes == ["step 1: no traces were written (ConnectionError: the server takes no spans)"]


async def test_traces_are_asked_for_as_configured(tmp_path, logged, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "trace_trials", lambda *args: asked.append(args))
    run, config = make_run(tmp_path), TracingConfig(max_per_step=3)
    await record_step.fn(run, LABEL, 1, {}, ["look out"], config)
    await record_step.fn(run, LABEL, 1, {}, ["look out"], config)
    assert asked == [(run, LABEL, 1, config)] * 2
    assert run.log_file.read_text().count("look out") == 1
