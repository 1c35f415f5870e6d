"""Tasks whose repository lives in an image, from the row of a data set to the verdict, on a real engine."""

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.docker import docker_sandbox
from support.scripted import ScriptedPolicy
from support.testbed import PYTHON, VENV, build_testbed
from support.tiny import tiny_tokenizer

from harness.patch import Patch
from harness.pool.environment import sandbox_for
from harness.pool.importers import import_pool
from harness.pool.importers.fill import fill_index
from harness.pool.importers.images import ImageSnapshots
from harness.pool.index import read_index
from harness.pool.proofs import ProofConfig, prove_tasks
from harness.pool.snapshot import upload_snapshot
from harness.pool.task import Task
from harness.proxy.codec import ChatCodec
from harness.proxy.server import ProxyServer
from harness.sandbox import SandboxConfig, create_sandbox
from harness.sandbox.docker_config import DockerConfig, hosts_of
from harness.sandbox.docker_engine import connect
from harness.scaffolds.base import SCAFFOLDS, Scaffold, ScaffoldConfig, ScaffoldResult
from harness.trial import TrialSpec, run_trial
from harness.verifier import VerifierConfig, grade
from trainer.rollout import Outcome, Sampling

pytestmark = pytest.mark.docker

ALL = bool(os.environ.get("TESTGRAD_ALL_DOCKER"))
"""All kinds of rows, and three gradings each, which takes a minute or two; else one of each for SWE-bench's row."""

PROOF = ProofConfig
if not ALL:
    PROOF = functools.partial(ProofConfig, verifier=VerifierConfig(timeout_sec=60, guess_odds=1.0), runs=1)

BENCH, SMITH, R2E = "local/testbed.bench:1", "local/testbed.smith:1", "local/testbed.r2e:1"
NEEDS = "from needed import ANSWER\n\n\ndef test_answer():\n    assert ANSWER == 42\n"
LOGGED = """\
import unittest
import needed
from mathy.core import double
class T(unittest.TestCase):
    def test_two(self):
        self.assertEqual(double(2), 4)
"""


def adding(path: str, text: str) -> str:
    """A patch that adds a file."""
    lines = text.splitlines()
    return "\n".join(["--- /dev/null", f"+++ b/{path}", f"@@ -0,0 +1,{len(lines)} @@", *(f"+{x}" for x in lines), ""])


@pytest.fixture
def config(tmp_path: Path, library: Any) -> SandboxConfig:
    """Sandboxes on an engine that has the library's images: before its fix, and after it."""
    config = docker_sandbox(docker=DockerConfig(pull="never", image_record=tmp_path / "record.json"))
    for name, commit in ((BENCH, library.base), (SMITH, library.fixed))[: None if ALL else 1]:
        clone = tmp_path / name.partition("/")[2]
        shutil.copytree(library.repos / "acme__mathy", clone)
        subprocess.run(["git", "checkout", "-q", commit], cwd=clone, check=True)
        build_testbed(hosts_of(config.docker)[0].url, name, clone)
    return config


@pytest.fixture
def rows(row: dict[str, Any], library: Any) -> dict[str, list[dict[str, Any]]]:
    """One task of each kind of grading, by importer."""
    smith = {
        "instance_id": "acme__mathy.1234567.func_pm__x1",
        "patch": library.bug_patch,
        "FAIL_TO_PASS": ["tests/test_core.py::TestDouble::test_two"],
        "PASS_TO_PASS": ["tests/test_core.py::test_half"],
        "image_name": SMITH,
        "repo": f"swesmith/acme__mathy.{library.fixed[:8]}",
        "problem_statement": "double is off by one",
    }
    bench = row | {
        "image": BENCH,
        "test_patch": row["test_patch"] + adding("tests/test_needs.py", NEEDS),
        "PASS_TO_PASS": json.dumps([*json.loads(row["PASS_TO_PASS"]), "tests/test_needs.py::test_answer"]),
    }
    logged = row | {
        "instance_id": "acme__mathy-2",
        "docker_image": BENCH,
        "test_patch": adding("tests/test_log.py", LOGGED),
        "FAIL_TO_PASS": ["tests.test_log.T.test_two"],
        "PASS_TO_PASS": [],
        "install_config": {"test_cmd": "python -m unittest -v tests.test_log", "log_parser": "parse_log_unittest"},
    }
    others = {"swe_smith": [smith], "swe_rebench": [logged]} if ALL else {}
    return {"swe_bench": [bench], **others}


def filled(tmp_path: Path, config: SandboxConfig, rows: dict[str, list[dict[str, Any]]]) -> list[Any]:
    pointers = []
    for importer, found in rows.items():
        source = tmp_path / f"{importer}.jsonl"
        source.write_text("".join(json.dumps(each) + "\n" for each in found))
        report = import_pool(importer, source, tmp_path / importer)
        assert report.rejected == () and report.index is not None
        images = ImageSnapshots(config.docker, tmp_path / importer / ".images")
        assert fill_index(report.index, images=images) == (len(found), [])
        pointers += read_index(report.index)
    return pointers


