"""The matrix itself: it cuts where it says, and sees what is lost, repeated or changed."""

import os
import signal
from pathlib import Path

import pytest
from support.journals import make_result, make_run, write_trial

from bench.crash.cuts import Cut, Knives, boundaries, instants
from bench.crash.evidence import Evidence, Lost, first_difference, require_each_once
from harness.pool.index import TaskPointer
from tasks.draw import as_groups, groups_path, groups_table
from tasks.journal import Journal, step_label, write_json, write_table

LABEL = step_label(1)


def forked(folder: Path, *cuts: Cut, trials: int = 2) -> int:
    """How a process ended, negative for a signal, that left a step's files with knives in it."""
    pid = os.fork()
    if pid == 0:
        import sys

        sys.addaudithook(Knives(cuts, folder, lambda _: os.kill(os.getpid(), signal.SIGKILL)))
        journal = Journal(folder)
        for number in range(trials):
            write_json(journal.trials_dir(LABEL) / f"s{number}" / "trial.json", {})
        write_json(journal.stage_dir(LABEL) / "update.json", {})
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("cut", "left"),
    [
        (Cut("flow", 1, "trial.json", "before"), 0),
        (Cut("flow", 1, "trial.json", "after"), 1),
        (Cut("flow", 1, "trial.json", "before", nth=2), 1),
        (Cut("flow", 1, "update.json", "before"), 2),
        (Cut("flow", 1, "update.json", "after"), 3),
    ],
)
def test_a_cut_is_made_on_its_side_of_the_rename(tmp_path, cut, left):
    assert forked(tmp_path, cut) == -signal.SIGKILL
    files = [path for path in tmp_path.rglob("*.json") if not path.name.startswith(".")]
    assert len(files) == left
    assert cut.is_past(tmp_path) == (cut.when == "after")


def test_other_files_and_steps_are_not_cut(tmp_path):
    assert forked(tmp_path, Cut("flow", 2, "update.json"), Cut("flow", 1, "trial.json")) == 0


@pytest.mark.parametrize("cuts", [boundaries(1, 4), instants(1, 9, seed=3)])
def test_no_point_is_tried_twice(cuts):
    assert len(set(map(str, cuts))) == len(cuts)


def test_a_trial_that_is_gone_or_another_is_lost(tmp_path):
    run = make_run(tmp_path)
    kept, replaced, removed = (write_trial(run, LABEL, make_result(name)) for name in "abc")
    before = Evidence.of(run.journal)
    (removed.folder / "trial.json").unlink()
    write_trial(run, LABEL, make_result(replaced.session_id))
    write_trial(run, LABEL, make_result("d"))
    lost = {path.parent.name for path in before.lost_until(Evidence.of(run.journal))}
    assert lost == {"b", "c"} and kept.folder.name == "a"


@pytest.mark.parametrize(("sessions", "right"), [("ab", True), ("a", False), ("abc", False)])
def test_each_group_has_as_many_trials_as_were_asked_for(tmp_path, sessions, right):
    run = make_run(tmp_path)
    (group,) = as_groups([TaskPointer("t", tmp_path)], LABEL, 2)
    write_table(groups_path(run.journal.stage_dir(LABEL)), groups_table([group]))
    for session in sessions:
        write_trial(run, LABEL, make_result(session, group.group_id))
    if right:
        require_each_once(run.journal, 1)
    else:
        with pytest.raises(Lost, match=r"trials of each group are .*asked for were"):
            require_each_once(run.journal, 1)


def test_the_first_step_with_other_weights_is_named(tmp_path):
    runs = [make_run(tmp_path / name) for name in "ab"]
    for run, weights in zip(runs, ("xyz", "xyq"), strict=True):
        for step, fingerprint in enumerate(weights, 1):
            write_json(run.journal.stage_dir(step_label(step)) / "update.json", {"fingerprint": fingerprint})
    one, other = (Evidence.of(run.journal) for run in runs)
    assert first_difference(one, other) == 3 and first_difference(one, one) is None
