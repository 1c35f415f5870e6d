"""Conversations survive being written down as ids, whatever is in them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.endpoint.client import EndpointError
from harness.endpoint.wire import END, WireCodec, WireReader, WireTokenizer, conversation_in, encode_answer, encode_text
from harness.proxy.conversation import ChatMessage, Tool, ToolCall

TOOL = Tool(name="bash", description="runs <|wire:end|>", parameters={"type": "object", "properties": {}})
TEXTS = st.one_of(st.text(max_size=40), st.sampled_from(["<|wire:end|>", "a<|wire:answer|>b", "\ud800", "\0", "ä" * 7]))


@given(TEXTS, TEXTS, TEXTS)
@settings(max_examples=80, deadline=None)
def test_a_conversation_comes_back(system, question, answer):
    codec = WireCodec()
    messages = [ChatMessage(role="system", content=system), ChatMessage(role="user", content=question)]
    prompt = codec.encode_prompt(messages, [TOOL])
    told, tools = conversation_in(prompt)
    assert [(message["role"], message["content"]) for message in told] == [("system", system), ("user", question)]
    assert tools == [{"type": "function", "function": dict(TOOL)}]

    call = ToolCall(id="call_" + "a" * 24, name="bash", arguments='{"command": "ls"}')
    sampled = encode_answer(answer, "", [call])
    reply = ChatMessage(role="assistant", content=answer, tool_calls=[call])
    result = ChatMessage(role="tool", content=answer, tool_call_id=call["id"])
    grown = [*prompt, *sampled, *codec.encode_delta(reply, [result], sampled, [TOOL])]
    told, _ = conversation_in(grown)
    assert [message["role"] for message in told] == ["system", "user", "assistant", "tool"]
    assert told[2]["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    assert told[2]["tool_calls"][0]["id"] == told[3]["tool_call_id"], "a result names its call"
    assert told[3]["content"] == answer and (told[2]["content"] or "") == answer


def test_an_answer_rendered_anew_is_the_one_that_was_sampled():
    """A client that begins with an earlier answer sends it as a message; the endpoint is told the same."""
    call = ToolCall(id="call_1", name="bash", arguments='{"a": 1}')
    asked = ChatMessage(role="user", content="go")
    messages = [asked, ChatMessage(role="assistant", content="", tool_calls=[call]),
                ChatMessage(role="tool", content="done", tool_call_id="call_1")]  # fmt: skip
    told, _ = conversation_in(WireCodec().encode_prompt(messages, [TOOL]))
    assert told[1]["content"] is None and told[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert told[1]["tool_calls"][0]["id"] == told[2]["tool_call_id"]


@given(TEXTS)
@settings(max_examples=50, deadline=None)
def test_what_is_read_is_what_was_written(text):
    ids = encode_answer(text, "thought", [])
    written = WireCodec().decode_answer(type("G", (), {"token_ids": ids, "finish_reason": "stop"})(), ("wire",)).text
    reading = WireReader().read(written, ids, ())
    assert (reading.text, reading.reasoning, reading.calls) == (text, "thought", ())


def test_ids_are_about_as_many_as_tokens_and_fit_four_bytes():
    ids = encode_text("def add(a, b):\n    return a + b\n")
    assert len(ids) == 11 and max(WireTokenizer().all_special_ids) < 2**31
    assert WireTokenizer().decode(ids) == "def add(a, b):\n    return a + b\n"


def test_foreign_ids_are_refused():
    for ids in ([5, 6, 7], [END], [*encode_text(json.dumps({})), END]):
        with pytest.raises(EndpointError, match="not written by this codec"):
            conversation_in(ids)
