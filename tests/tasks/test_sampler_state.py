"""What earlier steps tell the sampler."""

from support.journals import make_result, make_run, write_trial

from harness.pool.sampler import SamplerConfig, SamplerState
from harness.verifier.verdict import Status
from tasks.sampler_state import state_before
from trainer.rollout import Outcome

ADAPTIVE = SamplerConfig(sampler="adaptive", decay=1.0)


def trials(run, step, *statuses, outcome=Outcome.COMPLETED):
    label = f"step_{step:06d}"
    for i, status in enumerate(statuses):
        write_trial(run, label, make_result(f"s{step}-{i}", f"{label}/fix-add", outcome), status)


def test_an_adaptive_sampler_knows_the_trials_of_all_steps_before(tmp_path):
    run = make_run(tmp_path)
    trials(run, 1, Status.PASSED, Status.FAILED)
    trials(run, 2, Status.PASSED, Status.PASSED)
    trials(run, 3, Status.FAILED)  # the step that draws: its own trials are none of its business
    state = state_before(run, 3, ADAPTIVE)
    assert state == SamplerState(2, {"fix-add": (3.0, 4.0, 2)})


def test_it_is_the_same_after_a_restart_and_without_what_was_kept(tmp_path):
    run = make_run(tmp_path)
    for step in (1, 2, 3):
        trials(run, step, Status.PASSED, Status.FAILED)
    first = [state_before(run, step, ADAPTIVE) for step in (2, 3, 4)]
    assert state_before(run, 4, ADAPTIVE) == first[-1]
    for kept in run.journal.root.rglob("sampler.json"):
        kept.unlink()
    assert state_before(run, 4, ADAPTIVE) == first[-1]


def test_infrastructure_tells_nothing_about_a_task(tmp_path):
    run = make_run(tmp_path)
    trials(run, 1, None, None, outcome=Outcome.INFRA_ERROR)
    assert state_before(run, 2, ADAPTIVE) == SamplerState(1, {})


def test_the_other_samplers_learn_nothing(tmp_path):
    run = make_run(tmp_path)
    trials(run, 1, Status.PASSED)
    assert state_before(run, 2, SamplerConfig()) == SamplerState()
