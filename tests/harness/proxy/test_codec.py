"""Messages to ids and back, with several styles of chat template."""

import pytest
from support.scripted import generation
from support.tiny import CHATML, SMOLLM, THINKING, tiny_tokenizer

from harness.proxy.codec import ChatCodec, CodecError

USER = [{"role": "user", "content": "fix it"}]
MORE = [{"role": "user", "content": "still broken"}]


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


def test_a_tokenizer_without_a_chat_template_is_refused_with_the_mend():
    with pytest.raises(CodecError, match=r"chat_template\.jinja"):
        ChatCodec(tiny_tokenizer(template=None))


def test_the_first_prompt_is_the_rendered_conversation_with_its_default_system_message_once():
    tokenizer = tiny_tokenizer(SMOLLM)
    text = tokenizer.decode(ChatCodec(tokenizer).encode_prompt(USER))
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nfix it<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("template", [CHATML, SMOLLM])
def test_prompt_answer_and_delta_together_equal_a_one_shot_render(template):
    tokenizer = tiny_tokenizer(template)
    codec = ChatCodec(tokenizer)
    sampled = [*ids(tokenizer, "an answer"), tokenizer.eos_token_id]
    captured = codec.encode_prompt(USER) + sampled + codec.encode_delta(USER, MORE, sampled)
    assert captured == codec.encode_prompt([*USER, {"role": "assistant", "content": "an answer"}, *MORE])


def test_after_an_end_of_turn_token_only_the_rest_of_the_tail_is_added():
    tokenizer = tiny_tokenizer()
    delta = ChatCodec(tokenizer).encode_delta(USER, MORE, [65, tokenizer.eos_token_id])
    assert tokenizer.decode(delta) == "\n<|im_start|>user\nstill broken<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("sampled_text", ["cut in the mid", "code\n```\n", "ends in newline\n", "<|endoftext|>"])
def test_an_answer_not_ended_by_the_turns_end_gets_the_whole_tail(sampled_text):
    tokenizer = tiny_tokenizer()
    delta = ChatCodec(tokenizer).encode_delta(USER, MORE, ids(tokenizer, sampled_text))
    assert tokenizer.decode(delta).startswith("<|im_end|>\n<|im_start|>user\nstill")


def test_a_template_that_rewrites_older_answers_changes_nothing():
    tokenizer = tiny_tokenizer(THINKING)
    codec = ChatCodec(tokenizer)
    sampled = [*ids(tokenizer, "<think>hm</think>  yes "), tokenizer.eos_token_id]
    delta = codec.encode_delta(USER, MORE, sampled)
    assert tokenizer.decode(delta) == "\n<|im_start|>user\nstill broken<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_whose_tail_depends_on_what_follows_is_refused():
    template = "{% for m in messages %}{{ m.content }}{% if loop.last %}<|im_end|>{% else %}|{% endif %}{% endfor %}"
    codec = ChatCodec(tiny_tokenizer(template))
    with pytest.raises(CodecError, match="no fixed prefix"):
        codec.encode_delta(USER, MORE, [65])


def test_a_template_that_drops_history_is_refused():
    codec = ChatCodec(tiny_tokenizer("{{ messages[-1].content }}"))
    with pytest.raises(CodecError, match="0 times"):
        codec.encode_delta(USER, MORE, [65])


def test_messages_that_the_template_refuses_are_a_codec_error():
    codec = ChatCodec(tiny_tokenizer("{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(CodecError, match="roles must alternate"):
        codec.encode_prompt(USER)


def test_text_ends_before_the_first_stop_string_and_has_no_special_tokens():
    tokenizer = tiny_tokenizer()
    codec = ChatCodec(tokenizer)
    answer = generation(ids(tokenizer, "a\n```\nb<|im_end|>"))
    assert codec.decode_answer(answer, ("nowhere", "\n```\n")) == "a"
    assert codec.decode_answer(answer, ()) == "a\n```\nb"


def test_text_of_an_answer_cut_by_length_is_left_whole():
    tokenizer = tiny_tokenizer()
    answer = generation(ids(tokenizer, "a STOP b"), "length")
    assert ChatCodec(tokenizer).decode_answer(answer, ("STOP",)) == "a STOP b"


def test_a_tail_of_plain_text_is_never_taken_for_an_end_that_the_policy_sampled():
    tokenizer = tiny_tokenizer("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    delta = ChatCodec(tokenizer).encode_delta(USER, MORE, ids(tokenizer, "ends in newline\n"))
    assert tokenizer.decode(delta) == "\nuser: still broken\n"
