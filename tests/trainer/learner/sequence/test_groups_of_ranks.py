"""Rows are divided over groups of ranks: those of a group compute the same, and one of them counts it."""

import pytest
import torch
from support.plain import samples_like

from trainer.algorithms.rollout_correction.config import RolloutCorrectionConfig
from trainer.learner.config import LearnerConfig
from trainer.learner.mini_batch import MiniBatch
from trainer.learner.totals import Totals

SAMPLES = samples_like([(17, 3), (9, 2), (6, 4)])


@pytest.mark.parametrize(("ranks", "size"), [(4, 2), (6, 3), (4, 4)])
def test_ranks_of_a_group_have_the_same_rows(ranks, size):
    config = LearnerConfig(ranks=ranks, sp_size=size, micro_batch_tokens=20)
    parts = [MiniBatch.of(SAMPLES, SAMPLES, rank, config) for rank in range(ranks)]
    rows = [[row.token_ids.tolist() for row in part.rows] for part in parts]
    assert all(rows[rank] == rows[rank // size * size] for rank in range(ranks))
    counted = [rank for rank in range(ranks) if config.counts(rank)]
    assert counted == list(range(0, ranks, size)) and len(parts[0].loads) == len(counted) == config.sequence_groups
    trained = [sample.index for rank in counted for row in parts[rank].rows for sample in row.samples]
    assert sorted(trained) == [sample.index for sample in SAMPLES]


def test_a_row_may_have_what_all_ranks_of_a_group_hold():
    budget = 40
    whole = MiniBatch.of(SAMPLES, SAMPLES, 0, LearnerConfig(micro_batch_tokens=2 * budget))
    shared = MiniBatch.of(SAMPLES, SAMPLES, 0, LearnerConfig(ranks=2, sp_size=2, micro_batch_tokens=budget))
    assert [row.tokens for row in shared.rows] == [row.tokens for row in whole.rows]
    assert max(row.tokens for row in whole.rows) > budget


def test_who_does_not_count_sums_nothing():
    totals = Totals(RolloutCorrectionConfig(), counts=False)
    totals.add(3, {"actor/entropy": torch.ones(3)}, {"actor/pg_loss": torch.tensor(2.0)})
    totals.add_shares({"critic/vf_loss": torch.tensor(2.0)})
    assert (totals.tokens, totals.per_token, totals.shares) == (0, {}, {})
