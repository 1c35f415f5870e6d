"""Trajectories in the format of Harbor's tools."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.atif_schema import Trajectory
from support.captures import DELTA, PROMPT, ask, busy_capture, make_capture, user
from support.journals import make_result

from harness.atif import AtifError, to_atif
from harness.proxy.conversation import ChatMessage, ToolCall
from harness.trajectory import encode, tokens_of, trajectory_of


def exported(capture, **options):
    """The documents by name, as they are read back from their files, each valid."""
    told = json.loads(encode(trajectory_of(make_result("s", segments=capture.segments, scaffold="cc"))))
    documents = to_atif(told, agent_version="2.1", **options)
    read = {name: json.loads(encode(document)) for name, document in documents.items()}
    for document in read.values():
        Trajectory.model_validate(document)
    return told, read


def test_a_busy_session():
    _, documents = exported(busy_capture(), model_name="policy", reward=1.0)
    assert list(documents) == ["trajectory.json", "trajectory.cont-1.json", "trajectory.cont-2.json"]
    first, fork, compacted = documents.values()
    assert first["agent"] == {"name": "cc", "version": "2.1", "model_name": "policy"}
    assert first["continued_trajectory_ref"] == "trajectory.cont-1.json"
    assert fork["continued_trajectory_ref"] == "trajectory.cont-2.json"
    assert "continued_trajectory_ref" not in compacted

    steps = first["steps"]
    assert [(step["source"], step["message"]) for step in steps] == [
        ("system", "you mend code"), ("user", "mend it"), ("agent", ""), ("agent", "to the other one"),
        ("agent", "mended"),
    ]  # fmt: skip
    assert steps[2]["reasoning_content"] == "look first"
    assert steps[2]["tool_calls"] == [
        {"tool_call_id": "call_1", "function_name": "bash", "arguments": {"command": "ls"}}
    ]
    (looked,) = steps[2]["observation"]["results"]
    assert (looked["source_call_id"], looked["content"]) == ("call_1", "solution.py")
    # arguments that are none are kept as they were written
    assert steps[3]["tool_calls"][1] == {
        "tool_call_id": "call_3", "function_name": "bash", "arguments": {},
        "extra": {"unreadable_arguments": '{"command": "l'},
    }  # fmt: skip
    assert steps[3]["metrics"]["completion_token_ids"] == [8, 9]
    assert steps[3]["metrics"]["prompt_tokens"] == len(PROMPT) + 2 + 2 + len(DELTA)
    assert first["final_metrics"]["total_completion_tokens"] == 5
    assert first["final_metrics"]["extra"] == {"reward": 1.0}
    assert (first["extra"]["task_id"], first["extra"]["outcome"]) == ("fix-add", "completed")

    # the sub-agent and the helper are embedded, and referred to from the step that they began after
    embedded = {document["trajectory_id"]: document for document in first["subagent_trajectories"]}
    assert list(embedded) == ["s-segment-1", "s-segment-2"]
    assert [step["message"] for step in embedded["s-segment-2"]["steps"] if step["source"] == "agent"] == [
        "reading", "a sign is wrong"
    ]  # fmt: skip
    assert steps[3]["observation"]["results"][0]["subagent_trajectory_ref"] == [{"trajectory_id": "s-segment-2"}]
    assert looked["subagent_trajectory_ref"] == [{"trajectory_id": "s-segment-1"}]


def test_what_was_sampled_before_is_copied_context():
    _, documents = exported(busy_capture())
    _, fork, compacted = documents.values()
    assert [(step["message"], step.get("is_copied_context")) for step in fork["steps"]] == [
        ("you mend code", True), ("mend it", True), ("", True), ("to the other one", True), ("mended again", None),
    ]  # fmt: skip
    assert fork["steps"][3]["observation"]["results"] == [{"source_call_id": "call_2", "content": "edited"}]
    assert [("metrics" in step) for step in fork["steps"]] == [False] * 4 + [True]
    # what the client brings along is new, but for the answers in it
    assert [(step["message"], step.get("is_copied_context")) for step in compacted["steps"]] == [
        ("you mend code", None), ("so far: a sign is wrong", None), ("", True), ("done", None)
    ]  # fmt: skip


@given(st.lists(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=3), min_size=1, max_size=3), min_size=1))
@settings(max_examples=20, deadline=None)
def test_every_sampled_token_is_exported_once_with_its_prompt(segments):
    told, documents = exported(make_capture(segments[:4]), prompt_ids=True)
    whole = [*documents.values()]
    for document in list(whole):
        whole += document.get("subagent_trajectories", [])
    exports = []
    for document in whole:
        index = int(document["trajectory_id"].rpartition("-")[2])
        ids = tokens_of(told, index).token_ids
        for step in document["steps"]:
            if "metrics" in step:
                prompt, sampled = step["metrics"]["prompt_token_ids"], step["metrics"]["completion_token_ids"]
                assert ids[: len(prompt) + len(sampled)] == prompt + sampled
                exports.append(sampled)
    assert sorted(exports) == sorted(ids for turns in segments[:4] for ids in turns)


def test_answers_to_calls_that_nobody_made():
    capture = make_capture([])
    lost = ChatMessage(role="tool", content="out of nowhere", tool_call_id="call_x")
    messages = [lost, user("mend it")]
    messages += [ask(capture, messages, (4,), calls=[ToolCall(id="call_1", name="bash", arguments="[1]")])]
    messages += [ChatMessage(role="tool", content="late", tool_call_id="call_y")]
    ask(capture, messages, (5,))
    _, documents = exported(capture)
    steps = documents["trajectory.json"]["steps"]
    assert (steps[0]["source"], steps[0]["extra"]) == ("user", {"role": "tool", "unknown_call_id": "call_x"})
    assert steps[2]["tool_calls"][0]["extra"] == {"unreadable_arguments": "[1]"}
    assert steps[2]["observation"]["results"] == [{"content": "late", "extra": {"unknown_call_id": "call_y"}}]


@pytest.mark.parametrize("arguments", ["[" * 100_000, '{"x": NaN}', "\ud800", ""])
def test_whatever_the_policy_writes_as_arguments(arguments):
    capture = make_capture([])
    ask(capture, [user("mend it")], (4,), calls=[ToolCall(id="call_1", name="bash", arguments=arguments)])
    exported(capture)


def test_a_trial_without_answers_has_no_steps():
    with pytest.raises(AtifError, match="session s: the policy never answered"):
        exported(make_capture([]))
