"""Whole imports: what lies in a task, that it can be graded, and that nothing is lost or done twice."""

import fcntl
import io
import json
import shutil
import subprocess
import tarfile

import pytest

from harness.patch import Patch
from harness.pool.importers import ImportOptions, ImportProblem, RepoFolder, fill_task, import_pool, register_rows
from harness.pool.importers.archive import unpack_snapshot
from harness.pool.importers.base import IMPORTERS
from harness.pool.importers.draft import Draft
from harness.pool.importers.fill import fill_index
from harness.pool.index import PoolError, read_index
from harness.pool.task import Task, TaskPending
from harness.sandbox import SandboxConfig
from harness.verifier import VerifierConfig, grade

IMAGELESS = SandboxConfig(task_images=False)
"""The small library needs nothing of the images that its rows name."""

FIXED = "def double(x):\n    return x + x\n\n\ndef half(x):\n    return x / 2\n"


def write_rows(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tree(folder):
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def run(tmp_path, *rows, importer="swe_bench", repos=None, target="pool"):
    return import_pool(importer, write_rows(tmp_path / "rows.jsonl", *rows), tmp_path / target, ImportOptions(repos))


@pytest.fixture
def task(tmp_path, row, library):
    """The row as a task with its snapshot."""
    report = run(tmp_path, row, repos=library.repos)
    assert report.rejected == ()
    return Task.load(report.pointers[0].task_path)


def test_the_files_of_a_task(task, library):
    assert tree(task.snapshot) == [
        ".gitattributes",
        "mathy/__init__.py",
        "mathy/core.py",
        "mathy/old.py",
        "setup.cfg",
        "tests/__init__.py",
        "tests/conftest.py",
        "tests/test_core.py",
    ]
    assert "TestDouble" not in (task.snapshot / "tests/test_core.py").read_text()
    assert "TestDouble" in (task.tests / "tests/test_core.py").read_text()
    assert tree(task.tests) == [
        "setup.cfg",
        "test.sh",
        "tests/__init__.py",
        "tests/conftest.py",
        "tests/data/né w.txt",
        "tests/test_core.py",
    ]
    changes = task.solution_changes()
    assert changes is not None and set(changes) == {"mathy/core.py", "mathy/old.py"}
    assert changes["mathy/old.py"] is None and b"x + x\n" in (changes["mathy/core.py"] or b"")
    assert task.instruction == "double(2) gives 5.\n"
    assert task.environment.image == "swebench/sweb.eval.x86_64.acme_1776_mathy-1:latest"
    assert task.environment.workdir == "/testbed"
    assert task.environment.python == "/opt/miniconda3/envs/testbed/bin/python"


def test_nothing_of_the_solution_or_the_tests_is_where_the_agent_is(task):
    seen = b"".join(file.read_bytes() for file in (task.path / "environment").rglob("*") if file.is_file())
    assert b"TestDouble" not in seen and b"x + x\n" not in seen
    assert not (task.snapshot / ".git").exists()


async def test_an_imported_task_is_graded(task):
    """Nothing done gives 0, the solution 1, half a solution 0."""
    verifier = VerifierConfig(timeout_sec=60)
    done = [Patch(), Patch(task.solution_changes() or {}), Patch({"mathy/core.py": b"def double(x):\n    return 4\n"})]
    verdicts = [await grade(task, patch, IMAGELESS, verifier) for patch in done]
    assert [verdict.reward for verdict in verdicts] == [0.0, 1.0, 0.0], [verdict.reason for verdict in verdicts]
    assert verdicts[1].protected


def test_the_row_of_the_index(tmp_path, row, library):
    report = run(tmp_path, row | {"difficulty": "<15 min fix"}, repos=library.repos)
    (pointer,) = read_index(report.index)
    assert pointer.instance_id == "acme__mathy-1" and pointer.data_source == "swe_bench"
    assert pointer.task_path == tmp_path / "pool/tasks/acme__mathy-1"
    assert pointer.extra | {"image": ""} == {
        "repo": "acme/mathy",
        "source": "rows.jsonl",
        "kind": "pytest",
        "image": "",
        "ready": True,
        "difficulty": "<15 min fix",
        "version": "1.0",
        "created_at": "2020-01-02T00:00:00Z",
    }


async def test_the_bug_of_swe_smith_is_put_in_and_its_reverse_is_the_solution(tmp_path, library):
    row = {
        "instance_id": "acme__mathy.1234567.func_pm__x1",
        "patch": library.bug_patch,
        "FAIL_TO_PASS": ["tests/test_core.py::TestDouble::test_two"],
        "PASS_TO_PASS": ["tests/test_core.py::test_half"],
        "image_name": "jyangballin/swesmith.x86_64.acme_1776_mathy.1234567",
        "repo": f"swesmith/acme__mathy.{library.fixed[:8]}",
        "problem_statement": "double is off by one",
    }
    report = run(tmp_path, row, importer="swe_smith", repos=library.repos)
    assert report.rejected == ()
    task = Task.load(report.pointers[0].task_path)
    assert "+ 1" in (task.snapshot / "mathy/core.py").read_text()
    assert b"+ 1" not in ((task.solution_changes() or {})["mathy/core.py"] or b"")
    assert "TestDouble" in (task.tests / "tests/test_core.py").read_text()
    assert not (task.snapshot / "tests/test_core.py").exists(), "its tests would give the bug away"
    assert not (task.path / "environment" / "bug.patch").exists()
    assert "RUN rm -f tests/test_core.py" in (task.path / "environment/Dockerfile").read_text()
    verifier = VerifierConfig(timeout_sec=60)
    verdicts = [await grade(task, p, IMAGELESS, verifier) for p in (Patch(), Patch(task.solution_changes() or {}))]
    assert [verdict.reward for verdict in verdicts] == [0.0, 1.0], [verdict.reason for verdict in verdicts]


async def test_r2e_gym_gives_whole_files_and_is_graded(tmp_path, library):
    hidden = "import unittest\nfrom mathy.core import double\n\n\nclass TestX(unittest.TestCase):\n"
    hidden += (
        "    def test_a(self):\n        self.assertEqual(double(2), 4)\n\n    def test_b(self):\n        double(1)\n"
    )
    log = "= short test summary info =\n"
    log += "PASSED r2e_tests/test_1.py::TestX::test_b\nFAILED r2e_tests/test_1.py::TestX::test_a"
    content = {"test_file_names": ["test_1.py"], "test_file_codes": [hidden], "old_commit_res_stdout": log}
    change = {"header": {"file": {"path": "mathy/core.py"}}, "new_file_content": FIXED}
    row = {
        "repo_name": "mathy",
        "docker_image": "namanjain12/mathy_final:abc",
        "commit_hash": library.fixed,
        "parsed_commit_content": json.dumps({"file_diffs": [change], "old_commit_hash": library.base}),
        "execution_result_content": json.dumps(content),
        "problem_statement": "[ISSUE]\ndouble\n[/ISSUE]",
        "expected_output_json": json.dumps({"TestX.test_a": "PASSED", "TestX.test_b": "PASSED"}),
    }
    report = run(tmp_path, row, importer="r2e_gym", repos=library.repos)
    assert report.rejected == ()
    task = Task.load(report.pointers[0].task_path)
    assert task.grading.fail_to_pass == ["r2e_tests/test_1.py::TestX::test_a"]
    assert not (task.snapshot / "r2e_tests").exists()
    verifier = VerifierConfig(timeout_sec=60)
    verdicts = [await grade(task, p, IMAGELESS, verifier) for p in (Patch(), Patch(task.solution_changes() or {}))]
    assert [verdict.reward for verdict in verdicts] == [0.0, 1.0], [verdict.reason for verdict in verdicts]


def test_without_clones_a_task_waits_for_its_snapshot(tmp_path, row, library):
    report = run(tmp_path, row)
    (pointer,) = report.pointers
    assert pointer.extra["ready"] is False
    with pytest.raises(TaskPending, match=r"still in image swebench/sweb.*`testgrad pool fill`"):
        Task.load(pointer.task_path)
    assert fill_index(tmp_path / "pool/index.parquet", repos=library.repos) == (1, [])
    whole = run(tmp_path, row, repos=library.repos, target="other").pointers[0].task_path
    assert tree(pointer.task_path) == tree(whole)
    for name in tree(whole):
        assert (pointer.task_path / name).read_bytes() == (whole / name).read_bytes(), name
    assert read_index(report.index)[0].extra["ready"] is True
    assert fill_index(tmp_path / "pool/index.parquet", repos=library.repos) == (0, [])


def test_filling_is_all_or_nothing(tmp_path, row):
    (pointer,) = run(tmp_path, row).pointers
    before = tree(pointer.task_path)

    def wrong(folder):
        (folder / "mathy").mkdir()
        (folder / "mathy/core.py").write_text("something else\n")
        return []

    with pytest.raises(ImportProblem, match="bad patch: it does not apply"):
        fill_task(pointer.task_path, wrong)
    assert tree(pointer.task_path) == before
    assert [entry.name for entry in pointer.task_path.parent.iterdir()] == ["acme__mathy-1"]
    _, rejected = fill_index(tmp_path / "pool/index.parquet", repos=tmp_path)
    assert "no clone of acme/mathy" in rejected[0].reason


def test_a_task_is_filled_from_its_images_archive(tmp_path, row, library):
    """What `docker cp` writes: the folder itself first, with its .git, byte code and dependencies."""
    (pointer,) = run(tmp_path, row).pointers
    whole = run(tmp_path, row, repos=library.repos, target="other").pointers[0].task_path
    place = tmp_path / "testbed"
    shutil.copytree(whole / "environment/repo", place)
    for name in (".git/config", "mathy/__pycache__/core.pyc", ".venv/bin/python"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("fix")
    with tarfile.open(tmp_path / "acme__mathy-1.tar", "w") as archive:
        archive.add(place, "testbed")
    assert fill_index(tmp_path / "pool/index.parquet", tars=tmp_path) == (1, [])
    assert tree(pointer.task_path) == tree(whole)


def test_archives_that_are_missing_are_named(tmp_path, row):
    run(tmp_path, row)
    _, rejected = fill_index(tmp_path / "pool/index.parquet", tars=tmp_path)
    assert "docker create swebench/sweb.eval.x86_64.acme_1776_mathy-1:latest):/testbed - >" in rejected[0].reason
    for places in ({}, {"repos": tmp_path, "tars": tmp_path}):
        with pytest.raises(PoolError, match="give one of --repos, --images and --tars"):
            fill_index(tmp_path / "pool/index.parquet", **places)


def entry(name, kind=tarfile.REGTYPE, link="", data=b"x"):
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, len(data) if kind == tarfile.REGTYPE else 0
    return member, data


def unpack(tmp_path, *entries, **limits):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member, data in entries:
            archive.addfile(member, io.BytesIO(data))
    stream.seek(0)
    (tmp_path / "out").mkdir()
    return unpack_snapshot(stream, tmp_path / "out", **limits)


def test_an_archive_keeps_what_is_harmless(tmp_path):
    notes = unpack(
        tmp_path,
        entry("t/a"),
        entry("t/twin", tarfile.LNKTYPE, "t/a"),
        entry("t/near", tarfile.SYMTYPE, "a"),
        entry("t/far", tarfile.SYMTYPE, "/etc/passwd"),
        entry("t/up", tarfile.SYMTYPE, "../../x"),
        entry("t/pipe", tarfile.FIFOTYPE),
        entry("t/stray", tarfile.LNKTYPE, "../../etc/passwd"),
    )
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["a", "near", "twin"]
    assert (tmp_path / "out/near").is_symlink() and (tmp_path / "out/twin").read_bytes() == b"x"
    assert len(notes) == 4


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry("t/../../evil")], "leads out"),
        ([entry("t/s", tarfile.SYMTYPE, "."), entry("t/d/../../../evil")], "leads out"),
        ([], "is empty"),
        ([entry("t/a", data=b"x" * 200)], "more than 100 bytes"),
    ],
)
def test_a_hostile_archive_is_refused(tmp_path, entries, message):
    with pytest.raises(ImportProblem, match=message):
        unpack(tmp_path, *entries, max_bytes=100)
    assert not (tmp_path / "evil").exists() and not (tmp_path.parent / "evil").exists()


