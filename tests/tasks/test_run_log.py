"""The structured log: whose each record is, that it stays bounded, and that a follower misses nothing."""

import itertools
import json
import logging
import threading
from pathlib import Path

import pytest
from support.journals import make_run

from harness.sandbox.owner import owned_by
from tasks import run_log
from tasks.progress import Event, emit
from tasks.run_log import NAME, logging_to, read_log

log = logging.getLogger("harness.something")


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def test_records_say_of_which_run_and_trial_they_are(run, caplog):
    with logging_to(run) as path:
        with owned_by(trial="task-12ab"):
            log.warning("a %s", "word")
        emit(Event("note", "", "something to know"))
        emit(Event("trials", "step_000001", done=1, total=4))
        logging.getLogger("elsewhere").error("not ours")
        try:
            raise ValueError("bad")
        except ValueError:
            log.exception("it broke")
    log.error("after the run")
    assert "something to know" not in caplog.text  # people are shown it already
    first, note, broken = read_log(path.parent)
    assert (first["message"], first["trial"], first["run"]) == ("a word", "task-12ab", run.name)
    assert first["level"] == "WARNING" and first["logger"] == "harness.something"
    assert note["message"] == "something to know" and "trial" not in note
    assert "ValueError: bad" in broken["exception"]


def test_a_follower_opens_a_file_in_the_moment_in_which_it_is_renamed(tmp_path, monkeypatch):
    path = tmp_path / NAME
    path.write_text('{"message": "1"}\n')
    opened, naps = Path.open, itertools.count()

    def renamed_meanwhile(self, *given, **options):
        file = opened(self, *given, **options)
        monkeypatch.setattr(Path, "open", opened)
        path.rename(tmp_path / f"{NAME}.1")
        path.write_text('{"message": "2"}\n')
        return file

    def nap(_):
        assert next(naps) < 5, "it waits on a file that nobody writes to any more"

    monkeypatch.setattr(Path, "open", renamed_meanwhile)
    monkeypatch.setattr(run_log.time, "sleep", nap)
    assert [record["message"] for record in itertools.islice(run_log._follow(path, 0.0), 2)] == ["1", "2"]


def test_the_log_is_bounded_and_read_over_its_files(run, monkeypatch):
    monkeypatch.setattr(run_log, "MAX_BYTES", 2000)
    with logging_to(run) as path:
        for number in range(200):
            log.warning("%d", number)
    files = sorted(path.parent.glob(f"{NAME}*"))
    assert len(files) == run_log.FILES + 1 and all(file.stat().st_size <= 2000 for file in files)
    numbers = [int(record["message"]) for record in read_log(path.parent)]
    assert numbers == list(range(numbers[0], 200)) and len(numbers) > 20


def test_a_follower_sees_every_record_over_renamed_files_and_no_half_line(run, monkeypatch):
    monkeypatch.setattr(run_log, "MAX_BYTES", 20000)
    with logging_to(run) as path:
        log.warning("0")
        with path.open("a") as file:
            file.write('{"cut off\n[1]\n')
        seen, got_first = [], threading.Event()

        def follow():
            for record in itertools.islice(read_log(path.parent, follow=True, poll=0.001), 100):
                seen.append(record["message"])
                got_first.set()

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        assert got_first.wait(60)
        for number in range(1, 60):
            log.warning("%d", number)
        path.rename(path.with_name(f"{NAME}.1"))
        with path.open("a") as file:
            for number in range(60, 100):
                file.write(json.dumps({"message": str(number)}) + "\n")
        follower.join(60)
    assert seen == [str(number) for number in range(100)]


def test_a_follower_loses_nothing_that_is_written_just_before_the_file_is_renamed(tmp_path, monkeypatch):
    path, replaced = tmp_path / NAME, run_log._replaced
    path.write_text('{"message": "1"}\n')

    def renamed_after_the_last_look(path, inode):
        if not path.with_name(f"{NAME}.1").exists():
            with path.open("a") as file:
                file.write('{"message": "2"}\n')
            path.rename(path.with_name(f"{NAME}.1"))
            assert not replaced(path, inode), "renamed, and none in its place yet"
            path.write_text('{"message": "3"}\n')
        return replaced(path, inode)

    monkeypatch.setattr(run_log, "_replaced", renamed_after_the_last_look)
    records = itertools.islice(run_log._follow(path, 0.0), 3)
    assert [record["message"] for record in records] == ["1", "2", "3"]
