"""The scaffold `cc`: Claude Code, unmodified, over the Messages API."""

from typing import Any

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.proxy.surfaces.base import MODEL_ID
from harness.sandbox.base import Sandbox
from harness.scaffolds.base import register_scaffold
from harness.scaffolds.inside import API_KEY, InsideScaffold, Launch, last_json
from harness.scaffolds.npm_runtime import npm_start
from harness.scaffolds.runtimes import MOUNT

_ENVIRONMENT = {
    "ANTHROPIC_API_KEY": API_KEY,
    "IS_SANDBOX": "1",
    "CLAUDE_CONFIG_DIR": "/tmp/home/.claude",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    # A header that differs from request to request would be a prompt that never extends the last one.
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "DISABLE_AUTOUPDATER": "1",
    # It would ask anew for an answer that takes ten minutes, whatever comes meanwhile.
    "CLAUDE_ENABLE_STREAM_WATCHDOG": "0",
    # Whatever model it would take for a helper: there is one policy.
    "ANTHROPIC_MODEL": MODEL_ID,
    "ANTHROPIC_DEFAULT_OPUS_MODEL": MODEL_ID,
    "ANTHROPIC_DEFAULT_SONNET_MODEL": MODEL_ID,
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL_ID,
    "ANTHROPIC_SMALL_FAST_MODEL": MODEL_ID,
    "CLAUDE_CODE_SUBAGENT_MODEL": MODEL_ID,
}


@register_scaffold("cc")
class ClaudeCode(InsideScaffold):
    """Its tools are cut down to some by `args: ["--tools", "Bash,Edit,Read,Write"]`: all of them are 10k tokens."""

    runtime = "cc"

    def launch(self, task: Task, sandbox: Sandbox, session: Session) -> Launch:
        program, environment = npm_start(self.runtime, MOUNT)
        options = ["-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"]
        return Launch(
            [*program, *options, *self.config.args],
            environment | _ENVIRONMENT | {"ANTHROPIC_BASE_URL": session.anthropic_base_url},
            task.instruction,
        )

    def read_end(self, stdout: str) -> dict[str, Any]:
        end = last_json(stdout, "result")
        return {name: end[name] for name in ("subtype", "terminal_reason", "num_turns", "is_error") if name in end}
