"""Infrastructure apart from failure."""

from support.journals import make_result, make_run, write_trial

from harness.verifier.verdict import Status
from tasks.assemble_batch import filter_trials
from tasks.outcome_table import INFRASTRUCTURE, outcome_table
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
