"""Each cause of a mismatch is named from data made to show it, and not from data made to show another."""

import numpy as np
import pyarrow as pa
import pytest
from support.mismatch import mismatched_batch
from support.rollouts import batch_of, make_rollout

from trainer.fidelity.causes import Circumstances, suspicions
from trainer.fidelity.tokens import ComparedTokens


def circumstances(**changes):
    fields = {"expected_version": 7, "temperature": 1.0, "engine_dtype": "bfloat16", "trainer_dtype": "bfloat16"}
    return Circumstances(**fields | changes)


def likely(batch, scores, **known):
    found = suspicions(ComparedTokens.read(batch, scores), circumstances(**known))
    return found[0] if found else None


def rounded(logits, places):
    """What precision does: a little noise on every logit."""
    return logits + 0.1 * places["noise"]


def where(chosen, bad, good=rounded):
    """Logits of `bad` for the tokens that `chosen` picks by their place."""
    return lambda logits, places: np.where(chosen(places)[:, None], bad(logits, places), good(logits, places))


def other_weights(logits, places):
    return 0.7 * logits + 0.7 * places["other"]


def with_routing(batch, known):
    """The batch with the engine's experts for rows where `known`."""
    shapes = pa.array([[9, 2, 4] if k else None for k in known], pa.list_(pa.int32()))
    return batch.set_column(batch.column_names.index("routing_shape"), "routing_shape", shapes)


def test_tokens_know_their_place():
    turns = ((1, 2, 3), (4,))
    batch = batch_of([make_rollout("a", turns=turns), make_rollout("b", turns=((9, 9),)), make_rollout("c", turns=())])
    tokens = ComparedTokens.read(batch, None)
    assert tokens.rollout.tolist() == [0, 0, 0, 0, 1, 1]
    assert tokens.answer.tolist() == [0, 0, 0, 1, 0, 0]
    assert tokens.position.tolist() == [0, 1, 2, 0, 0, 1]
    assert not tokens.scored and not tokens.routed.any()


@pytest.mark.parametrize("trained_at, ratio", [(1.0, 0.7), (1.0, 1.4), (0.6, 1.3)])
def test_an_engine_at_another_temperature(trained_at, ratio):
    batch, scores = mismatched_batch(lambda logits, places: rounded(logits, places) / ratio)
    found = likely(batch, scores, temperature=trained_at)
    assert found.cause == "temperature" and found.strength > 0.5
    guess = float(found.evidence.split("those of temperature ")[1].split(",")[0])
    assert guess == pytest.approx(trained_at * ratio, rel=0.12)


def test_tokens_of_an_older_version_that_carry_the_mismatch():
    stale = {"chosen": lambda places: places["answer"] == 0}
    batch, scores = mismatched_batch(
        where(stale["chosen"], other_weights), lambda places: np.where(stale["chosen"](places), 5, 7)
    )
    found = likely(batch, scores)
    assert found.cause == "version" and "33% of the sampled tokens carry weight version 5" in found.evidence


def test_tokens_of_an_older_version_that_differ_no_more_than_others_are_not_blamed():
    batch, scores = mismatched_batch(rounded, lambda places: np.where(places["answer"] == 0, 6, 7))
    assert likely(batch, scores).cause == "numerics"


def test_all_tokens_of_another_version_leave_no_doubt_even_without_scores():
    batch, _ = mismatched_batch(versions=lambda places: np.full(len(places["answer"]), 6))
    found = likely(batch, None)
    assert (found.cause, found.strength) == ("version", 1.0) and "the step's is 7" in found.evidence


def test_replicas_that_confirmed_other_weights_than_the_learner_has():
    batch, scores = mismatched_batch(rounded)
    found = likely(batch, scores, learner_fingerprint="abc", served_fingerprint="def")
    assert found.cause == "version" and "fingerprint abc" in found.evidence and "confirmed def" in found.evidence
    assert likely(batch, scores, learner_fingerprint="abc", served_fingerprint="abc").cause == "numerics"


def test_one_replica_of_several_with_other_weights():
    batch, scores = mismatched_batch(where(lambda places: places["rollout"] % 4 == 1, other_weights))
    found = likely(batch, scores, replicas=4)
    assert found.cause == "version" and "4 of 16 rollouts" in found.evidence


def test_other_weights_under_the_right_version_are_told_by_their_size():
    batch, scores = mismatched_batch(other_weights)
    found = likely(batch, scores)
    assert found.cause == "version" and "too much for rounding" in found.evidence


def test_a_mismatch_at_the_beginning_of_answers():
    batch, scores = mismatched_batch(where(lambda places: places["position"] < 3, other_weights))
    found = likely(batch, scores)
    assert found.cause == "template" and "first 4 tokens of answers" in found.evidence


def test_a_mismatch_at_the_beginning_of_rollouts():
    batch, scores = mismatched_batch(
        where(lambda places: (places["position"] < 4) & (places["answer"] == 0), other_weights)
    )
    found = likely(batch, scores)
    assert found.cause == "template" and "first 4 tokens of rollouts" in found.evidence


def test_rollouts_whose_experts_are_not_replayed():
    batch, scores = mismatched_batch(where(lambda places: places["rollout"] < 4, other_weights))
    routed = with_routing(batch, [False] * 4 + [True] * 12)
    found = likely(routed, scores, experts=8, replays=True)
    assert found.cause == "routing" and "replayed for 75% of the tokens only" in found.evidence
    assert "no token's choice is replayed" in likely(routed, scores, experts=8).evidence


def test_no_experts_replayed_and_a_few_tokens_that_differ_much():
    batch, scores = mismatched_batch(where(lambda places: places["noise"][:, 0] > 2, other_weights))
    found = likely(batch, scores, experts=8)
    assert found.cause == "routing" and "no token's choice is replayed" in found.evidence
    assert likely(batch, None, experts=8).cause == "routing"


def test_a_dense_model_or_full_replay_is_never_blamed_on_routing():
    batch, scores = mismatched_batch(rounded)
    assert likely(batch, scores, experts=0).cause == "numerics"
    assert likely(with_routing(batch, [True] * 16), scores, experts=8, replays=True).cause == "numerics"


def test_a_little_noise_everywhere_is_numerics_and_names_the_types():
    batch, scores = mismatched_batch(rounded)
    found = likely(batch, scores, engine_dtype="float32")
    assert found.cause == "numerics" and "the engine computes in float32, the trainer in bfloat16" in found.evidence


def test_nothing_is_said_without_anything_to_say_it_from():
    batch, _ = mismatched_batch(rounded)
    assert likely(batch, None) is None
    assert likely(batch_of([]), None) is None


def test_every_cause_says_how_to_mend_it():
    batch, scores = mismatched_batch(other_weights, lambda places: places["answer"] + 6)
    for suspicion in suspicions(ComparedTokens.read(batch, scores), circumstances(experts=8)):
        assert len(suspicion.mend) > 40 and 0 < suspicion.strength <= 1
