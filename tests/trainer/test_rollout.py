"""The record at the seam: what breaks an invariant cannot be made, and what is stored comes back the same."""

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.rollouts import make_rollout

from trainer.rollout import NO_VERSION, ROLLOUT_SCHEMA, Generation, Outcome, Rollout, RolloutError, Routing


def replaced(values, index, value):
    return [*values[:index], value, *values[index + 1 :]]


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf, 0.5])
def test_generation_rejects_logprob(logprob):
    with pytest.raises(RolloutError, match="sampled token 1 has log-prob"):
        Generation([7, 8], [-0.5, logprob], [0, 0], "stop")


def test_generation_rejects_token_without_version():
    with pytest.raises(RolloutError, match="sampled token 0 has weight version -1"):
        Generation([7], [-0.5], [NO_VERSION], "stop")


@pytest.mark.parametrize(("logprobs", "versions"), [([-0.5], [0, 0]), ([-0.5, -0.5], [0]), ([], [])])
def test_generation_needs_one_of_each_per_token(logprobs, versions):
    with pytest.raises(RolloutError, match="each token needs one of each"):
        Generation([7, 8], logprobs, versions, "length")


def test_generation_may_mix_versions_and_round_a_certain_token_up():
    assert Generation([7, 8], [-0.5, 1e-6], [3, 4], "stop").weight_versions == [3, 4]


@pytest.mark.parametrize("name", ["loss_mask", "logprobs", "weight_versions"])
def test_rollout_rejects_a_column_of_another_length(name):
    good = make_rollout()
    with pytest.raises(RolloutError, match=f"{name} has {len(good.token_ids) - 1} entries"):
        make_rollout(**{name: getattr(good, name)[:-1]})


@pytest.mark.parametrize("prompt_length", [-1, 0, 8])
def test_rollout_rejects_prompt_length(prompt_length):
    with pytest.raises(RolloutError, match="prompt_length"):
        make_rollout(prompt_length=prompt_length)


def test_rollout_rejects_a_trained_prompt_token():
    good = make_rollout()
    with pytest.raises(RolloutError, match="prompts are never sampled"):
        make_rollout(
            loss_mask=replaced(good.loss_mask, 2, 1),
            logprobs=replaced(good.logprobs, 2, -1.0),
            weight_versions=replaced(good.weight_versions, 2, 0),
        )


def test_rollout_rejects_a_mask_that_is_no_mask():
    with pytest.raises(RolloutError, match="other than 0 and 1"):
        make_rollout(loss_mask=replaced(make_rollout().loss_mask, 4, 2))


@pytest.mark.parametrize(
    ("name", "value"), [("logprobs", math.nan), ("logprobs", 1.0), ("weight_versions", NO_VERSION)]
)
def test_rollout_rejects_a_sampled_token_without_its_record(name, value):
    with pytest.raises(RolloutError, match="sampled token"):
        make_rollout(**{name: replaced(getattr(make_rollout(), name), 4, value)})


@pytest.mark.parametrize(("name", "value"), [("logprobs", 0.0), ("logprobs", -0.5), ("weight_versions", 0)])
@pytest.mark.parametrize("place", [0, 5])
def test_rollout_rejects_a_record_of_a_token_that_was_not_sampled(name, value, place):
    assert not make_rollout().loss_mask[place]
    with pytest.raises(RolloutError, match=f"token {place} was not sampled"):
        make_rollout(**{name: replaced(getattr(make_rollout(), name), place, value)})


@pytest.mark.parametrize("segment", [-1, 2])
def test_rollout_rejects_a_segment_that_the_trial_does_not_have(segment):
    assert make_rollout(num_segments=2, segment=1).segment == 1
    with pytest.raises(RolloutError, match=f"segment {segment} of 2"):
        make_rollout(num_segments=2, segment=segment)


@pytest.mark.parametrize(("data", "shape"), [(b"123", (1, 1, 1)), (b"", (0, 1, 1)), (b"1234", (1, 2))])
def test_routing_rejects_bytes_that_do_not_fit_its_shape(data, shape):
    with pytest.raises(RolloutError, match="two bytes for each"):
        Routing(data, shape)


@pytest.mark.parametrize(
    ("data", "shape", "why"),
    [
        (bytes(2 * 5), (5, 1, 1), "routing of 5 positions for 7 tokens"),
        (bytes(2 * 7), None, "go together"),
        (None, (7, 1, 1), "go together"),
        (bytes(2 * 7), (7, 1), "is not"),
    ],
)
def test_rollout_rejects_routing_of_other_tokens(data, shape, why):
    with pytest.raises(RolloutError, match=why):
        make_rollout(turns=[(4, 5), (6, 7)], between=(), routed_experts=data, routing_shape=shape)


def test_errors_name_the_session():
    with pytest.raises(RolloutError, match="fix-sub-1"):
        make_rollout(session_id="fix-sub-1", prompt_length=0)


def test_response_length_counts_sampled_tokens_only():
    assert make_rollout(turns=[(4, 5), (6, 7, 8)], between=(9, 9, 9)).response_length == 5


def test_round_trip_through_parquet(tmp_path):
    rollouts = [
        make_rollout(),
        make_rollout("fix-add-00000001", outcome=Outcome.OVERLONG, num_segments=2, segment=1, turns=[()]),
        make_rollout(routed_experts=bytes(range(2 * 6 * 2)), routing_shape=[6, 1, 2]),
    ]
    table = pa.Table.from_pylist([r.to_row() for r in rollouts], schema=ROLLOUT_SCHEMA)
    pq.write_table(table, tmp_path / "rollouts.parquet")
    back = [Rollout.from_row(row | {"reward": 1.0}) for row in pq.read_table(tmp_path / "rollouts.parquet").to_pylist()]
    # NaN is unequal to itself, and float32 keeps these log-probs exactly
    assert [str(r) for r in back] == [str(r) for r in rollouts]
    assert all(isinstance(r.outcome, Outcome) for r in back)


def test_a_stored_row_is_checked_when_read():
    row = make_rollout().to_row()
    with pytest.raises(RolloutError):
        Rollout.from_row(row | {"logprobs": [0.0] * len(row["token_ids"])})
