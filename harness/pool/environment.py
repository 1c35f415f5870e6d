"""The sandbox that a task asks for: its own image in place of the configured one, and where things are in it."""

from pathlib import PurePosixPath

from harness.pool.task import Task, TaskEnvironment, TaskError
from harness.sandbox import WORKSPACE, SandboxConfig, SandboxUnavailable, with_image
from harness.sandbox.base import check_mount


class UnfitTask(TaskError):
    """A task that cannot be run in the configured sandbox; the message names the mend."""


def sandbox_for(task: Task, config: SandboxConfig) -> SandboxConfig:
    """`config` as the agent's and the grader's sandboxes of `task` need it; unchanged if the task names no image.

    Both start from the image. The workspace lies over the folder in which the image has its repository: what is
    installed there in place finds the workspace's files, and the image's own, with their history, are out of sight.

    Raises:
        UnfitTask: the backend runs no images, or the image has something where it cannot be used.
    """
    wanted = task.environment
    if wanted.image is None or not config.task_images:
        return config
    try:
        config = with_image(config, wanted.image)
        check_environment(wanted)
    except (SandboxUnavailable, ValueError) as error:
        raise UnfitTask(f"{task.path} needs image {wanted.image}: {error}") from error
    return config.model_copy(update={"workdir": wanted.workdir, "project_python": wanted.python})


def check_environment(environment: TaskEnvironment) -> None:
    """Refuse an image whose repository the workspace cannot lie over.

    Raises:
        ValueError: its folder is a part of the system, or the interpreter is in it and would be hidden.
    """
    workdir = environment.workdir
    if workdir is None:
        return
    if workdir != WORKSPACE:
        check_mount(workdir)
    if is_below(environment.python, workdir):
        raise ValueError(
            f"its interpreter {environment.python} lies below the repository's folder {workdir}, which the workspace "
            "hides; import it again and fill it by `testgrad pool fill --images`, which moves the interpreter"
        )


def is_below(python: str | None, workdir: str) -> bool:
    """Whether an interpreter lies in the repository's folder."""
    return python is not None and PurePosixPath(python).is_relative_to(workdir)
