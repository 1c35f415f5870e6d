"""Harbor's folders: what is read from them, what is written as them, and that both are the same."""

import json
import shutil

import pytest

from harness.pool.importers import ImportOptions, export_pool, import_pool
from harness.pool.importers.harbor import folder_digest
from harness.pool.index import PoolError, TaskPointer, read_index, write_index
from harness.pool.schema import TaskConfig, unknown_keys
from harness.pool.task import Task, read_task_config


def same(rows, others):
    """Whether two indexes say the same of tasks whose every file is the same."""
    facts = [
        [(r.instance_id, r.data_source, r.extra, folder_digest(r.task_path)) for r in part] for part in (rows, others)
    ]
    return facts[0] == facts[1]


def import_harbor(source, target, repos=None):
    return import_pool("harbor", source, target, ImportOptions(repos))


def test_a_pool_comes_back_from_its_export(tmp_path, small_pool):
    done, rejected = export_pool(small_pool, tmp_path / "out")
    assert rejected == [] and len(done) == len(small_pool)
    report = import_harbor(tmp_path / "out", tmp_path / "back")
    assert report.rejected == ()
    assert same(small_pool, report.pointers)
    assert same(small_pool, read_index(tmp_path / "back/index.parquet"))


@pytest.mark.parametrize("filled", [True, False])
def test_an_imported_pool_comes_back_too(tmp_path, row, library, filled):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    options = ImportOptions(library.repos if filled else None)
    first = import_pool("swe_bench", tmp_path / "rows.jsonl", tmp_path / "pool", options)
    export_pool(first.pointers, tmp_path / "out")
    report = import_harbor(tmp_path / "out", tmp_path / "back")
    assert report.rejected == () and same(first.pointers, report.pointers)


def test_an_export_is_a_pool_of_its_own_and_can_be_moved(tmp_path, small_pool):
    export_pool(small_pool, tmp_path / "out")
    shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    assert same(small_pool, read_index(tmp_path / "elsewhere/index.parquet"))
    assert all(Task.load(row.task_path) for row in read_index(tmp_path / "elsewhere/index.parquet"))


def test_an_export_has_what_harbor_runs_and_no_key_it_does_not_know(tmp_path, row, library):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    report = import_pool("swe_bench", tmp_path / "rows.jsonl", tmp_path / "pool", ImportOptions(library.repos))
    export_pool(report.pointers, tmp_path / "out")
    folder = tmp_path / "out/acme__mathy-1"
    for name in ("instruction.md", "task.toml", "environment/Dockerfile", "tests/test.sh", "solution/solve.sh"):
        assert (folder / name).is_file(), name
    for name in ("tests/test.sh", "solution/solve.sh"):
        assert (folder / name).stat().st_mode & 0o100, name
    config = read_task_config(folder)
    assert unknown_keys(config) == [] and config.schema_version == "1.4"
    assert config.environment.docker_image == "swebench/sweb.eval.x86_64.acme_1776_mathy-1:latest"
    assert (folder / "environment/Dockerfile").read_text().startswith(f"FROM {config.environment.docker_image}\n")


def test_exporting_again_changes_nothing_and_never_overwrites(tmp_path, small_pool):
    export_pool(small_pool, tmp_path / "out")
    export_pool(small_pool, tmp_path / "out")
    (tmp_path / "out" / small_pool[0].instance_id / "instruction.md").write_text("mine")
    with pytest.raises(PoolError, match="holds something else"):
        export_pool(small_pool, tmp_path / "out")


def test_what_harbor_cannot_run_is_told(tmp_path, small_pool):
    broken = tmp_path / "broken"
    shutil.copytree(small_pool[0].task_path, broken)
    (broken / "solution/solve.sh").unlink()
    done, rejected = export_pool([*small_pool, TaskPointer("broken", broken)], tmp_path / "out")
    assert len(done) == len(small_pool)
    assert [entry.instance_id for entry in rejected] == ["broken"] and "no solution/solve.sh" in rejected[0].reason
    with pytest.raises(PoolError, match="none of the 1 tasks"):
        export_pool([TaskPointer("broken", broken)], tmp_path / "none")


def test_a_folder_of_tasks_needs_no_index(tmp_path, small_pool):
    export_pool(small_pool, tmp_path / "out")
    (tmp_path / "out/index.parquet").unlink()
    report = import_harbor(tmp_path / "out", tmp_path / "back")
    assert [row.instance_id for row in report.pointers] == [row.instance_id for row in small_pool]
    assert report.pointers[0].data_source == "harbor"
    assert report.pointers[0].extra == {
        "difficulty": small_pool[0].extra["difficulty"],
        "kind": "unittest",
        "ready": True,
    }
    alone = import_harbor(tmp_path / "out" / small_pool[0].instance_id, tmp_path / "alone")
    assert len(alone.pointers) == 1


