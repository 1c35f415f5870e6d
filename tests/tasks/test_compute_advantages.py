"""From batch.parquet to what the learner trains on: rewards, penalties and baselines reach the estimator."""

import numpy as np
import pyarrow as pa
import pytest
from support.journals import make_run
from support.rollouts import make_rollout

from tasks.compute_advantages import DONE, compute_advantages
from tasks.journal import write_json, write_table
from trainer.algorithms.advantages.grpo import EPSILON
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.staleness import StalenessConfig
from trainer.batch import BatchRow, make_batch, read_train_batch, sampled

LABEL = "step_000002"
REWARDS = {"a": [1, 1, 0, 0, 0, 0, 0], "c": [0, 0], "d": [1, 1]}


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def write_batch(run, rewards=REWARDS, **columns):
    rows = [
        BatchRow(make_rollout(f"{group}-{i}", f"{LABEL}/{group}"), score=float(r), reward=float(r), **columns)
        for group, values in rewards.items()
        for i, r in enumerate(values)
    ]
    write_table(run.journal.stage_dir(LABEL) / "batch.parquet", make_batch(rows))


def write_scores(run, **columns):
    write_table(run.journal.stage_dir(LABEL) / "scores.parquet", pa.table(columns))


def trained(run):
    return read_train_batch(run.journal.stage_dir(LABEL) / "batch.parquet")


async def compute(run, **algorithm):
    return await compute_advantages.fn(run, LABEL, 2, AlgorithmConfig(**algorithm))


async def test_the_baseline_is_that_of_the_group(run):
    write_batch(run)
    await compute(run)
    rows = {row["session_id"]: row for row in trained(run).to_pylist()}
    mean = 2 / 7
    deviation = (sum((r - mean) ** 2 for r in REWARDS["a"]) / 6) ** 0.5
    for i, reward in enumerate(REWARDS["a"]):
        want = pytest.approx((reward - mean) / (deviation + EPSILON), rel=1e-6)
        row = rows[f"a-{i}"]
        assert [x for x, m in zip(row["advantages"], row["loss_mask"], strict=True) if m] == [want] * 3
        assert all(np.isnan(x) for x, m in zip(row["advantages"], row["loss_mask"], strict=True) if not m)
    assert {x for s in ("c-0", "d-1") for x in rows[s]["advantages"] if not np.isnan(x)} == {0.0}


async def test_tokens_beyond_the_bound_weigh_less_and_are_counted(run):
    write_batch(run)
    await compute(run)
    plain, versions = sampled(trained(run), "advantages"), sampled(trained(run), "weight_versions")
    assert set(versions) == {versions[0]} and plain.any()
    (run.journal.stage_dir(LABEL) / DONE).unlink()
    config = StalenessConfig(max_staleness=0, too_old="down_weight", too_old_weight=0.5)
    step = int(versions[0]) + 3  # updates version `step - 1`: two versions on
    metrics = await compute_advantages.fn(run, LABEL, step, AlgorithmConfig(), config)
    assert sampled(trained(run), "advantages") == pytest.approx(plain / 4)
    assert metrics["staleness/age_share/2"] == 1.0 and metrics["staleness/down_weighted"] == 1.0
    assert metrics["critic/advantages/max"] == pytest.approx(plain.max() / 4), "of what is trained on"


async def test_metrics_of_the_batch(run):
    write_batch(run)
    metrics = await compute(run)
    assert (metrics["batch/rollouts"], metrics["batch/groups"]) == (11, 3)
    assert metrics["batch/groups_with_signal"] == metrics["batch/solve_none"] == metrics["batch/solve_all"] == 1
    assert metrics["critic/score/mean"] == pytest.approx(4 / 11)
    assert metrics["batch/trained/score_mean"] == pytest.approx(2 / 7)
    assert (metrics["response_length/min"], metrics["prompt_length/mean"], metrics["num_turns/max"]) == (3, 3, 2)
    # three of the prompt, three sampled, one of the environment
    assert (metrics["global_seqlen/mean"], metrics["perf/total_num_tokens"]) == (7, 77)


async def test_it_may_be_called_again(run):
    write_batch(run)
    first = await compute(run)
    table = trained(run)
    assert await compute(run) == first
    # as text, since NaN is unequal to itself
    assert str(trained(run).to_pylist()) == str(table.to_pylist())
    assert first["critic/advantages/min"] < 0 < first["critic/advantages/max"]


async def test_a_batch_that_was_assembled_again_gets_its_advantages_again(run):
    write_batch(run)
    first = await compute(run)
    write_batch(run)
    assert await compute(run) == first
    assert trained(run).num_rows == 11


