"""The scaffold `ohsdk`: the OpenHands SDK's default agent, unmodified, over chat completions with tools."""

import json
from pathlib import Path
from typing import Any

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.proxy.surfaces.base import MODEL_ID
from harness.sandbox.base import WORKSPACE, Sandbox
from harness.scaffolds.base import ScaffoldConfig, ScaffoldError, register_scaffold
from harness.scaffolds.inside import API_KEY, PATIENCE, InsideScaffold, Launch, last_json
from harness.scaffolds.python_runtime import PythonRuntime, python_environment, python_start
from harness.scaffolds.runtimes import MOUNT, register_runtime

RUNTIME = register_runtime(
    PythonRuntime(
        name="ohsdk",
        title="OpenHands SDK",
        version="1.58.2",
        package="openhands-sdk",
        module="openhands.tools.preset.default",
        pins=Path(__file__).with_name("openhands_pins.txt"),
        oldest=(3, 12),
    )
)

_PROGRAM = Path(__file__).with_name("openhands_program.py")
_MANY = 10_000

_ENVIRONMENT = {
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "ALLOW_SHORT_CONTEXT_WINDOWS": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


@register_scaffold("ohsdk")
class OpenHandsSdk(InsideScaffold):
    """Terminal, file editor and task tracker, as its own command line has them; it sums up histories that grow long."""

    runtime = "ohsdk"

    @classmethod
    def check(cls, config: ScaffoldConfig) -> None:
        if config.args:
            raise ScaffoldError(f"args are {list(config.args)}, but ohsdk has no command line; leave scaffold.args out")

    def launch(self, task: Task, sandbox: Sandbox, session: Session) -> Launch:
        given = {
            "instruction": task.instruction,
            "workspace": WORKSPACE,
            "max_iterations": _MANY,  # the proxy counts turns
            "llm": {
                "model": f"openai/{MODEL_ID}",
                "api_mode": "chat",
                "base_url": session.base_url,
                "api_key": API_KEY,
                "max_output_tokens": self.config.max_tokens_per_turn,
                # What the proxy refuses it refuses again; it retries what is worth it itself.
                "num_retries": 0,
                "reasoning_effort": None,  # whether the policy thinks is its template's business
                "timeout": PATIENCE,
            },
        }
        environment = python_environment(MOUNT) | _ENVIRONMENT
        return Launch(python_start(MOUNT, _PROGRAM.read_text()), environment, json.dumps(given))

    def read_end(self, stdout: str) -> dict[str, Any]:
        end = last_json(stdout, "result")
        return {name: end[name] for name in ("status", "error") if name in end}
