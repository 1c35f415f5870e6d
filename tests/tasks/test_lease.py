"""One process works on a run at a time; a dead one's lease is taken over, and a lost one is noticed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

import pytest

from tasks import lease as module
from tasks.lease import NAME, Holder, LeaseError, last_holder, lease, living_holder

HOLD = """
import sys, time
from pathlib import Path
from tasks.lease import lease
with lease(Path(sys.argv[1]), "train"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_start_is_refused_and_told_who_holds_the_run(tmp_path):
    root = tmp_path / "run"
    with lease(root, "train") as holder:
        assert holder.pid == os.getpid() and living_holder(root) == holder
        with pytest.raises(LeaseError, match=rf"process {os.getpid()} on .*\(train, since .*stop it"), lease(root, "x"):
            pass
        assert living_holder(root) == holder
    assert living_holder(root) is None and last_holder(root) is None
    with lease(root, "evaluate"):
        pass
    assert not list(root.glob("*.probe"))


def test_the_lease_of_a_killed_process_is_taken_over_at_once(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    with pytest.raises(LeaseError, match=f"process {process.pid} "), lease(tmp_path, "train"):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert last_holder(tmp_path) is not None and living_holder(tmp_path) is None
    with lease(tmp_path, "train") as holder:
        assert holder.pid == os.getpid()


def elsewhere(root, age):
    """A holder on another host, whose last heartbeat is `age` seconds old."""
    holder = Holder("another.4026531836", 1, "boot.1", "train", "2026-01-01T00:00:00+00:00")
    (root / NAME).write_text(json.dumps(asdict(holder)))
    stamp = time.time() - age
    os.utime(root / NAME, (stamp, stamp))
    return holder


def test_another_host_is_known_by_its_heartbeat(tmp_path):
    holder = elsewhere(tmp_path, age=module.STALE / 2)
    assert living_holder(tmp_path) == holder
    with pytest.raises(LeaseError, match="on another "), lease(tmp_path, "train"):
        pass
    elsewhere(tmp_path, age=module.STALE * 2)
    with lease(tmp_path, "train") as mine:
        assert living_holder(tmp_path) == mine


def test_the_heart_beats_and_a_lease_that_was_taken_over_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BEAT", 0.01)
    noticed = threading.Event()
    with lease(tmp_path, "train", lost=noticed.set) as mine:
        os.utime(tmp_path / NAME, (0, 0))
        while (tmp_path / NAME).stat().st_mtime == 0:
            assert not noticed.wait(0.01)
        other = replace(mine, pid=mine.pid + 1)
        with module._locked(tmp_path):
            (tmp_path / NAME).write_text(json.dumps(asdict(other)))
        assert noticed.wait(60)
    assert last_holder(tmp_path) == other  # it is not ours to give back
