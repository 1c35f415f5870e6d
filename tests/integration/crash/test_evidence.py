"""The matrix itself: it cuts where it says, and sees what is lost, repeated or changed."""

import os
import signal
from pathlib import Path

import pytest
from support.journals import make_result, make_run, write_trial

from bench.crash.cuts import Cut, Knives, boundaries, boundaries_ahead, instants
from bench.crash.evidence import Evidence, Lost, first_difference, require_each_once
from harness.pool.index import TaskPointer
from tasks.draw import as_groups, groups_path, groups_table
from tasks.draws import TAKEN, draw_label
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


@pytest.mark.parametrize("cuts", [boundaries(1, 4), boundaries_ahead(1, 4), instants(1, 9, seed=3)])
def test_no_point_is_tried_twice(cuts):
    assert len(set(map(str, cuts))) == len(cuts)


def test_a_trial_that_is_gone_or_another_is_lost(tmp_path):
    run = make_run(tmp_path)
    kept, replaced, removed = (write_trial(run, LABEL, make_result(name)) for name in "abc")
    before = Evidence.of(run.journal)
    (removed.folder / "trial.json").unlink()
    write_trial(run, LABEL, make_result(replaced.session_id))
    write_trial(run, LABEL, make_result("d"))
    assert set(before.lost_until(Evidence.of(run.journal))) == {"b", "c"} and kept.folder.name == "a"


def test_a_trial_that_moves_to_the_step_that_takes_it_is_not_lost(tmp_path):
    run = make_run(tmp_path)
    drawn = write_trial(run, draw_label(1), make_result("a"))
    before = Evidence.of(run.journal)
    run.journal.trials_dir(LABEL).mkdir(parents=True)
    drawn.folder.rename(run.journal.trials_dir(LABEL) / "a")
    assert before.lost_until(Evidence.of(run.journal)) == []


def test_what_is_cut_ahead_of_a_step_is_past_when_the_step_has_taken_it(tmp_path):
    cut = Cut("flow", 1, "trial.json", nth=2, ahead=True)
    journal = Journal(tmp_path)
    write_json(journal.trials_dir(draw_label(1)) / "a" / "trial.json", {})
    assert not cut.is_past(tmp_path)
    write_json(journal.stage_dir(LABEL) / TAKEN, {})
    assert cut.is_past(tmp_path)


def test_an_update_that_is_made_again_must_give_the_weights_that_it_gave(tmp_path):
    before, later = Evidence({}, {1: "x", 2: "y"}), {1: "x", 2: "y", 3: "z"}
    assert before.changed_until(Evidence({}, later)) is None
    assert before.changed_until(Evidence({}, later | {2: "q"})) == 2
    assert before.changed_until(Evidence({}, {1: "x"})) == 2, "it is gone"


def test_no_group_is_in_two_steps(tmp_path):
    run = make_run(tmp_path)
    groups = as_groups([TaskPointer("t", tmp_path)], LABEL, 1)
    for step in (1, 2):
        write_table(groups_path(run.journal.stage_dir(step_label(step))), groups_table(groups))
        write_trial(run, step_label(step), make_result(f"s{step}", groups[0].group_id))
    with pytest.raises(Lost, match="more than one step"):
        require_each_once(run.journal, 2)


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
