"""A kept bug as a task folder in Harbor's format, and the check that nothing of the clean package is left in it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from harness.pool.builder.config import BuildConfig
from harness.pool.builder.layout import LEFTOVERS, Layout
from harness.pool.builder.store import write_tree
from harness.pool.builder.vendor import VENDOR
from harness.pool.importers.scripts import check_script, dockerfile, solve_script
from harness.pool.kinds import split_pytest_id
from harness.pool.schema import (
    AgentSection,
    EnvironmentSection,
    Grading,
    TaskConfig,
    TaskSection,
    VerifierSection,
)
from harness.pool.snapshot import NEVER_SENT

TASK_FORMAT = 1
"""To be raised when a task is written or worded otherwise: those of earlier builds are then made again."""


@dataclass(frozen=True)
class BrokenPackage:
    """A package with a bug: the changed file, its text before and after, and the tests that tell them apart."""

    layout: Layout
    file: str
    clean: str
    broken: str
    fail_to_pass: Sequence[str]
    pass_to_pass: Sequence[str]


def write_built_task(
    folder: Path, task_id: str, instruction: str, broken: BrokenPackage, facts: Mapping[str, Any], config: BuildConfig
) -> None:
    """Write the task at `folder`; `facts` go to its metadata."""
    expected = [*broken.fail_to_pass, *broken.pass_to_pass]
    grading = Grading(
        report="pytest",
        fail_to_pass=list(broken.fail_to_pass),
        pass_to_pass=list(broken.pass_to_pass),
        # Dependencies can be read, but whoever could change them could bend the tests.
        visible_tests=[path for path in broken.layout.vendored if path.endswith(".py")],
    )
    task = TaskConfig(
        task=TaskSection(name=f"built/{task_id.replace('+', '-')}", keywords=["python", "repair"]),
        metadata=dict(facts) | grading.model_dump(exclude_none=True),
        agent=AgentSection(timeout_sec=config.agent_timeout, network_mode="no-network"),
        verifier=VerifierSection(timeout_sec=config.verifier_timeout, network_mode="no-network"),
        environment=EnvironmentSection(network_mode="no-network"),
    )
    image = dockerfile(None, "/workspace", True) + f"RUN pip install --no-cache-dir pytest=={version('pytest')}\n"
    files = {
        "instruction.md": instruction.encode(),
        "task.toml": task.to_toml().encode(),
        "environment/Dockerfile": image.encode(),
        "tests/test.sh": check_script(grading, "/workspace", None).encode(),
        "solution/solve.sh": solve_script("/workspace", None).encode(),
        f"solution/files/{broken.file}": broken.clean.encode(),
    }
    files |= {f"environment/repo/{path}": data for path, data in broken.layout.files.items()}
    files[f"environment/repo/{broken.file}"] = broken.broken.encode()
    files |= {f"tests/{path}": data for path, data in needed_tests(broken.layout, expected).items()}
    write_tree(folder, files)
    for script in ("tests/test.sh", "solution/solve.sh"):
        (folder / script).chmod(0o755)


def needed_tests(layout: Layout, expected: Sequence[str]) -> dict[str, bytes]:
    """The hidden files that the tests `expected` need: their own, and whatever is no test by itself."""
    wanted = {split_pytest_id(test)[0] for test in expected}
    tops = {PurePosixPath(path).parts[0] for path in wanted}
    kept = {}
    for path, data in layout.hidden.items():
        beside = PurePosixPath(path).parts[0] in tops or "/" not in path
        if path in wanted or (path not in layout.test_files and beside):
            kept[path] = data
    return kept


def traces(folder: Path, clean: str) -> list[str]:
    """What in a task's snapshot could give the clean text away: history, caches, backups, archives, copies."""
    repo = folder / "environment" / "repo"
    found = []
    for place, folders, names in os.walk(repo):
        here = Path(place).relative_to(repo)
        found += [str(here / name) for name in (*folders, *names) if name in NEVER_SENT]
        if here.parts[:1] != (VENDOR,):  # what others' packages bring along tells nothing of this one
            found += [str(here / name) for name in names if name.endswith(LEFTOVERS)]
        for name in names:
            if name.endswith(".py") and (Path(place) / name).read_bytes() == clean.encode():
                found.append(f"{here / name} is the clean file")
    return found
