"""Harbor's own tasks: a task folder, a folder of them, or a registry.json whose entries lie in local clones."""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.pool.importers.base import Candidate, ImportOptions, Rejected, Written, register_importer
from harness.pool.importers.patches import safe_path
from harness.pool.importers.repos import RepoFolder
from harness.pool.importers.values import ImportProblem
from harness.pool.index import PoolError, read_index
from harness.pool.task import Task, TaskConfig, TaskError, TaskPending, read_task_config

_PLAIN_DOCKERFILE = re.compile(
    r"(?:(?:FROM\s+(?P<image>\S+)|WORKDIR\s+(?P<workdir>\S+)|#.*|CMD\b.*|ENTRYPOINT\b.*)?\n)*"
)
_KEPT = ("difficulty", "language", "split", "repo", "source")
_DEPTH = 6
INDEX = "index.parquet"


@register_importer("harbor")
def harbor(source: Path, options: ImportOptions) -> Iterator[Candidate | Rejected]:
    """Harbor's task folders, and a registry.json with --repos for its git entries"""
    if source.is_file() and source.suffix == ".json":
        yield from _from_registry(source, options)
        return
    if not source.is_dir():
        raise PoolError(f"{source}: no folder of tasks and no registry.json; give one of these")
    rows = {}
    if (source / INDEX).is_file():
        rows = {row.task_path: row for row in read_index(source / INDEX)}
    folders = list(_task_folders(source.resolve(), _DEPTH))
    if not folders:
        raise PoolError(f"{source}: no folder in it holds an instruction.md; give the folder of the tasks")
    for folder in folders:
        origin = folder.relative_to(source.resolve().parent).as_posix()
        row = rows.get(folder)
        yield FolderCandidate(
            folder, row.instance_id if row else folder.name, origin, row.data_source if row else "harbor",
            row.extra if row else None,
        )  # fmt: skip


@dataclass(frozen=True)
class FolderCandidate:
    """A task folder to be copied. `known` is what an index beside it says."""

    folder: Path
    instance_id: str
    origin: str
    data_source: str = "harbor"
    known: Mapping[str, Any] | None = None

    @cached_property
    def digest(self) -> str:
        return folder_digest(self.folder)

    def write(self, folder: Path) -> Written:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}", self.instance_id):
            raise ImportProblem(f"{self.instance_id!r} is no safe name of a folder")
        _refuse_links(self.folder)
        shutil.copytree(self.folder, folder, symlinks=True)
        notes: list[str] = []
        try:
            notes += _name_its_image(folder)
            task = Task.load(folder)
            kind, config = task.grading.report, task.config
            if kind == "script":
                notes.append("names no tests: graded by tests/test.sh, which is less protected")
        except TaskPending:
            config = read_task_config(folder)
            kind = str(config.metadata.get("report", "script"))
        except TaskError as error:
            raise ImportProblem(str(error).replace(str(folder), "task")) from error
        return Written(self.data_source, self._extra(folder, config, kind), tuple(notes))

    def _extra(self, folder: Path, config: TaskConfig, kind: str) -> dict[str, Any]:
        ready = (folder / "environment" / "repo").is_dir()
        if self.known is not None:
            return dict(self.known) | ({"ready": ready} if "ready" in self.known else {})
        origin = config.metadata.get("origin")
        stored = (origin if isinstance(origin, dict) else {}) | config.metadata
        kept = {name: stored[name] for name in _KEPT if isinstance(stored.get(name), str)}
        image = config.environment.docker_image
        return kept | {"kind": kind, "ready": ready} | ({"image": image} if image else {})


@dataclass(frozen=True)
class CommitCandidate:
    """A task folder in a local clone, at a commit."""

    repos: Path
    repo: str
    commit: str
    path: str
    instance_id: str
    origin: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.repo} {self.commit} {self.path}".encode()).hexdigest()[:32]

    def write(self, folder: Path) -> Written:
        with tempfile.TemporaryDirectory(prefix="testgrad-registry-") as scratch:
            notes = RepoFolder(self.repos).write(self.repo, self.commit, Path(scratch))
            task = Path(scratch, safe_path(self.path))
            if not task.is_dir():
                raise ImportProblem(f"{self.repo} has no folder {self.path} at commit {self.commit}")
            written = FolderCandidate(task, self.instance_id, self.origin).write(folder)
        return Written(written.data_source, written.extra, (*notes, *written.notes))


