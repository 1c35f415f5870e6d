"""What the agents from npm are launched with; tests/integration/test_agents_npm.py runs them."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.tasks import INSTRUCTION, write_task

from harness.pool.task import Task
from harness.scaffolds.base import ScaffoldConfig, create_scaffold
from harness.scaffolds.inside import InsideScaffold, Launch, last_json
from trainer.rollout import Sampling

SESSION: Any = SimpleNamespace(
    anthropic_base_url="http://127.0.0.1:1/s/x",
    base_url="http://127.0.0.1:1/s/x/v1",
    window=5000,
    sampling=Sampling(max_tokens=300),
)


def launched(tmp_path: Path, name: str) -> Launch:
    scaffold = create_scaffold(ScaffoldConfig(name=name, args=("--more", "words")))
    assert isinstance(scaffold, InsideScaffold)
    return scaffold.launch(Task.load(write_task(tmp_path / "add")), SimpleNamespace(), SESSION)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cc", "oc", "qwen", "codex"])
def test_the_instruction_is_no_word_of_the_command(tmp_path: Path, name: str) -> None:
    launch = launched(tmp_path, name)
    assert launch.stdin.strip() == INSTRUCTION
    assert not any(INSTRUCTION in word for word in launch.argv), "it may be too long for one, or begin with a dash"
    assert launch.argv[0].startswith("/opt/agent/node_modules/")
    assert "--more words" in " ".join(launch.argv)


def test_claude_code_has_one_model_and_no_other_traffic(tmp_path: Path) -> None:
    env = launched(tmp_path, "cc").env
    assert env["ANTHROPIC_BASE_URL"] == SESSION.anthropic_base_url, "it adds /v1 itself"
    assert {value for name, value in env.items() if "MODEL" in name} == {"policy"}
    assert (env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"], env["CLAUDE_CODE_ATTRIBUTION_HEADER"]) == ("1", "0")


def test_opencode_is_told_of_the_policy_and_its_window(tmp_path: Path) -> None:
    document = json.loads(launched(tmp_path, "oc").env["OPENCODE_CONFIG_CONTENT"])
    provider = document["provider"]["testgrad"]
    assert provider["options"]["baseURL"] == SESSION.base_url
    assert provider["models"]["policy"]["limit"] == {"context": 5000, "output": 300}
    assert document["model"] == document["small_model"] == "testgrad/policy"


def test_codex_reads_its_settings_from_words(tmp_path: Path) -> None:
    words = list(launched(tmp_path, "codex").argv)
    settings = dict(word.split("=", 1) for flag, word in itertools.pairwise(words) if flag == "-c")
    assert f'base_url="{SESSION.base_url}"' in settings["model_providers.testgrad"]
    assert settings["model_context_window"] == "5000"
    assert words[-1] == "-", "the prompt comes as input, after all options"


def test_node_finds_its_libraries_and_the_agents_programs_do_not(tmp_path: Path) -> None:
    launch = launched(tmp_path, "qwen")
    assert launch.env["LD_LIBRARY_PATH"] == "/opt/agent/native"
    assert launch.argv[launch.argv.index("--require") + 1] == "/opt/agent/clean.cjs"


def test_the_end_is_the_last_line_of_its_kind() -> None:
    lines = [
        '{"type": "result", "n": 1}',
        '{"type": "text", "result": 2}',
        '{"type": "result", "n": 3}',
        '{"result": cut',
    ]
    assert last_json("\n".join(lines), "result") == {"type": "result", "n": 3}
    assert last_json("nothing", "result") == {}
