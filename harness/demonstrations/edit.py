"""Demonstrations for the scaffold `edit`: one answer, with each file that the fix changes, whole, in a block."""

import re

from harness.demonstrations.base import DemonstrationError, register_demonstrator
from harness.pool.task import Task
from harness.scaffolds.base import ScaffoldConfig
from harness.scaffolds.edit import Prompt, language_of, shown_files
from harness.scaffolds.fences import Edit, read_edits, refusal


@register_demonstrator("edit")
def edit_answers(task: Task, config: ScaffoldConfig) -> list[str]:
    """See `harness.demonstrations.demonstrate`."""
    files = shown_files(task)
    if files is None:
        raise DemonstrationError(f"{task.task_id}: the repository is too large to be shown")
    prompt = Prompt(task.instruction, files)
    edits = _edits(task, files)
    ticks = _ticks(prompt, edits)
    answer = "\n".join(_block(edit, ticks, named=len(files) > 1) for edit in edits)
    read, problems = read_edits(answer, list(files), cut=False)
    if problems or sorted(read, key=lambda e: e.path) != edits or any(stop in answer for stop in prompt.stop):
        raise DemonstrationError(f"{task.task_id}: the fix holds fences at which an answer to this prompt would end")
    return [answer]


def _edits(task: Task, files: dict[str, str]) -> list[Edit]:
    """What the fix changes, by path, each text ending in a newline as a block's does."""
    changes = task.solution_changes()
    if not changes:
        raise DemonstrationError(f"{task.task_id}: it ships no solved files (solution/files), so there is no known fix")
    edits = []
    for path, content in sorted(changes.items()):
        if content is None:
            raise DemonstrationError(f"{task.task_id}: the fix deletes {path}, which an answer cannot do")
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise DemonstrationError(f"{task.task_id}: {path} is not UTF-8, so no answer can hold it") from error
        if text == files.get(path):
            continue
        if reason := refusal(path, task.snapshot, list(files)):
            raise DemonstrationError(f"{task.task_id}: the fix changes {path}: {reason}")
        edits.append(Edit(path, text if text.endswith("\n") else f"{text}\n"))
    if not edits:
        raise DemonstrationError(f"{task.task_id}: the solved files are those of the snapshot; there is nothing to fix")
    return edits


def _block(edit: Edit, ticks: str, *, named: bool) -> str:
    info = f"{language_of(edit.path)} {edit.path}" if named else language_of(edit.path)
    return f"{ticks}{info}\n{edit.text}{ticks}"


def _ticks(prompt: Prompt, edits: list[Edit]) -> str:
    """A fence as long as the prompt's, or longer than any that the fix holds."""
    held = [len(run) for edit in edits for run in re.findall("`+", edit.text)]
    return "`" * max([prompt.fence.count("`"), *(length + 1 for length in held)])
