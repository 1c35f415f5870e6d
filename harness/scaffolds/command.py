"""The scaffold `command`: any program of your own, from the configuration."""

from pathlib import Path

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.sandbox.base import Sandbox
from harness.scaffolds.base import ScaffoldConfig, ScaffoldError, register_scaffold
from harness.scaffolds.inside import INSTRUCTION, InsideScaffold, Launch, filled, fillings
from harness.scaffolds.runtimes import RuntimeMissing


@register_scaffold("command")
class CommandScaffold(InsideScaffold):
    """Runs `command` in the workspace, with what it names filled in; `env` may name the same, and `args` come last."""

    @classmethod
    def check(cls, config: ScaffoldConfig) -> None:
        if not config.command:
            raise ScaffoldError(
                "scaffold.command is empty; give the program to run and its words, such as "
                '["python3", "/opt/agent/agent.py", "{base_url}", "{instruction}"]'
            )

    @classmethod
    def require(cls, config: ScaffoldConfig) -> None:
        folder = config.command_runtime
        if folder is not None and not folder.is_dir():
            raise RuntimeMissing(f"scaffold.command_runtime {folder} is no folder; correct it, or leave it out")

    @classmethod
    def calls_tools(cls, config: ScaffoldConfig) -> bool:
        return False  # not that anybody knew

    def runtime_folder(self) -> Path | None:
        self.require(self.config)
        return self.config.command_runtime

    def launch(self, task: Task, sandbox: Sandbox, session: Session) -> Launch:
        values = fillings(task, session)
        words = [*self.config.command, *self.config.args]
        told = any(INSTRUCTION in word for word in [*words, *self.config.env.values()])
        return Launch([filled(word, values) for word in words], stdin="" if told else task.instruction)
