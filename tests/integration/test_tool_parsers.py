"""Tool calls and thinking, read by vLLM's own parsers from what a policy could sample."""

import json
import re

import pytest
from support.tiny import tiny_tokenizer

from harness.proxy.tool_calls import ToolParserError, ToolReader

TOOLS = [
    {
        "name": "run",
        "description": "",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}, "n": {"type": "integer"}}},
    }
]
SPECIAL = [
    *("<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
]
HERMES = '<tool_call>\n{"name": "run", "arguments": {"command": "ls\\n", "n": 3}}\n</tool_call>'
QWEN = (
    "<tool_call>\n<function=run>\n<parameter=command>\nls\n\n</parameter>\n<parameter=n>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
LLAMA = '<|python_tag|>{"name": "run", "parameters": {"command": "ls\\n", "n": 3}}'
MISTRAL = '[TOOL_CALLS]run[ARGS]{"command": "ls\\n", "n": 3}'
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n"
    '{"command": "ls\\n", "n": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
FORMATS = {
    "hermes": HERMES,
    "qwen3_xml": QWEN,
    "qwen3_coder": QWEN,
    "llama3_json": LLAMA,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK,
}


@pytest.fixture(scope="module", params=[False, True], ids=["marks are tokens", "marks are special tokens"])
def tokenizer(request):
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"], special_tokens=request.param)
    return tokenizer


def read(tokenizer, sampled, parser="hermes", reasoning=None, *, tools=TOOLS, end="<|im_end|>", stop=None, **options):
    ids = tokenizer.encode(sampled + end, add_special_tokens=False)
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if stop:
        text = text[: text.index(stop)]
    return ToolReader(tokenizer, parser, reasoning).read(text, ids, tools, **options)


def said(reading):
    return [(call["name"], json.loads(call["arguments"])) for call in reading.calls]


@pytest.mark.parametrize("parser", FORMATS)
def test_a_call_is_read_in_each_format(tokenizer, parser):
    reading = read(tokenizer, FORMATS[parser], parser)
    assert said(reading) == [("run", {"command": "ls\n", "n": 3})]
    assert (reading.text, reading.reasoning, reading.unreadable) == ("", "", False)


@pytest.mark.parametrize("parser", set(FORMATS) - {"llama3_json"})
def test_text_before_a_call_is_the_text(tokenizer, parser):
    reading = read(tokenizer, f"I look.{FORMATS[parser]}", parser)
    assert (reading.text, len(reading.calls)) == ("I look.", 1)


@pytest.mark.parametrize("parser", FORMATS)
@pytest.mark.parametrize("part", [0.5, 0.7, 0.9])
def test_half_a_call_is_never_run(tokenizer, parser, part):
    whole = FORMATS[parser].removesuffix("\n</tool_call>").removesuffix("<｜tool▁call▁end｜><｜tool▁calls▁end｜>")
    whole = whole.removesuffix("\n</function>")
    reading = read(tokenizer, f"I look.{whole[: int(len(whole) * part)]}", parser, end="")
    assert (reading.calls, reading.unreadable) == ((), True)
    assert reading.text.startswith("I look.")


@pytest.mark.parametrize("parser", FORMATS)
def test_plain_text_is_no_attempt_at_a_call(tokenizer, parser):
    reading = read(tokenizer, "Use f(x) and {a: 1} here.", parser)
    assert (reading.text, reading.calls, reading.unreadable) == ("Use f(x) and {a: 1} here.", (), False)


@pytest.mark.parametrize(
    "body",
    [
        "{bad}",
        '{"name": "run"}',
        '{"name": "run", "arguments": "ls"}',
        '{"name": "run", "arguments": {"n": NaN}}',
        '{"name": "", "arguments": {}}',
        '{"name": "a b", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        "[" * 50_000,
    ],
)
def test_what_is_no_call_is_told_as_text_and_flagged(tokenizer, body):
    reading = read(tokenizer, f"So: <tool_call>{body}</tool_call>")
    assert (reading.calls, reading.unreadable) == ((), True)
    assert re.sub("</?tool_call>", "", reading.text) == f"So: {body}"


def test_of_several_calls_all_are_readable_or_none(tokenizer):
    assert len(read(tokenizer, f"{HERMES}\n{HERMES}").calls) == 2
    assert read(tokenizer, f"{HERMES}\n<tool_call>{{bad}}</tool_call>").unreadable


def test_ids_are_ours_and_new_each_time(tokenizer):
    ids = [call["id"] for _ in range(2) for call in read(tokenizer, HERMES + HERMES).calls]
    assert len(set(ids)) == 4 and all(re.fullmatch(r"call_[0-9a-f]{24}", i) for i in ids)
    assert re.fullmatch(r"[A-Za-z0-9]{9}", read(tokenizer, MISTRAL, "mistral").calls[0]["id"])


def test_nothing_after_a_stop_string_is_read(tokenizer):
    assert said(read(tokenizer, f"{HERMES}STOP{HERMES}", stop="STOP")) == [("run", {"command": "ls\n", "n": 3})]
    cut = read(tokenizer, f"okSTOP{HERMES}", stop="STOP")
    assert (cut.text, cut.calls, cut.unreadable) == ("ok", (), False)


def test_calls_are_looked_for_only_if_tools_were_offered(tokenizer):
    reading = read(tokenizer, HERMES, tools=[])
    assert (reading.calls, reading.unreadable) == ((), False)
    assert '"name": "run"' in reading.text


@pytest.mark.parametrize("opened", ["", "<think>"], ids=["opened by the prompt", "opened by the policy"])
@pytest.mark.parametrize("parser", ["hermes", "qwen3_xml"])
def test_thinking_is_parted_from_text_and_calls(tokenizer, opened, parser):
    reading = read(tokenizer, f"{opened}hm</think>I look.{FORMATS[parser]}", parser, "qwen3")
    assert (reading.reasoning, reading.text, len(reading.calls)) == ("hm", "I look.", 1)


def test_thinking_is_read_without_tools_too(tokenizer):
    assert read(tokenizer, "hm</think>yes", None, "qwen3").reasoning == "hm"
    assert read(tokenizer, "hm</think>yes", "hermes", "deepseek_r1", tools=[]).text == "yes"


def test_after_thinking_an_unreadable_call_is_the_text(tokenizer):
    reading = read(tokenizer, "hm</think>So: <tool_call>{bad", "hermes", "qwen3")
    assert (reading.reasoning, reading.unreadable) == ("hm", True)
    assert re.sub("</?tool_call>", "", reading.text) == "So: {bad"


@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1"])
def test_with_thinking_off_an_answer_is_no_thought(tokenizer, reasoning):
    reading = read(tokenizer, f"I look.{HERMES}", "hermes", reasoning, thinking=False)
    assert (reading.reasoning, reading.text, len(reading.calls)) == ("", "I look.", 1)


def test_special_tokens_are_in_no_text(tokenizer):
    assert read(tokenizer, "a<|im_start|>b").text == "ab"


def test_a_tokenizer_without_the_parsers_tokens_is_refused():
    with pytest.raises(ToolParserError, match=r"'deepseek_v3'.* do not fit this tokenizer"):
        ToolReader(tiny_tokenizer(), "deepseek_v3")
