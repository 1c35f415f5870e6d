"""Running git with no configuration but what is given here: none of this machine's, and none that runs a program."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_DATE = "2000-01-01T00:00:00+0000"
_WHO = "testgrad"
_MAIL = "testgrad@localhost"
_OPTIONS = {
    "core.hooksPath": os.devnull,
    "core.logAllRefUpdates": "false",
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.fsmonitor": "false",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "safe.directory": "*",
}


class GitError(ValueError):
    """git is missing, or refused; the message holds what it said."""


def run_git(folder: Path, *words: str, stdin: bytes = b"") -> bytes:
    """What `git WORDS` prints, run in `folder`. A repository that lies around `folder` is not looked for.

    Raises:
        GitError: git is not installed, or ended with an error.
    """
    settings = [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
    try:
        done = subprocess.run(
            ["git", *settings, "-C", str(folder), *words],
            capture_output=True,
            input=stdin,
            env=_environment(folder),
            timeout=600,
        )
    except FileNotFoundError as error:
        raise GitError("git is not installed here; install it") from error
    if done.returncode != 0:
        raise GitError(f"git {words[0]} failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout


def _environment(folder: Path) -> Mapping[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder.parent),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
        "GIT_AUTHOR_NAME": _WHO,
        "GIT_AUTHOR_EMAIL": _MAIL,
        "GIT_AUTHOR_DATE": _DATE,
        "GIT_COMMITTER_NAME": _WHO,
        "GIT_COMMITTER_EMAIL": _MAIL,
        "GIT_COMMITTER_DATE": _DATE,
    }
