"""A trial counts once, in however many segments it is trained."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.journals import make_result, make_run, write_trial
from support.rollouts import make_rollout

from harness.verifier.verdict import Status
from tasks.assemble_batch import assemble_batch
from tasks.compute_advantages import advantage_inputs, compute_advantages
from tasks.config import FilterConfig
from tasks.draw import Group, groups_path, groups_table
from tasks.journal import write_table
from tasks.reward import RewardConfig
from trainer.algorithms.config import AlgorithmConfig
from trainer.algorithms.registry import ADVANTAGE_ESTIMATORS, load_builtin
from trainer.batch import BatchRow, make_batch, sampled, trials_of, with_advantages

LABEL = "step_000001"
GROUPS = {"a": [1.0, 0.0, 0.0], "b": [0.0, 0.0], "c": [1.0, 0.5]}

load_builtin()


def rows_of(trial: str, group: str, reward: float, turns, cuts) -> list[BatchRow]:
    """The sampled turns of a trial, as one segment or cut into several at these turns."""
    bounds = [0, *sorted(cuts), len(turns)]
    parts = [turns[start:end] for start, end in pairwise(bounds) if end > start]
    named = {"tests": reward, "style": len(turns) / 8}
    return [
        BatchRow(
            make_rollout(trial, group, turns=part, segment=i, num_segments=len(parts), prompt=[1] * (i + 1)),
            reward, reward, named, greedy_baseline=0.25,
        )
        for i, part in enumerate(parts)
    ]  # fmt: skip


@st.composite
def trials(draw):
    """For each trial: id, group, reward, its turns, and where it is cut."""
    found = []
    for group, rewards in GROUPS.items():
        for i, reward in enumerate(rewards):
            turns = draw(st.lists(st.lists(st.integers(4, 9), min_size=1, max_size=4), min_size=1, max_size=4))
            cuts = [cut for cut in draw(st.sets(st.integers(1, 3))) if cut < len(turns)]
            found.append((f"{group}-{i}", group, reward, turns, cuts))
    return found


def advantages_of(batch, name):
    tokens = len(sampled(batch, "logprobs"))
    noise = torch.Generator().manual_seed(0)
    scores = {
        "values": torch.rand(tokens, generator=noise),
        "old_logprobs": -torch.rand(tokens, generator=noise),
        "sum_pi_squared": torch.rand(tokens, generator=noise),
    }
    config = AlgorithmConfig(adv_estimator=name, gamma=0.9, lam=0.8)
    inputs, _ = advantage_inputs(batch, scores, config, 0.0)
    result = ADVANTAGE_ESTIMATORS[name].function(inputs, config)
    return inputs, sampled(with_advantages(batch, result.advantages.numpy()), "advantages")


@pytest.mark.parametrize("name", sorted(ADVANTAGE_ESTIMATORS))
@given(trials())
@settings(max_examples=8, deadline=None)
def test_splitting_trials_into_segments_changes_no_advantage(name, drawn):
    whole = make_batch([row for trial in drawn for row in rows_of(*trial[:4], ())])
    split = make_batch([row for trial in drawn for row in rows_of(*trial)])
    before, expected = advantages_of(whole, name)
    after, actual = advantages_of(split, name)
    assert np.array_equal(actual, expected)
    assert torch.equal(after.mean_by_group(after.rewards), before.mean_by_group(before.rewards))
    assert torch.equal(after.std_by_group(after.rewards), before.std_by_group(before.rewards))
    assert torch.equal(after.group_sizes, before.group_sizes)
    assert torch.equal(after.lengths, before.lengths)


def test_the_comparison_would_notice():
    """If each segment were a trial of its own, the group's mean would be another one."""
    rows = rows_of("a-0", "a", 1.0, [[4], [5]], [1]) + rows_of("a-1", "a", 0.0, [[4]], ())
    apart = [replace(row, rollout=replace(row.rollout, session_id=f"s{i}")) for i, row in enumerate(rows)]
    _, together = advantages_of(make_batch(rows), "rloo")
    _, separately = advantages_of(make_batch(apart), "rloo")
    assert together.tolist() == [1.0, 1.0, -1.0]
    assert separately.tolist() == [0.5, 0.5, -1.0]


