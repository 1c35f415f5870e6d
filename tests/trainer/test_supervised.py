"""Batches of supervised learning: every trajectory once an epoch, in an order that a restart finds again."""

import numpy as np
import pytest
from support.rollouts import make_rollout

from trainer.algorithms.policy_losses.base import LossInputs
from trainer.algorithms.registry import POLICY_LOSSES
from trainer.rollout import RolloutError
from trainer.supervised import ALGORITHM, loss_metrics, sessions_of_step, steps_per_epoch, supervised_batch

SESSIONS = [f"s{i:02}" for i in range(10)]


def test_an_epoch_takes_each_trajectory_once_and_the_next_one_in_another_order():
    epochs = [[s for k in (1, 2, 3) for s in sessions_of_step(SESSIONS, 3 * e + k, 4, seed=0)] for e in (0, 1)]
    assert steps_per_epoch(10, 4) == 3
    assert sorted(epochs[0]) == sorted(epochs[1]) == SESSIONS and epochs[0] != epochs[1]
    assert [len(sessions_of_step(SESSIONS, k, 4, 0)) for k in (1, 2, 3, 4)] == [4, 4, 2, 4]
    assert sessions_of_step(SESSIONS[::-1], 2, 4, 0) == sessions_of_step(SESSIONS, 2, 4, 0), "by name, not by place"
    assert sessions_of_step(SESSIONS, 1, 10, 1) != sessions_of_step(SESSIONS, 1, 10, 0)


def test_every_sampled_token_weighs_the_same_and_no_other_weighs_anything():
    batch = supervised_batch([make_rollout("s0", turns=((4, 5), (6,))), make_rollout("s1", turns=((4,),))])
    rows = batch.to_pylist()
    assert [[a == 1.0 for a in row["advantages"]] for row in rows] == [[m == 1 for m in r["loss_mask"]] for r in rows]
    assert {row["group_id"] for row in rows} == {"fix-add"}, "what is of one task shares its prompt"
    with pytest.raises(RolloutError, match="no token to learn from"):
        supervised_batch([make_rollout("s2", turns=())])


def test_the_loss_is_the_negative_log_likelihood():
    import torch

    logprobs = torch.tensor([-0.5, -2.0, -1.0])
    zeros = torch.zeros(3)
    inputs = LossInputs(logprobs, zeros, torch.ones(3), torch.tensor([0, 0, 1]), 2)
    losses = POLICY_LOSSES[ALGORITHM.policy_loss].function(inputs, ALGORITHM).losses
    assert torch.equal(losses, -logprobs)
    assert ALGORITHM.loss_agg == "token-mean" and not ALGORITHM.rollout_correction.weighted


def test_metrics_that_compare_with_an_engine_are_not_shown():
    told = loss_metrics({"actor/pg_loss": 1.5, "rollout_corr/kl": 9.0, "actor/ppo_kl": 0.0, "actor/lr": 1e-5})
    assert told == {"train/loss": 1.5, "actor/lr": 1e-5}
    assert np.isfinite(list(told.values())).all()
