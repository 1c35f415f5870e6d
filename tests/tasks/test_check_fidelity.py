"""The gate between a step and the next: it warns, it counts over resumes, and it stops with the cause."""

import json

import pytest
from support.journals import make_run
from support.mismatch import mismatched_batch

from tasks.check_fidelity import check_fidelity, columns_for_evidence, steps_below_before
from tasks.journal import step_label, write_json, write_table
from trainer.fidelity.config import FidelityConfig
from trainer.fidelity.judge import MEAN_DIFF, PEARSON
from trainer.learner.config import LearnerConfig
from trainer.serving.config import ServingConfig

GOOD, BAD = {PEARSON: 0.999, MEAN_DIFF: 0.001}, {PEARSON: 0.9, MEAN_DIFF: 0.1}
STEP = 8
CONFIG = FidelityConfig(patience=3)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def recorded(run, **steps):
    """Records of the steps `s7=BAD`."""
    for name, metrics in steps.items():
        write_json(run.journal.stage_dir(step_label(int(name[1:]))) / "record.json", {"metrics": metrics})


def stage(run, metrics, tmp_path, scored=True, config=CONFIG, cooler=0.6):
    """Check step 8, whose engine sampled at another temperature."""
    batch, scores = mismatched_batch(lambda logits, places: logits / cooler)
    folder = run.journal.stage_dir(step_label(STEP))
    write_table(folder / "batch.parquet", batch)
    if scored:
        write_table(folder / "scores.parquet", scores)
    return check_fidelity.fn(
        run, step_label(STEP), STEP, metrics, 1.0, config, LearnerConfig(), ServingConfig(), tmp_path
    )


async def test_a_faithful_step_says_nothing_and_ends_the_row(run, tmp_path):
    recorded(run, s6=BAD, s7=BAD)
    assert await stage(run, GOOD, tmp_path) == {"metrics": {"fidelity/steps_below": 0.0}, "warnings": [], "stop": None}
    assert not (run.journal.stage_dir(step_label(STEP)) / "fidelity.json").exists()


async def test_a_step_without_rollouts_is_passed_over(run, tmp_path):
    recorded(run, s6=BAD, s7=BAD)
    assert await stage(run, {}, tmp_path) == {"metrics": {}, "warnings": [], "stop": None}


async def test_the_first_unfaithful_step_warns(run, tmp_path):
    recorded(run, s6=BAD, s7=GOOD)
    result = await stage(run, BAD, tmp_path, scored=False)
    assert result["stop"] is None and result["metrics"] == {"fidelity/steps_below": 1.0}
    (warning,) = result["warnings"]
    assert "0.9000" in warning and "step 1 in a row, the run stops at 3" in warning


async def test_the_third_in_a_row_stops_the_run_and_names_the_cause(run, tmp_path):
    recorded(run, s5=GOOD, s6=BAD, s7=BAD)
    result = await stage(run, BAD, tmp_path)
    assert result["metrics"] == {"fidelity/steps_below": 3.0}
    assert "for 3 steps in a row, so training stops after step 8" in result["stop"]
    assert "Likely cause: temperature" in result["stop"]
    report = json.loads((run.journal.stage_dir(step_label(STEP)) / "fidelity.json").read_text())
    assert report["steps"] == 3 and report["causes"][0]["cause"] == "temperature"


async def test_without_patience_it_only_warns(run, tmp_path):
    recorded(run, s5=BAD, s6=BAD, s7=BAD)
    result = await stage(run, BAD, tmp_path, config=FidelityConfig(patience=None))
    assert result["stop"] is None and len(result["warnings"]) == 1


async def test_the_journals_fingerprints_tell_a_sync_that_brought_other_weights(run, tmp_path):
    recorded(run, s6=BAD, s7=BAD)
    before = run.journal.stage_dir(step_label(STEP - 1))
    write_json(before / "update.json", {"fingerprint": "aaaa"})
    write_json(before / "sync.json", {"version": STEP - 1, "fingerprint": "bbbb"})
    assert "Likely cause: version (the weights of version 7" in (await stage(run, BAD, tmp_path))["stop"]
    write_json(before / "sync.json", {"version": STEP - 1, "fingerprint": None})  # nothing was sent on a resume
    assert "Likely cause: temperature" in (await stage(run, BAD, tmp_path))["stop"]


async def test_a_mixture_of_experts_is_known_by_its_configuration(run, tmp_path):
    recorded(run, s6=BAD, s7=BAD)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"num_experts": 128}}))
    result = await stage(run, BAD, tmp_path, scored=False)
    assert "Likely cause: version (100% of the sampled" not in result["stop"]
    assert "Likely cause: routing (the model chooses among 128 experts" in result["stop"]


def test_the_count_is_read_from_the_records(run):
    assert steps_below_before(run, 1, CONFIG) == 0
    recorded(run, s1=BAD, s2=GOOD, s3=BAD, s4={}, s5=BAD)
    assert [steps_below_before(run, step, CONFIG) for step in (2, 3, 4, 5, 6)] == [1, 0, 1, 1, 2]


def test_the_learner_scores_only_where_a_cause_may_have_to_be_named(run):
    assert columns_for_evidence(run, 1, CONFIG) == []
    assert columns_for_evidence(run, 1, FidelityConfig(patience=1)) == ["old_logprobs"]
    recorded(run, s1=GOOD, s2=BAD)
    assert columns_for_evidence(run, 2, CONFIG) == []
    assert columns_for_evidence(run, 3, CONFIG) == ["old_logprobs"]
