"""Folders of private Ray clusters whose process was killed together with its guardian, so that nobody removed them."""

import os
import shutil
import stat
from functools import partial
from pathlib import Path

import psutil

from harness.reaper import Sweep
from harness.sandbox.leftovers import Leftover
from harness.sandbox.owner import PREFIX
from trainer.placement import FOLDER, cluster_base


def sweep_cluster_folders(sweep: Sweep, *, apply: bool) -> None:
    """Add to `sweep` the folders of this user's dead processes; remove them with `apply`."""
    folders = [found for path in sorted(Path(cluster_base()).glob(f"{FOLDER}*")) if (found := _dead(path))]
    sweep.found += folders
    for folder in folders if apply else []:
        try:
            folder.remove()
        except OSError as error:
            sweep.failed[folder.name] = str(error)


def _dead(path: Path) -> Leftover | None:
    """A pid that is used again keeps a folder: it may be that of a living cluster."""
    pid = path.name.removeprefix(FOLDER).partition("-")[0]
    try:
        status = path.lstat()
    except FileNotFoundError:  # removed meanwhile
        return None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return None
    if not pid.isdecimal() or psutil.pid_exists(int(pid)):
        return None
    return Leftover("ray", "folder", str(path), {PREFIX + "pid": pid}, status.st_mtime, partial(_remove, path))


def _remove(path: Path) -> None:
    if _dead(path) is not None:
        shutil.rmtree(path)
