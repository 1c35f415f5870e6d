"""What a trial leaves behind can be read, and holds every token once."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.captures import BASH, DELTA, PROMPT, TASK, TOOL, ask, busy_capture, make_capture, user
from support.journals import make_result

from harness.trajectory import FORMAT, TrajectoryError, encode, tokens_of, trajectory_of
from trainer.rollout import Outcome

IDS = {"session_id": "s", "task_id": "t", "group_id": "g", "step": 1, "outcome": Outcome.COMPLETED}


def trajectory(capture, select="all", **changes):
    """As it is read back from its file."""
    fields = {"segments": capture.segments, "rollouts": capture.rollouts(select, **IDS)} | changes
    return json.loads(encode(trajectory_of(make_result("s", **fields))))


def assert_holds_the_rollouts(told, capture):
    """The sequences of trajectory.json are those that the trainer gets, but for the rounding of log-probs."""
    for rollout in capture.rollouts("all", **IDS):
        tokens = tokens_of(told, rollout.segment)
        assert tokens.token_ids == list(rollout.token_ids)
        assert tokens.loss_mask == list(rollout.loss_mask)
        assert tokens.weight_versions == list(rollout.weight_versions)
        for stored, exact in zip(tokens.logprobs, rollout.logprobs, strict=True):
            assert (math.isnan(stored) and math.isnan(exact)) or stored == pytest.approx(exact, abs=1e-6)


@given(
    st.lists(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 9), max_size=3),
)
@settings(max_examples=30, deadline=None)
def test_tokens_come_back(segments, between):
    capture = make_capture(segments, between)
    told = trajectory(capture)
    assert_holds_the_rollouts(told, capture)
    sampled = [i for segment in told["segments"] for turn in segment["turns"] for i in turn["sampled_ids"]]
    assert sampled == [i for turns in segments for ids in turns for i in ids]


def test_structure_of_a_busy_session():
    capture = busy_capture()
    told = trajectory(capture, "main")
    assert_holds_the_rollouts(told, capture)
    assert told["format"] == FORMAT and told["scaffold"] == "edit"
    rows = [
        (s["thread"], s["parent"], s["parent_turn"], s["trained"], len(s["turns"]), s["inherited_tokens"])
        for s in told["segments"]
    ]
    main = len(PROMPT) + 2 + 2 + len(DELTA) + 2
    assert rows == [
        ("main", None, None, True, 3, 0),
        ("hidden:1", None, None, False, 1, 0),
        ("sub:2", None, None, False, 2, 0),
        ("main", 0, 1, True, 1, main),
        ("main", None, None, True, 1, 0),
    ]
    # a fork's own lists begin where it left its parent
    fork = told["segments"][3]["turns"][0]
    assert (fork["given_ids"], fork["sampled_ids"]) == (list(DELTA), [14, 15])
    assert [message["content"] for message in fork["messages"]] == ["edited"]
    first, second = told["segments"][0]["turns"][:2]
    assert first["answer"]["reasoning"] == "look first"
    assert (first["weight_versions"], second["weight_versions"]) == ([[0, 2]], [[1, 2]])
    assert first["gap_seconds"] is None and second["gap_seconds"] >= 0
    assert first["tools"] == second["tools"] != told["segments"][2]["turns"][0]["tools"]


def test_a_segment_with_other_tools_is_whole():
    """Its head is rendered anew, so that it begins with other ids than its parent."""
    capture = make_capture([])
    messages = [user("mend it")]
    messages += [ask(capture, messages, (4, 5), tools=(BASH,)), user("go on")]
    ask(capture, messages, (6,), tools=(BASH, TASK))
    told = trajectory(capture)
    assert_holds_the_rollouts(told, capture)
    _, changed = told["segments"]
    assert (changed["parent"], changed["parent_turn"], changed["inherited_tokens"]) == (0, 0, 0)
    assert changed["turns"][0]["given_ids"] == [*PROMPT, TOOL, TOOL, 4, 5, *DELTA]


def test_no_number_that_json_does_not_know():
    result = make_result("s")
    result.transcript.note("measured", mean=math.nan, highest=[math.inf, 1.0], name="nan")
    text = encode(trajectory_of(result))
    event = json.loads(text, parse_constant=pytest.fail)["events"][0]
    assert (event["mean"], event["highest"], event["name"]) == (None, [None, 1.0], "nan")


def test_lists_of_numbers_take_one_line():
    text = encode({"ids": list(range(500)), "runs": [[0, 5], [1, 2]], "words": ["a", "b"], "none": [], "text": "a\nb"})
    assert len(text.splitlines()) == 10
    assert json.loads(text)["ids"] == list(range(500))


def test_text_that_is_no_unicode_is_kept():
    result = make_result("s")
    result.transcript.say("tool", "half a pair \ud800")
    assert json.loads(encode(trajectory_of(result)))["messages"][-1]["content"] == "half a pair \ud800"


def test_a_trial_without_answers():
    told = trajectory(make_capture([]), outcome=Outcome.AGENT_TIMEOUT)
    assert told["segments"] == [] and told["messages"][0]["content"] == "mend it"
    with pytest.raises(TrajectoryError, match=r"s has no segment 0; it has \[\]"):
        tokens_of(told, 0)
    with pytest.raises(TrajectoryError, match="format None"):
        tokens_of({"segments": []}, 0)
