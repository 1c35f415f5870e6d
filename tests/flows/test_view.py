"""What a person sees of a run."""

import io
import math
import re

import pytest
from rich.console import Console
from support.journals import make_result, make_run, write_trial

from flows.plot import plot_run
from flows.reports import report_evaluation, report_training
from flows.trial_view import list_trials, show_trial
from flows.view import RunView, eval_summary, step_summary, steps_table
from harness.verifier.verdict import Status
from tasks.journal import JournalError, step_label, write_json
from tasks.progress import Event, emit
from trainer.rollout import Outcome

METRICS = {
    "critic/score/mean": 0.25,
    "batch/groups": 8.0,
    "batch/groups_with_signal": 5.0,
    "response_length/mean": 61.4,
    "training/rollout_actor_probs_pearson_corr": 0.99912,
    "actor/entropy": 1.5,
    "actor/grad_norm": 0.75,
    "timing_s/gen": 20.0,
    "timing_s/update_actor": 9.0,
    "timing_s/update_weights": 1.25,
    "timing_s/step": 31.0,
}
EVALUATION = {
    "step": 4,
    "mean_reward": 0.5,
    "scored": 7,
    "launched": 8,
    "tasks": 2,
    "left_out": {"infra_error": 1},
    "pass_at_1": 0.5,
    "pass_at_2": 0.75,
    "clusters": {"f": [1.0, 0.0, 1.0, 0.0], "g": [1.0, 0.0, 0.5]},
    "pass_at": {
        "1": {"value": 0.5, "low": 0.125, "high": 0.875, "scored": 2, "tasks": 2, "clusters": 2, "coverage": 1.0},
        "2": {"value": 0.75, "low": 0.25, "high": 1.0, "scored": 1, "tasks": 2, "clusters": 1, "coverage": 0.5},
    },
    "parts": {"repository": {}, "difficulty": {}},
    "outcomes": {
        "solved": {"completed": 3},
        "policy": {"failed": {"completed": 2, "max_turns": 1}, "broken": {"completed": 1}},
        "infrastructure": {"infra_error": 1},
    },
}


def terminal(live=False):
    return Console(file=io.StringIO(), width=200, force_terminal=live, color_system=None)


def text(console):
    return console.file.getvalue()


def test_step_summary():
    assert step_summary(3, METRICS) == (
        "step 3: score 0.25, signal 5/8 groups, length 61, pearson 0.9991, trials 20.0 s, update 9.0 s, sync 1.2 s, "
        "step 31.0 s"
    )


def test_a_step_that_learned_nothing_still_has_a_line():
    """Where all rewards are equal there is no batch to compare engine and learner on."""
    for metrics in ({}, {"training/rollout_actor_probs_pearson_corr": math.nan}):
        assert "score nan" in step_summary(1, metrics) and "pearson -" in step_summary(1, metrics)
        terminal().print(steps_table([(1, metrics)]))


def test_table_of_steps():
    console = terminal()
    console.print(steps_table([(1, METRICS), (2, METRICS | {"critic/score/mean": 0.5})]))
    head, first, second = (line.split() for line in text(console).splitlines())
    assert head[:4] == ["step", "score", "signal", "length"]
    assert first == ["1", "0.25", "5/8", "61", "0.9991", "1.50", "0.75", "20.0", "9.0", "1.2", "31.0"]
    assert second[:2] == ["2", "0.50"]


def test_eval_summary():
    assert eval_summary(EVALUATION) == "held-out score after step 4: 0.500 (7 trials of 2 tasks, 2 functions)"


def events():
    emit(Event("note", "", "engines are up [1 of 1]"))
    emit(Event("stage", "step_000001", "trials"))
    emit(Event("trials", "step_000001", done=3, total=64))
    emit(Event("step", "step_000001", done=1, data=METRICS))
    emit(Event("eval", "eval_step_000004", data=EVALUATION))


def test_a_log_file_gets_a_line_an_event():
    console = terminal()
    with RunView(console).live():
        events()
    emit(Event("note", "", "after the end"))
    lines = text(console).splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("engines are up [1 of 1]")
    assert step_summary(1, METRICS) in lines[1]
    assert eval_summary(EVALUATION) in lines[2]


def test_a_terminal_shows_the_table_and_the_present_trials():
    console = terminal(live=True)
    view = RunView(console)
    with view.live():
        emit(Event("stage", "step_000001", "trials"))
        emit(Event("trials", "step_000001", done=3, total=64))
        (bar,) = view._bar.tasks
        assert (bar.description, bar.completed, bar.total) == ("step 1: trials", 3, 64)
        emit(Event("stage", "step_000001", "update"))
        assert view._bar.tasks[0].description == "step 1: update"
        emit(Event("step", "step_000001", done=1, data=METRICS))
        assert view._bar.tasks == []
        emit(Event("stage", "eval_step_000004", "evaluation"))
        assert view._bar.tasks[0].description == "evaluation after step 4: evaluation"
        emit(Event("eval", "eval_step_000004", data=EVALUATION))
    assert "0.9991" in text(console) and eval_summary(EVALUATION) in text(console)


def test_the_rollouter_has_a_bar_of_its_own_that_outlives_steps():
    view = RunView(terminal(live=True))
    with view.live():
        emit(Event("rollouts", "rollouter", done=2, total=8, data={"running": 4}))
        emit(Event("stage", "step_000001", "trials"))
        emit(Event("step", "step_000001", done=1, data=METRICS))
        emit(Event("rollouts", "rollouter", done=3, total=8, data={"running": 1}))
        (bar,) = view._bar.tasks
        assert (bar.description, bar.completed, bar.total) == ("rollouter", 3, 8)
        assert bar.fields["extra"] == "groups, 1 running"