def test_what_is_no_archive_is_refused(tmp_path):
    with pytest.raises(ImportProblem, match="cannot be read"):
        unpack_snapshot(io.BytesIO(b"no tar" * 200), tmp_path)


def test_a_snapshot_that_links_out_is_refused(tmp_path, row):
    (pointer,) = run(tmp_path, row).pointers

    def hostile(folder):
        (folder / "mathy").symlink_to("/etc")
        return []

    with pytest.raises(ImportProblem, match="mathy links out"):
        fill_task(pointer.task_path, hostile)


def test_every_row_is_a_task_or_rejected(tmp_path, row, library):
    rows = [
        row,
        row,
        row | {"instance_id": "no-f2p", "FAIL_TO_PASS": "[]"},
        row | {"instance_id": "no-commit", "base_commit": "0" * 40},
        row | {"instance_id": "other", "repo": "acme/other"},
        row | {"instance_id": "no-such-test", "FAIL_TO_PASS": ["tests/test_core.py::test_none"]},
        row | {"instance_id": "bad-patch", "patch": row["patch"].replace("x + x + 1", "y")},
        row | {"instance_id": "../out"},
        row | {"instance_id": "p2p-gone", "PASS_TO_PASS": ["tests/test_core.py::test_half", "tests/test_x.py::test_y"]},
    ]
    report = run(tmp_path, *rows, repos=library.repos)
    assert [pointer.instance_id for pointer in report.pointers] == ["acme__mathy-1", "p2p-gone"]
    reasons = {entry.instance_id: entry.reason for entry in report.rejected}
    for name, reason in {
        "acme__mathy-1": "duplicate instance_id",
        "no-f2p": "FAIL_TO_PASS is empty",
        "no-commit": "has no commit 000",
        "other": "no clone of acme/other",
        "no-such-test": "none of the failing tests is there",
        "bad-patch": "does not apply",
        "../out": "no safe name",
    }.items():
        assert reason in reasons.pop(name)
    assert not reasons
    stored = [json.loads(line) for line in (tmp_path / "pool/rejected.jsonl").read_text().splitlines()]
    assert [(r["instance_id"], r["origin"], r["reason"]) for r in stored] == [
        (r.instance_id, r.origin, r.reason) for r in report.rejected
    ]
    assert sorted(entry.name for entry in (tmp_path / "pool/tasks").iterdir()) == ["acme__mathy-1", "p2p-gone"]
    assert "1 of 2 pass_to_pass left out" in report.notes["p2p-gone"][-1]
    assert not list(tmp_path.glob("out*"))


