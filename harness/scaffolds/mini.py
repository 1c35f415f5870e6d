"""The scaffolds `mini` and `mini_text`: mini-swe-agent, unmodified, over chat completions.

Since its version 2 it acts by calls of one tool, `bash`; for a policy without tools it still has its first way, one
fenced block an answer. Both are its own model classes and prompts.
"""

import json
from pathlib import Path
from typing import Any, ClassVar

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.proxy.surfaces.base import MODEL_ID
from harness.sandbox.base import WORKSPACE, Sandbox
from harness.scaffolds.base import ScaffoldConfig, register_scaffold
from harness.scaffolds.inside import API_KEY, PATIENCE, InsideScaffold, Launch
from harness.scaffolds.python_runtime import PythonRuntime, python_environment, python_start
from harness.scaffolds.runtimes import MOUNT, register_runtime

RUNTIME = register_runtime(
    PythonRuntime(
        name="mini",
        title="mini-swe-agent",
        version="2.4.6",
        package="mini-swe-agent",
        module="minisweagent.models.litellm_model",
        pins=Path(__file__).with_name("mini_pins.txt"),
        oldest=(3, 11),
    )
)

_PROGRAM = """\
import json
base, config, *arguments = json.load(sys.stdin)
path = os.path.join(os.environ["HOME"], "testgrad.yaml")
with open(path, "w") as file:
    json.dump(config, file)
# Its commands inherit the input; they find none.
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
sys.argv = ["mini", "-c", base, "-c", path, *arguments]
from minisweagent.run.mini import app
app()
"""

_ENVIRONMENT = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    # What the proxy refuses it refuses again; it retries what is worth it itself.
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "REQUEST_TIMEOUT": str(PATIENCE),
}


@register_scaffold("mini")
class MiniSweAgent(InsideScaffold):
    """By tool calls. The proxy needs a tool parser."""

    runtime = "mini"
    base_config: ClassVar[str] = "mini.yaml"
    model_class: ClassVar[str] = "litellm"

    def launch(self, task: Task, sandbox: Sandbox, session: Session) -> Launch:
        model: dict[str, Any] = {"api_base": session.base_url, "api_key": API_KEY, "drop_params": True}
        if self.config.max_tokens_per_turn is not None:
            model["max_tokens"] = self.config.max_tokens_per_turn
        config = {
            "run": {"task": task.instruction},
            # The proxy counts turns, and nothing has a price here.
            "agent": {"mode": "yolo", "confirm_exit": False, "step_limit": 0, "cost_limit": 0.0},
            "environment": {"cwd": WORKSPACE},
            "model": {
                "model_name": f"openai/{MODEL_ID}",
                "model_class": self.model_class,
                "model_kwargs": model,
                "cost_tracking": "ignore_errors",
            },
        }
        given = json.dumps([self.base_config, config, *self.config.args])
        return Launch(python_start(MOUNT, _PROGRAM), python_environment(MOUNT) | _ENVIRONMENT, given)


@register_scaffold("mini_text")
class MiniSweAgentText(MiniSweAgent):
    """By fenced blocks of bash, for policies without tools."""

    base_config = "mini_textbased.yaml"
    model_class = "litellm_textbased"

    @classmethod
    def calls_tools(cls, config: ScaffoldConfig) -> bool:
        return False
