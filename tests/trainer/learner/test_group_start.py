"""Which ranks a run finds when it starts."""

import pytest

from trainer.algorithms.config import AlgorithmConfig
from trainer.learner import group as module
from trainer.learner.config import LearnerConfig
from trainer.learner.errors import LearnerError
from trainer.learner.group import LearnerGroup


@pytest.mark.parametrize(("alive", "wanted"), [(2, 1), (1, 2)])
async def test_ranks_of_a_learner_of_another_size_are_not_taken_over(tmp_path, monkeypatch, alive, wanted):
    """One of two would wait in its first collective for a peer that nobody asks."""
    names = [f"run/learner/{rank}" for rank in range(alive)]
    monkeypatch.setattr(module, "reserve", lambda name, config: None)
    monkeypatch.setattr(module, "place_of", lambda bundles, rank, config: None)
    monkeypatch.setattr(module, "find_all", lambda prefix: names)
    monkeypatch.setattr(module, "find_or_start", lambda name, *args, **options: (name, name not in names))
    with pytest.raises(LearnerError, match=f"{alive} ranks were alive, learner.ranks is {wanted}; stop the run"):
        await LearnerGroup.start("run", tmp_path, LearnerConfig(ranks=wanted), AlgorithmConfig())
    names[:] = [f"run/learner/{rank}" for rank in range(wanted)]
    found = await LearnerGroup.start("run", tmp_path, LearnerConfig(ranks=wanted), AlgorithmConfig())
    assert found.actors == names


@pytest.mark.parametrize(("gpus", "environment"), [(0, {"CUDA_VISIBLE_DEVICES": ""}), (1, {})])
async def test_ranks_without_gpus_see_none(tmp_path, monkeypatch, gpus, environment):
    """DeepSpeed would compute on those of the machine."""
    given = []

    def find_or_start(name, *args, threads, gpus, place, **more):
        given.append(more)
        return name, False

    monkeypatch.setattr(module, "reserve", lambda name, config: None)
    monkeypatch.setattr(module, "place_of", lambda bundles, rank, config: None)
    monkeypatch.setattr(module, "find_all", lambda prefix: ["run/learner/0"])
    monkeypatch.setattr(module, "find_or_start", find_or_start)
    await LearnerGroup.start("run", tmp_path, LearnerConfig(gpus_per_rank=gpus), AlgorithmConfig())
    assert given == [environment]
