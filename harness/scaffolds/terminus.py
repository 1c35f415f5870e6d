"""The scaffold `terminus`: the policy works a terminal, keystroke by keystroke, as a person would.

It runs on the host and speaks the way of Harbor's Terminus 2: each answer is a JSON object with keystrokes for tmux,
and is followed by what the terminal then shows. Any policy that can write JSON can be its agent; no tool parser is
needed.
"""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.sandbox.base import WORKSPACE, Sandbox
from harness.scaffolds.base import Scaffold, ScaffoldResult, register_scaffold
from harness.scaffolds.client import Answer, ChatClient, ConversationTooLong
from harness.scaffolds.python_runtime import copy_libraries
from harness.scaffolds.runtimes import MOUNT, Runtime, RuntimeBuildError, Say, prepared, register_runtime
from harness.scaffolds.terminal import COLUMNS, ROWS, Terminal, TerminalGone, open_terminal
from harness.scaffolds.terminus_answer import MAX_COMMANDS, MAX_SECONDS, Command, Reading, read_answer
from trainer.rollout import Outcome

MAX_SHOWN_CHARS = 10_000
"""Of what the terminal shows after an answer; the middle of more is left out."""

_FIRST_LOOK_SECONDS = 0.2
_SLACK_SECONDS = 60.0

INSTRUCTIONS = f"""\
You work in a terminal of {COLUMNS} columns and {ROWS} lines: a bash shell in tmux, on Linux, in the directory \
{WORKSPACE}. You are given a task. Solve it by sending keystrokes to the terminal; after each answer you are shown \
what it displays.

Answer with one JSON object and nothing else:

{{
  "analysis": "What the terminal shows, what is done, and what is left to do.",
  "plan": "What you do next, and what you expect of each command.",
  "commands": [
    {{"keystrokes": "ls -la\\n", "duration": 0.1}},
    {{"keystrokes": "python3 -m unittest\\n", "duration": 5.0}}
  ],
  "task_complete": false
}}

"commands" may be empty, to wait or to finish. At most {MAX_COMMANDS} are sent, one after another:
- "keystrokes" is typed as it is. End a shell command with \\n, or it is not run. A key that is no character is a \
command of its own, by tmux's name for it: "C-c", "C-d", "Escape", "Up", "PageDown".
- "duration" is how many seconds to wait before the next command, or before looking: 0.1 for cd, ls or cat, more for \
what takes longer, {MAX_SECONDS:g} at most. If something still runs, wait again with empty keystrokes. The default is 1.
"task_complete" is set to true once the task is solved. You are then asked to confirm it.

The terminal keeps its state between commands: directory, variables, programs that run. Do not open an editor where a \
command will do."""

CONFIRM = """\
Are you sure that the task is solved? What you have changed is tested as it is now, and you cannot go on afterwards. \
If so, answer with "task_complete": true once more; if not, go on."""


@dataclass(frozen=True)
class TmuxRuntime(Runtime):
    """This machine's own tmux, for images that have none; the C library and bash are the image's."""

    @property
    def packages(self) -> tuple[str, ...]:
        return ("tmux of the machine that prepares it",)

    def build(self, folder: Path, say: Say) -> None:
        program = shutil.which("tmux")
        if program is None:
            raise RuntimeBuildError("there is no tmux on this machine; install it (apt-get install tmux)")
        say(f"copying {program}")
        (folder / "bin").mkdir()
        shutil.copy(program, folder / "bin" / "tmux")
        copy_libraries([folder / "bin" / "tmux"], folder / "native")

    def version_command(self, root: str) -> tuple[Sequence[str], dict[str, str]]:
        return [f"{root}/bin/tmux", "-V"], {"LD_LIBRARY_PATH": f"{root}/native"}


RUNTIME = register_runtime(TmuxRuntime(name="terminus", title="tmux", version="3"))


