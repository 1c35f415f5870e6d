"""What a report reads of a journal, and what it says is missing."""

import json
import os
import threading

import numpy as np
import pytest
from support.journals import make_result, make_run, write_trial
from support.reported import HOSTILE, NAME, add_evaluation, add_trial, add_trials, make_journal, record_step

from flows.report.reader import ReportError, read_run
from flows.report.run_data import Notes, ranges
from tasks.draw import GREEDY
from tasks.journal import eval_label, step_label, write_json
from tasks.trial_table import TABLE, read_trial_folders, write_trial_table
from trainer.rollout import Outcome


def read(root):
    return read_run(root, NAME)


def told(run):
    return "\n".join(run.notes.lines)


def test_a_finished_run_is_read_whole(tmp_path):
    make_journal(tmp_path)
    run = read(tmp_path)
    assert run.notes.lines == []
    assert run.state == "finished: 3 of 3 steps recorded"
    assert list(run.steps) == [1, 2, 3]
    assert run.metrics["critic/score/mean"].tolist() == [0.1, 0.2, 0.3]
    assert run.last("timing_s/step") == 60.0 and run.last("nothing") is None
    assert run.about == {"commit": "abc123", "torch": "2.9"}
    assert run.warnings == [f"warning 1 of step {step}: look out" for step in (1, 2, 3)]

    stage = run.training[1]
    assert (stage.label, stage.ended, stage.planned) == ("step_000002", 8, None)
    assert stage.outcomes == {"completed": 8}
    assert stage.statuses == {"passed": 2, "failed": 5, "tampered": 1}
    assert {(g.task_id, g.solved, g.scored) for g in stage.groups} == {("a", 2, 4), ("b", 0, 4)}
    assert stage.seconds == {"queue": 1.0, "sandbox_start": 2.0, "agent": 10.0, "generate": 7.0, "grading": 0.5}

    assert run.tampered_total == 3
    assert [trial.session_id for trial in run.tampered] == ["b-3-3", "b-2-3", "b-1-3"]
    assert {trial.seconds for trial in run.slowest} == {13.5}

    first, last = run.evaluations
    assert (first.step, first.mean, last.step, last.mean) == (0, 0.0, 3, 1.0)
    assert (last.low, last.high, last.scored, last.launched) == (1.0, 1.0, 32, 33)
    assert last.pass_at == {1: 0.5} and last.left_out == {"infra_error": 1}


def test_the_slowest_trials_of_all_steps_come_first(tmp_path):
    journal = make_journal(tmp_path)
    for step, seconds in ((1, 500.0), (3, 900.0), (2, 700.0)):
        add_trial(journal, step_label(step), f"slow-{step}", "failed", timings={"agent": seconds, "generate": 1e6})
    assert [trial.session_id for trial in read(tmp_path).slowest[:3]] == ["slow-3", "slow-2", "slow-1"]


def test_a_table_says_what_the_folders_say(tmp_path):
    journal = make_journal(tmp_path)
    add_trial(journal, step_label(2), "lost", None, outcome="infra_error", error="gone", turns=0)
    folders = read(tmp_path)
    for label in ("step_000001", "step_000002", "step_000003"):
        write_trial_table(journal, label)
        for trial in journal.trials(label):
            (trial / "trial.json").unlink()
    tables = read(tmp_path)
    assert tables.trials == folders.trials and tables.slowest == folders.slowest and tables.tampered == folders.tampered
    assert folders.trials[1].outcomes["infra_error"] == 1 and tables.notes.lines == []


def test_trials_as_the_project_writes_them(tmp_path):
    run = make_run(tmp_path)
    write_trial(run, "step_000001", make_result("sound"))
    write_trial(run, "step_000001", make_result("lost", outcome=Outcome.INFRA_ERROR), None)
    table, problems = read_trial_folders(run.journal.trials_dir("step_000001"))
    assert problems == []
    lost, sound = table.to_pylist()
    assert (sound["session_id"], sound["turns"], sound["response_length"]) == ("sound", 1, 2)
    assert (sound["status"], sound["reward"], sound["grading"], sound["agent"]) == ("passed", 1.0, 0.25, 2.0)
    assert (lost["outcome"], lost["error"], lost["status"]) == ("infra_error", "SandboxError: gone", None)


