"""What one rank does to the weights, with torch in the place of DeepSpeed: the gradient is that of the plain formula.

ZeRO itself is tested where engines are real, in tests/integration.
"""

import dataclasses
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from support.plain import (
    assert_same_gradients,
    gradients,
    load_packed,
    load_plain,
    plain_logprobs,
    samples_like,
    sharpen,
)
from support.rollouts import make_rollout
from support.tiny import tiny_model

from trainer.algorithms.config import AlgorithmConfig
from trainer.batch import make_batch, with_advantages
from trainer.learner.config import LearnerConfig
from trainer.learner.rank import LearnerError, LearnerRank, _read_mini_batches, _Totals

TEMPERATURE = 0.8
SAMPLES = samples_like([(17, 3), (9, 1), (6, 2)])
GSPO = AlgorithmConfig()
PPO = AlgorithmConfig(policy_loss="ppo", clip_ratio_low=0.2, clip_ratio_high=0.2, loss_agg="token-mean")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sharpen(tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


class PlainEngine:
    """The calls that a rank makes of its engine, without shards."""

    device = torch.device("cpu")

    def __init__(self, model, lr=0.0):
        self.module, self.steps = model, 0
        self._optimizer = torch.optim.SGD(model.parameters(), lr=lr)

    def __call__(self, **inputs):
        return self.module(**inputs)

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.steps += 1
        self._optimizer.step()

    def get_global_grad_norm(self):
        return 1.0

    def was_step_applied(self):
        return True

    def get_lr(self):
        return [1e-6]


def make_rank(folder, algorithm=GSPO, rank=0, lr=0.0, **config) -> LearnerRank:
    learner = LearnerRank(rank, LearnerConfig(dtype="float32", **config), algorithm)
    learner._engine = PlainEngine(load_packed(folder), lr)
    learner._head, learner._device = learner._engine.module.lm_head, torch.device("cpu")
    return learner


def train(learner, samples, recompute_old=False) -> _Totals:
    """One mini-batch."""
    totals, work = _Totals(), learner._prepare(samples)
    if recompute_old:
        work.old_logprobs = [learner._old_logprobs(row, TEMPERATURE) for row in work.rows]
    learner._mini_batch(work, TEMPERATURE, totals)
    return totals


def gradient_of(folder, samples, algorithm=GSPO, recompute_old=False, **config):
    """Gradients of a mini-batch, averaged over ranks as ZeRO does."""
    ranks = config.get("ranks", 1)
    total: dict[str, torch.Tensor] = {}
    for rank in range(ranks):
        learner = make_rank(folder, algorithm, rank, **config)
        train(learner, samples, recompute_old)
        for name, gradient in gradients(learner._engine.module).items():
            total[name] = total.get(name, 0) + gradient / ranks
    return total


def expected_gradient(folder, samples, mode):
    """Of -A log p, which is where the ratio is 1, averaged as `mode` says."""
    model = load_plain(folder)
    losses = [-s.advantage * plain_logprobs(model, s, TEMPERATURE) for s in samples]
    if mode == "token-mean":
        loss = torch.cat(losses).sum() / sum(s.trained_tokens for s in samples)
    else:
        loss = torch.stack([x.mean() for x in losses]).sum() / len(samples)
    loss.backward()
    return gradients(model)


@pytest.mark.parametrize("algorithm", [GSPO, PPO], ids=["gspo", "ppo"])
@pytest.mark.parametrize("config", [{"micro_batch_tokens": 2048}, {"micro_batch_tokens": 1}, {"ranks": 3}], ids=str)
def test_gradient_is_the_plain_one_however_it_is_split(folder, algorithm, config):
    have = gradient_of(folder, SAMPLES, algorithm, **config)
    assert_same_gradients(have, expected_gradient(folder, SAMPLES, algorithm.loss_agg), 2e-5)


def test_recomputed_old_logprobs_give_the_same_first_step(folder):
    assert_same_gradients(gradient_of(folder, SAMPLES, recompute_old=True), gradient_of(folder, SAMPLES), 1e-5)


def test_rollouts_without_advantage_count_but_are_not_computed(folder):
    without = [dataclasses.replace(s, advantage=0.0) if i % 2 else s for i, s in enumerate(SAMPLES)]
    learner = make_rank(folder)
    totals = train(learner, without)
    assert totals.tokens == sum(s.trained_tokens for s in without if s.advantage)
    assert_same_gradients(gradients(learner._engine.module), expected_gradient(folder, without, GSPO.loss_agg), 2e-5)


def test_a_mini_batch_without_signal_takes_no_step(folder):
    learner = make_rank(folder)
    train(learner, [dataclasses.replace(s, advantage=0.0) for s in SAMPLES])
    assert learner._engine.steps == 0


def test_all_ranks_compute_equally_many_rows(folder):
    """Under ZeRO-3 each row is a chain of collectives: a rank without work would leave its peers waiting."""
    counts = {len(make_rank(folder, rank=r, ranks=4, micro_batch_tokens=1)._rows_of_rank(SAMPLES)) for r in range(4)}
    assert counts == {2}
    assert {len(make_rank(folder, rank=r, ranks=4)._rows_of_rank(SAMPLES)) for r in range(4)} == {1}


@pytest.fixture
def group():
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def batch(tmp_path):
    rollouts = [make_rollout(f"s-{i}", turns=[(10 + i, 20), (30,)]) for i in range(4)]
    path = tmp_path / "batch.parquet"
    pq.write_table(with_advantages(make_batch(rollouts, [1.0, 0.0, 1.0, 0.0]), [1.0, -1.0, 1.0, -1.0]), path)
    return path


def test_updates_are_applied_once_and_in_order(folder, batch, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: f"after {self._engine.steps} steps")
    learner = make_rank(folder)
    first = learner.update(1, str(batch), TEMPERATURE)
    assert learner.update(1, str(batch), TEMPERATURE) is first
    assert (learner._engine.steps, first.fingerprint, learner.state()) == (1, "after 1 steps", 1)
    for step in (0, 3):
        with pytest.raises(LearnerError, match=f"asked for update {step}, but the weights are at 1"):
            learner.update(step, str(batch), TEMPERATURE)
    assert learner.update(2, str(batch), TEMPERATURE).step == 2
    assert learner._engine.steps == 2


def test_metrics_of_an_update(folder, batch, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f")
    metrics = make_rank(folder).update(1, str(batch), TEMPERATURE).metrics
    assert metrics["actor/grad_norm"] == 1.0
    assert metrics["actor/skipped_steps"] == 0.0
    assert metrics["actor/lr"] == 1e-6
    assert metrics["actor/pg_clipfrac"] == metrics["actor/ppo_kl"] == 0.0
    assert metrics["actor/entropy"] > 0
    assert metrics["actor/update_tokens"] == 4 * 7
    assert "training/rollout_actor_probs_pearson_corr" in metrics


def test_an_empty_batch_is_an_update_without_a_step(folder, tmp_path, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f")
    pq.write_table(with_advantages(make_batch([], []), []), tmp_path / "batch.parquet")
    learner = make_rank(folder)
    assert learner.update(1, str(tmp_path / "batch.parquet"), TEMPERATURE).step == 1
    assert learner._engine.steps == 0


def test_later_mini_batches_are_measured_against_the_policy_before_the_first(folder, batch, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f")
    learner = make_rank(folder, lr=0.05, mini_batch_size=2)
    metrics = learner.update(1, str(batch), TEMPERATURE).metrics
    assert learner._engine.steps == 2
    assert metrics["actor/ppo_kl"] != 0.0


def test_logprobs_come_in_the_order_of_the_batch(folder, batch):
    learner = make_rank(folder, micro_batch_tokens=1)
    samples, _ = _read_mini_batches(batch, None)
    model = load_plain(folder)
    for have, sample in zip(learner.logprobs(str(batch), TEMPERATURE), samples, strict=True):
        want = plain_logprobs(model, sample, TEMPERATURE).tolist()
        assert have == pytest.approx(want, abs=1e-5)


def test_mini_batches_cover_the_batch(batch):
    samples, mini_batches = _read_mini_batches(batch, 3)
    assert [len(m) for m in mini_batches] == [3, 1]
    assert [s.index for m in mini_batches for s in m] == [s.index for s in samples] == [0, 1, 2, 3]
    assert len(_read_mini_batches(batch, None)[1]) == 1


def test_a_single_rank_stays_on_loopback():
    assert LearnerRank(0, LearnerConfig(), GSPO).address() == "127.0.0.1"


def test_plugins_are_imported_by_the_rank():
    with pytest.raises(ModuleNotFoundError, match="no_such_plugin"):
        LearnerRank(0, LearnerConfig(), GSPO, ["no_such_plugin"])


def test_loss_asks_the_configured_algorithm(folder, monkeypatch):
    from trainer.algorithms.registry import POLICY_LOSSES

    seen = []
    original = POLICY_LOSSES["gspo"]
    monkeypatch.setitem(POLICY_LOSSES, "gspo", lambda inputs, config: seen.append(config) or original(inputs, config))
    train(make_rank(folder), SAMPLES)
    assert seen == [GSPO]


def test_a_skipped_step_is_counted():
    totals = _Totals()
    totals.step(SimpleNamespace(get_global_grad_norm=lambda: 2.0, was_step_applied=lambda: False))
    assert (totals.skipped, totals.grad_norms) == (1, [2.0])