def harbor_task(folder, dockerfile="FROM ubuntu:24.04\nWORKDIR /app\n", toml='[task]\nname = "org/a"\n'):
    for name, text in {
        "instruction.md": "Do it.",
        "task.toml": toml,
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt",
        "solution/solve.sh": "true",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_harbors_own_tasks_keep_their_snapshot_in_an_image(tmp_path):
    harbor_task(tmp_path / "set/plain")
    harbor_task(
        tmp_path / "set/deep/named", "RUN make\n", '[task]\nname = "o/b"\n[environment]\ndocker_image = "me/img:1"\n'
    )
    harbor_task(tmp_path / "set/built", "FROM ubuntu\nRUN apt-get install x\n")
    harbor_task(tmp_path / "set/steps", toml='[task]\nname = "o/c"\n[[steps]]\nname = "s"\n')
    report = import_harbor(tmp_path / "set", tmp_path / "pool")
    images = {row.instance_id: (row.extra["image"], row.extra["ready"]) for row in report.pointers}
    assert images == {"plain": ("ubuntu:24.04", False), "named": ("me/img:1", False)}
    config = read_task_config(tmp_path / "pool/tasks/plain")
    assert config.environment.workdir == "/app"
    reasons = {entry.instance_id: entry.reason for entry in report.rejected}
    assert "built by a Dockerfile" in reasons["built"] and "single-step" in reasons["steps"]


def test_a_task_that_links_out_is_refused(tmp_path):
    (harbor_task(tmp_path / "set/a") / "tests/data").symlink_to("/etc")
    report = import_harbor(tmp_path / "set", tmp_path / "pool")
    assert report.pointers == () and "tests/data links out" in report.rejected[0].reason


def test_a_registry_names_folders_and_commits(tmp_path, library):
    harbor_task(tmp_path / "set/near")
    entries = [
        {"name": "near", "path": "set/near"},
        {"name": "far", "git_url": "https://github.com/acme/mathy.git", "git_commit_id": library.base, "path": "tests"},
        {"name": "moving", "git_url": "https://github.com/acme/mathy.git", "git_commit_id": "main", "path": "tests"},
        {"name": "out", "path": "../out"},
        {"name": "gone", "path": "set/gone"},
    ]
    registry = tmp_path / "registry.json"
    registry.write_text(
        json.dumps([{"name": "demo", "version": "1", "description": "", "tasks": entries, "metrics": []}])
    )
    report = import_harbor(registry, tmp_path / "pool", library.repos)
    assert [row.instance_id for row in report.pointers] == ["near"]
    reasons = {entry.instance_id: entry.reason for entry in report.rejected}
    assert "task.toml" in reasons["far"], "it was fetched, and is no task"
    assert "not a commit" in reasons["moving"] and "leads out" in reasons["out"] and "no task folder" in reasons["gone"]
    without = import_harbor(registry, tmp_path / "again")
    assert "give --repos" in next(e.reason for e in without.rejected if e.instance_id == "far")


def test_what_is_no_source_is_refused(tmp_path):
    with pytest.raises(PoolError, match="no folder of tasks"):
        import_harbor(tmp_path / "none", tmp_path / "pool")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PoolError, match="holds an instruction"):
        import_harbor(tmp_path / "empty", tmp_path / "pool")
    for text, message in (("{", "not JSON"), ('[{"a": 1}]', "no list of tasks")):
        (tmp_path / "registry.json").write_text(text)
        with pytest.raises(PoolError, match=message):
            import_harbor(tmp_path / "registry.json", tmp_path / "pool")


def test_extras_that_were_measured_survive(tmp_path, small_pool):
    rows = [TaskPointer(r.instance_id, r.task_path, r.data_source, r.extra | {"pass_rate": 0.25}) for r in small_pool]
    write_index(rows, tmp_path / "measured.parquet")
    export_pool(read_index(tmp_path / "measured.parquet"), tmp_path / "out")
    assert same(rows, import_harbor(tmp_path / "out", tmp_path / "back").pointers)


def test_task_toml_is_written_in_harbors_schema(tmp_path, row):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    report = import_pool("swe_bench", tmp_path / "rows.jsonl", tmp_path / "pool")
    config = read_task_config(report.pointers[0].task_path)
    assert isinstance(config, TaskConfig) and config.task.name == "swe_bench/acme__mathy-1"
    assert config.environment.network_mode == config.verifier.network_mode == "no-network"
