"""The invariants of token capture: extension, forks, masks, and ids that are never tokenized again."""

import functools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_templates import template_tokenizer
from support.scripted import generation
from support.tiny import CHATML, SMOLLM, THINKING, tiny_tokenizer

from harness.proxy.capture import Capture, CaptureError, Request
from harness.proxy.codec import ChatCodec, CodecError
from trainer.rollout import NO_VERSION, Generation, Outcome, RolloutError, Routing

WHERE = {"session_id": "s-1", "task_id": "t", "group_id": "g", "step": 3, "outcome": Outcome.COMPLETED}
MERGES = [("a", "b"), ("ab", "c"), ("b", "c")]
TOOLS = [{"name": "shell", "description": "Run it.", "parameters": {"type": "object", "properties": {}}}]
MORE_TOOLS = [*TOOLS, {"name": "browse", "description": "Look.", "parameters": {"type": "object", "properties": {}}}]


@functools.cache
def codec(template=CHATML):
    return ChatCodec(tokenizer(template))


@functools.cache
def tokenizer(template=CHATML):
    return tiny_tokenizer(template, MERGES)


@functools.cache
def tool_codec():
    return ChatCodec(template_tokenizer("qwen3"))


SPELLED_OUT = [tiny_tokenizer(CHATML, MERGES).convert_tokens_to_ids(c) for c in "abc"]
"""A spelling of "abc" that the tokenizer itself would not choose."""


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def assistant(text, *call_ids, name="shell", arguments='{"x": 1}'):
    calls = [{"id": i, "name": name, "arguments": arguments} for i in call_ids]
    return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})


def result(text, call_id):
    return {"role": "tool", "content": text, "tool_call_id": call_id}


def take_turn(capture, messages, answer, told=None, tools=()):
    """The prompt and what the client is told: the text of the answer, if not `told`."""
    turn = capture.begin_turn(Request(messages, tools))
    told = told or assistant(codec().decode_answer(answer, ()).text)
    capture.end_turn(turn, answer, told)
    return list(turn.prompt), told["content"]


def trained_ids(capture):
    return [
        token
        for rollout in capture.rollouts("all", **WHERE)
        for token, trained in zip(rollout.token_ids, rollout.loss_mask, strict=True)
        if trained
    ]


words = st.text(st.sampled_from("abc \n`é<"), max_size=12)
# Any ids at all: bytes that are no UTF-8, spellings that the tokenizer itself would not choose, special tokens.
answers = st.tuples(
    st.lists(st.integers(0, 261), min_size=1, max_size=12),
    st.sampled_from(["eos", "stop", "length"]),
    st.integers(0, 9),
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([CHATML, SMOLLM, THINKING]), st.lists(st.tuples(words, answers), min_size=1, max_size=5))
def test_a_growing_conversation_is_one_segment_whose_mask_is_exactly_the_sampled_ids(template, turns):
    capture, messages, sampled, captured = Capture(codec(template)), [], [], []
    for said, (ids, end, version) in turns:
        messages.append(user(said))
        if end == "eos":
            ids = [*ids, tokenizer().eos_token_id]
        answer = generation(ids, "length" if end == "length" else "stop", version)
        prompt, text = take_turn(capture, messages, answer)
        assert prompt[: len(captured)] == captured
        captured = prompt + ids
        sampled.append(answer)
        messages.append(assistant(f" {text}\n"))
    (rollout,) = capture.rollouts("longest", **WHERE)
    assert list(rollout.token_ids) == captured
    assert (rollout.num_segments, rollout.num_turns, rollout.segment) == (1, len(turns), 0)
    trained = [i for i, m in enumerate(rollout.loss_mask) if m]
    assert [rollout.token_ids[i] for i in trained] == [t for g in sampled for t in g.token_ids]
    assert [rollout.logprobs[i] for i in trained] == [p for g in sampled for p in g.logprobs]
    assert [rollout.weight_versions[i] for i in trained] == [v for g in sampled for v in g.weight_versions]
    assert all(math.isnan(p) for p, m in zip(rollout.logprobs, rollout.loss_mask, strict=True) if not m)
    assert all(v == NO_VERSION for v, m in zip(rollout.weight_versions, rollout.loss_mask, strict=True) if not m)
    (segment,) = capture.segments
    assert [(t.prompt_start, t.answer_end) for t in segment.turns][1:] == [
        (a.answer_end, b.answer_end) for a, b in zip(segment.turns, segment.turns[1:], strict=False)
    ]


