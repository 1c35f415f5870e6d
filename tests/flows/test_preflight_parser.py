"""The parser of tool calls, judged by a call that a real chat template renders and vLLM's own parser reads."""

import json
import shutil

import pytest
from support.chat_templates import template_tokenizer

from bench.tiny import tiny_model
from flows.config import parse_config
from flows.preflight import checks  # noqa: F401  (registers them)
from flows.preflight.facts import Facts
from flows.preflight.findings import Level
from flows.preflight.run import run_checks

pytest.importorskip("vllm")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of tiny models with the templates and tokenizers of real ones."""
    root = tmp_path_factory.mktemp("models")
    tiny_model(root / "plain")
    for name in ("qwen3", "llama3_tools"):
        shutil.copytree(root / "plain", root / name)
        for file in (root / name).glob("*token*"):
            file.unlink()
        for file in (root / name).glob("*chat_template*"):
            file.unlink()
        template_tokenizer(name).save_pretrained(root / name)
        config = json.loads((root / name / "config.json").read_text())
        (root / name / "config.json").write_text(json.dumps(config | {"vocab_size": 1024}))
    return root


def findings(models, model, parser, scaffold="cc"):
    config = {
        "experiment": "e",
        "model": {"path": str(models / model)},
        "serving": {"tool_call_parser": parser},
        "scaffold": {"name": scaffold, "max_turns": 5},
    }
    return list(run_checks(Facts(parse_config(config, "test"), models), only=["tool-parser"]))


def test_the_parser_that_fits_reads_the_call_back(models):
    (found,) = findings(models, "qwen3", "hermes")
    assert found.level is Level.OK, found
    assert "reads back a call" in found.message


@pytest.mark.parametrize(
    ("model", "parser", "fitting"), [("qwen3", "qwen3_coder", "hermes"), ("llama3_tools", "hermes", "llama3_json")]
)
def test_a_parser_that_does_not_fit_is_fatal_and_those_that_do_are_named(models, model, parser, fitting):
    (found,) = findings(models, model, parser)
    assert found.level is Level.FATAL, found
    assert f"serving.tool_call_parser is {parser}: reads 0 calls instead of one from" in found.message
    assert fitting in found.mend


def test_a_template_without_tools(models):
    (found,) = findings(models, "plain", "hermes")
    assert found.level is Level.FATAL
    assert "scaffold.name is cc: acts by tool calls, and the chat template does not show tools" in found.message
    (found,) = findings(models, "plain", "hermes", scaffold="edit")
    assert found.level is Level.WARN and found.mend == "leave it unset"


def test_an_agent_without_tools_needs_no_parser(models):
    (found,) = findings(models, "plain", None, scaffold="edit")
    assert found.level is Level.OK and "edit needs no tool calls" in found.message
