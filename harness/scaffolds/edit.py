"""The scaffold `edit`: shows a small repository whole, and takes whole files back from fenced code blocks.

It runs on the host, and only tests run in the sandbox. It suits policies too small for tools, and repositories that
fit into a prompt.
"""

import asyncio
from collections.abc import Sequence
from pathlib import PurePosixPath

from harness.pool.task import Task
from harness.proxy.session import Session
from harness.sandbox.base import ExecResult, Sandbox
from harness.sandbox.tree import WorkspaceError
from harness.scaffolds.base import Scaffold, ScaffoldResult, register_scaffold
from harness.scaffolds.client import Answer, ChatClient, ConversationTooLong
from harness.scaffolds.fences import read_edits, refusal
from trainer.rollout import Outcome

_MAX_SHOWN_BYTES = 2 * 2**20
_MAX_REPORT_CHARS = 2000
_LANGUAGES = {".py": "python", ".js": "javascript", ".ts": "typescript", ".rs": "rust", ".md": "markdown"}


@register_scaffold("edit")
class EditScaffold(Scaffold):
    """Ask for the fixed files, write them, and while turns are left send back what still fails.

    Ends as `completed` once an edit is written (and passes the visible tests, when those are run), as `max_turns` when
    turns ran out before, and as `overlong` when the conversation outgrew the window or the last answer was cut by
    length before it closed a block.
    """

    async def run(self, task: Task, sandbox: Sandbox, session: Session) -> ScaffoldResult:
        """See `Scaffold.run`."""
        files = await asyncio.to_thread(shown_files, task)
        if files is None:
            self.transcript.note("repository_too_large", limit_bytes=_MAX_SHOWN_BYTES)
            return self.result(Outcome.OVERLONG)
        prompt = Prompt(task.instruction, files)
        tests = task.grading.visible_tests if self.config.run_visible_tests else []
        self.transcript.say("user", prompt.question)
        async with ChatClient(session) as policy:
            while True:
                try:
                    answer = await policy.complete(
                        self.transcript.messages, max_tokens=self.config.max_tokens_per_turn, stop=prompt.stop
                    )
                except ConversationTooLong:
                    self.transcript.note("conversation_too_long")
                    return self.result(Outcome.OVERLONG)
                self.transcript.say("assistant", answer.text)
                edited, problems = await self._write(answer, task, list(files), sandbox)
                complaint = "; ".join(problems) or f"There was no {prompt.fence} block in that answer"
                if edited:
                    failure = await self._failure(tests, sandbox)
                    if failure is None:
                        return self.result(Outcome.COMPLETED)
                    complaint = f"The tests fail:\n\n```\n{failure}\n```"
                if self.transcript.turns >= self.config.max_turns:
                    return self.result(Outcome.OVERLONG if answer.cut and not edited else Outcome.MAX_TURNS)
                self.transcript.say("user", f"{complaint}\n\n{prompt.request}")

    async def _write(
        self, answer: Answer, task: Task, editable: Sequence[str], sandbox: Sandbox
    ) -> tuple[bool, list[str]]:
        """Whether the answer changed a file, and what was wrong with its other blocks."""
        edits, problems = read_edits(answer.text, editable, cut=answer.cut)
        edited = False
        for edit in edits:
            reason = refusal(edit.path, task.snapshot, editable)
            if reason is None:
                try:
                    await sandbox.write_file(edit.path, edit.text.encode())
                except WorkspaceError as error:
                    reason = str(error)
            if reason is None:
                edited = True
                self.transcript.note("file_written", path=edit.path, chars=len(edit.text))
            else:
                problems.append(f"{edit.path[:100]}: {reason}")
        for problem in problems:
            self.transcript.note("block_refused", reason=problem)
        return edited, problems

    async def _failure(self, tests: Sequence[str], sandbox: Sandbox) -> str | None:
        """The end of the visible tests' report when they fail; None when they pass or there are none."""
        if not tests:
            return None
        # The workspace is read-only here: the code under test is the policy's, and edits come from its answers alone.
        run = await sandbox.exec(
            [sandbox.project_python, "-B", "-m", "unittest", *tests],
            timeout=self.config.visible_tests_timeout,
            writable=False,
        )
        passed = run.exit_code == 0 and not run.timed_out
        report = _report(run, self.config.visible_tests_timeout)
        self.transcript.note(
            "tests_run", passed=passed, exit_code=run.exit_code, timed_out=run.timed_out, report=report
        )
        return None if passed else report


class Prompt:
    """The words to the policy about a repository's files.

    With a single file the answer may stop at the closing fence. The stop string begins with a newline, so that an
    opening fence at the start of an answer does not match it. A file that contains fences gets a longer one.
    """

    def __init__(self, instruction: str, files: dict[str, str]) -> None:
        ticks = "`" * max([3] + [_longest_fence(text) + 1 for text in files.values()])
        shown = [f"{ticks}{language_of(path)}\n{_ended(text)}{ticks}" for path, text in files.items()]
        if len(files) == 1:
            (path,) = files
            self.fence = f"{ticks}{language_of(path)}"
            self.stop = [f"\n{ticks}\n"]
            self.request = f"Reply with the fixed code of {path} in one {self.fence} block."
        else:
            first = next(iter(files), "path.py")
            shown = [f"{path}:\n{block}" for path, block in zip(files, shown, strict=True)]
            self.fence = f"{ticks}{language_of(first)} {first}"
            self.stop = []
            self.request = (
                "Reply with each file that you change, whole, in a block of its own "
                f"that names the file after the language, like {self.fence}"
            )
        self.question = "\n\n".join([instruction.strip(), *shown, self.request])


def shown_files(task: Task) -> dict[str, str] | None:
    """Text of the editable files by path; None when they are far too large for any prompt."""
    files, total = {}, 0
    for path in task.editable_files():
        file = task.snapshot / path
        total += file.stat().st_size
        if total > _MAX_SHOWN_BYTES:
            return None
        try:
            files[path] = file.read_bytes().decode()
        except UnicodeDecodeError:
            continue
    return files


def _report(run: ExecResult, limit: float) -> str:
    text = (run.stdout + run.stderr).decode("utf-8", "replace").strip()
    if run.timed_out:
        text += f"\nstopped after {limit:g} seconds"
    return text if len(text) <= _MAX_REPORT_CHARS else "...\n" + text[-_MAX_REPORT_CHARS:]


def language_of(path: str) -> str:
    """Info string of a block with the file `path`."""
    suffix = PurePosixPath(path).suffix
    return _LANGUAGES.get(suffix, suffix.removeprefix(".") or "text")


def _ended(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"


def _longest_fence(text: str) -> int:
    longest = 0
    for line in text.splitlines():
        ticks = len(line.lstrip(" ")) - len(line.lstrip(" ").lstrip("`"))
        longest = max(longest, ticks)
    return longest if longest >= 3 else 0