def _from_registry(file: Path, options: ImportOptions) -> Iterator[Candidate | Rejected]:
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PoolError(f"{file} is not JSON ({error}); give Harbor's registry.json") from error
    for dataset in stored if isinstance(stored, list) else [stored]:
        if not isinstance(dataset, dict) or not isinstance(dataset.get("tasks"), list):
            raise PoolError(f"{file}: an entry has no list of tasks; give Harbor's registry.json")
        for number, task in enumerate(dataset["tasks"], start=1):
            origin = f"{dataset.get('name', file.stem)}#{number}"
            try:
                yield _registered(task, file.parent, origin, options)
            except ImportProblem as problem:
                name = task.get("name") if isinstance(task, dict) else None
                yield Rejected(str(name or "?"), origin, str(problem))


def _registered(task: Any, beside: Path, origin: str, options: ImportOptions) -> Candidate:
    if not isinstance(task, dict) or not isinstance(task.get("path"), str):
        raise ImportProblem("its entry has no path")
    name = str(task.get("name") or Path(task["path"]).name).rpartition("/")[2]
    path = safe_path(task["path"])
    url = task.get("git_url")
    if not url:
        if not (beside / path / "instruction.md").is_file():
            raise ImportProblem(f"{path} beside the registry is no task folder")
        return FolderCandidate((beside / path).resolve(), name, origin)
    repo = "/".join(re.split(r"[/:]", str(url).rstrip("/").removesuffix(".git"))[-2:])
    commit = task.get("git_commit_id")
    if options.repos is None:
        raise ImportProblem(f"it lies in {url}; clone that, and give --repos")
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        raise ImportProblem(f"git_commit_id is {commit!r}, not a commit: what it holds may change")
    return CommitCandidate(options.repos, repo, commit, path, name, origin)


def _task_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "instruction.md").is_file():
        yield folder
    elif depth:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                yield from _task_folders(child, depth - 1)


def _name_its_image(folder: Path) -> Iterator[str]:
    """Where only a Dockerfile tells the environment, write its image into task.toml.

    Raises:
        ImportProblem: the Dockerfile does more than choosing an image.
    """
    file = folder / "environment" / "Dockerfile"
    config = read_task_config(folder)
    if (folder / "environment" / "repo").is_dir() or config.environment.docker_image or not file.is_file():
        return
    match = _PLAIN_DOCKERFILE.fullmatch(file.read_text(encoding="utf-8", errors="replace").rstrip() + "\n")
    if match is None or not match["image"]:
        raise ImportProblem(
            "its environment is built by a Dockerfile; build and push that image, and name it in "
            "[environment] docker_image"
        )
    update = {"docker_image": match["image"], "workdir": config.environment.workdir or match["workdir"]}
    environment = config.environment.model_copy(update=update)
    text = config.model_copy(update={"environment": environment}).to_toml()
    (folder / "task.toml").write_text(text, encoding="utf-8")
    yield f"image {match['image']} taken from its Dockerfile"


def _refuse_links(folder: Path) -> None:
    top = folder.resolve()
    for entry in folder.rglob("*"):
        if entry.is_symlink() and not entry.resolve().is_relative_to(top):
            raise ImportProblem(f"{entry.relative_to(folder)} links out of the task; put a file in its place")


def folder_digest(folder: Path) -> str:
    """Digest of the names, contents and executable bits of all files of a folder; links count by their target."""
    digest = hashlib.sha256()
    for entry in sorted(folder.rglob("*")):
        name = entry.relative_to(folder).as_posix().encode("utf-8", "surrogateescape")
        if entry.is_symlink():
            digest.update(b"link\0" + name + b"\0" + str(entry.readlink()).encode() + b"\0")
        elif entry.is_file():
            mode = b"x" if entry.stat().st_mode & 0o100 else b"-"
            digest.update(mode + name + b"\0" + hashlib.sha256(entry.read_bytes()).digest())
    return digest.hexdigest()[:32]
