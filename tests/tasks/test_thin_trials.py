"""What is kept of the trials of finished steps, and that whatever reads them later still can."""

import io

import pytest
from rich.console import Console
from support.journals import make_result, make_run, make_verdict, write_trial

from flows.export_atif import export_trials
from flows.report.reader import read_run
from flows.trial_view import find_trials, list_trials, show_trial
from harness.pool.difficulty import count_passes, read_trials
from harness.verifier.verdict import Status
from tasks.journal import JournalError, step_label, write_json
from tasks.thin_trials import BULK, is_failure, kept_trials, thin_trials
from tasks.tracing import TracingConfig
from tasks.trial_files import load_trial, store_verdict
from tasks.trial_table import write_trial_table
from trainer.rollout import Outcome

TRACING = TracingConfig(max_per_step=2)
FAILURES = {"lost", "crashed", "tampered"}


@pytest.fixture
def run(tmp_path):
    """Three finished steps of eight trials each, and one under way."""
    run = make_run(tmp_path)
    for step in range(1, 5):
        label = step_label(step)

        def trial(name, task, outcome=Outcome.COMPLETED, status=Status.PASSED, step=step, label=label, **changes):
            result = make_result(f"{name}-{step}", f"{label}/{task}", outcome, **changes)
            write_trial(run, label, result, None if outcome is Outcome.INFRA_ERROR else status)

        for i in range(2):
            trial(f"a{i}", "a", status=Status.PASSED if i else Status.FAILED)
            trial(f"b{i}", "b")
        trial("lost", "c", Outcome.INFRA_ERROR)
        trial("crashed", "c", error="the agent crashed: ValueError: so")
        trial("tampered", "d", status=Status.TAMPERED)
        trial("d1", "d", status=Status.FAILED)
        if step < 4:
            write_trial_table(run.journal, label)
            write_json(run.journal.stage_dir(label) / "record.json", {"step": step, "metrics": {}})
    return run


def whole(run, step):
    trials = [load_trial(folder) for folder in run.journal.trials(step_label(step))]
    assert len(trials) == 8, "how each of them ended stays"
    return {trial.session_id.rpartition("-")[0] for trial in trials if trial.has_trajectory}


ALL = {"a0", "a1", "b0", "b1", "lost", "crashed", "tampered", "d1"}


def test_all_are_kept(run):
    assert thin_trials(run.journal, "all", TRACING) == 0
    assert all(whole(run, step) == ALL for step in range(1, 5))


def test_failures_are_kept_of_finished_steps_but_the_first(run):
    assert thin_trials(run.journal, "failures", TRACING) == 10
    assert whole(run, 1) == whole(run, 4) == ALL
    assert whole(run, 2) == whole(run, 3) == FAILURES
    for folder in run.journal.trials(step_label(2)):
        if not load_trial(folder).has_trajectory:
            assert {path.name for path in folder.iterdir()} == {"trial.json", "verdict.json"}
            assert not any((folder / name).exists() for name in BULK)


def test_the_sample_is_that_of_the_traces(run):
    thin_trials(run.journal, "sampled", TRACING)
    trials = [load_trial(folder) for folder in run.journal.trials(step_label(2))]
    traced = whole(run, 2) - FAILURES
    assert len(traced) in (1, 2) and kept_trials(trials, "sampled", TRACING) == {f"{n}-2" for n in whole(run, 2)}


def test_the_newest_step_stays_whole(run):
    thin_trials(run.journal, "failures", TRACING, before=3)
    assert (whole(run, 2), whole(run, 3)) == (FAILURES, ALL)


def test_a_step_left_half_thinned_is_gone_through_again_and_so_is_one_that_was_thinned_less(run, monkeypatch):
    from tasks import thin_trials as module

    unlink, left = module._thin, [2]

    def dying(trial):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return unlink(trial)

    monkeypatch.setattr(module, "_thin", dying)
    with pytest.raises(KeyboardInterrupt):
        thin_trials(run.journal, "sampled", TRACING)
    monkeypatch.setattr(module, "_thin", unlink)
    assert thin_trials(run.journal, "sampled", TRACING) > 0
    assert thin_trials(run.journal, "sampled", TRACING) == 0
    thin_trials(run.journal, "failures", TRACING)
    assert whole(run, 2) == whole(run, 3) == FAILURES
    assert thin_trials(run.journal, "sampled", TRACING) == 0, "what is gone does not come back"


def test_whoever_reads_trials_still_can(run, tmp_path):
    def told():
        passes = {step: count_passes(read_trials(run.journal.trials_dir(step_label(step)))) for step in (1, 2, 3)}
        report = read_run(run.root, run.name)
        listed = [(trial.session_id, str(trial.outcome)) for trial in find_trials(run.journal, None, None)]
        return passes, [(s.label, s.outcomes) for s in report.trials], listed

    before = told()
    thin_trials(run.journal, "failures", TRACING)
    assert told() == before

    console = Console(file=io.StringIO(), width=200)
    list_trials(console, run.journal, 2, None, 10)
    show_trial(console, run.journal, "a1-2")
    text = console.file.getvalue()
    assert "schedule.keep_trials" in text and "it passed" in text
    trials = find_trials(run.journal, 2, None)
    written = {folder.name for folder in export_trials(run.journal, trials, tmp_path / "atif")}
    assert written == {"crashed-2", "tampered-2"}
    with pytest.raises(JournalError, match=r"a1-2 has no trajectory.json.*keep_trials"):
        next(trial for trial in trials if trial.session_id == "a1-2").trajectory()


def test_what_counts_as_a_failure(run):
    folder = run.journal.trials(step_label(4))[0]
    assert not is_failure(load_trial(folder))
    store_verdict(folder, make_verdict(Status.BROKEN))
    assert is_failure(load_trial(folder))
    (folder / "verdict.json").unlink()
    assert is_failure(load_trial(folder))