@register_scaffold("terminus")
class TerminusScaffold(Scaffold):
    """Type what the policy says, and show it what that brought, until it twice says that it is done.

    Ends as `completed` then, and also when the policy ends its own terminal; as `max_turns` when turns ran out before,
    and as `overlong` when the conversation outgrew the window.
    """

    async def prepare(self, sandbox: Sandbox) -> None:
        """Mount the prepared tmux, if there is one; else the image's own is used."""
        if (folder := prepared("terminus", self.config.runtimes)) is not None:
            await sandbox.mount_runtime(folder, MOUNT)

    async def run(self, task: Task, sandbox: Sandbox, session: Session) -> ScaffoldResult:
        """See `Scaffold.run`.

        Raises:
            NoTerminal: the sandbox can have none.
        """
        tmux, environment = "tmux", dict[str, str]()
        if prepared("terminus", self.config.runtimes) is not None:
            (tmux, _), environment = RUNTIME.version_command(MOUNT)
        seconds = (self.config.agent_timeout or task.agent_timeout) + _SLACK_SECONDS
        terminal_of = open_terminal(sandbox, timeout=seconds, tmux=tmux, env=environment)
        async with terminal_of as terminal, ChatClient(session) as policy:
            try:
                return self.result(await self._work(task, terminal, policy))
            except TerminalGone as gone:
                self.transcript.note("terminal_gone", reason=str(gone)[:500])
                return self.result(Outcome.COMPLETED)

    async def _work(self, task: Task, terminal: Terminal, policy: ChatClient) -> Outcome:
        start = await terminal.mark()
        await asyncio.sleep(_FIRST_LOOK_SECONDS)
        first = await terminal.shown_since(start)
        self.transcript.say("user", f"{INSTRUCTIONS}\n\nThe task:\n\n{task.instruction.strip()}\n\n{_shown(first)}")
        asked_to_confirm = False
        while True:
            try:
                answer = await policy.complete(self.transcript.messages, max_tokens=self.config.max_tokens_per_turn)
            except ConversationTooLong:
                self.transcript.note("conversation_too_long")
                return Outcome.OVERLONG
            self.transcript.say("assistant", answer.text)
            reading = read_answer(answer.text)
            shown = await self._typed(reading, terminal)
            if reading.task_complete and asked_to_confirm:
                return Outcome.COMPLETED
            if self.transcript.turns >= self.config.max_turns:
                return Outcome.MAX_TURNS
            asked_to_confirm = reading.task_complete
            self.transcript.say("user", _reply(answer, reading, shown))

    async def _typed(self, reading: Reading, terminal: Terminal) -> str:
        """What the terminal shows after the commands of an answer."""
        if reading.error:
            self.transcript.note("answer_refused", reason=reading.error)
            return ""
        before = await terminal.mark()
        for command in reading.commands:
            await _send(command, terminal)
        shown = await terminal.shown_since(before)
        self.transcript.note("typed", commands=len(reading.commands), shown_chars=len(shown))
        return shown


async def _send(command: Command, terminal: Terminal) -> None:
    if command.key is not None:
        await terminal.press(command.key)
    else:
        await terminal.type(command.keystrokes)
    await asyncio.sleep(command.seconds)


def _reply(answer: Answer, reading: Reading, shown: str) -> str:
    """The message that follows an answer."""
    parts = []
    if reading.error:
        cut = "Your answer was cut off because it is too long. " if answer.cut else ""
        parts.append(f"{cut}Nothing was typed: {reading.error}. Answer with one JSON object as described.")
    if reading.warnings:
        parts.append(f"Note: {'; '.join(reading.warnings)}.")
    if not reading.error:
        parts.append(_shown(shown))
    if reading.task_complete:
        parts.append(CONFIRM)
    return "\n\n".join(parts)


def _shown(text: str) -> str:
    return f"The terminal shows:\n\n{shortened(text)}"


def shortened(text: str) -> str:
    """The beginning and the end of a text that is too long to be shown whole."""
    left_out = len(text) - MAX_SHOWN_CHARS
    if left_out <= 0:
        return text
    half = MAX_SHOWN_CHARS // 2
    return f"{text[:half]}\n[... {left_out} characters are left out ...]\n{text[-half:]}"
