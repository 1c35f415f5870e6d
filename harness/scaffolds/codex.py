"""The scaffold `codex`: Codex CLI, unmodified, over the Responses API."""

import json
from typing import Any

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.proxy.surfaces.base import MODEL_ID
from harness.sandbox.base import Sandbox
from harness.scaffolds.base import register_scaffold
from harness.scaffolds.inside import API_KEY, PATIENCE, InsideScaffold, Launch, last_json
from harness.scaffolds.npm_runtime import npm_start
from harness.scaffolds.runtimes import MOUNT

_KEY_VARIABLE = "TESTGRAD_API_KEY"


@register_scaffold("codex")
class Codex(InsideScaffold):
    """Its own sandbox is off, since it is in one; so are the tools that need another service, or that end no task.

    A setting of yours comes after those here and wins: `args: ["-c", "features.goals=true"]`.
    """

    runtime = "codex"

    def launch(self, task: Task, sandbox: Sandbox, session: Session) -> Launch:
        provider = (
            f'{{name="testgrad",base_url="{session.base_url}",env_key="{_KEY_VARIABLE}",wire_api="responses",'
            f"stream_idle_timeout_ms={1000 * PATIENCE}}}"
        )
        settings = {
            "model_provider": '"testgrad"',
            "model_providers.testgrad": provider,
            "model_context_window": json.dumps(session.window),
            "web_search": '"disabled"',
            "features.multi_agent": "false",
            "features.goals": "false",
            "features.enable_request_compression": "false",
        }
        program, environment = npm_start(self.runtime, MOUNT)
        options = ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        for name, value in settings.items():
            options += ["-c", f"{name}={value}"]
        return Launch(
            [*program, *options, "--model", MODEL_ID, *self.config.args, "-"],
            environment | {_KEY_VARIABLE: API_KEY},
            task.instruction,
        )

    def read_end(self, stdout: str) -> dict[str, Any]:
        failed = last_json(stdout, "turn.failed").get("error")
        return {"error": str(failed)[:500]} if failed else {}
