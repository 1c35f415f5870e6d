"""A snapshot's digest changes with all that a sandbox gets of it, and with nothing else."""

import pytest
from support.journals import make_run
from support.tasks import write_task

from harness.pool.index import TaskPointer
from tasks.draw import as_groups, groups_table
from tasks.journal import read_json, write_table
from tasks.snapshots import record_snapshots, snapshot_digest


@pytest.fixture
def snapshot(tmp_path):
    root = tmp_path / "repo"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text("a = 1\n")
    (root / "run.sh").write_text("true\n")
    (root / "link").symlink_to("pkg/a.py")
    (root / "folder").symlink_to("pkg")
    return root


CHANGES = {
    "content": lambda r: (r / "pkg" / "a.py").write_text("a = 2\n"),
    "name": lambda r: (r / "pkg" / "a.py").rename(r / "pkg" / "b.py"),
    "place": lambda r: (r / "pkg" / "a.py").rename(r / "a.py"),
    "new file": lambda r: (r / "new").touch(),
    "lost file": lambda r: (r / "run.sh").unlink(),
    "executable": lambda r: (r / "run.sh").chmod(0o755),
    "a link to another file": lambda r: ((r / "link").unlink(), (r / "link").symlink_to("run.sh")),
    "a link to another folder": lambda r: ((r / "folder").unlink(), (r / "folder").symlink_to(".")),
    "a file in the place of a link": lambda r: ((r / "link").unlink(), (r / "link").write_text("a = 1\n")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_it_changes_with(snapshot, change):
    before = snapshot_digest(snapshot)
    CHANGES[change](snapshot)
    assert snapshot_digest(snapshot) != before


def test_history_caches_and_times_do_not_count(snapshot):
    before = snapshot_digest(snapshot)
    (snapshot / ".git").mkdir()
    (snapshot / ".git" / "index").write_text("x")
    (snapshot / "pkg" / "__pycache__").mkdir()
    (snapshot / "pkg" / "__pycache__" / "a.pyc").write_text("x")
    (snapshot / "run.sh").touch()
    assert snapshot_digest(snapshot) == before


async def test_what_an_evaluation_records_stays_as_it_was(tmp_path):
    run, label = make_run(tmp_path), "eval_step_000002"
    pool = [TaskPointer(name, write_task(tmp_path / "pool" / name)) for name in ("a", "b")]
    folder = run.journal.stage_dir(label)
    write_table(folder / "groups.parquet", groups_table(as_groups(pool, label, 2)))
    assert await record_snapshots.fn(run, label) == 2
    recorded = read_json(folder / "snapshots.json")
    snapshot = tmp_path / "pool" / "a" / "environment" / "repo"
    assert recorded == dict.fromkeys(("a", "b"), snapshot_digest(snapshot))
    (snapshot / "solution.py").write_text("x = 1\n")
    await record_snapshots.fn(run, label)
    assert read_json(folder / "snapshots.json") == recorded