def test_what_infrastructure_spoiled_and_greedy_trials_are_in_no_group(tmp_path):
    journal = make_journal(tmp_path, steps=1)
    add_trial(journal, "step_000001", "x", "infra_error", task_id="a")
    add_trial(journal, "step_000001", "y", "passed", task_id="a", outcome="infra_error")
    add_trial(journal, "step_000001", "z", "passed", task_id="a", group_id=f"step_000001/a{GREEDY}")
    (stage,) = read(tmp_path).training
    assert {(g.task_id, g.solved, g.scored) for g in stage.groups} == {("a", 1, 4), ("b", 0, 4)}
    assert stage.ended == 11


@pytest.mark.parametrize("damage", [b"", b"PAR1 nonsense PAR1", b"other columns"])
def test_a_damaged_table_is_replaced_by_the_folders(tmp_path, damage):
    journal = make_journal(tmp_path)
    path = write_trial_table(journal, "step_000002")
    if damage == b"other columns":
        os.replace(journal.stage_dir("step_000002") / "groups.parquet", path)
    else:
        path.write_bytes(damage)
    run = read(tmp_path)
    assert run.training[1].ended == 8
    assert f"step_000002: {TABLE} is damaged" in told(run)


def test_damaged_records_are_taken_from_the_log(tmp_path):
    journal = make_journal(tmp_path)
    (journal.stage_dir("step_000002") / "record.json").write_text('{"step": 2, "metr')
    run = read(tmp_path)
    assert run.metrics["critic/score/mean"].tolist() == [0.1, 0.2, 0.3]
    assert "step_000002/record.json cannot be read" in told(run)
    assert "taken from the log: 2" in told(run)


def test_steps_that_are_nowhere_are_named(tmp_path):
    journal = make_journal(tmp_path, steps=6)
    for step in (2, 3, 5):
        (journal.stage_dir(step_label(step)) / "record.json").unlink()
    (journal.logs / "experiment.log").unlink()
    run = read(tmp_path)
    assert list(run.steps) == [1, 4, 6]
    assert "no record of these steps, neither in steps/ nor in the log: 2–3, 5" in told(run)
    assert "the log cannot be read (FileNotFoundError)" in told(run)


def test_a_running_step_is_no_loss(tmp_path):
    journal = make_journal(tmp_path, steps=2, total=5)
    add_trials(journal, 3)
    for name in ("a-3-0", "b-3-3"):
        (journal.trials_dir("step_000003") / name / "trial.json").unlink()
    run = read(tmp_path)
    assert run.state == "unfinished: 2 of 5 steps recorded"
    assert (run.training[-1].planned, run.training[-1].ended) == (8, 6)
    assert run.notes.lines == []


def test_lost_verdicts_and_trials_are_told(tmp_path):
    journal = make_journal(tmp_path)
    (journal.trials_dir("step_000002") / "a-2-0" / "verdict.json").unlink()
    for trial in journal.trials("step_000001"):
        (trial / "trial.json").unlink()
    run = read(tmp_path)
    assert "1 trials have no verdict" in told(run)
    assert "the trials of these recorded steps are gone: 1" in told(run)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"session_id": "a', "JSONDecodeError"),
        ("[]", "holds a list"),
        ("{}", "KeyError"),
        ('{"session_id": 3}', "TypeError"),
        ("[" * 100_000, "RecursionError"),
        (b"\xff\xfe\x00", "UnicodeDecodeError"),
    ],
)
@pytest.mark.parametrize("name", ["trial.json", "verdict.json"])
def test_damaged_trials_are_left_out_and_told(tmp_path, name, content, why):
    journal = make_journal(tmp_path)
    path = journal.trials_dir("step_000002") / "a-2-1" / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    run = read(tmp_path)
    assert run.training[1].ended == 7
    assert "step_000002: 1 of its trials are damaged and left out; the first: trial a-2-1" in told(run)
    assert why in told(run) or name == "verdict.json"


