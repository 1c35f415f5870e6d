"""How a pool is built from packages."""

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from harness.pool.builder.bugs import BUGS
from harness.pool.index import PoolError


class WriterConfig(BaseModel):
    """A model that words the instructions. It is told what fails, never what was changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(description="base URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1")
    model: str = Field(description="name of the model there")
    key_variable: str = Field(default="OPENAI_API_KEY", description="environment variable with the key, if one is set")
    timeout_sec: float = Field(default=120.0, gt=0, description="seconds for one answer")
    attempts: int = Field(default=3, ge=1, description="answers asked for before the fixed wording is taken")

    @property
    def key(self) -> str:
        return os.environ.get(self.key_variable, "none")


class BuildConfig(BaseModel):
    """What makes a good task, and how much work is put into finding them. All but `workers` decides the result."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(default=0, ge=0, description="another seed tries other bugs")
    tasks_per_package: int = Field(default=40, ge=1, description="admitted tasks of a package at which it is done")
    candidates_per_task: int = Field(
        default=8, ge=1, description="bugs tried for each wanted task before a package is given up"
    )
    kinds: list[str] = Field(default=[], description="kinds of bugs; empty: all")
    double_share: float = Field(default=0.1, ge=0, le=1, description="part of the tried bugs that are two at once")
    per_function: int = Field(default=3, ge=1, description="admitted tasks with a bug in one function")
    most_failing: float = Field(
        default=0.5, gt=0, le=1, description="a bug that fails a larger part of the suite is a wreck, not a task"
    )
    suite_runs: int = Field(default=3, ge=2, description="runs of the suite that a test must pass, in both orders")
    test_seconds: float = Field(default=2.0, gt=0, description="processor time above which a test is left out")
    pass_to_pass: Literal["suite", "file"] = Field(
        default="suite", description="tests that must still pass: all, or those that run code of the changed file"
    )
    admission_runs: int = Field(
        default=3, ge=3, description="gradings of the bug and of the solution, each, that must agree"
    )
    agent_timeout: float = Field(default=900.0, gt=0, description="seconds that an agent gets")
    verifier_timeout: float = Field(default=60.0, gt=0, description="seconds that the hidden tests get")
    requirements: list[str] = Field(default=[], description="what the tests need besides, such as hypothesis==6.100")
    exclude: list[str] = Field(default=[], description="files that no snapshot gets, by pattern such as docs/*")
    only: list[str] = Field(default=[], description="files that get bugs, by pattern; empty: all that tests run")
    writer: WriterConfig | None = Field(default=None, description="a model for the instructions; none: fixed wording")
    workers: int | None = Field(default=None, ge=1, description="sandboxes at a time; none: one for each CPU")

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: list[str]) -> list[str]:
        if unknown := sorted(set(kinds) - set(BUGS)):
            raise ValueError(f"kinds of bugs {unknown} are unknown; choose of: {', '.join(BUGS)}")
        return kinds

    @property
    def at_a_time(self) -> int:
        return self.workers or os.cpu_count() or 1


def check_target(root: Path) -> None:
    """Refuse a folder that holds something else than a built pool.

    Raises:
        PoolError: it does.
    """
    if root.exists() and (not root.is_dir() or (any(root.iterdir()) and not (root / ".build").is_dir())):
        raise PoolError(f"{root} exists and is no built pool; give the pool a folder of its own")