def test_ids_that_a_round_trip_through_text_would_change_stay_as_sampled():
    assert tokenizer().encode("abc", add_special_tokens=False) != SPELLED_OUT
    capture = Capture(codec())
    first, text = take_turn(capture, [user("x")], generation(SPELLED_OUT))
    second = capture.begin_turn(Request([user("x"), assistant(text), user("y")]))
    assert list(second.prompt)[: len(first) + 3] == first + SPELLED_OUT
    assert second.reused == len(first) + 3


def test_an_edited_beginning_opens_a_new_segment_in_its_own_context():
    capture = Capture(codec())
    take_turn(capture, [user("x")], generation([65, 66, 67]))
    rewritten = [user("x, summarised"), assistant("something"), user("go on")]
    prompt, _ = take_turn(capture, rewritten, generation([68]))
    assert prompt == codec().encode_prompt(rewritten)
    assert [s.parent for s in capture.segments] == [None, None]
    (rollout,) = capture.rollouts("longest", **WHERE)
    assert rollout.num_segments == 2
    assert list(rollout.token_ids[rollout.prompt_length :]) == [65, 66, 67]
    assert +capture.counts == {"divergences": 1}


def three_turns():
    """A capture of x, A, y, B, z, C; its messages; and where each answer ends."""
    capture, messages, ends = Capture(codec()), [], []
    for said, ids in (("x", SPELLED_OUT), ("y", [66, 67]), ("z", [68])):
        messages.append(user(said))
        prompt, text = take_turn(capture, messages, generation(ids))
        messages.append(assistant(text))
        ends.append(len(prompt) + len(ids))
    return capture, messages, ends


@pytest.mark.parametrize("turns_kept", [1, 2])
def test_a_history_edited_after_a_turn_keeps_the_captured_ids_up_to_there(turns_kept):
    capture, messages, ends = three_turns()
    captured = list(capture.segments[0].token_ids)
    kept = messages[: 2 * turns_kept]
    prompt, _ = take_turn(capture, [*kept, user("otherwise")], generation([70, 71]))
    assert prompt[: ends[turns_kept - 1]] == captured[: ends[turns_kept - 1]]
    parent, fork = capture.segments
    assert (fork.parent, fork.parent_turn) == (0, turns_kept - 1)
    assert fork.turns[0].messages_added == (user("otherwise"),)
    assert list(parent.token_ids) == captured
    assert capture.rollouts("all", **WHERE)[1].prompt_length == len(prompt)
    assert sorted(trained_ids(capture)) == sorted([*SPELLED_OUT, 66, 67, 68, 70, 71])
    assert capture.counts["reused_prefixes"] == 1 and capture.counts["reused_tokens"] == ends[turns_kept - 1]
    assert capture.counts["divergences"] == 1 and not capture.counts["duplicate_requests"]


def test_both_a_fork_and_its_parent_go_on():
    capture, messages, _ = three_turns()
    _, text = take_turn(capture, [*messages[:2], user("otherwise")], generation([70]))
    take_turn(capture, [*messages, user("on")], generation([71]))
    take_turn(capture, [*messages[:2], user("otherwise"), assistant(text), user("on")], generation([72]))
    assert [s.num_turns for s in capture.segments] == [4, 2]


def test_the_fork_of_a_fork_names_the_segment_that_sampled_the_last_shared_answer():
    capture, messages, _ = three_turns()
    _, text = take_turn(capture, [*messages[:2], user("otherwise")], generation([70]))
    forked = [*messages[:2], user("otherwise"), assistant(text)]
    take_turn(capture, [*forked, user("p")], generation([71]))
    take_turn(capture, [*forked, user("q")], generation([72]))
    take_turn(capture, [*messages[:2], user("third")], generation([73]))
    assert [(s.parent, s.parent_turn) for s in capture.segments] == [(None, None), (0, 0), (1, 0), (0, 0)]
    assert len(trained_ids(capture)) == 3 + 2 + 1 + 4


