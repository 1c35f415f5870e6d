"""The sandbox of a task that names an image."""

from pathlib import Path

import pytest
from support.tasks import write_task

from harness.pool.environment import UnfitTask, sandbox_for
from harness.pool.task import Task
from harness.sandbox import SandboxConfig


def imaged(path: Path, python: str = "/opt/env/bin/python", workdir: str = "/testbed") -> Task:
    """A task in image hub/x:1."""
    file = write_task(path / "imaged") / "task.toml"
    text = file.read_text().replace("[metadata]\n", f'[metadata]\npython = "{python}"\n')
    file.write_text(f'{text}\n[environment]\ndocker_image = "hub/x:1"\nworkdir = "{workdir}"\n')
    return Task.load(file.parent)


@pytest.mark.parametrize("backend", ["docker", "kubernetes"])
def test_its_image_and_places_are_taken_over(tmp_path: Path, backend: str) -> None:
    config = SandboxConfig(backend=backend, memory_bytes=1 << 29)
    fitted = sandbox_for(imaged(tmp_path), config)
    assert getattr(fitted, backend).image == "hub/x:1"
    assert fitted.places == ("/workspace", "/testbed")
    assert (fitted.project_python, fitted.memory_bytes) == ("/opt/env/bin/python", 1 << 29)


def test_a_backend_without_images_refuses_and_names_the_mend(tmp_path: Path) -> None:
    with pytest.raises(UnfitTask, match=r"needs image hub/x:1: sandbox.backend bubblewrap runs no images; choose dock"):
        sandbox_for(imaged(tmp_path), SandboxConfig())


def test_images_can_be_ignored_where_nothing_of_them_is_needed(tmp_path: Path) -> None:
    config = SandboxConfig(task_images=False)
    assert sandbox_for(imaged(tmp_path), config) is config
    assert sandbox_for(Task.load(write_task(tmp_path / "plain")), SandboxConfig()) == SandboxConfig()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"python": "/testbed/.venv/bin/python"}, "which the workspace hides"), ({"workdir": "/usr/src"}, "would lie at")],
)
def test_places_that_cannot_be_used(tmp_path: Path, changes: dict[str, str], complaint: str) -> None:
    with pytest.raises(UnfitTask, match=complaint):
        sandbox_for(imaged(tmp_path, **changes), SandboxConfig(backend="docker"))
