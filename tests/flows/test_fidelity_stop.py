"""A step that misses the gate is recorded whole before it stops the run; a resumed run counts on."""

import pytest
from support.journals import make_run

from flows import step as flow
from flows.config import RunConfig
from flows.step import rl_step
from tasks.journal import step_label, write_json
from trainer.fidelity.gate import FidelityError
from trainer.fidelity.judge import MEAN_DIFF, PEARSON

PEARSONS = {1: 0.999, 2: 0.5, 3: 0.6, 4: 0.7}


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """`rl_step` with the stages that need engines replaced; their metrics say how faithful a step was."""
    config = RunConfig.model_validate({"experiment": "e", "fidelity": {"patience": 2}})
    run, asked = make_run(tmp_path), []

    def stage(result):
        async def answer(run, label, *arguments):
            return result(label, *arguments) if callable(result) else result

        return answer

    async def score(run, label, step, columns, temperature):
        asked.append((step, columns))
        return {}

    def record(label, step, metrics, warnings, tracing):
        write_json(run.journal.stage_dir(label) / "record.json", {"step": step, "metrics": metrics, "said": warnings})
        return {"metrics": metrics}

    async def trials(*_):
        return {"seconds": 1.0}

    def update(label, step, temperature, sampled_ahead):
        return {"metrics": {PEARSON: PEARSONS[step], MEAN_DIFF: 0.1}, "seconds": 1.0}

    monkeypatch.setattr(flow, "read_run_config", lambda run: config)
    monkeypatch.setattr(flow, "collect_trials", trials)
    monkeypatch.setattr(flow, "assemble_batch", stage({}))
    monkeypatch.setattr(flow, "score_batch", score)
    monkeypatch.setattr(flow, "compute_advantages", stage({}))
    monkeypatch.setattr(flow, "update_policy", stage(update))
    monkeypatch.setattr(flow, "sync_weights", stage({"seconds": 1.0}))
    monkeypatch.setattr(flow, "record_step", stage(record))
    monkeypatch.setattr(flow, "check_fidelity", flow.check_fidelity.fn)

    from support.mismatch import mismatched_batch

    from tasks.journal import write_table

    for number in PEARSONS:
        write_table(run.journal.stage_dir(step_label(number)) / "batch.parquet", mismatched_batch(rollouts=2)[0])
    return lambda number: rl_step.fn(run, number, tmp_path), run, asked


async def test_the_run_stops_after_two_unfaithful_steps_and_again_after_the_next(steps):
    step, run, asked = steps
    await step(1)
    await step(2)
    for number in (3, 4):
        with pytest.raises(FidelityError, match=f"training stops after step {number}"):
            await step(number)
    records = [run.journal.stage(step_label(number), "record.json") for number in (1, 2, 3, 4)]
    assert [r["metrics"]["fidelity/steps_below"] for r in records] == [0.0, 1.0, 2.0, 3.0]
    assert [len(r["said"]) for r in records] == [0, 1, 1, 1]
    assert asked == [(1, []), (2, []), (3, ["old_logprobs"]), (4, ["old_logprobs"])]