def test_a_request_that_was_answered_before_begins_at_the_turn_before_it():
    capture, messages, _ = three_turns()
    prompt, _ = take_turn(capture, messages[:3], generation([72]))
    assert prompt == list(capture.segments[0].token_ids)[: capture.segments[0].turns[1].answer_start]
    assert [s.num_turns for s in capture.segments] == [3, 1]
    assert capture.counts["duplicate_requests"] == 1 and not capture.counts["divergences"]


def test_the_same_first_request_again_is_a_new_segment_and_the_later_of_equals_is_trained():
    capture = Capture(codec())
    take_turn(capture, [user("x")], generation([65, 66]))
    take_turn(capture, [user("x")], generation([67, 68]))
    (rollout,) = capture.rollouts("longest", **WHERE)
    assert list(rollout.token_ids[-2:]) == [67, 68] and rollout.segment == 1
    assert capture.counts["duplicate_requests"] == 1


def test_of_equal_answers_the_one_that_goes_no_further_is_extended():
    capture = Capture(codec())
    for _ in range(2):
        _, text = take_turn(capture, [user("x")], generation([65]))
    for said in ("p", "q"):
        take_turn(capture, [user("x"), assistant(text), user(said)], generation([66]))
    assert [s.num_turns for s in capture.segments] == [2, 2]


def test_an_altered_answer_in_the_history_is_a_divergence():
    capture = Capture(codec())
    _, text = take_turn(capture, [user("x")], generation([65, 66]))
    take_turn(capture, [user("x"), assistant(f"{text}!"), user("y")], generation([65]))
    assert len(capture.segments) == 2 and capture.counts["divergences"] == 1


@pytest.mark.parametrize("thought", ["<think>\nhm\n</think>\n\n", "hm\n</think>\n\n"])
def test_thinking_that_the_client_strips_makes_no_other_answer(thought):
    capture = Capture(codec())
    take_turn(capture, [user("x")], generation([65]), assistant(f"{thought}yes"))
    take_turn(capture, [user("x"), assistant("yes"), user("y")], generation([66]))
    assert [s.num_turns for s in capture.segments] == [2]


def one_call(told=None):
    capture = Capture(tool_codec())
    told = told or assistant("", "call_1")
    take_turn(capture, [user("x")], generation([65, 66]), told, TOOLS)
    return capture


@pytest.mark.parametrize(
    "sent",
    [
        assistant("", "call_1"),
        assistant("the text does not matter", "call_1"),
        assistant("", "call_1", name="renamed", arguments="{}"),
        assistant(" ", "rewritten", arguments='{"x":1}'),
        {**assistant("", "call_1"), "reasoning": "left in"},
    ],
)
def test_an_answer_is_recognised_by_the_ids_of_its_calls_or_by_what_they_say(sent):
    capture = one_call()
    take_turn(capture, [user("x"), sent, result("done", "call_1")], generation([67]), assistant("C"), TOOLS)
    assert [s.num_turns for s in capture.segments] == [2] and not capture.counts["divergences"]


@pytest.mark.parametrize(
    "sent", [assistant(""), assistant("", "call_1", "call_2"), assistant("", "other", arguments='{"x": 2}')]
)
def test_an_answer_with_other_calls_is_another_one(sent):
    capture = one_call()
    take_turn(capture, [user("x"), sent, user("go on")], generation([67]), assistant("C"), TOOLS)
    assert [s.num_turns for s in capture.segments] == [1, 1] and capture.counts["divergences"] == 1


def test_answers_that_say_the_same_are_told_apart_by_the_ids_of_their_calls():
    capture = one_call()
    take_turn(capture, [user("x")], generation([70]), assistant("", "call_2"), TOOLS)
    for call in ("call_1", "call_2"):
        follows = [user("x"), assistant("", call), result("done", call)]
        take_turn(capture, follows, generation([71]), assistant("C"), TOOLS)
    assert [s.num_turns for s in capture.segments] == [2, 2]


