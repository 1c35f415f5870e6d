"""`testgrad pool …`: what each command writes and says, and how it refuses."""

import json

import pandas as pd
import pytest
from support.tasks import FIXED
from support.tasks import write_task as solvable
from typer.testing import CliRunner

from flows.commands.pool_ready import pool_app
from harness.pool.index import TaskPointer, read_index, write_index
from harness.pool.schema import Grading, TaskConfig, TaskSection
from harness.pool.write import write_task

ROW = {
    "repo": "acme/mathy",
    "instance_id": "acme__mathy-1",
    "base_commit": "a" * 40,
    "patch": "--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
    "test_patch": "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
    "problem_statement": "x is wrong",
    "FAIL_TO_PASS": '["t.py::test_a"]',
    "PASS_TO_PASS": "[]",
}


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.delenv("TESTGRAD_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(pool_app, [str(a) for a in arguments], env={"COLUMNS": "200", "TERM": "dumb"})

    return run


@pytest.fixture
def index(tmp_path):
    """Six tasks of three repositories, half of them measured."""
    rows = []
    for number in range(6):
        path = tmp_path / "pool/tasks" / f"task-{number}"
        write_task(
            path,
            instruction=f"# Mend {number}\n",
            config=TaskConfig(
                task=TaskSection(name=f"org/task-{number}"),
                metadata=Grading(fail_to_pass=["test_it.TestIt.test_it"]).model_dump(exclude_none=True),
            ),
            repo={"it.py": f"raise ValueError({number})\n"},
            tests={"test_it.py": "import unittest\nclass TestIt(unittest.TestCase):\n    def test_it(self): pass\n"},
            solution={"it.py": "x = 1\n"},
        )
        extra = {"repo": f"o/{'abc'[number // 2]}"} | ({"pass_rate": number / 4} if number < 3 else {})
        rows.append(TaskPointer(f"task-{number}", path, "set", extra))
    write_index(rows, tmp_path / "pool/index.parquet")
    return tmp_path / "pool/index.parquet"


def assert_refused(result, *words):
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output and result.output.count("error") >= 1
    for word in words:
        assert word in result.output


def test_ls_counts_each_index_and_passes_over_other_tables(invoke, index, tmp_path):
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "pool/other.parquet")
    result = invoke("ls", tmp_path / "pool")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[1].split() == ["index.parquet", "6", "3", "set", "-", "-", "3"]
    assert "other" not in result.output
    (tmp_path / "empty").mkdir()
    assert_refused(invoke("ls", tmp_path / "empty"), "no indexes in it")


def test_show_lists_tasks_and_shows_one(invoke, index):
    listed = invoke("show", index, "--limit", 2)
    assert "task-1" in listed.output and "task-2" not in listed.output and "2 of 6 tasks" in listed.output
    one = invoke("show", index, "task-3")
    assert "test_it.TestIt.test_it" in one.output and "Mend 3" in one.output and "o/b" in one.output
    assert_refused(invoke("show", index, "task"), "6 tasks begin with 'task'")
    assert_refused(invoke("show", index, "none"), "0 tasks begin with")


def test_stats_count_and_plot(invoke, index, tmp_path):
    result = invoke("stats", index, "--plot", tmp_path / "out/picture.png")
    assert result.exit_code == 0, result.output
    assert "6 tasks, 3 repositories" in result.output and "o/a" in result.output and "pass rate" in result.output
    assert (tmp_path / "out/picture.png").read_bytes().startswith(b"\x89PNG")
    assert_refused(invoke("stats", index, "--by", "speed"), "no task has 'speed'", "pass_rate")
    write_index([row for row in read_index(index) if "pass_rate" not in row.extra], tmp_path / "bare.parquet")
    assert_refused(invoke("stats", tmp_path / "bare.parquet", "--plot", "p.png"), "measure it first")


def test_split_filter_merge(invoke, index, tmp_path):
    train, heldout, easy, both = (tmp_path / f"pool/{name}.parquet" for name in ("train", "heldout", "easy", "both"))
    result = invoke("split", index, "--train", train, "--heldout", heldout, "--share", 0.34)
    assert result.exit_code == 0 and "33.3%" in result.output
    assert len(read_index(train)) == 4 and len(read_index(heldout)) == 2
    assert invoke("validate", train, "--against", heldout).exit_code == 0
    assert_refused(invoke("merge", train, index, "-o", both), "in more than one index")
    result = invoke("merge", train, index, "-o", both, "--repeated", "first")
    assert "6 tasks" in result.output and "4 repeated" in result.output
    result = invoke("filter", index, "-o", easy, "--where", "0 < pass_rate < 1")
    assert "kept 2 of 6" in result.output
    assert [row.instance_id for row in read_index(easy)] == ["task-1", "task-2"]
    assert_refused(invoke("filter", index, "-o", easy, "--where", "pass_rate > 2"), "without tasks")
    assert_refused(invoke("filter", index, "-o", easy, "--where", "nonsense >"), "cannot be computed", "pass_rate")


