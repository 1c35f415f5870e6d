"""The scaffold `oc`: OpenCode, unmodified, over chat completions."""

import json
from typing import Any

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.proxy.surfaces.base import MODEL_ID
from harness.sandbox.base import Sandbox
from harness.scaffolds.base import register_scaffold
from harness.scaffolds.inside import API_KEY, InsideScaffold, Launch, last_json
from harness.scaffolds.npm_runtime import npm_start
from harness.scaffolds.runtimes import MOUNT

_MODEL = f"testgrad/{MODEL_ID}"
_ENVIRONMENT = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
}


@register_scaffold("oc")
class OpenCode(InsideScaffold):
    """Told of the policy by a provider document in its environment."""

    runtime = "oc"

    def launch(self, task: Task, sandbox: Sandbox, session: Session) -> Launch:
        program, environment = npm_start(self.runtime, MOUNT)
        # The title is given: it would ask the policy for one.
        options = ["run", "--format", "json", "--title", "repair", "--model", _MODEL]
        return Launch(
            [*program, *options, *self.config.args],
            environment | _ENVIRONMENT | {"OPENCODE_CONFIG_CONTENT": json.dumps(_document(session))},
            task.instruction,
        )

    def read_end(self, stdout: str) -> dict[str, Any]:
        end = last_json(stdout, "step_finish").get("part", {})
        error = last_json(stdout, "error").get("error")
        return {"reason": end.get("reason")} | ({"error": str(error)[:500]} if error else {})


def _document(session: Session) -> dict[str, Any]:
    limit = {"context": session.window, "output": min(session.sampling.max_tokens, session.window)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "testgrad",
        "options": {"baseURL": session.base_url, "apiKey": API_KEY},
        "models": {MODEL_ID: {"name": MODEL_ID, "tool_call": True, "limit": limit}},
    }
    return {
        "provider": {"testgrad": provider},
        "model": _MODEL,
        "small_model": _MODEL,
        "permission": "allow",
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,  # copies of the workspace, to undo edits: nobody will
    }