async def test_an_empty_batch(run):
    write_batch(run, {})
    assert (await compute(run))["batch/rollouts"] == 0.0
    assert trained(run).num_rows == 0


async def test_settings_reach_the_estimator(run):
    write_batch(run)
    assert (await compute(run, norm_adv_by_std=False))["critic/advantages/max"] == pytest.approx(1 - 2 / 7)


async def test_divergence_is_paid_in_the_reward(run):
    write_batch(run, {"a": [1, 0]})
    logprobs = np.full(6, -1.0, dtype=np.float32)
    ref = logprobs - np.repeat([0.5, 0.1], 3).astype(np.float32)
    write_scores(run, old_logprobs=logprobs, ref_logprobs=ref)
    metrics = await compute(run, kl={"place": "reward", "estimator": "k1", "coef": 0.1}, norm_adv_by_std=False)
    # rewards 1 - 0.1 * 3 * 0.5 and 0 - 0.1 * 3 * 0.1
    assert metrics["critic/rewards/max"] == pytest.approx(0.85)
    assert metrics["critic/rewards/min"] == pytest.approx(-0.03)
    assert metrics["critic/score/max"] == 1.0
    assert metrics["actor/reward_kl_penalty"] == pytest.approx(0.3)
    np.testing.assert_allclose(sampled(trained(run), "advantages"), np.repeat([0.44, -0.44], 3), rtol=1e-6)
    np.testing.assert_allclose(sampled(trained(run), "ref_logprobs"), ref)


@pytest.mark.parametrize(("controller", "want"), [("adaptive", 0.5 * (1 + 0.2 * 64 / 100)), ("fixed", 0.001)])
async def test_the_adaptive_weight_follows_the_step_before(run, controller, want):
    write_json(
        run.journal.stage_dir("step_000001") / DONE,
        {"metrics": {}, "kl": {"coef": 0.5, "measured": 0.9, "rollouts": 64}},
    )
    write_batch(run, {"a": [1, 0]})
    write_scores(run, old_logprobs=np.zeros(6, np.float32), ref_logprobs=np.zeros(6, np.float32))
    metrics = await compute(run, kl={"place": "reward", "controller": controller, "target": 0.1, "horizon": 100})
    assert metrics["actor/reward_kl_penalty_coeff"] == pytest.approx(want)


async def test_an_empty_step_does_not_forget_the_adaptive_weight(run):
    write_json(run.journal.stage_dir("step_000001") / DONE, {"metrics": {}, "kl": {"coef": 0.5}})
    write_batch(run, {"a": [1, 0]})
    write_scores(run, old_logprobs=np.zeros(6, np.float32), ref_logprobs=np.zeros(6, np.float32))
    kl = {"place": "reward", "controller": "adaptive", "target": 0.1, "horizon": 100}
    metrics = await compute(run, kl=kl)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.5
    (run.journal.stage_dir(LABEL) / DONE).unlink()
    (run.journal.stage_dir(LABEL) / "scores.parquet").unlink()
    write_batch(run, {})
    await compute(run, kl=kl)
    assert run.journal.stage(LABEL, DONE)["kl"] == {"coef": 0.5}


async def test_values_and_returns_go_on_to_the_critic(run):
    write_batch(run, {"a": [1, 0]})
    values = np.linspace(0, 0.5, 6, dtype=np.float32)
    write_scores(run, values=values)
    metrics = await compute(run, adv_estimator="gae")
    np.testing.assert_allclose(sampled(trained(run), "values"), values)
    np.testing.assert_allclose(sampled(trained(run), "returns"), [1, 1, 1, 0, 0, 0], atol=1e-6)
    assert "critic/vf_explained_var" in metrics


async def test_the_greedy_trial_is_the_baseline_of_remax(run):
    write_batch(run, {"a": [1, 0]}, greedy_baseline=0.25)
    await compute(run, adv_estimator="remax")
    np.testing.assert_allclose(sampled(trained(run), "advantages"), [0.75] * 3 + [-0.25] * 3)


async def test_trials_must_have_the_same_named_rewards(run):
    rows = [
        BatchRow(make_rollout("a-0", "g"), 1.0, 1.0, {"tests": 1.0, "style": 0.0}),
        BatchRow(make_rollout("a-1", "g"), 0.0, 0.0, {"tests": 0.0}),
    ]
    write_table(run.journal.stage_dir(LABEL) / "batch.parquet", make_batch(rows))
    with pytest.raises(ValueError, match=r"a-1: named rewards \['tests'\], but other trials have \['style', 'tests'\]"):
        await compute(run)