def test_other_tools_change_the_head_alone_and_keep_every_sampled_id():
    capture = Capture(tool_codec())
    spelled_out = [template_tokenizer("qwen3").convert_tokens_to_ids(c) for c in "abc"]
    first, _ = take_turn(capture, [user("x")], generation(spelled_out), assistant("", "call_1"), TOOLS)
    follows = [user("x"), assistant("", "call_1"), result("done", "call_1")]
    prompt, _ = take_turn(capture, follows, generation([70]), assistant("F"), MORE_TOOLS)
    head = tool_codec().encode_prompt([user("x")], MORE_TOOLS)
    assert prompt[: len(head) + 3] == head + spelled_out and head != first
    assert [(s.parent, s.parent_turn, s.head_length) for s in capture.segments] == [
        (None, None, len(first)),
        (0, 0, len(head)),
    ]
    assert capture.segments[1].turns[0].prompt_start == len(head) + 3
    assert capture.counts["tools_changed"] == 1 and capture.counts["reused_tokens"] == 3
    take_turn(capture, [*follows, assistant("F"), user("on")], generation([71]), assistant("G"), MORE_TOOLS)
    assert [s.num_turns for s in capture.segments] == [1, 2]
    assert sorted(trained_ids(capture)) == sorted([*spelled_out, 70, 71])


def test_of_conversations_with_different_tools_the_one_that_goes_further_is_kept():
    capture, messages = Capture(tool_codec()), [user("x")]
    sampled = [[65, 66], [67, 68], [69, 70]]
    for number, (ids, tools) in enumerate(zip(sampled, (TOOLS, MORE_TOOLS, TOOLS), strict=True)):
        prompt, _ = take_turn(capture, messages, generation(ids), assistant("", f"call_{number}"), tools)
        messages += [assistant("", f"call_{number}"), result("done", f"call_{number}")]
    first, second, third = capture.segments
    assert (third.parent, third.parent_turn, third.head_length) == (1, 0, first.head_length)
    captured = list(second.token_ids)
    assert prompt[third.head_length :][: len(captured) - second.head_length] == captured[second.head_length :]
    assert capture.counts["tools_changed"] == 2 and not capture.counts["divergences"]


def test_threads_are_told_apart_by_the_beginning_of_the_system_prompt():
    capture = Capture(tool_codec())
    long = "You are an agent. " + "x" * 300
    take_turn(capture, [system("Make a title."), user("x")], generation([65]))
    take_turn(capture, [system(f"{long} Monday"), user("x")], generation([66]), None, TOOLS)
    take_turn(capture, [system("You explore."), user("x")], generation([67, 68]), None, TOOLS)
    take_turn(capture, [system(f"{long} Tuesday"), user("x, in short")], generation([69]), None, TOOLS)
    assert [s.thread for s in capture.segments] == ["hidden:1", "main", "sub:2", "main"]
    assert [r.segment for r in capture.rollouts("main", **WHERE)] == [1, 3]
    assert [r.segment for r in capture.rollouts("longest", **WHERE)] == [2]
    assert [r.segment for r in capture.rollouts("all", **WHERE)] == [0, 1, 2, 3]


def test_without_tools_the_first_thread_is_the_main_one():
    capture = Capture(codec())
    for prompt in ("first", "second", "first"):
        take_turn(capture, [system(prompt), user("x")], generation([65]))
    assert [s.thread for s in capture.segments] == ["main", "sub:1", "main"]


def test_the_main_conversation_goes_on_after_a_sub_agents_request():
    capture = Capture(codec())
    _, text = take_turn(capture, [user("main")], generation([65]))
    take_turn(capture, [user("helper")], generation([66]))
    take_turn(capture, [user("main"), assistant(text), user("more")], generation([67]))
    assert [s.num_turns for s in capture.segments] == [2, 1]
    assert capture.rollouts("longest", **WHERE)[0].response_length == 2
    assert not capture.counts["divergences"]


