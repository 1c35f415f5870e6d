"""The invariants of token capture: extension, masks, and ids that are never tokenized again."""

import functools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted import generation
from support.tiny import CHATML, SMOLLM, THINKING, tiny_tokenizer

from harness.proxy.capture import Capture, CaptureError
from harness.proxy.codec import ChatCodec
from trainer.rollout import NO_VERSION, Generation, Outcome, RolloutError

WHERE = {"session_id": "s-1", "task_id": "t", "group_id": "g", "step": 3, "outcome": Outcome.COMPLETED}
MERGES = [("a", "b"), ("ab", "c"), ("b", "c")]


@functools.cache
def codec(template=CHATML):
    return ChatCodec(tokenizer(template))


@functools.cache
def tokenizer(template=CHATML):
    return tiny_tokenizer(template, MERGES)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def take_turn(capture, messages, answer):
    prompt = capture.begin_turn(messages)
    text = codec().decode_answer(answer, ())
    capture.end_turn(answer, text)
    return prompt, text


words = st.text(st.sampled_from("abc \n`é<"), max_size=12)
# Any ids at all: bytes that are no UTF-8, spellings that the tokenizer itself would not choose, special tokens.
answers = st.tuples(
    st.lists(st.integers(0, 261), min_size=1, max_size=12),
    st.sampled_from(["eos", "stop", "length"]),
    st.integers(0, 9),
)


@settings(max_examples=60, deadline=None)
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
    rollout = capture.rollout(**WHERE)
    assert list(rollout.token_ids) == captured
    assert (rollout.num_segments, rollout.num_turns) == (1, len(turns))
    trained = [i for i, m in enumerate(rollout.loss_mask) if m]
    assert [rollout.token_ids[i] for i in trained] == [t for g in sampled for t in g.token_ids]
    assert [rollout.logprobs[i] for i in trained] == [p for g in sampled for p in g.logprobs]
    assert [rollout.weight_versions[i] for i in trained] == [v for g in sampled for v in g.weight_versions]
    assert all(math.isnan(p) for p, m in zip(rollout.logprobs, rollout.loss_mask, strict=True) if not m)
    assert all(v == NO_VERSION for v, m in zip(rollout.weight_versions, rollout.loss_mask, strict=True) if not m)


def test_ids_that_a_round_trip_through_text_would_change_stay_as_sampled():
    spelled_out = [tokenizer().convert_tokens_to_ids(c) for c in "abc"]
    assert tokenizer().encode("abc", add_special_tokens=False) != spelled_out
    capture = Capture(codec())
    first, text = take_turn(capture, [user("x")], generation(spelled_out))
    second = capture.begin_turn([user("x"), assistant(text), user("y")])
    assert second[: len(first) + 3] == first + spelled_out


def test_a_changed_history_opens_a_new_segment_in_its_own_context():
    capture = Capture(codec())
    take_turn(capture, [user("x")], generation([65, 66, 67]))
    rewritten = [user("x, summarised"), assistant("something"), user("go on")]
    prompt, _ = take_turn(capture, rewritten, generation([68]))
    assert prompt == codec().encode_prompt(rewritten)
    assert len(capture.segments) == 2
    rollout = capture.rollout(**WHERE)
    assert rollout.num_segments == 2
    assert list(rollout.token_ids[rollout.prompt_length :]) == [65, 66, 67]


def test_an_altered_answer_in_the_history_is_a_divergence():
    capture = Capture(codec())
    _, text = take_turn(capture, [user("x")], generation([65, 66]))
    take_turn(capture, [user("x"), assistant(f"{text}!"), user("y")], generation([65]))
    assert len(capture.segments) == 2


def test_the_same_request_again_is_a_new_segment_and_the_later_of_equals_is_trained():
    capture = Capture(codec())
    take_turn(capture, [user("x")], generation([65, 66]))
    take_turn(capture, [user("x")], generation([67, 68]))
    rollout = capture.rollout(**WHERE)
    assert list(rollout.token_ids[-2:]) == [67, 68]


def test_the_main_conversation_goes_on_after_a_sub_agents_request():
    capture = Capture(codec())
    _, text = take_turn(capture, [user("main")], generation([65]))
    take_turn(capture, [user("helper")], generation([66]))
    take_turn(capture, [user("main"), assistant(text), user("more")], generation([67]))
    assert [s.num_turns for s in capture.segments] == [2, 1]
    assert capture.rollout(**WHERE).response_length == 2


def test_an_aborted_turn_leaves_no_trace():
    capture = Capture(codec())
    capture.begin_turn([user("x")])
    capture.abort_turn()
    assert capture.segments == [] and capture.rollout(**WHERE) is None
    _, text = take_turn(capture, [user("x")], generation([65]))
    before = list(capture.segments[0].token_ids)
    capture.begin_turn([user("x"), assistant(text), user("y")])
    capture.abort_turn()
    assert capture.segments[0].token_ids == before
    take_turn(capture, [user("x"), assistant(text), user("z")], generation([66]))
    assert len(capture.segments) == 1


def test_an_answer_that_was_aborted_or_is_empty_is_refused():
    capture = Capture(codec())
    capture.begin_turn([user("x")])
    for bad, why in ((generation([65], "abort"), "aborted"), (generation([]), "no tokens"), (None, "NoneType")):
        with pytest.raises(CaptureError, match=why):
            capture.end_turn(bad, "")
    assert capture.segments == []


def test_turns_out_of_order_are_refused():
    capture = Capture(codec())
    with pytest.raises(CaptureError, match="no turn is open"):
        capture.end_turn(generation([65]), "A")
    capture.begin_turn([user("x")])
    with pytest.raises(CaptureError, match="a turn is open"):
        capture.begin_turn([user("x")])


def test_a_missing_log_prob_is_an_error():
    with pytest.raises(RolloutError, match="log-prob"):
        Generation([65, 66], [-0.1, math.nan], [0, 0], "stop")
    with pytest.raises(RolloutError, match="1 log-probs"):
        Generation([65, 66], [-0.1], [0, 0], "stop")
