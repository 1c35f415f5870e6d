"""What an importer is: it reads rows or folders of somebody's data set and yields candidates for tasks.

A candidate that cannot be a task is never left out in silence: `ImportProblem` says why, and the run of the import
reports its id and reason. A user's own importer is a function with `@register_rows("name")`, which turns one row into a
`Draft`, in a module that `--plugin` names.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.pool.importers.draft import Draft
from harness.pool.importers.rows import BadRow, read_rows
from harness.pool.importers.values import ImportProblem, Row


@dataclass(frozen=True)
class ImportOptions:
    """What all importers are told. Times are seconds.

    `repos` is a folder of local clones or checkouts, from which snapshots are made; without it, a task's snapshot stays
    in its image until `fill_task` puts it in.
    """

    repos: Path | None = None
    agent_timeout: float = 1800.0
    verifier_timeout: float = 1800.0


@dataclass(frozen=True)
class Rejected:
    """A row or folder that is no task, where it stands, and why."""

    instance_id: str
    origin: str
    reason: str


@dataclass(frozen=True)
class Written:
    """A task that was written: what its row of the index says beyond id and path, and what people should know of it."""

    data_source: str
    extra: dict[str, Any]
    notes: tuple[str, ...] = ()


class Candidate(Protocol):
    """Something that may become a task. `digest` changes with its content and with the options that it is read with."""

    @property
    def instance_id(self) -> str: ...

    @property
    def origin(self) -> str: ...

    @property
    def digest(self) -> str: ...

    def write(self, folder: Path) -> Written:
        """Write the task at `folder`, which must not exist yet.

        Raises:
            ImportProblem: it is no task; whatever was written is to be removed.
        """


Read = Callable[[Path, ImportOptions], Iterator[Candidate | Rejected]]


@dataclass(frozen=True)
class Importer:
    """`read(source, options)` yields what lies at `source`, in its order; `about` is one line for people."""

    name: str
    about: str
    read: Read


IMPORTERS: dict[str, Importer] = {}
"""Importers by the name that `testgrad pool import` is given."""


def register_importer(name: str) -> Callable[[Read], Read]:
    """Function decorator: make a reader of sources known as `name`. Its docstring's first line is shown to people."""

    def register(read: Read) -> Read:
        if name in IMPORTERS:
            raise ValueError(f"importer {name!r} is registered twice; choose another name")
        IMPORTERS[name] = Importer(name, _first_line(read), read)
        return read

    return register


def register_rows(name: str) -> Callable[[Callable[[Row], Draft]], Callable[[Row], Draft]]:
    """Function decorator: make an importer of a data set's rows known as `name`.

    The function turns one row into a `Draft` or raises ImportProblem; it never touches files.
    """

    def register(convert: Callable[[Row], Draft]) -> Callable[[Row], Draft]:
        def read(source: Path, options: ImportOptions) -> Iterator[Candidate | Rejected]:
            from harness.pool.importers.row_candidate import RowCandidate

            for found in read_rows(source):
                if isinstance(found, BadRow):
                    yield Rejected("?", found.origin, found.reason)
                    continue
                row = Row(found.values, found.origin)
                try:
                    yield RowCandidate(name, row, convert(row), options)
                except ImportProblem as problem:
                    yield Rejected(row.label, found.origin, str(problem))

        read.__doc__ = convert.__doc__
        register_importer(name)(read)
        return convert

    return register


def _first_line(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0]
