"""Each public set, by rows with exactly its columns: what becomes of them, and what is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.pool.importers import IMPORTERS, ImportOptions, Rejected
from harness.pool.importers.grading import grading_facts
from harness.pool.importers.values import ImportProblem

PATCH = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
TEST_PATCH = PATCH.replace("m.py", "tests/test_m.py")
F2P, P2P = ["tests/test_m.py::test_a"], ["tests/test_m.py::TestB::test_b[1-x]"]

SWE_BENCH = {
    "repo": "astropy/astropy",
    "instance_id": "astropy__astropy-12907",
    "base_commit": "d16bfe05a744909de4b27f5875fe0d4ed41ce607",
    "patch": PATCH,
    "test_patch": TEST_PATCH,
    "problem_statement": "Modeling's `separability_matrix` is wrong",
    "hints_text": "",
    "created_at": "2022-03-03T15:14:54Z",
    "version": "4.3",
    "FAIL_TO_PASS": json.dumps(F2P),
    "PASS_TO_PASS": json.dumps(P2P),
    "environment_setup_commit": "298ccb478e6bf092953bca67a3d29dc6c35f6752",
}
VERIFIED = SWE_BENCH | {"difficulty": "15 min - 1 hour"}
V5 = SWE_BENCH | {
    "image": "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:v5",
    "eval_script": "#!/bin/bash",
    "log_parser": "parse_log_pytest_v2",
    "eval_type": "pass_and_fail",
}
MULTIMODAL = SWE_BENCH | {"image_assets": '{"problem_statement": ["https://x/y.png"]}'}
SMITH = {
    "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
    "patch": PATCH,
    "FAIL_TO_PASS": F2P,
    "PASS_TO_PASS": P2P,
    "image_name": "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536",
    "repo": "swesmith/oauthlib__oauthlib.1fd52536",
    "problem_statement": "OAuth breaks",
}
GYM = {
    "instance_id": "getmoto__moto-7365",
    "hints_text": "",
    "patch": PATCH,
    "test_patch": TEST_PATCH,
    "created_at": "2024-02-19",
    "problem_statement": "DynamoDB is wrong",
    "repo": "getmoto/moto",
    "base_commit": "7f6c9cb1deafb280fe7fcc7551c38e397f11a706",
    "version": "5.0",
    "PASS_TO_PASS": P2P,
    "FAIL_TO_PASS": F2P,
}
EXTRA = SWE_BENCH | {
    "FAIL_TO_PASS": F2P,
    "PASS_TO_PASS": P2P,
    "meta": {"failed_lite_validators": [], "has_test_patch": True, "is_lite": False},
    "license": "mit",
}
REBENCH = EXTRA | {
    "FAIL_TO_FAIL": [],
    "PASS_TO_FAIL": [],
    "install_config": {"test_cmd": "pytest -rA", "log_parser": "parse_log_pytest", "python": "3.9"},
    "license_name": "MIT",
    "docker_image": "swerebench/sweb.eval.x86_64.astropy_1776_astropy-12907",
}
REBENCH_V2 = {
    "base_commit": SWE_BENCH["base_commit"],
    "created_at": 1710000000000,
    "instance_id": "acme__mathy-7",
    "meta": {"llm_metadata": {"difficulty": "easy"}},
    "patch": PATCH,
    "pr_description": "",
    "problem_statement": "wrong",
    "repo": "acme/mathy",
    "test_patch": TEST_PATCH,
    "language": "python",
    "interface": "double(x) -> int",
    "PASS_TO_PASS": P2P,
    "FAIL_TO_PASS": F2P,
    "install_config": {
        "base_image_name": "python_base_310",
        "docker_specs": {},
        "install": ["pip install -e ."],
        "test_cmd": "pytest --no-header -rA",
        "log_parser": "parse_log_pytest",
    },
    "image_name": "docker.io/swerebenchv2/acme-mathy:7-abc",
}
PRO = {
    "repo": "qutebrowser/qutebrowser",
    "instance_id": "instance_qutebrowser__qutebrowser-f8e7fea0becae25ae20606f1422068137189fe9e",
    "base_commit": SWE_BENCH["base_commit"],
    "patch": PATCH,
    "test_patch": TEST_PATCH,
    "problem_statement": "Slow canvas",
    "requirements": "- a setting",
    "interface": "No new interfaces",
    "repo_language": "python",
    "fail_to_pass": "['tests/test_m.py::test_a', \"tests/test_m.py::test_c[--test-'x'-None]\"]",
    "pass_to_pass": repr(P2P),
    "issue_specificity": "[]",
    "issue_categories": "[]",
    "before_repo_set_cmd": "git reset --hard",
    "selected_test_files_to_run": '["tests/test_m.py"]',
    "dockerhub_tag": "qutebrowser.qutebrowser-qutebrowser__qutebrowser-f8e7fea0becae25ae20606f1422068137189fe9e",
}
R2E_TESTS = "import unittest\n\n\nclass TestX(unittest.TestCase):\n    def test_a(self): pass\n\n    def test_b(self): pass\n\n\ndef test_c(): pass\n"  # noqa: E501
R2E_LOG = "== short test summary info ==\n\x1b[32mPASSED\x1b[0m r2e_tests/test_1.py::\x1b[1mTestX::test_b\x1b[0m\nFAILED r2e_tests/test_1.py::TestX::test_a - assert 1\n"  # noqa: E501
R2E = {
    "repo_name": "aiohttp",
    "docker_image": "namanjain12/aiohttp_final:2d9617bd0c4e3c2e9c4e4cf1a3ea2d3fd0f7e2e1",
    "commit_hash": "2d9617bd0c4e3c2e9c4e4cf1a3ea2d3fd0f7e2e1",
    "parsed_commit_content": json.dumps(
        {
            "file_diffs": [
                {"header": {"file": {"path": "m.py"}}, "old_file_content": "x = 1\n", "new_file_content": "x = 2\n"},
                {"header": {"file": {"path": "tests/test_m.py"}}, "new_file_content": "secret\n"},
                {"header": {"file": {"path": "o.py"}, "misc_line": "deleted file mode 100644"}, "new_file_content": ""},
            ],
            "old_commit_hash": "2d9617bd0c4e3c2e9c4e4cf1a3ea2d3fd0f7e2e1^",
            "new_commit_hash": "2d9617bd0c4e3c2e9c4e4cf1a3ea2d3fd0f7e2e1",
        }
    ),
    "execution_result_content": json.dumps(
        {"test_file_names": ["test_1.py"], "test_file_codes": [R2E_TESTS], "old_commit_res_stdout": R2E_LOG}
    ),
    "modified_files": ["m.py"],
    "modified_entity_summaries": [
        {"ast_type_str": "function", "end_lineno": 1, "file_name": "m.py", "name": "x", "start_lineno": 1, "type": "x"}
    ],
    "relevant_files": ["m.py"],
    "num_non_test_files": 1,
    "num_non_test_func_methods": 1,
    "num_non_test_lines": 1,
    "prompt": "…",
    "problem_statement": "[ISSUE]\n**x** is 1\n[/ISSUE]",
    "expected_output_json": json.dumps(
        {"TestX.test_a": "PASSED", "\x1b[1mTestX.test_b\x1b[0m": "PASSED", "test_c - reason": "FAILED", "": "PASSED"}
    ),
}
NEMOTRON = {
    "responses_create_params": {
        "input": [],
        "metadata": {
            "instance_id": GYM["instance_id"],
            "base_commit": GYM["base_commit"],
            "dataset_name": "SWE-Gym/SWE-Gym",
            "split": "train",
            "instance_dict": json.dumps(GYM),
        },
    },
    "agent_ref": {"type": "responses_api_agents", "name": "swe_agents"},
}


def read(importer, values, tmp_path):
    """What the importer makes of one row in a file of JSON lines."""
    (tmp_path / "rows.jsonl").write_text(json.dumps(values))
    (found,) = IMPORTERS[importer].read(tmp_path / "rows.jsonl", ImportOptions())
    return found


def draft(importer, values, tmp_path):
    found = read(importer, values, tmp_path)
    assert not isinstance(found, Rejected), found
    return found.draft


@pytest.mark.parametrize(
    ("importer", "values", "image", "workdir"),
    [
        ("swe_bench", SWE_BENCH, "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest", "/testbed"),
        ("swe_bench", VERIFIED, "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest", "/testbed"),
        ("swe_bench", V5, "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:v5", "/testbed"),
        ("swe_bench", MULTIMODAL, "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest", "/testbed"),
        ("swe_bench", EXTRA, None, "/testbed"),
        ("swe_smith", SMITH, "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536", "/testbed"),
        ("swe_gym", GYM, "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365:latest", "/testbed"),
        ("swe_rebench", REBENCH, "swerebench/sweb.eval.x86_64.astropy_1776_astropy-12907", "/testbed"),
        ("swe_rebench_v2", REBENCH_V2, "docker.io/swerebenchv2/acme-mathy:7-abc", "/mathy"),
        ("swe_bench_pro", PRO, f"jefzda/sweap-images:{PRO['dockerhub_tag']}", "/app"),
        ("r2e_gym", R2E, R2E["docker_image"], "/testbed"),
        ("nemotron", NEMOTRON, "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365:latest", "/testbed"),
    ],
)
def test_the_environment_of_each_set(importer, values, image, workdir, tmp_path):
    found = draft(importer, values, tmp_path)
    assert (found.image, found.workdir) == (image, workdir)


@pytest.mark.parametrize(
    ("importer", "values"),
    [
        ("swe_bench", SWE_BENCH),
        ("swe_bench", {key.lower(): value for key, value in SWE_BENCH.items()}),
        ("swe_bench", {key.upper(): value for key, value in SWE_BENCH.items()}),
        ("swe_bench", SWE_BENCH | {"FAIL_TO_PASS": repr(F2P), "PASS_TO_PASS": P2P}),
        ("swe_bench", MULTIMODAL),
        ("swe_smith", SMITH),
        ("swe_gym", GYM),
        ("swe_rebench", REBENCH),
        ("swe_rebench_v2", REBENCH_V2),
        ("nemotron", NEMOTRON),
    ],
)
def test_two_lists_of_tests_become_the_protected_kind(importer, values, tmp_path):
    facts, _ = grading_facts(draft(importer, values, tmp_path))
    assert facts == {"report": "pytest", "fail_to_pass": F2P, "pass_to_pass": P2P}


def test_of_swe_bench_the_index_gets_difficulty_and_version(tmp_path):
    found = draft("swe_bench", VERIFIED, tmp_path)
    assert found.extra["difficulty"] == "15 min - 1 hour" and found.extra["version"] == "4.3"
    assert found.repo == "astropy/astropy" and found.base_commit == SWE_BENCH["base_commit"]
    assert found.instruction == SWE_BENCH["problem_statement"] and found.patch == PATCH


def test_pictures_are_ignored_with_a_word(tmp_path):
    assert draft("swe_bench", MULTIMODAL, tmp_path).notes == (
        "column image_assets (pictures) is ignored: agents get text",
    )
    assert draft("swe_bench", SWE_BENCH, tmp_path).notes == ()


def test_the_patch_of_swe_smith_is_the_bug(tmp_path):
    found = draft("swe_smith", SMITH, tmp_path)
    assert found.patch_is_bug and found.base_commit == "1fd52536" and not found.test_patch
    early = draft("swe_smith", SMITH | {"image_name": "swesmith.x86_64.oauthlib__oauthlib.1fd52536"}, tmp_path)
    assert early.image == "jyangballin/swesmith.x86_64.oauthlib_1776_oauthlib.1fd52536"
    original = draft("swe_smith", SMITH | {"base_commit": "a" * 40, "created_at": "2025"}, tmp_path)
    assert original.base_commit == "a" * 40
    refused = read("swe_smith", SMITH | {"problem_statement": ""}, tmp_path)
    assert isinstance(refused, Rejected) and "no text yet" in refused.reason


def test_swe_bench_pro_in_python(tmp_path):
    found = draft("swe_bench_pro", PRO, tmp_path)
    assert found.fail_to_pass == ["tests/test_m.py::test_a", "tests/test_m.py::test_c[--test-'x'-None]"]
    assert found.instruction.index("## Requirements") < found.instruction.index("## Interface")
    refused = read("swe_bench_pro", PRO | {"repo_language": "go", "fail_to_pass": "['TestDB']"}, tmp_path)
    assert (
        refused == Rejected(PRO["instance_id"], "rows.jsonl#1", refused.reason)
        and "repo_language is go" in refused.reason
    )


def test_r2e_gym_becomes_files_and_an_expected_map(tmp_path):
    found = draft("r2e_gym", R2E, tmp_path)
    assert found.instance_id == f"aiohttp__{R2E['commit_hash']}"
    assert found.instruction == "**x** is 1"
    assert found.base_commit == R2E["commit_hash"] + "^"
    assert found.solution_files == {"m.py": "x = 2\n", "o.py": None}
    assert found.hidden_files == {"r2e_tests/test_1.py": R2E_TESTS}
    facts, notes = grading_facts(found)
    assert facts == {
        "report": "pytest",
        "fail_to_pass": ["r2e_tests/test_1.py::TestX::test_a"],
        "pass_to_pass": ["r2e_tests/test_1.py::TestX::test_b"],
    }
    assert notes == ["1 tests that do not pass with the solution count for nothing"]
    assert found.notes == ("1 tests left out, which no file or several have, e.g. ''",)


def test_r2e_gym_without_the_earlier_results_counts_all_as_failing(tmp_path):
    content = json.loads(R2E["execution_result_content"]) | {"old_commit_res_stdout": ""}
    facts, notes = grading_facts(draft("r2e_gym", R2E | {"execution_result_content": json.dumps(content)}, tmp_path))
    assert len(facts["fail_to_pass"]) == 2 and facts["pass_to_pass"] == []
    assert "all count as failing" in notes[-1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"expected_output_json": "{}"}, "expected_output_json is empty"),
        (
            {"execution_result_content": json.dumps({"test_file_names": ["a.py"], "test_file_codes": []})},
            "test_file_codes",
        ),
        (
            {"execution_result_content": json.dumps({"test_file_names": ["../a.py"], "test_file_codes": ["x"]})},
            "leads out",
        ),
        ({"parsed_commit_content": json.dumps({"file_diffs": []})}, "no solution"),
        ({"expected_output_json": json.dumps({"TestX.test_b": "PASSED"})}, "passes before the solution"),
        ({"commit_hash": "HEAD; rm -rf"}, "instance_id"),
        (
            {"instance_id": "x", "parsed_commit_content": R2E["parsed_commit_content"].replace("^", "^ --x")},
            "no commit",
        ),
    ],
)
def test_rows_of_r2e_gym_that_are_no_tasks(change, reason, tmp_path):
    found = read("r2e_gym", R2E | change, tmp_path)
    assert isinstance(found, Rejected) and reason in found.reason


def test_nemotron_takes_the_original_rows_importer(tmp_path):
    inner = {"dataset_name": "R2E-Gym/R2E-Gym-Subset", "instance_id": "aiohttp-1", "instance_dict": json.dumps(R2E)}
    found = draft("nemotron", {"responses_create_params": {"metadata": inner}}, tmp_path)
    assert found.instance_id == "aiohttp-1" and found.expected_map
    mirrored = {"instance_id": "x", "instance_dict": SWE_BENCH, "responses_create_params": {"input": []}}
    assert draft("nemotron", mirrored, tmp_path).repo == "astropy/astropy"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"instance_id": "../../x"}, "no safe name"),
        ({"instance_id": ""}, "no instance_id"),
        ({"repo": "a/b/c"}, "no owner/name"),
        ({"repo": "../etc"}, "no owner/name"),
        ({"base_commit": "--upload-pack=x"}, "no commit"),
        ({"problem_statement": " "}, "no problem_statement"),
        ({"patch": ""}, "no patch"),
        ({"patch": "nonsense"}, "bad patch: it changes no file"),
        ({"patch": PATCH.replace("b/m.py", "b/../../m.py")}, "leads out"),
        ({"test_patch": TEST_PATCH[:-7]}, "bad test_patch"),
        ({"test_patch": None}, "no test_patch"),
        ({"FAIL_TO_PASS": "tests/test_m.py::test_a"}, "FAIL_TO_PASS is neither"),
        ({"image": "x y; reboot"}, "no name of an image"),
    ],
)
def test_rows_that_are_no_tasks_are_told_with_their_reason(change, reason, tmp_path):
    found = read("swe_bench", SWE_BENCH | change, tmp_path)
    assert isinstance(found, Rejected) and reason in found.reason
    assert found.origin == "rows.jsonl#1"


@pytest.mark.parametrize("empty", ["[]", [], None, ""])
def test_a_task_without_failing_tests_is_refused(empty, tmp_path):
    with pytest.raises(ImportProblem, match="FAIL_TO_PASS is empty"):
        grading_facts(draft("swe_bench", SWE_BENCH | {"FAIL_TO_PASS": empty}, tmp_path))


def test_ids_that_were_cut_off_are_left_out_and_counted(tmp_path):
    cut = [*P2P, "tests/test_m.py::test_d[a", "README.rst::README.rst"]
    facts, notes = grading_facts(draft("swe_bench", SWE_BENCH | {"PASS_TO_PASS": cut}, tmp_path))
    assert facts["pass_to_pass"] == P2P
    assert notes == ["2 ids of PASS_TO_PASS left out, cut off or of another form, e.g. 'tests/test_m.py::test_d[a'"]
    only_cut = draft("swe_bench", SWE_BENCH | {"FAIL_TO_PASS": ["tests/test_m.py::test_d[a"]}, tmp_path)
    with pytest.raises(ImportProblem, match="not of pytest's form"):
        grading_facts(only_cut)


def test_a_test_in_both_lists_is_a_failing_one(tmp_path):
    facts, notes = grading_facts(draft("swe_bench", SWE_BENCH | {"PASS_TO_PASS": F2P + P2P}, tmp_path))
    assert facts["fail_to_pass"] == F2P and facts["pass_to_pass"] == P2P and "both lists" in notes[0]


@pytest.mark.parametrize("name", ["usr", "etc", "workspace", "mathy"])
def test_a_repository_does_not_lie_in_a_part_of_the_system(name, tmp_path):
    found = read("swe_rebench_v2", REBENCH_V2 | {"repo": f"acme/{name}"}, tmp_path)
    refused = isinstance(found, Rejected) and "part of the system" in found.reason
    assert refused == (name in ("usr", "etc"))


def test_sympy_has_a_runner_and_bare_ids(tmp_path):
    row = SWE_BENCH | {
        "repo": "sympy/sympy",
        "instance_id": "sympy__sympy-11618",
        "test_patch": TEST_PATCH.replace("tests/test_m.py", "sympy/geometry/tests/test_point.py"),
        "FAIL_TO_PASS": '["test_issue_11617"]',
        "PASS_TO_PASS": '["test_point", "test_point3D"]',
    }
    facts, notes = grading_facts(draft("swe_bench", row, tmp_path))
    assert notes == [] and (facts["report"], facts["log_parser"]) == ("log", "sympy")
    assert facts["test_command"][:2] == ["python", "bin/test"]
    assert facts["test_command"][-1] == "sympy/geometry/tests/test_point.py"
    assert facts["fail_to_pass"] == ["test_issue_11617"] and len(facts["pass_to_pass"]) == 2


def test_django_has_a_runner_and_ids_of_its_own(tmp_path):
    values = SWE_BENCH | {
        "repo": "django/django",
        "instance_id": "django__django-11099",
        "test_patch": TEST_PATCH.replace("tests/test_m.py", "tests/auth_tests/test_validators.py"),
        "FAIL_TO_PASS": '["test_ascii_validator (auth_tests.test_validators.UsernameValidatorsTests)"]',
        "PASS_TO_PASS": '["test_help_text (auth_tests.test_validators.X)", "A docstring is the name"]',
    }
    facts, _ = grading_facts(draft("swe_bench", values, tmp_path))
    assert facts["report"] == "log" and facts["log_parser"] == "django"
    assert facts["test_command"][:2] == ["python", "tests/runtests.py"]
    assert facts["test_command"][-1] == "auth_tests.test_validators"
    assert facts["pass_to_pass"] == ["test_help_text (auth_tests.test_validators.X)", "A docstring is the name"]


def test_other_ids_need_a_known_form_of_output(tmp_path):
    go = REBENCH_V2 | {"language": "go", "FAIL_TO_PASS": ["TestDB"], "PASS_TO_PASS": []}
    go["install_config"] = {"test_cmd": ["go test -v ./...", "echo done"], "log_parser": "parse_log_gotest"}
    with pytest.raises(ImportProblem, match=r"'TestDB' is not of pytest's form, and log parser 'parse_log_gotest'"):
        grading_facts(draft("swe_rebench_v2", go, tmp_path))
    go["install_config"]["log_parser"] = "parse_log_unittest"
    facts, _ = grading_facts(draft("swe_rebench_v2", go, tmp_path))
    assert facts["test_command"] == ["sh", "-c", "go test -v ./... && echo done"]
    assert (facts["report"], facts["log_parser"]) == ("log", "unittest")
    with pytest.raises(ImportProblem, match="the row names no log parser"):
        grading_facts(draft("swe_bench", SWE_BENCH | {"FAIL_TO_PASS": '["test_bare"]'}, tmp_path))


SETS = {
    "swe_bench": V5,
    "swe_smith": SMITH,
    "swe_gym": GYM,
    "swe_rebench": REBENCH,
    "swe_rebench_v2": REBENCH_V2,
    "swe_bench_pro": PRO,
    "r2e_gym": R2E,
    "nemotron": NEMOTRON,
}
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["../x", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def spoil(data, value):
    """A copy of a value in which one thing, at any depth and inside of JSON, is something else."""
    if isinstance(value, dict) and value and data.draw(st.integers(0, 3)):
        key = data.draw(st.sampled_from(sorted(value)))
        return value | {key: spoil(data, value[key])}
    if isinstance(value, list) and value and data.draw(st.booleans()):
        return [spoil(data, value[0]), *value[1:]]
    if isinstance(value, str) and value.startswith("{") and data.draw(st.integers(0, 3)):
        return json.dumps(spoil(data, json.loads(value)))
    return data.draw(ANYTHING)


@given(st.data(), st.sampled_from(sorted(SETS)))
@settings(max_examples=200, deadline=None)
def test_no_row_stops_an_import(tmp_path_factory, data, name):
    """Whatever a row holds, it is a draft or rejected with a reason."""
    values = spoil(data, SETS[name])
    values = values if isinstance(values, dict) else SETS[name] | {"instance_id": values}
    folder = tmp_path_factory.getbasetemp()
    found = read(name, values, folder)
    if isinstance(found, Rejected):
        assert found.reason
        return
    try:
        assert grading_facts(found.draft)[0]["fail_to_pass"]
    except ImportProblem as problem:
        assert str(problem)
