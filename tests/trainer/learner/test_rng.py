"""Random generators go on where they were."""

import random

import numpy as np
import torch

from trainer.learner.rng import branch_rng, restore_rng, rng_state


def draw():
    return random.random(), random.gauss(), float(np.random.rand()), float(np.random.randn()), float(torch.rand(()))


def test_all_three_go_on_after_a_file(tmp_path):
    draw()
    torch.save(rng_state(), tmp_path / "rng.pt")
    expected = [draw() for _ in range(3)]
    draw()
    restore_rng(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert [draw() for _ in range(3)] == expected


def test_a_branch_is_the_same_again_and_another_for_each_rank():
    state = rng_state()
    drawn = []
    for rank in (1, 1, 2):
        branch_rng(state, rank)
        drawn.append(draw())
    restore_rng(state)
    assert drawn[0] == drawn[1]
    assert all(len({row[i] for row in (drawn[0], drawn[2], draw())}) == 3 for i in (0, 2, 4))
