"""schedule.max_hours: a run ends by itself, after a step and with a checkpoint, and goes on from there."""

import asyncio
import math
from contextlib import asynccontextmanager

import pytest
from support.journals import make_run

from flows import train as flow
from flows.config import RunConfig
from tasks.journal import step_label, write_json
from tasks.progress import watching


def unlabelled(subflow, label):
    """For what is no flow of Prefect's here."""
    return subflow


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Runs the steps of a run of six, each of which takes an hour; engines and evaluations are away."""
    run, clock, done = make_run(tmp_path), [0.0], []
    saved = []

    async def rl_step(run, step, model):
        clock[0] += 3600
        write_json(run.journal.stage_dir(step_label(step)) / "record.json", {"step": step, "metrics": {}})
        write_json(run.journal.stage_dir(step_label(step)) / "update.json", {})
        done.append(step)

    class Save:
        def with_options(self, **options):
            return lambda run, label, step, *args: step

    class Saving:
        async def start(self, save, asked):
            saved.append(save)

        def check(self):
            pass

    @asynccontextmanager
    async def nothing(*args):
        yield

    async def pass_by(*args, **options):
        return {}

    for name, value in {"rl_step": rl_step, "save_checkpoint": Save()}.items():
        monkeypatch.setattr(flow, name, value)
    for name in ("turn_of_learner", "turn_of_replicas", "judge_first_step", "evaluate"):
        monkeypatch.setattr(flow, name, pass_by)
    monkeypatch.setattr(flow, "for_label", unlabelled)
    monkeypatch.setattr(flow.time, "monotonic", lambda: clock[0])

    def steps(hours, save_freq=4):
        done.clear()
        saved.clear()
        schedule = {"total_steps": 6, "save_freq": save_freq, "test_freq": 0, "eval_before": False, "eval_after": False}
        config = RunConfig.model_validate({"experiment": "e", "schedule": schedule | {"max_hours": hours}})
        until = math.inf if hours is None else clock[0] + 3600 * hours
        notes = []
        recovered = max(run.journal.finished_steps("update.json"), default=0)
        with watching(lambda event: notes.append(event.text)):
            summary = asyncio.run(flow._steps(run, config, tmp_path, Saving(), until, recovered))
        return summary, list(done), list(saved), notes

    return steps


def test_a_run_stops_when_its_hours_are_over_and_goes_on_from_there(steps):
    summary, done, saved, notes = steps(1.5)
    assert (done, saved, summary["steps"]) == ([1, 2], [2], 2), "a checkpoint beyond those of save_freq"
    assert "schedule.max_hours (1.5)" in summary["stopped"] and summary["stopped"] in notes
    summary, done, saved, _ = steps(2)
    assert (done, saved, summary["steps"]) == ([3, 4], [4], 4)
    summary, done, saved, _ = steps(None)
    assert (done, saved, summary["steps"]) == ([5, 6], [4, 6], 6) and "stopped" not in summary


def test_a_run_whose_hours_are_over_at_once_makes_one_step_each_time(steps):
    assert [steps(1e-9)[1] for _ in range(3)] == [[1], [2], [3]]


def test_hours_that_end_with_the_last_step_are_no_stop(steps):
    summary, done, saved, _ = steps(6)
    assert len(done) == 6 and saved[-1] == 6 and "stopped" not in summary


def test_what_stops_a_run_is_not_what_its_results_depend_on():
    plain = RunConfig.model_validate({"experiment": "e"})
    other = {"max_infra_share": 0.1, "step_timeout": 60.0}
    changed = {"experiment": "e", "rollout": other, "schedule": {"max_hours": 1, "keep_trials": "failures"}}
    assert RunConfig.model_validate(changed).identity() == plain.identity()
    assert RunConfig.model_validate({"experiment": "e", "rollout": {"concurrency": 3}}).identity() != plain.identity()


@pytest.mark.parametrize(("timeout", "scored"), [(0.01, {}), (None, {6: "a score"})])
async def test_an_evaluation_that_takes_too_long_is_given_up_and_told(tmp_path, monkeypatch, timeout, scored):
    ended = asyncio.Event()

    async def evaluate(run, step, model, trained):
        try:
            await asyncio.sleep(0 if timeout is None else 60)
        finally:
            ended.set()
        return "a score"

    monkeypatch.setattr(flow, "evaluate", evaluate)
    monkeypatch.setattr(flow, "for_label", unlabelled)
    config = RunConfig.model_validate({"experiment": "e", "evaluation": {"timeout": timeout}})
    notes = []
    with watching(lambda event: notes.append(event.text)):
        assert await flow._scored(make_run(tmp_path), config, 6, tmp_path) == scored
    assert ended.is_set(), "its trials would go on"
    assert any("step 6 was given up" in note for note in notes) == (timeout is not None)
