"""Names of parsers, and answers that need none; tests/integration reads real calls with vLLM's parsers."""

import subprocess
import sys

import pytest
from support.tiny import tiny_tokenizer

from harness.proxy.tool_calls import (
    Reading,
    ToolParserError,
    ToolReader,
    known_parsers,
    known_reasoning_parsers,
    require_known,
)


def test_vllms_parsers_are_known_and_importing_it_is_not_needed_for_that():
    assert {"hermes", "qwen3_xml", "qwen3_coder", "llama3_json", "mistral", "deepseek_v3"} <= set(known_parsers())
    assert {"qwen3", "deepseek_r1"} <= set(known_reasoning_parsers())
    code = (
        "import sys; from harness.proxy.tool_calls import require_known\n"
        "require_known('hermes', 'qwen3'); require_known(None); sys.exit('vllm' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_parser_that_nobody_knows_is_refused_with_the_list_of_known_ones():
    with pytest.raises(ToolParserError, match=r"no tool parser 'hermess'; vLLM has: .*\bhermes\b"):
        require_known("hermess")
    with pytest.raises(ToolParserError, match=r"no reasoning parser 'hermes'; vLLM has: .*\bqwen3\b"):
        ToolReader(tiny_tokenizer(), None, "hermes")


def test_a_parser_that_is_a_stub_in_vllm_is_not_offered():
    with pytest.raises(ToolParserError, match="no tool parser 'openai'"):
        require_known("openai")


def test_without_vllm_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("harness.proxy.tool_calls.known_parsers", lambda: ())
    with pytest.raises(ToolParserError, match="vLLM is not installed"):
        require_known("hermes")


def test_without_parsers_an_answer_is_its_text():
    tool = {"name": "run", "description": "", "parameters": {}}
    reader = ToolReader(tiny_tokenizer(), None)
    text = 'a</think><tool_call>{"name": "run"}'
    assert reader.read(text, [1, 2], [tool]) == Reading(text, "", (), unreadable=False)
