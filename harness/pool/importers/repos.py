"""Snapshots from local repositories: the files of a commit, byte for byte, without its history.

The objects are read one by one and not with `git archive` or a checkout: a repository's own attributes would leave
files out of the one, and run filters in the other.
"""

import os
import re
from pathlib import Path

from harness.pool.git import GitError, run_git
from harness.pool.importers.patches import safe_path
from harness.pool.importers.values import ImportProblem

_COMMIT = re.compile(r"[0-9a-fA-F]{7,40}([~^][0-9]*)?")


class RepoFolder:
    """A folder of clones, bare or not, named owner/name, owner__name or name, with or without `.git` behind it."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ImportProblem(f"{folder}: no such folder of repositories")
        self.folder = folder

    def find(self, repo: str) -> Path | None:
        """The clone of `repo`, None if there is none. For a name without an owner, the only clone of that name.

        Raises:
            ImportProblem: the name leads out of the folder.
        """
        safe_path(repo)
        found = [place for name in _names(repo) for place in self._places(name) if _is_clone(place)]
        if not found and "/" not in repo:
            places = (place for suffix in ("", ".git") for place in self.folder.glob(f"*__{repo}{suffix}"))
            deeper = (place for suffix in ("", ".git") for place in self.folder.glob(f"*/{repo}{suffix}"))
            clones = [place for place in (*places, *deeper) if _is_clone(place)]
            return clones[0] if len(clones) == 1 else None
        return found[0] if found else None

    def _places(self, name: str) -> tuple[Path, Path]:
        return self.folder / name, self.folder / f"{name}.git"

    def write(self, repo: str, commit: str, target: Path) -> list[str]:
        """Write the files of `commit` below `target`; returns what had to be left out.

        Raises:
            ImportProblem: there is no such repository or commit, or it names a path that leads out.
        """
        if not _COMMIT.fullmatch(commit):
            raise ImportProblem(f"{commit[:60]!r} is no commit")
        clone = self.find(repo)
        if clone is None:
            raise ImportProblem(
                f"no clone of {repo} in {self.folder}, or several; put one there: git clone --bare, as "
                f"{_names(repo)[0].replace('/', '__')}.git"
            )
        try:
            tree = run_git(clone, "ls-tree", "-r", "-z", "--full-tree", f"{commit}^{{commit}}")
        except GitError as error:
            raise ImportProblem(f"{clone} has no commit {commit}; fetch it there ({error})") from error
        entries = [_entry(line) for line in tree.split(b"\0") if line]
        wanted = [entry for entry in entries if entry[1] == "blob"]
        notes = [f"submodule {path} left out" for _, kind, _, path in entries if kind == "commit"]
        blobs = _read_blobs(clone, [digest for _, _, digest, _ in wanted])
        for (mode, _, _, path), data in zip(wanted, blobs, strict=True):
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if mode == "120000":
                if not _stays_inside(path, data):
                    notes.append(f"link {path} left out: it leads out of the repository")
                    continue
                file.symlink_to(os.fsdecode(data))
                continue
            file.write_bytes(data)
            if mode == "100755":
                file.chmod(0o755)
        return notes


def _names(repo: str) -> list[str]:
    """Names under which a clone may lie, the most telling first. SWE-smith's mirrors are owner__name.commit."""
    owner, _, name = repo.rpartition("/")
    if owner == "swesmith":
        owner, _, plain = name.rpartition(".")[0].rpartition("__")
    else:
        plain = name
    return list(dict.fromkeys([repo, *([f"{owner}__{plain}", f"{owner}/{plain}"] if owner else []), name, plain]))


def _is_clone(place: Path) -> bool:
    return (place / ".git").exists() or (place / "objects").is_dir()


def _entry(line: bytes) -> tuple[str, str, str, str]:
    head, _, path = line.partition(b"\t")
    mode, kind, digest = head.decode("ascii").split()
    return mode, kind, digest, safe_path(path.decode("utf-8", "surrogateescape"))


def _read_blobs(clone: Path, digests: list[str]) -> list[bytes]:
    output = run_git(clone, "cat-file", "--batch", stdin="".join(f"{digest}\n" for digest in digests).encode())
    blobs, at = [], 0
    for digest in digests:
        end = output.index(b"\n", at)
        _, kind, *size = output[at:end].split()
        if kind != b"blob":
            raise ImportProblem(f"{clone}: object {digest} is missing; fetch it there, without a filter")
        at = end + 1 + int(size[0])
        blobs.append(output[end + 1 : at])
        at += 1
    return blobs


def _stays_inside(path: str, target: bytes) -> bool:
    leads_to = os.path.normpath(os.path.join(os.path.dirname(path), os.fsdecode(target)))
    return not target.startswith(b"/") and leads_to != ".." and not leads_to.startswith("../")
