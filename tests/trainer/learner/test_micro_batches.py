"""Rows for ranks: each token once, equally many rows on each, about equally many tokens."""

import pytest
from support.plain import samples_like
from support.rollouts import make_rollout, make_sample

from trainer.learner.micro_batches import share_out

SAMPLES = samples_like([(17, 3), (9, 1), (6, 2)])


@pytest.mark.parametrize("budget", [1, 40, 2048])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_every_rollout_is_trained_once_in_equally_many_rows(ranks, budget):
    """Under ZeRO each row is a chain of collectives: a rank without work would leave its peers waiting."""
    shares = share_out(SAMPLES, ranks, budget, "auto")
    assert len({len(rows) for rows in shares.rows}) == 1 and len(shares.rows) == ranks
    trained = [sample.index for rows in shares.rows for row in rows for sample in row.samples]
    assert sorted(trained) == [sample.index for sample in SAMPLES]
    for rows, load in zip(shares.rows, shares.loads, strict=True):
        assert sum(row.tokens for row in rows if row.samples) == load


def test_nothing_to_compute_is_no_row_on_any_rank():
    shares = share_out([], 3, 2048, "auto")
    assert (shares.rows, shares.loads) == ([[], [], []], [0, 0, 0])


def test_one_group_is_divided_where_a_whole_one_would_leave_ranks_idle():
    """Eight rollouts of one task fit one row; two ranks take four each, and compute the prompt twice."""
    samples = [make_sample(make_rollout(prompt=range(20), turns=[range(100)]), i) for i in range(8)]
    assert share_out(samples, 1, 2048, "auto").loads == [20 + 8 * 100]
    assert share_out(samples, 2, 2048, "auto").loads == [20 + 4 * 100] * 2


def test_loads_are_balanced():
    lengths = [400, 30, 90, 270, 120, 10, 333, 60, 201, 77]
    samples = [
        make_sample(make_rollout(group_id=f"g-{i}", prompt=[1], turns=[range(n)]), i) for i, n in enumerate(lengths)
    ]
    loads = share_out(samples, 3, 512, "auto").loads
    assert max(loads) <= 1.05 * sum(loads) / 3