def test_files_that_cannot_be_written_are_their_rows_fault(tmp_path, row, clash):
    report = run(tmp_path, row, row | {"instance_id": "long"}, importer="clash")
    assert [entry.instance_id for entry in report.rejected] == ["acme__mathy-1", "long"]
    assert all("cannot be written" in entry.reason for entry in report.rejected)
    assert not any((tmp_path / "pool/tasks").iterdir())


def test_without_image_and_clone_there_is_no_task(tmp_path, row):
    extra = row | {"meta": {"is_lite": False}}
    report = run(tmp_path, extra)
    assert report.index is None and "no image" in report.rejected[0].reason
    assert not (tmp_path / "pool/index.parquet").exists()


def test_an_import_goes_on_where_it_was_killed(tmp_path, row, library, monkeypatch):
    rows = [row, row | {"instance_id": "second"}, row | {"instance_id": "third"}]
    real = RepoFolder.write

    def killed(self, repo, commit, target):
        if "second" in str(target):
            target.joinpath("half").write_text("written")
            raise KeyboardInterrupt
        return real(self, repo, commit, target)

    monkeypatch.setattr(RepoFolder, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, *rows, repos=library.repos)
    assert not (tmp_path / "pool/index.parquet").exists()
    (tmp_path / "pool/tasks/.new.left").mkdir()
    first = (tmp_path / "pool/tasks/acme__mathy-1/task.toml").stat().st_mtime_ns
    monkeypatch.setattr(RepoFolder, "write", real)
    report = run(tmp_path, *rows, repos=library.repos)
    assert (len(report.pointers), report.reused, report.rejected) == (3, 1, ())
    assert (tmp_path / "pool/tasks/acme__mathy-1/task.toml").stat().st_mtime_ns == first
    assert sorted(e.name for e in (tmp_path / "pool/tasks").iterdir()) == ["acme__mathy-1", "second", "third"]
    assert run(tmp_path, *rows, repos=library.repos).pointers == report.pointers