def test_paths_may_begin_with_a_variable(invoke, index, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_POOLS", str(tmp_path / "pool"))
    out = tmp_path / "elsewhere/kept.parquet"
    assert invoke("filter", index, "-o", out, "--where", "pass_rate == 0", "--variable", "MY_POOLS").exit_code == 0
    assert "nothing to complain of" in invoke("validate", out).output
    assert invoke("filter", index, "-o", out, "--where", "pass_rate == 0").exit_code == 0
    assert "absolute path" in invoke("validate", out).output


def test_validate_finds_broken_tasks_and_shared_repositories(invoke, index, tmp_path):
    (tmp_path / "pool/tasks/task-4/instruction.md").unlink()
    result = invoke("validate", index)
    assert result.exit_code == 1 and "no instruction.md" in result.output and "1 error" in result.output
    clean = tmp_path / "pool/clean.parquet"
    write_index([row for row in read_index(index) if row.instance_id != "task-4"], clean)
    result = invoke("validate", clean, "--against", index)
    assert result.exit_code == 1 and "share repositories: o/a, o/b, o/c" in result.output


def test_import_tells_what_it_took_and_what_not(invoke, tmp_path):
    rows = [ROW, ROW | {"instance_id": "bad", "FAIL_TO_PASS": "[]"}, ROW | {"instance_id": "b", "image_assets": "{}"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = invoke("import", "swe_bench", "rows.jsonl", "new")
    assert result.exit_code == 0, result.output
    assert "FAIL_TO_PASS is empty" in result.output and "rows.jsonl#2" in result.output
    assert "column image_assets (pictures) is ignored" in result.output
    assert "2 tasks; 2 pending, their snapshots still in their images; 1 rejected" in result.output
    assert len((tmp_path / "new/rejected.jsonl").read_text().splitlines()) == 1
    assert "2 pending" in invoke("validate", "new/index.parquet").output
    (tmp_path / "clones").mkdir()
    result = invoke("fill", "new/index.parquet", "--repos", "clones")
    assert result.exit_code == 1 and "no clone of acme/mathy" in result.output and "2 left pending" in result.output


def test_an_import_without_a_task_fails(invoke, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW | {"FAIL_TO_PASS": []}))
    assert invoke("import", "swe_bench", "rows.jsonl", "new").exit_code == 1
    assert_refused(invoke("import", "guess", "rows.jsonl", "new"), "choose one of: harbor, nemotron")
    assert_refused(invoke("import", "swe_bench", "none.jsonl", "new"), "no such file")


def test_admit_keeps_what_is_proven_and_says_why_the_rest_is_not(invoke, index, tmp_path):
    task = solvable(tmp_path / "pool/tasks/good")
    (task / "solution/files").mkdir(parents=True)
    (task / "solution/files/solution.py").write_text(FIXED)
    write_index([TaskPointer("good", task), read_index(index)[0]], tmp_path / "pool/two.parquet")
    result = invoke("admit", "pool/two.parquet", "-o", "pool/admitted.parquet")
    assert result.exit_code == 0 and "1 of 2 tasks admitted" in result.output, result.output
    assert "nothing done is passed in grading 1" in result.output
    (row,) = read_index(tmp_path / "pool/admitted.parquet")
    assert row.instance_id == "good" and row.extra["grading_seconds"] > 0
    said = json.loads(invoke("admit", "pool/two.parquet", "-o", "again.parquet", "--json").output)
    assert said["admitted"] == 1 and list(said["rejected"]) == ["task-0"]
    write_index(read_index(index)[:1], tmp_path / "pool/none.parquet")
    assert_refused(invoke("admit", "pool/none.parquet", "-o", "none.parquet"), "none of the 1 tasks")
    assert not (tmp_path / "none.parquet").exists()


def test_export_and_import_again(invoke, index, tmp_path):
    assert "6 tasks in out" in invoke("export", index, "out").output
    result = invoke("import", "harbor", "out", "back")
    assert result.exit_code == 0 and "6 tasks" in result.output
    back, before = read_index(tmp_path / "back/index.parquet"), read_index(index)
    assert [(r.instance_id, r.data_source, r.extra) for r in back] == [
        (r.instance_id, r.data_source, r.extra) for r in before
    ]


def write_trial(folder, task, outcome="completed", status=None, reward=None, temperature=1.0):
    folder.mkdir(parents=True)
    trial = {"task_id": task, "outcome": outcome, "sampling": {"temperature": temperature}}
    (folder / "trial.json").write_text(json.dumps(trial))
    if status:
        (folder / "verdict.json").write_text(json.dumps({"status": status, "reward": reward}))


def test_difficulty_keeps_what_is_solved_sometimes(invoke, index, tmp_path):
    number = 0
    for task, ends in {
        "task-0": ["failed", "failed", "infra_error"],
        "task-1": ["passed", "failed", "infra_error"],
        "task-2": ["passed", "passed"],
        "task-3": ["passed", "infra_error"],
        "other": ["passed"],
    }.items():
        for status in ends:
            number += 1
            write_trial(tmp_path / f"trials/step_1/{number}", task, status=status, reward=float(status == "passed"))
    write_trial(tmp_path / "trials/step_1/lost", "task-1", "infra_error")
    write_trial(tmp_path / "trials/step_1/greedy", "task-0", status="passed", reward=1.0, temperature=0.0)
    result = invoke("difficulty", index, "--from", "trials", "-o", "useful.parquet")
    assert result.exit_code == 0, result.output
    assert "kept 1 of 6" in result.output
    assert "7 trials count; left out: 4 lost to infrastructure, 0 ungraded, 1 tasks of other indexes" in result.output
    (row,) = read_index(tmp_path / "useful.parquet")
    assert row.instance_id == "task-1"
    assert row.extra == {"repo": "o/a", "pass_rate": 0.5, "trials": 2, "infra_trials": 2, "band": "medium"}
    report = (tmp_path / "useful.md").read_text()
    assert "1 of 6 tasks are kept: those with a pass rate in (0, 1)." in report
    assert "| task-1 | 1 of 2 | 0.50 | 0.09 to 0.91 | 2 | yes |" in report
    assert "| task-0 | 0 of 2 | 0.00 |" in report and "task-4" not in report and "4 were lost" in report
    assert (tmp_path / "useful.png").read_bytes().startswith(b"\x89PNG")
    difficulty = ("difficulty", index, "--from", "trials")
    assert "kept 3 of 6" in invoke(*difficulty, "-o", "all.parquet", "--keep", "0 <= rate <= 1").output
    answer = json.loads(invoke(*difficulty, "-o", "few.parquet", "--band", "0.1:0.9", "--json").output)
    assert (answer["kept"], answer["unmeasured"], answer["trials"], answer["lost"]) == (1, 3, 7, 4)
    assert_refused(invoke(*difficulty, "-o", "x.parquet", "--keep", "0-1"), "no interval")
    assert_refused(
        invoke("difficulty", index, "--from", "none", "-o", "x.parquet"), "no such collection, run or folder"
    )
    (tmp_path / "trials/step_1/lost/trial.json").write_text("{")
    assert_refused(invoke(*difficulty, "-o", "x.parquet"), "no record of a trial")


def test_difficulty_finds_a_collection_by_its_name(invoke, index, tmp_path):
    folder = tmp_path / "runs/collections/mine"
    for number, status in enumerate(["passed", "failed"]):
        write_trial(folder / f"trials/collect/{number}", "task-1", status=status, reward=float(status == "passed"))
    settings = {"scaffold": {"name": "edit", "max_turns": 1}}
    asked = {"policy": "our/model", "settings": settings, "sampling": {"temperature": 0.7, "max_tokens": 80}}
    (folder / "asked.json").write_text(json.dumps(asked))
    words = ("-o", "out.parquet", "--root", "runs", "--report", "told/why.md")
    result = invoke("difficulty", index, "--from", "mine", *words)
    assert "kept 1 of 6" in result.output, result.output
    report = (tmp_path / "told/why.md").read_text()
    assert "* policy: our/model" in report and "temperature 0.7" in report
    assert "kept 1 of 6" in invoke("difficulty", index, "--from", "collections/mine", *words).output


def test_importers_are_listed(invoke):
    output = invoke("importers").output
    for name in (
        "harbor",
        "swe_bench",
        "swe_smith",
        "swe_gym",
        "r2e_gym",
        "swe_rebench_v2",
        "swe_bench_pro",
        "nemotron",
    ):
        assert name in output


def test_faults_of_the_code_keep_their_traceback(invoke, index, monkeypatch):
    monkeypatch.setattr("flows.pool_view.tasks_table", lambda *_: 1 / 0)
    assert isinstance(invoke("show", index).exception, ZeroDivisionError)