@pytest.fixture
def run(tmp_path):
    """Trial a-0 passed in three segments, a-1 failed in one; b-0 and b-1 failed, b-0 in two segments."""
    run = make_run(tmp_path)
    groups = [Group(f"{LABEL}/{name}", name, tmp_path / name, name, 2) for name in "ab"]
    write_table(groups_path(run.journal.stage_dir(LABEL)), groups_table(groups))

    def write(session, status, *more, counters):
        result = make_result(
            session, f"{LABEL}/{session[0]}", turns=((4, 5),), more_segments=more, select="all", counters=counters
        )
        write_trial(run, LABEL, result, status)

    write("a-0", Status.PASSED, ((6,), (7, 8)), ((9,),), counters={"segments": 3, "divergences": 2, "overrides": 1})
    write("a-1", Status.FAILED, counters={"segments": 1, "divergences": 0, "overrides": 0})
    write("b-0", Status.FAILED, ((6,),), counters={"segments": 2, "divergences": 1, "overrides": 0})
    write("b-1", Status.FAILED, counters={"segments": 1, "divergences": 0, "overrides": 4})
    return run


async def test_from_the_journal_to_the_learner(run):
    metrics = await assemble_batch.fn(run, LABEL, FilterConfig(), RewardConfig())
    metrics |= await compute_advantages.fn(run, LABEL, 1, AlgorithmConfig())
    batch = pq.read_table(run.journal.stage_dir(LABEL) / "batch.parquet")
    keys = list(zip(batch.column("session_id").to_pylist(), batch.column("segment").to_pylist(), strict=True))
    assert keys == [("a-0", 0), ("a-0", 1), ("a-0", 2), ("a-1", 0), ("b-0", 0), ("b-0", 1), ("b-1", 0)]
    assert trials_of(batch).column("reward").to_pylist() == [1.0, 0.0, 0.0, 0.0]
    high, low = 0.5**0.5, -(0.5**0.5)
    assert sampled(batch, "advantages").tolist() == pytest.approx([high] * 6 + [low] * 2 + [0.0] * 5, rel=1e-5)
    # every trial counts once
    assert (metrics["batch/rollouts"], metrics["batch/segments"]) == (4, 7)
    assert metrics["critic/score/mean"] == 0.25
    assert metrics["response_length/mean"] == (6 + 2 + 3 + 2) / 4
    assert (metrics["num_turns/mean"], metrics["num_turns/max"]) == (2.0, 4)
    assert (metrics["outcome/completed"], metrics["batch/solve_some"]) == (4, 1)
    assert metrics["prompt_length/mean"] == 3
    # what the proxy counted
    assert (metrics["rollout/segments/mean"], metrics["rollout/trained_segments/max"]) == (7 / 4, 3)
    assert (metrics["rollout/divergences"], metrics["rollout/overrides"]) == (3, 5)
    assert "rollout/segments" not in metrics


async def test_filters_count_trials(run):
    filters = FilterConfig(min_response_tokens=3, drop_uniform_groups=True)
    metrics = await assemble_batch.fn(run, LABEL, filters, RewardConfig())
    assert metrics["trajectory_filter/reason/too_short"] == 2
    assert metrics["trajectory_filter/reason/lone_survivor"] == 2
    assert metrics["trajectory_filter/invalid_ratio"] == 1.0
    metrics = await assemble_batch.fn(run, LABEL, FilterConfig(drop_uniform_groups=True), RewardConfig())
    assert metrics["training/filter_groups/accepted_groups"] == 1
    assert metrics["training/filter_groups/filtered_reward_counts/0"] == 1
    assert pq.read_table(run.journal.stage_dir(LABEL) / "batch.parquet").num_rows == 4
