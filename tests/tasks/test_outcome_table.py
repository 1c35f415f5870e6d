"""Infrastructure apart from failure."""

import pytest
from support.journals import make_result, make_run, make_verdict, write_trial

from harness.verifier.verdict import Status
from tasks.assemble_batch import filter_trials
from tasks.outcome_table import INFRASTRUCTURE, outcome_table
from tasks.trial_files import StoredTrial
from trainer.rollout import Outcome


def test_each_trial_is_in_one_place_and_what_is_not_scored_is_infrastructure(tmp_path):
    run = make_run(tmp_path)
    made = [
        (Outcome.COMPLETED, Status.PASSED),
        (Outcome.MAX_TURNS, Status.PASSED),
        (Outcome.COMPLETED, Status.FAILED),
        (Outcome.AGENT_TIMEOUT, Status.FAILED),
        (Outcome.OVERLONG, Status.BROKEN),
        (Outcome.COMPLETED, Status.TAMPERED),
        (Outcome.COMPLETED, Status.INFRA_ERROR),
        (Outcome.COMPLETED, None),
        (Outcome.INFRA_ERROR, None),
    ]
    trials = [
        write_trial(run, "eval_step_000001", make_result(f"x-{i}", outcome=outcome), status)
        for i, (outcome, status) in enumerate(made)
    ]
    trials.append(write_trial(run, "eval_step_000001", make_result("x-silent", turns=None), Status.FAILED))
    table = outcome_table(trials, launched=12)
    assert table == {
        "solved": {"completed": 1, "max_turns": 1},
        "policy": {
            "failed": {"completed": 1, "agent_timeout": 1},
            "broken": {"overlong": 1},
            "tampered": {"completed": 1},
        },
        "infrastructure": {
            "infra_error": 1,
            "verifier_infra_error": 1,
            "not_graded": 1,
            "nothing_sampled": 1,
            "not_ended": 2,
        },
    }
    assert set(table["infrastructure"]) <= set(INFRASTRUCTURE)
    scored, _ = filter_trials(trials)
    assert len(scored) == 2 + 4


@pytest.mark.parametrize(("turns", "reason"), [(2, None), (0, "nothing_sampled")])
def test_a_trial_behind_an_endpoint_counts_by_what_was_said(tmp_path, turns, reason):
    """It has no token that could be trained on, and is scored all the same."""
    record = make_result("s").to_json() | {"trained_segments": 0, "turns": turns, "counters": {"tokens_unknown": 1}}
    trial = StoredTrial(tmp_path, record, make_verdict(Status.PASSED))
    scored, reasons = filter_trials([trial])
    assert list(reasons) == ([reason] if reason else []) and len(scored) == (reason is None)
    assert outcome_table([trial], 1)["infrastructure"] == ({reason: 1} if reason else {})


@pytest.mark.parametrize(
    ("outcome", "requests", "scored"),
    [(Outcome.AGENT_TIMEOUT, 1, 1), (Outcome.AGENT_TIMEOUT, 0, 0), (Outcome.COMPLETED, 1, 0)],
)
def test_an_answer_that_took_all_of_a_trials_time_is_the_policys(tmp_path, outcome, requests, scored):
    """No token of it is left to train on, but a score without such trials would be too high."""
    record = make_result("s", outcome=outcome).to_json() | {"trained_segments": 0, "counters": {"requests": requests}}
    trial = StoredTrial(tmp_path, record, make_verdict(Status.FAILED))
    assert len(filter_trials([trial], needs_tokens=False)[0]) == scored
    assert outcome_table([trial], 1)["policy"] == ({"failed": {str(outcome): 1}} if scored else {})
    assert filter_trials([trial])[0] == []
