"""A row of a data set as a candidate for a task."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.pool.importers.base import ImportOptions, Written
from harness.pool.importers.draft import Draft
from harness.pool.importers.folder import finish_task, write_pending
from harness.pool.importers.repos import RepoFolder
from harness.pool.importers.values import ImportProblem, Row
from harness.pool.task import read_task_config


@dataclass(frozen=True)
class RowCandidate:
    """`importer` read `row` as `draft`."""

    importer: str
    row: Row
    draft: Draft
    options: ImportOptions

    @property
    def instance_id(self) -> str:
        return self.draft.instance_id

    @property
    def origin(self) -> str:
        return self.row.origin

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.importer} {self.options} {self.row.digest}".encode()).hexdigest()[:32]

    def write(self, folder: Path) -> Written:
        draft, options = self.draft, self.options
        if draft.image is None and options.repos is None:
            raise ImportProblem(
                "no image: the row names none and none follows from its id; give --repos with a clone of its repository"
            )
        notes = [*draft.notes, *write_pending(
            draft, folder, self.importer, options.agent_timeout, options.verifier_timeout
        )]  # fmt: skip
        if options.repos is not None:
            if not draft.base_commit:
                raise ImportProblem("no base_commit: which files the agent starts from is not said")
            repo = folder / "environment" / "repo"
            repo.mkdir()
            notes += RepoFolder(options.repos).write(draft.repo, draft.base_commit, repo)
            notes += finish_task(folder)
        return Written(self.importer, self._extra(folder), tuple(notes))

    def _extra(self, folder: Path) -> dict[str, Any]:
        config = read_task_config(folder)
        facts = {
            "repo": self.draft.repo,
            "source": self.row.origin.rpartition("#")[0],
            "kind": config.metadata["report"],
            "image": self.draft.image,
            "ready": (folder / "environment" / "repo").is_dir(),
        }
        return {name: value for name, value in (facts | dict(self.draft.extra)).items() if value is not None}
