"""What one rank does to the weights, with torch in the place of DeepSpeed: the gradient is that of the plain formula.

ZeRO itself is tested where engines are real, in tests/integration.
"""

import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from support.checkpoints import write_checkpoint
from support.plain import (
    assert_same_gradients,
    gradients,
    load_packed,
    load_plain,
    plain_entropy,
    plain_logprobs,
    samples_like,
    sharpen,
)
from support.rollouts import batch_of, make_rollout
from support.tiny import tiny_model

from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.rollout_correction.config import RolloutCorrectionConfig
from trainer.batch import with_advantages
from trainer.learner import checkpoint
from trainer.learner.config import LearnerConfig
from trainer.learner.errors import LearnerError, NonFiniteError
from trainer.learner.packed_model import PackedModel
from trainer.learner.rank import LearnerRank
from trainer.learner.samples import read_samples
from trainer.learner.totals import Totals
from trainer.learner.value_head import ValueHead

TEMPERATURE = 0.8
SAMPLES = samples_like([(17, 3), (9, 1), (6, 2)])
UNCORRECTED = RolloutCorrectionConfig(mode="off")
"""The log-probs of the samples are made up: as importance weights they would scale the gradients."""
GSPO = AlgorithmConfig(rollout_correction=UNCORRECTED)
PPO = AlgorithmConfig(
    policy_loss="ppo", clip_ratio_low=0.2, clip_ratio_high=0.2, loss_agg="token-mean", rollout_correction=UNCORRECTED
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sharpen(tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


class PlainEngine:
    """The calls that a rank makes of its engine, without shards."""

    device = torch.device("cpu")

    def __init__(self, model):
        self.module, self.steps = model, 0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def __call__(self, **inputs):
        return self.module(**inputs)

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.steps += 1
        self.optimizer.step()

    def zero_grad(self):
        self.module.zero_grad()

    def zero_optimization_stage(self):
        return 0

    def get_global_grad_norm(self):
        return 1.0

    def was_step_applied(self):
        return True

    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]


def make_rank(folder, algorithm=GSPO, rank=0, **config) -> LearnerRank:
    learner = LearnerRank(rank, LearnerConfig(dtype="float32", **config), algorithm)
    model = load_packed(folder)
    learner.adopt(PackedModel(PlainEngine(model), model.lm_head))
    return learner


def train(learner, samples, recompute_old=False) -> Totals:
    """One mini-batch."""
    update = learner._policy_update
    totals, part = Totals(learner.algorithm.rollout_correction), update.mini_batch(samples)
    if recompute_old:
        update.remember_old(part, TEMPERATURE, seed=1)
    update.step(part, TEMPERATURE, totals, measure=True)
    return totals


def without_signal(sample):
    return dataclasses.replace(sample, columns=sample.columns | {"advantages": 0 * sample.columns["advantages"]})


def gradient_of(folder, samples, algorithm=GSPO, recompute_old=False, **config):
    """Gradients of a mini-batch, averaged over ranks as ZeRO does."""
    ranks = config.get("ranks", 1)
    total: dict[str, torch.Tensor] = {}
    for rank in range(ranks):
        learner = make_rank(folder, algorithm, rank, **config)
        train(learner, samples, recompute_old)
        for name, gradient in gradients(learner._policy.engine.module).items():
            total[name] = total.get(name, 0) + gradient / ranks
    return total


def expected_gradient(folder, samples, mode):
    """Of -A log p, which is where the ratio is 1, averaged as `mode` says."""
    model = load_plain(folder)
    losses = [-torch.from_numpy(s.columns["advantages"]) * plain_logprobs(model, s, TEMPERATURE) for s in samples]
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
    without = [without_signal(s) if i % 2 else s for i, s in enumerate(SAMPLES)]
    learner = make_rank(folder)
    totals = train(learner, without)
    assert totals.tokens == sum(s.trained_tokens for s in without if s.has_signal)
    assert_same_gradients(
        gradients(learner._policy.engine.module), expected_gradient(folder, without, GSPO.loss_agg), 2e-5
    )


def test_a_mini_batch_without_signal_takes_no_step(folder):
    learner = make_rank(folder)
    train(learner, [without_signal(s) for s in SAMPLES])
    assert learner._policy.engine.steps == 0


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
    advantages = np.repeat(np.array([1.0, -1.0, 1.0, -1.0], dtype=np.float32), 3)
    pq.write_table(with_advantages(batch_of(rollouts), advantages), path)
    return path


def test_updates_are_applied_once_and_in_order(folder, batch, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: f"after {self._policy.engine.steps} steps")
    learner = make_rank(folder)
    first = learner.update(1, str(batch), TEMPERATURE)
    assert learner.update(1, str(batch), TEMPERATURE) is first
    assert (learner._policy.engine.steps, first.fingerprint, learner.state()) == (1, "after 1 steps", 1)
    for step in (0, 3):
        with pytest.raises(LearnerError, match=f"asked for update {step}, but the weights are at 1"):
            learner.update(step, str(batch), TEMPERATURE)
    assert learner.update(2, str(batch), TEMPERATURE).step == 2
    assert learner._policy.engine.steps == 2


def test_metrics_of_an_update(folder, batch, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f")
    metrics = make_rank(folder).update(1, str(batch), TEMPERATURE).metrics
    assert metrics["actor/grad_norm"] == 1.0
    assert metrics["actor/skipped_steps"] == 0.0
    assert metrics["actor/lr"] == 1e-6
    assert metrics["actor/pg_clipfrac"] == metrics["actor/ppo_kl"] == 0.0
    assert metrics["actor/entropy"] > 0
    assert 0 <= metrics["actor/top1"] <= 1
    assert metrics["actor/update_tokens"] == 4 * 7
    assert metrics["global_seqlen/mean"] == 4 * 7
    # the prompt of three tokens is the same for all four
    assert metrics["global_seqlen/balanced_max"] == 4 * 7 - 3 * 3
    assert metrics["perf/tokens_per_second/actor"] > 0 and "perf/mfu/actor" not in metrics
    assert metrics["perf/cpu_memory_used_gb"] > 0
    assert "training/rollout_actor_probs_pearson_corr" in metrics


def test_an_empty_batch_is_an_update_without_a_step(folder, tmp_path, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f")
    pq.write_table(with_advantages(batch_of([]), np.empty(0, dtype=np.float32)), tmp_path / "batch.parquet")
    learner = make_rank(folder)
    assert learner.update(1, str(tmp_path / "batch.parquet"), TEMPERATURE).step == 1
    assert learner._policy.engine.steps == 0


def test_scores_come_in_the_order_of_the_batch(folder, batch):
    learner = make_rank(folder, micro_batch_tokens=1)
    samples, model = read_samples(pq.read_table(batch)), load_plain(folder)
    want = torch.cat([plain_logprobs(model, sample, TEMPERATURE) for sample in samples]).detach()
    scores = learner.score(str(batch), ["sum_pi_squared", "old_logprobs"], TEMPERATURE, updates=0)
    assert list(scores) == ["sum_pi_squared", "old_logprobs"]
    torch.testing.assert_close(torch.from_numpy(scores["old_logprobs"]), want, atol=1e-5, rtol=0)
    assert ((scores["sum_pi_squared"] > 0) & (scores["sum_pi_squared"] < 1)).all()


def test_scoring_draws_nothing_that_the_next_update_would_draw(folder, batch, monkeypatch):
    """A replayed update has scored nothing before; with dropout it must draw the same all the same."""
    learner = make_rank(folder)
    forward = learner._policy.forward
    monkeypatch.setattr(learner._policy, "forward", lambda row, t: forward(row, t) + 0 * torch.rand(1))
    before = torch.get_rng_state()
    learner.score(str(batch), ["old_logprobs"], TEMPERATURE, updates=0)
    assert torch.equal(before, torch.get_rng_state())


def test_scoring_with_other_weights_than_the_step_began_with_is_refused(folder, batch):
    with pytest.raises(LearnerError, match="after 3 updates, but they are at 0"):
        make_rank(folder).score(str(batch), ["old_logprobs"], TEMPERATURE, updates=3)


@pytest.mark.parametrize("column", ["values", "ref_logprobs"])
def test_a_column_without_its_model_is_refused(folder, batch, column):
    with pytest.raises(LearnerError, match=f"computes \\['{column}'\\]: values need learner.critic"):
        make_rank(folder).score(str(batch), [column], TEMPERATURE, updates=0)


def test_a_single_rank_stays_on_loopback():
    assert LearnerRank(0, LearnerConfig(), GSPO).address() == "127.0.0.1"


def test_plugins_are_imported_by_the_rank():
    with pytest.raises(ModuleNotFoundError, match="no_such_plugin"):
        LearnerRank(0, LearnerConfig(), GSPO, ["no_such_plugin"])


def spoil(learner, monkeypatch, spoils):
    """Makes the log-probs of mini-batches infinite, for as many as `spoils` says in turn."""
    forward, turn = learner._policy.forward, iter(spoils)
    monkeypatch.setattr(
        learner._policy, "forward", lambda row, t: forward(row, t) * (float("inf") if next(turn) else 1.0)
    )


def test_a_step_without_a_finite_gradient_is_not_taken(folder, batch, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f")
    learner = make_rank(folder, lr=0.05)
    model = learner._policy.engine.module
    before = [parameter.detach().clone() for parameter in model.parameters()]
    spoil(learner, monkeypatch, [True, True, False, True, True, True])
    for step in (1, 2):
        metrics = learner.update(step, str(batch), TEMPERATURE).metrics
        assert metrics["actor/skipped_steps"] == 1.0 and "actor/grad_norm" not in metrics
        assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
        model.zero_grad()
    assert learner.update(3, str(batch), TEMPERATURE).metrics["actor/skipped_steps"] == 0.0
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    model.zero_grad()
    for step in (4, 5):
        learner.update(step, str(batch), TEMPERATURE)
    with pytest.raises(NonFiniteError, match=r"not finite in 3 steps in a row; .* lower learner.lr"):
        learner.update(6, str(batch), TEMPERATURE)
    for step in (0, 6):
        with pytest.raises(LearnerError, match="in the middle of one that failed; restore a checkpoint first"):
            learner.update(step, str(batch), TEMPERATURE)


def test_a_checkpoint_that_is_refused_leaves_no_weights_to_go_on_from(folder, tmp_path, monkeypatch):
    learner = make_rank(folder)
    write_checkpoint(tmp_path, 2)
    monkeypatch.setattr(checkpoint, "load", lambda engines, saved: None)
    with pytest.raises(LearnerError, match="restored weights have fingerprint"):
        learner.load(str(tmp_path / "global_step_2"))
    assert learner.state() == -1
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f2")
    assert learner.load(str(tmp_path / "global_step_2")) == learner.state() == 2


def test_learning_rates_follow_the_schedule(folder, batch, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f")
    learner = make_rank(
        folder, lr=0.01, lr_warmup_steps=2, lr_schedule="linear", lr_total_steps=4, lr_min_ratio=0.5, mini_batch_size=2
    )
    rates = [learner.update(step, str(batch), TEMPERATURE).metrics["actor/lr"] for step in range(1, 6)]
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.005, 0.005])


def test_an_update_of_a_shorter_run_keeps_its_learning_rate(folder, batch, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f")
    learner = make_rank(folder, lr=0.01, lr_schedule="linear", lr_total_steps=100, lr_min_ratio=0.5)
    records = [learner.update(step, str(batch), TEMPERATURE, total) for step, total in ((1, 3), (2, 3), (3, None))]
    assert [record.lr_total_steps for record in records] == [3, 3, 100]
    assert [record.metrics["actor/lr"] for record in records] == pytest.approx([0.01, 0.0075, 0.01 * (1 - 1 / 99)])


def test_a_token_that_got_lost_stops_the_update(folder, batch, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f")
    learner = make_rank(folder, micro_batch_tokens=1)
    mini_batch = learner._policy_update.mini_batch

    def losing(samples):
        part = mini_batch(samples)
        part.rows.pop()
        part.old_logprobs.pop()
        return part

    monkeypatch.setattr(learner._policy_update, "mini_batch", losing)
    with pytest.raises(LearnerError, match="has 12 tokens to train, but ranks trained 9"):
        learner.update(1, str(batch), TEMPERATURE)


KL = AlgorithmConfig(kl={"place": "loss", "coef": 0.5, "estimator": "k3"}, rollout_correction=UNCORRECTED)


def with_reference(folder, samples, shift=0.3):
    """The samples, and a reference that finds each trained token less likely than the policy does."""
    model = load_plain(folder)
    return [
        dataclasses.replace(
            s,
            columns=s.columns
            | {"ref_logprobs": plain_logprobs(model, s, TEMPERATURE).detach().numpy() - np.float32(shift)},
        )
        for s in samples
    ]


@pytest.mark.parametrize("config", [{"micro_batch_tokens": 2048}, {"micro_batch_tokens": 1}, {"ranks": 3}], ids=str)
def test_entropy_and_divergence_pull_on_all_rollouts_however_they_are_split(folder, config):
    """Also on those without advantage."""
    algorithm = KL.model_copy(update={"entropy_coeff": 0.25})
    samples = with_reference(folder, [without_signal(s) if i % 2 else s for i, s in enumerate(SAMPLES)])
    model, losses = load_plain(folder), []
    for s in samples:
        logprobs, entropy = plain_logprobs(model, s, TEMPERATURE), plain_entropy(model, s, TEMPERATURE)
        log_ratio = torch.from_numpy(s.columns["ref_logprobs"]) - logprobs
        advantages = torch.from_numpy(s.columns["advantages"])
        losses.append((-advantages * logprobs + 0.5 * (log_ratio.exp() - log_ratio - 1) - 0.25 * entropy).mean())
    torch.stack(losses).mean().backward()
    assert_same_gradients(gradient_of(folder, samples, algorithm, **config), gradients(model), 5e-5)


def test_importance_weights_scale_the_gradient_of_their_tokens(folder):
    """The engine found each token half as likely as the trainer does: weight 2, or truncated to 1.5."""
    model = load_plain(folder)
    samples = []
    for s in SAMPLES:
        rollout = plain_logprobs(model, s, TEMPERATURE).detach().numpy() - np.log(np.float32(2))
        samples.append(dataclasses.replace(s, columns=s.columns | {"rollout_logprobs": rollout}))
    plain = gradient_of(folder, samples, GSPO)
    for high, factor in ((10.0, 2.0), (1.5, 1.5)):
        weighted = gradient_of(folder, samples, AlgorithmConfig(rollout_correction={"high": high}))
        assert_same_gradients(weighted, {name: factor * value for name, value in plain.items()}, 1e-4)


def test_bypass_takes_the_engine_for_the_old_policy(folder):
    algorithm = PPO.model_copy(update={"rollout_correction": RolloutCorrectionConfig(mode="bypass")})
    model = load_plain(folder)
    samples = []
    for s in SAMPLES:
        rollout = plain_logprobs(model, s, TEMPERATURE).detach().numpy() + np.float32(0.01)
        samples.append(dataclasses.replace(s, columns=s.columns | {"rollout_logprobs": rollout}))
    totals = train(make_rank(folder, algorithm), samples)
    assert totals.per_token["actor/ppo_kl"] / totals.tokens == pytest.approx(0.01, rel=1e-2)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_selection_does_not_depend_on_rows(folder, name):
    ratio = {"clip_cov_ratio": 0.2, "clip_cov_low": -5.0} if name == "clip_cov" else {"kl_cov_ratio": 0.2}
    algorithm = AlgorithmConfig(
        policy_loss=name, clip_ratio_low=0.2, clip_ratio_high=0.2, loss_agg="token-mean", **ratio
    )
    selected = []
    for budget in (2048, 1):
        update = make_rank(folder, algorithm, micro_batch_tokens=budget)._policy_update
        work = update.mini_batch(SAMPLES)
        update.remember_old(work, TEMPERATURE, seed=3)
        chosen = {}
        for row, part in zip(work.rows, work.selected, strict=True):
            for sample, mask in zip(row.samples, part.split([s.trained_tokens for s in row.samples]), strict=True):
                chosen[sample.index] = mask.tolist()
        selected.append(chosen)
    assert selected[0] == selected[1]
    assert 0 < sum(map(sum, selected[0].values())) < sum(s.trained_tokens for s in SAMPLES)


@pytest.mark.parametrize("config", [{"mini_batch_size": 2}, {"ppo_epochs": 2}], ids=str)
def test_each_pass_over_a_mini_batch_is_an_optimizer_step(folder, batch, group, monkeypatch, config):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f")
    learner = make_rank(folder, lr=0.05, **config)
    metrics = learner.update(1, str(batch), TEMPERATURE).metrics
    assert learner._policy.engine.steps == 2
    assert metrics["actor/ppo_kl"] != 0.0


def test_the_critic_learns_the_returns(folder, tmp_path, group, monkeypatch):
    monkeypatch.setattr(LearnerRank, "fingerprint", lambda self: "f")
    algorithm = AlgorithmConfig(adv_estimator="gae")
    rollouts = [make_rollout(f"s-{i}", turns=[(10 + i, 20), (30,)]) for i in range(4)]
    tokens = np.ones(12, dtype=np.float32)
    table = with_advantages(batch_of(rollouts), tokens, returns=tokens, values=0 * tokens)
    pq.write_table(table, tmp_path / "batch.parquet")
    learner = make_rank(folder, algorithm, critic={"lr": 2e-4}, mini_batch_size=2, ppo_epochs=2)
    model = load_packed(folder)
    model.lm_head = ValueHead(model.config.hidden_size, torch.float32)
    learner.adopt_critic(PackedModel(PlainEngine(model), model.lm_head))
    path, before = str(tmp_path / "batch.parquet"), []
    for step in range(1, 6):
        values = learner.score(path, ["values"], TEMPERATURE, updates=step - 1)["values"]
        before.append(float(np.square(values - 1).mean()))
        metrics = learner.update(step, path, TEMPERATURE).metrics
    assert learner._critic.engine.steps == 5 * 2 * 2
    assert before[0] == 1.0, "a fresh critic says 0"
    assert before == sorted(before, reverse=True) and before[-1] < 0.9
    assert metrics["critic/vf_loss"] > 0 and "critic/grad_norm" in metrics