async def test_rows_of_public_sets_are_filled_proven_and_tried(
    tmp_path: Path, config: SandboxConfig, rows: dict[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    pointers = filled(tmp_path, config, rows)
    proven = await prove_tasks(pointers, PROOF(config), tmp_path / "record.jsonl")
    assert [(answer.admitted, answer.reason) for _, answer in proven] == [(True, "")] * len(pointers)
    task = Task.load(pointers[0].task_path)
    assert task.environment.python == PYTHON
    await _an_agent_sees_the_environment_and_no_history(task, config)
    await _a_trial_is_worth_1(task, config, monkeypatch)
    await _what_is_installed_in_place_hooks_into_nothing(task, config)
    containers, volumes = connect(hosts_of(config.docker)[0]).labelled("testgrad.project")
    assert containers == [] and volumes == []


@pytest.mark.skipif(not ALL, reason="TESTGRAD_ALL_DOCKER=1 runs it")
async def test_an_environment_in_the_repository_is_moved(tmp_path: Path, library: Any) -> None:
    """R2E-Gym's images, which have it there, and the tests beside it."""
    tmp_path.chmod(0o755)
    config = docker_sandbox(docker=DockerConfig(pull="never", image_record=tmp_path / "record.json"))
    clone = tmp_path / "testbed"
    shutil.copytree(library.repos / "acme__mathy", clone)
    subprocess.run(["git", "checkout", "-q", library.base], cwd=clone, check=True)
    build_testbed(hosts_of(config.docker)[0].url, R2E, clone, VENV)
    log = "= short test summary info =\nFAILED r2e_tests/test_1.py::T::test_two"
    fixed = subprocess.run(
        ["git", "show", f"{library.fixed}:mathy/core.py"], cwd=clone, check=True, capture_output=True
    )
    change = {"header": {"file": {"path": "mathy/core.py"}}, "new_file_content": fixed.stdout.decode()}
    content = {"test_file_names": ["test_1.py"], "test_file_codes": [LOGGED], "old_commit_res_stdout": log}
    row = {
        "repo_name": "mathy",
        "docker_image": R2E,
        "commit_hash": library.fixed,
        "parsed_commit_content": json.dumps({"file_diffs": [change], "old_commit_hash": library.base}),
        "execution_result_content": json.dumps(content),
        "problem_statement": "[ISSUE]double is off by one[/ISSUE]",
        "expected_output_json": json.dumps({"T.test_two": "PASSED"}),
    }
    pointers = filled(tmp_path, config, {"r2e_gym": [row]})
    ((_, answer),) = await prove_tasks(pointers, ProofConfig(config), tmp_path / "record.jsonl")
    assert answer.admitted, answer.reason
    task = Task.load(pointers[0].task_path)
    async with create_sandbox(sandbox_for(task, config)) as sandbox:
        await upload_snapshot(task.snapshot, sandbox)
        look = "python -c 'import needed'; echo $?; ls -d /r2e_tests /testbed/.venv; cat /testbed/mathy/core.py | wc -l"
        seen = await sandbox.exec(["sh", "-c", look], timeout=60)
        assert seen.stdout.split() == [b"0", b"6"], seen


async def _an_agent_sees_the_environment_and_no_history(task: Task, config: SandboxConfig) -> None:
    async with create_sandbox(sandbox_for(task, config)) as sandbox:
        await upload_snapshot(task.snapshot, sandbox)
        look = (
            'pwd; python -c "import needed, mathy.core; print(mathy.core.__file__)"; git log --format=%s --all; id -u'
        )
        seen = await sandbox.exec(["sh", "-c", look], timeout=60)
        assert seen.stdout.decode().split() == ["/testbed", "/testbed/mathy/core.py", "snapshot", "50000"], seen
        objects = await sandbox.exec(["git", "count-objects", "-v"], timeout=60)
        assert b"in-pack: 0" in objects.stdout
        hidden = await sandbox.exec(["grep", "-rl", "--include=*.py", "TestDouble", "/testbed", "/opt"], timeout=60)
        assert hidden.stdout == b"", "the tests are nowhere"
        escape = await sandbox.exec(["sh", "-c", "umount /testbed || echo no; touch /opt/x || echo no"], timeout=60)
        assert escape.stdout.split()[-2:] == [b"no", b"no"]


async def _a_trial_is_worth_1(task: Task, config: SandboxConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole trial, whose agent runs the repair that the policy answers with as a command in /testbed."""

    async def run(self: Scaffold, task: Task, sandbox: Any, session: Any) -> ScaffoldResult:
        command = "sed -i 's/x + x + 1/x + x/' mathy/core.py && rm mathy/old.py && python -c 'import needed'"
        done = await sandbox.exec(["sh", "-c", command], timeout=60)
        assert done.exit_code == 0, done.stderr
        return self.result(Outcome.COMPLETED)

    monkeypatch.setitem(SCAFFOLDS, "mends", type("Mends", (Scaffold,), {"run": run}))
    spec = TrialSpec("acme-00000000", "g", task.task_id, task.path, 1, Sampling(max_tokens=10))
    tokenizer = tiny_tokenizer()
    async with ProxyServer(ScriptedPolicy(tokenizer, ("",)), ChatCodec(tokenizer), 2000) as proxy:
        result = await run_trial(spec, proxy, config, ScaffoldConfig(name="mends"))
    assert (result.outcome, result.error) == (Outcome.COMPLETED, None)
    assert result.patch is not None and set(result.patch.files) == {"mathy/core.py", "mathy/old.py"}
    verdict = await grade(task, result.patch, config, VerifierConfig(timeout_sec=60, guess_odds=1.0))
    assert verdict.reward == 1.0, verdict.reason


async def _what_is_installed_in_place_hooks_into_nothing(task: Task, config: SandboxConfig) -> None:
    """Modules in a folder of the repository that the environment has on its path, named as what the runner imports."""
    end = b"import os\nos._exit(0)\n"
    hooks = [f"plugins/{name}/__init__.py" for name in ("_pytest", "pluggy", "pygments", "sitecustomize")]
    patch = Patch({**(task.solution_changes() or {}), **dict.fromkeys(hooks, end)})
    verdict = await grade(task, patch, config, VerifierConfig(timeout_sec=60, guess_odds=1.0))
    assert verdict.reward == 1.0, f"they were imported: {verdict.reason}"
