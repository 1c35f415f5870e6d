"""The scaffold `qwen`: Qwen Code, unmodified, over chat completions."""

from typing import Any

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.proxy.surfaces.base import MODEL_ID
from harness.sandbox.base import Sandbox
from harness.scaffolds.base import register_scaffold
from harness.scaffolds.inside import API_KEY, PATIENCE, InsideScaffold, Launch, last_json
from harness.scaffolds.npm_runtime import npm_start
from harness.scaffolds.runtimes import MOUNT


@register_scaffold("qwen")
class QwenCode(InsideScaffold):
    """Runs on the Node of its runtime."""

    runtime = "qwen"

    def launch(self, task: Task, sandbox: Sandbox, session: Session) -> Launch:
        program, environment = npm_start(self.runtime, MOUNT)
        options = ["--auth-type", "openai", "--yolo", "--output-format", "stream-json"]
        environment |= {
            "OPENAI_BASE_URL": session.base_url,
            "OPENAI_API_KEY": API_KEY,
            "OPENAI_MODEL": MODEL_ID,
            "QWEN_CODE_NO_RELAUNCH": "true",  # in a second process, with more memory
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
            "QWEN_STREAM_IDLE_TIMEOUT_MS": str(1000 * PATIENCE),
            "QWEN_STREAM_MAX_LIFETIME_MS": str(1000 * PATIENCE),
        }
        return Launch([*program, *options, *self.config.args], environment, task.instruction)

    def read_end(self, stdout: str) -> dict[str, Any]:
        end = last_json(stdout, "result")
        return {name: end[name] for name in ("subtype", "num_turns", "is_error") if name in end}