def test_a_plot_is_a_picture(tmp_path):
    steps = [(1, METRICS), (2, {})]
    for evaluations in ({}, {0: 0.25, 2: 0.5}):
        path = plot_run(steps, evaluations, tmp_path / "deep" / "score.png")
        assert path.read_bytes().startswith(b"\x89PNG\r\n")
        path.unlink()


def test_report_of_an_evaluation():
    console = terminal()
    report_evaluation(console, EVALUATION)
    lines = [" ".join(line.split()) for line in text(console).splitlines()]
    assert "mean reward 0.500 of 7 of 8 trials scored" in lines
    assert "pass@1 0.500 0.125 to 0.875 2 of 2 first attempts only" in lines
    assert "pass@2 0.750 0.250 to 1.000 1 of 2 unbiased" in lines
    assert "coverage is low" not in text(console) and "by difficulty" not in text(console)
    # infrastructure stands apart from what the policy failed at
    ends = [line for line in lines if re.search(r"\d%", line)]
    assert ends == [
        "solved 3 37.5%",
        "failed by the policy 4 50.0%",
        "broken 1 12.5% the tests did not run to their end; the trials ended as: 1 completed",
        "failed 3 37.5% a test failed; the trials ended as: 2 completed, 1 max_turns",
        "not scored: infrastructure 1 12.5%",
        "infra_error 1 12.5% the sandbox or the serving side broke",
    ]


def test_parts_of_an_evaluation_largest_first():
    part = {"tasks": 2, "pass_at": {"1": EVALUATION["pass_at"]["1"]}}
    parts = {"difficulty": {"[easy]": {"tasks": 1, "pass_at": {}}, "hard": part}, "repository": {}}
    console = terminal()
    report_evaluation(console, EVALUATION | {"parts": parts})
    lines = [" ".join(line.split()) for line in text(console).splitlines()]
    at = lines.index("by difficulty pass@1 95 % scored of tasks")
    assert lines[at + 1 : at + 3] == ["hard 0.500 0.125 to 0.875 2 of 2", "[easy] – 0 of 1"]


def test_low_coverage_is_told():
    console = terminal()
    low = EVALUATION["pass_at"]["1"] | {"scored": 1, "coverage": 0.5}
    report_evaluation(console, EVALUATION | {"pass_at": {"1": low}})
    assert "coverage is low: 1 of 2 tasks have a scored first attempt" in text(console)
    nothing = {
        "pass_at": {},
        "scored": 0,
        "outcomes": {"solved": {}, "policy": {}, "infrastructure": {"infra_error": 8}},
    }
    report_evaluation(console, EVALUATION | nothing)
    assert "coverage is low: 0 of 2" in text(console) and "nothing was scored, of 8 trials" in text(console)


def test_report_of_a_training(tmp_path):
    from flows.config import RunConfig

    config, run, console = RunConfig(project="project", experiment="experiment"), make_run(tmp_path), terminal()
    write_json(run.journal.stage_dir(step_label(1)) / "record.json", {"step": 1, "metrics": METRICS})
    after = EVALUATION | {"clusters": {"f": [1.0] * 4, "g": [1.0] * 3}, "mean_reward": 1.0}
    report_training(console, config, tmp_path, {"evaluations": {"0": EVALUATION, "4": after}})
    assert (run.journal.root / "score.png").is_file()
    assert "before     0.50" in text(console) and "after      1.00" in text(console)
    assert "gain      +0.50" in text(console)


@pytest.fixture
def run(tmp_path):
    run = make_run(tmp_path)
    write_trial(run, "step_000001", make_result("add-aa"), Status.PASSED)
    write_trial(run, "step_000001", make_result("add-bb", outcome=Outcome.OVERLONG), Status.BROKEN)
    write_trial(run, "step_000002", make_result("sub-cc", outcome=Outcome.INFRA_ERROR), None)
    return run


def listed(run, **choice):
    console = terminal()
    list_trials(console, run.journal, **{"step": None, "outcome": None, "limit": 40} | choice)
    return text(console)


def test_trials_are_listed_newest_step_first(run):
    lines = listed(run).splitlines()
    assert [line.split()[1] for line in lines[1:4]] == ["sub-cc", "add-aa", "add-bb"]
    assert "3 of 3 trials; show one with: testgrad trials RUN SESSION" in lines


def test_trials_are_chosen_by_step_outcome_and_verdict(run):
    assert "1 of 1" in listed(run, outcome="overlong") and "add-bb" in listed(run, outcome="broken")
    assert "add-" not in listed(run, step=2)
    assert "2 of 3 trials" in listed(run, limit=2)


def test_a_trial_shows_what_was_said_changed_and_tested(run):
    console = terminal()
    show_trial(console, run.journal, "add-b")
    for words in ("mend it", "+fixed", "outcome overlong", "verdict broken, reward 0", "test_x.T.test", "a test"):
        assert words in text(console)


def test_text_of_the_policy_is_no_markup(run):
    result = make_result("evil-1")
    result.transcript.say("assistant", "[bold]x[/bold] [/nonsense]")
    write_trial(run, "step_000001", result)
    console = terminal()
    show_trial(console, run.journal, "evil")
    assert "[bold]x[/bold] [/nonsense]" in text(console)


def test_a_trial_that_is_not_there(run, tmp_path):
    with pytest.raises(JournalError, match="begins with 'zzz'"):
        show_trial(terminal(), run.journal, "zzz")
    with pytest.raises(JournalError, match="has no trials"):
        list_trials(terminal(), make_run(tmp_path / "empty").journal, None, None, 40)