def test_answers_without_a_tool_are_counted_along_a_conversation():
    capture, messages, counted = Capture(tool_codec()), [], []
    for told, tools in [("a", TOOLS), ("b", TOOLS), ("c", ()), ("d", TOOLS), ("", TOOLS), ("e", TOOLS)]:
        messages.append(user("on"))
        answer = assistant(told) if told else assistant(told, "call_1")
        turn = capture.begin_turn(Request(messages, tools))
        counted.append(capture.end_turn(turn, generation([65]), answer).answers_without_tool)
        messages.append(answer)
    assert counted == [1, 2, 2, 3, 0, 1]


def test_an_aborted_turn_leaves_no_trace():
    capture = Capture(codec())
    turn = capture.begin_turn(Request([user("x")]))
    capture.abort_turn(turn)
    assert turn.closed.is_set() and not capture.open_turns
    with pytest.raises(CodecError):
        capture.begin_turn(Request([user("x")], TOOLS))
    assert not capture.open_turns
    assert capture.segments == [] and capture.rollouts("all", **WHERE) == [] == capture.rollouts("longest", **WHERE)
    _, text = take_turn(capture, [user("x")], generation([65]))
    before = list(capture.segments[0].token_ids)
    capture.abort_turn(capture.begin_turn(Request([user("x"), assistant(text), user("y")])))
    capture.abort_turn(capture.begin_turn(Request([user("x")])))
    assert list(capture.segments[0].token_ids) == before
    take_turn(capture, [user("x"), assistant(text), user("z")], generation([66]))
    assert len(capture.segments) == 1 and not +capture.counts


def test_turns_that_would_get_into_each_others_way_wait():
    capture = Capture(codec())
    _, text = take_turn(capture, [user("x")], generation([65]))
    history = [user("x"), assistant(text)]
    open_turn = capture.begin_turn(Request([*history, user("y")]))
    same, beside = Request([*history, user("y")]), Request([*history, user("z")])
    fresh, first = Request([user("elsewhere")]), Request([user("x")])
    assert capture.blocker(same) is capture.blocker(beside) is open_turn
    assert capture.blocker(fresh) is None and capture.blocker(first) is None
    with pytest.raises(CaptureError, match="has to wait"):
        capture.begin_turn(beside)
    other = capture.begin_turn(fresh)
    assert capture.blocker(Request([user("elsewhere")])) is other
    capture.end_turn(open_turn, generation([66]), assistant("B"))
    assert open_turn.closed.is_set() and capture.blocker(beside) is None
    fork = capture.begin_turn(beside)
    assert fork.match.extends is False and fork.reused == capture.segments[0].turns[0].answer_end


def test_an_answer_that_was_aborted_or_is_empty_is_refused():
    capture = Capture(codec())
    turn = capture.begin_turn(Request([user("x")]))
    for bad, why in ((generation([65], "abort"), "aborted"), (generation([]), "no tokens"), (None, "NoneType")):
        with pytest.raises(CaptureError, match=why):
            capture.end_turn(turn, bad, assistant(""))
    assert capture.segments == []


def test_a_turn_ends_once():
    capture = Capture(codec())
    turn = capture.begin_turn(Request([user("x")]))
    capture.end_turn(turn, generation([65]), assistant("A"))
    with pytest.raises(CaptureError, match="not open"):
        capture.end_turn(turn, generation([65]), assistant("A"))
    assert capture.num_turns == 1


def test_the_experts_of_the_newest_answer_go_into_the_record():
    capture = Capture(codec())
    for messages in ([user("x")], [user("x"), assistant("A"), user("y")]):
        turn = capture.begin_turn(Request(messages))
        shape = (len(turn.prompt), 2, 1)
        answer = Generation([65], [-0.5], [0], "stop", Routing(b"\1\0" * (2 * len(turn.prompt)), shape))
        capture.end_turn(turn, answer, assistant("A"))
    (rollout,) = capture.rollouts("longest", **WHERE)
    assert rollout.routing == answer.routed_experts and rollout.routing_shape[0] == len(rollout.token_ids) - 1


def test_a_missing_log_prob_is_an_error():
    with pytest.raises(RolloutError, match="log-prob"):
        Generation([65, 66], [-0.1, math.nan], [0, 0], "stop")
    with pytest.raises(RolloutError, match="1 log-probs"):
        Generation([65, 66], [-0.1], [0, 0], "stop")
