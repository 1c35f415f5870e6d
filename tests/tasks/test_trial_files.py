"""A trial's files come back as they were."""

import pyarrow as pa
import pytest
from support.journals import make_result, make_run, make_verdict, write_trial

from harness.trial import TrialResult
from tasks.journal import JournalError
from tasks.trial_files import load_trial, store_trial, store_verdict
from trainer.rollout import ROLLOUT_SCHEMA, Outcome, Rollout


def test_round_trip(tmp_path):
    result = make_result("s-1", outcome=Outcome.MAX_TURNS, turns=((4, 5), (6,)))
    store_trial(tmp_path / "s-1", result)
    store_verdict(tmp_path / "s-1", make_verdict("failed"))
    trial = load_trial(tmp_path / "s-1")
    assert (trial.session_id, trial.group_id, trial.outcome) == ("s-1", "step_000001/fix-add", Outcome.MAX_TURNS)
    assert as_text(trial.rollouts()) == as_text(result.rollouts)
    assert trial.patch() == result.patch
    assert trial.verdict == make_verdict("failed")
    assert (tmp_path / "s-1" / "patch.diff").read_text() == "+fixed\n"
    assert trial.trajectory()["messages"] == result.transcript.messages
    assert trial.record["patch_rejected"] == [["tests/test_x.py", "a test"]]


def test_a_row_for_each_segment_that_is_trained(tmp_path):
    result = make_result("s-1", turns=((4, 5),), more_segments=(((6,), (8, 9)), ((3,),)), select="all")
    store_trial(tmp_path / "s-1", result)
    trial = load_trial(tmp_path / "s-1")
    assert [rollout.segment for rollout in trial.rollouts()] == [0, 1, 2]
    assert as_text(trial.rollouts()) == as_text(result.rollouts)
    record = trial.record
    assert (record["num_segments"], record["trained_segments"]) == (3, 3)
    assert (record["turns"], record["response_length"]) == (4, 6)

    store_trial(tmp_path / "s-2", make_result("s-2", turns=((4, 5),), more_segments=(((6,), (8, 9)), ((3,),))))
    longest = load_trial(tmp_path / "s-2")
    assert [rollout.segment for rollout in longest.rollouts()] == [1]
    assert (longest.record["num_segments"], longest.record["trained_segments"]) == (3, 1)
    assert longest.record["response_length"] == 6, "the trial's length does not depend on what is trained of it"


def as_text(rollouts):
    """As text, since NaN is unequal to itself."""
    return str([rollout.to_row() | {"routing_shape": None} for rollout in map(normal, rollouts)])


def normal(rollout):
    return Rollout.from_row(pa.Table.from_pylist([rollout.to_row()], schema=ROLLOUT_SCHEMA).to_pylist()[0])


def test_a_trial_that_is_not_graded_yet_has_no_verdict(tmp_path):
    store_trial(tmp_path / "s-1", make_result("s-1"))
    assert load_trial(tmp_path / "s-1").verdict is None


def test_an_infra_error_has_neither_tokens_nor_patch(tmp_path):
    store_trial(tmp_path / "s-1", make_result("s-1", outcome=Outcome.INFRA_ERROR))
    trial = load_trial(tmp_path / "s-1")
    assert trial.rollouts() == []
    assert trial.record["error"] == "SandboxError: gone"
    assert sorted(p.name for p in (tmp_path / "s-1").iterdir()) == ["trajectory.json", "trial.json"]


def test_trial_json_is_written_last(tmp_path, monkeypatch):
    """A crash in the middle leaves a directory that never happened."""
    run = make_run(tmp_path)
    monkeypatch.setattr(TrialResult, "to_json", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_trial(run, "step_000001", make_result("s-1"))
    folder = run.journal.trials_dir("step_000001") / "s-1"
    assert (folder / "rollout.parquet").is_file() and (folder / "patch.json").is_file()
    assert run.journal.trials("step_000001") == []


def test_a_trial_that_has_not_ended_is_named(tmp_path):
    with pytest.raises(JournalError, match=r"s-1 has no trial\.json"):
        load_trial(tmp_path / "s-1")