def test_a_changed_row_does_not_take_an_old_task(tmp_path, row):
    run(tmp_path, row)
    report = run(tmp_path, row | {"problem_statement": "other"})
    assert report.pointers == () and "made of something else" in report.rejected[0].reason


def test_two_imports_do_not_share_a_folder(tmp_path, row):
    (tmp_path / "pool").mkdir()
    with (tmp_path / "pool/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PoolError, match="another import runs"):
            run(tmp_path, row)


def test_what_is_not_there_is_named(tmp_path, row):
    with pytest.raises(PoolError, match="importer 'guess' is unknown; choose one of: harbor"):
        run(tmp_path, row, importer="guess")
    with pytest.raises(PoolError, match="no such folder; --repos"):
        run(tmp_path, row, repos=tmp_path / "none")


def test_an_importer_of_ones_own(tmp_path, row):
    @register_rows("mine")
    def mine(values):
        """My set"""
        return Draft("a", "do", "x/y", image="img", patch=values.text("diff"), fail_to_pass=["t.py::test_a"])

    try:
        report = run(tmp_path, {"diff": row["patch"]}, {"diff": "x"}, importer="mine")
        assert [p.instance_id for p in report.pointers] == ["a"] and len(report.rejected) == 1
        assert IMPORTERS["mine"].about == "My set"
        with pytest.raises(ValueError, match="registered twice"):
            register_rows("mine")(mine)
    finally:
        del IMPORTERS["mine"]


@pytest.fixture
def clash():
    """An importer whose hidden files are a file and a folder of one name, or have too long a name."""

    @register_rows("clash")
    def convert(values):
        names = ["a" * 300] if values.text("instance_id") == "long" else ["a", "a/b"]
        return Draft(
            values.text("instance_id"),
            "do",
            "x/y",
            image="img",
            patch=values.text("patch"),
            fail_to_pass=["t.py::test_a"],
            hidden_files=dict.fromkeys(names, ""),
        )

    yield
    del IMPORTERS["clash"]


@pytest.mark.parametrize("name", ["acme__mathy", "acme/mathy", "mathy", "acme__mathy.git", "acme/mathy.git"])
def test_clones_are_found_under_their_usual_names(tmp_path, library, name):
    place = tmp_path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    clone = library.repos / "acme__mathy"
    shutil.copytree(clone / ".git" if name.endswith(".git") else clone, place)
    for repo in ("acme/mathy", "swesmith/acme__mathy.12345678", "mathy"):
        assert RepoFolder(tmp_path).find(repo) == place
    notes = RepoFolder(tmp_path).write("acme/mathy", library.base[:10], tmp_path / "out")
    assert notes == [] and (tmp_path / "out/tests/test_core.py").is_file(), "attributes leave nothing out"
    assert RepoFolder(tmp_path).find("acme/mathx") is None
    if name == "acme__mathy":
        shutil.copytree(clone, tmp_path / "other__mathy")
        assert RepoFolder(tmp_path).find("mathy") is None, "there are two of that name"


def test_names_that_lead_elsewhere_are_refused(tmp_path, library):
    clones = RepoFolder(library.repos)
    for repo in ("../repos", "/etc", "acme/../../x", "a/.git"):
        with pytest.raises(ImportProblem, match="leads out"):
            clones.write(repo, library.base, tmp_path)
    for commit in ("--help", "HEAD", "main", f"{library.base}:tests", ""):
        with pytest.raises(ImportProblem, match="is no commit"):
            clones.write("acme/mathy", commit, tmp_path)


def test_harbors_scripts_of_an_imported_task(task, tmp_path):
    """`test.sh` with Harbor's absolute folders moved below the test's own: 0 before `solve.sh`, 1 after it."""
    place = tmp_path / "machine"
    shutil.copytree(task.snapshot, place / "testbed")
    shutil.copytree(task.tests, place / "tests")
    shutil.copytree(task.path / "solution", place / "solution")
    script = place / "tests/test.sh"
    text = script.read_text().replace("/logs", f"{place}/logs").replace("cd /testbed", f"cd {place}/testbed")
    script.write_text(text.replace("/opt/miniconda3", "/nonexistent"))
    (place / "bin").mkdir()
    (place / "bin/python").symlink_to(__import__("sys").executable)
    env = {"PATH": f"{place}/bin:/usr/bin:/bin"}

    def reward():
        subprocess.run(["bash", script], check=True, env=env)
        return (place / "logs/verifier/reward.txt").read_text().strip()

    assert reward() == "0"
    subprocess.run(["sh", place / "solution/solve.sh", place / "testbed"], check=True)
    assert not (place / "testbed/mathy/old.py").exists()
    assert reward() == "1"