def test_links_and_pipes_are_neither_followed_nor_waited_for(tmp_path):
    journal = make_journal(tmp_path)
    folder = journal.trials_dir("step_000001")
    secret = tmp_path / "secret.json"
    (folder / "a-1-0" / "trial.json").rename(secret)
    (folder / "a-1-0" / "trial.json").symlink_to(secret)
    (folder / "a-1-1" / "trial.json").unlink()
    os.mkfifo(folder / "a-1-1" / "trial.json")
    (folder / "elsewhere").symlink_to(folder / "a-1-2")
    run = read(tmp_path)
    assert run.training[0].ended == 6
    assert "2 of its trials are damaged" in told(run)


def test_a_config_or_evaluation_that_is_damaged_costs_no_more_than_itself(tmp_path):
    journal = make_journal(tmp_path)
    (journal.root / "config.json").write_text("{")
    (journal.stage_dir(eval_label(0)) / "record.json").write_text('{"clusters": {"c": "x"}, "mean_reward": "0.5"}')
    (journal.stage_dir(eval_label(3)) / "record.json").write_text("7")
    run = read(tmp_path)
    assert run.state == "3 steps recorded"
    assert [(e.step, e.mean, e.mean_reward, e.scored) for e in run.evaluations] == [(0, None, 0.5, None)]
    assert "config.json is not there" in told(run) and "step_000003/record.json cannot be read" in told(run)


def test_metrics_that_are_no_numbers_are_gaps(tmp_path):
    journal = make_journal(tmp_path)
    metrics = {"critic/score/mean": "much", "actor/entropy": None, "actor/lr": [1], "timing_s/step": 1e999, "new": 1}
    write_json(journal.stage_dir("step_000002") / "record.json", {"metrics": metrics})
    run = read(tmp_path)
    assert np.isnan(run.metrics["critic/score/mean"][1]) and np.isnan(run.metrics["new"][0])
    assert run.last("timing_s/step") == 60.0


def test_an_empty_journal_is_a_report_and_none_is_an_error(tmp_path):
    (tmp_path / NAME).mkdir(parents=True)
    assert {"no step has been recorded yet", "no trial has ended yet, or trials/ is gone"} < set(
        read(tmp_path).notes.lines
    )
    make_journal(tmp_path, name="project/other")
    with pytest.raises(ReportError, match=r"no run 'project/no' in .*; there are project/other"):
        read_run(tmp_path, "project/no")


def test_texts_of_trials_are_cut_and_can_be_written(tmp_path):
    journal = make_journal(tmp_path, steps=1)
    for i, text in enumerate(HOSTILE):
        add_trial(journal, "step_000001", f"h-{i}", "tampered", task_id=text, error=text * 100, reason=text)
    write_trial_table(journal, "step_000001")
    run = read(tmp_path)
    assert run.tampered_total == 1 + len(HOSTILE)
    for trial in run.tampered:
        json.dumps(trial.row).encode()
        assert len(trial.row["error"] or "") <= 600
        str(trial.row["task_id"]).encode()


def test_a_table_is_not_written_over_damaged_trials(tmp_path):
    journal = make_journal(tmp_path)
    (journal.trials_dir("step_000001") / "a-1-0" / "verdict.json").write_text("{")
    with pytest.raises(ValueError, match="step_000001: trial a-1-0 cannot be read"):
        write_trial_table(journal, "step_000001")
    assert not (journal.stage_dir("step_000001") / TABLE).exists()


def test_a_journal_that_is_being_written_can_be_read_at_any_time(tmp_path):
    journal = make_journal(tmp_path, steps=1, total=12)
    states = []
    done = threading.Event()

    def write():
        for step in range(2, 13):
            add_trials(journal, step)
            write_trial_table(journal, step_label(step))
            record_step(journal, step)
        add_evaluation(journal, 12, {"c": [1.0]})
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        states.append(read(tmp_path))
    writer.join()
    states.append(read(tmp_path))
    for run in states:
        assert list(run.steps) == list(range(1, len(run.steps) + 1))
        assert not [line for line in run.notes.lines if "damaged" in line or "cannot be read" in line]
    assert states[-1].state == "finished: 12 of 12 steps recorded"


def test_ranges():
    assert ranges([5, 1, 2, 3, 9]) == "1–3, 5, 9"
    assert ranges([]) == ""


def test_notes_are_bounded():
    notes = Notes()
    for _ in range(250):
        notes.add("x" * 10_000)
    assert (len(notes.lines), notes.more, max(map(len, notes.lines))) == (100, 150, 500)
