"""Taking, filtering, storing and applying patches; against real sandboxes where one is concerned."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.patch import Patch, PatchError, apply, drop_reason, filter_patch, take_patch
from harness.sandbox import SandboxConfig, TreeLimits, WorkspaceError, create_sandbox


@pytest.fixture
def pristine(tmp_path: Path) -> Path:
    """A snapshot with code, a visible test, a module that is called like one of the standard library, and a link."""
    root = tmp_path / "repo"
    (root / "pkg").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "pkg" / "a.py").write_text("one\ntwo\n")
    (root / "pkg" / "b.py").write_text("b\n")
    (root / "tests" / "test_a.py").write_text("test\n")
    (root / "calendar.py").write_text("own\n")
    (root / "blob").write_bytes(b"\0\1\2")
    (root / "link").symlink_to("pkg/a.py")
    return root


async def patch_after(pristine: Path, script: str, limits: TreeLimits | None = None) -> Patch:
    async with create_sandbox(SandboxConfig(limits=limits or TreeLimits())) as sandbox:
        await sandbox.upload(pristine)
        result = await sandbox.exec(["sh", "-ec", script], timeout=30)
        assert result.exit_code == 0, result.stderr
        return await take_patch(pristine, sandbox, protected={"tests/test_a.py"})


async def test_nothing_done_is_an_empty_patch(pristine: Path) -> None:
    patch = await patch_after(pristine, "touch pkg/a.py; chmod 600 pkg/b.py")
    assert patch.empty
    assert (patch.rejected, patch.text) == ((), "")


async def test_changes_additions_and_deletions(pristine: Path) -> None:
    patch = await patch_after(pristine, "echo 2 > pkg/a.py; rm pkg/b.py; mkdir n; echo new > n/c; printf '\\0' > blob")
    assert patch.files == {"pkg/a.py": b"2\n", "pkg/b.py": None, "n/c": b"new\n", "blob": b"\0"}
    assert patch.rejected == ()
    assert "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,2 +1 @@\n-one\n-two\n+2\n" in patch.text
    assert "--- /dev/null\n+++ b/n/c\n" in patch.text
    assert "--- a/pkg/b.py\n+++ /dev/null\n" in patch.text
    assert "diff --git a/blob b/blob\nBinary files differ\n" in patch.text


async def test_an_applied_patch_recreates_the_workspace(pristine: Path) -> None:
    patch = await patch_after(pristine, "rm pkg/b.py; mkdir pkg/b.py; echo x > pkg/b.py/in; echo 2 > pkg/a.py")
    async with create_sandbox(SandboxConfig()) as sandbox:
        await sandbox.upload(pristine)
        await apply(patch, sandbox)
        again = await take_patch(pristine, sandbox)
    assert again.files == patch.files == {"pkg/a.py": b"2\n", "pkg/b.py": None, "pkg/b.py/in": b"x\n"}


async def test_what_could_turn_the_grading_is_left_out(pristine: Path) -> None:
    hooks = (
        "conftest.py pkg/conftest.py pytest.ini tox.ini setup.cfg sitecustomize.py usercustomize.py x.pth json.py a.pyc"
    )
    script = f"for f in {hooks} tests/test_a.py; do echo x > $f; done; mkdir unittest; echo x > unittest/__init__.py"
    patch = await patch_after(
        pristine, f"{script}; echo fine > calendar.py; echo fine > pkg/json.py; mkdir .git; echo > .git/c"
    )
    assert set(patch.files) == {"calendar.py", "pkg/json.py"}
    assert {path for path, _ in patch.rejected} == {*hooks.split(), "tests/test_a.py", "unittest/__init__.py"}
    assert all(reason for _, reason in patch.rejected)


async def test_links_and_special_files_are_left_out_and_hide_no_file(pristine: Path) -> None:
    script = "rm -r pkg; ln -s / pkg; ln -s /etc/passwd x; mkfifo f; rm calendar.py; ln -s blob calendar.py"
    patch = await patch_after(pristine, script)
    assert patch.files == {}
    assert {path for path, _ in patch.rejected} == {"pkg", "x", "f", "calendar.py"}


async def test_a_link_replaced_by_a_file_is_a_change_and_a_kept_one_is_none(pristine: Path) -> None:
    assert (await patch_after(pristine, "rm link; echo x > link")).files == {"link": b"x\n"}
    assert (await patch_after(pristine, "rm link; ln -s pkg/a.py link")).empty


async def test_too_large_a_workspace_is_an_empty_patch_with_a_reason(pristine: Path) -> None:
    patch = await patch_after(
        pristine, "echo 2 > pkg/a.py; for i in $(seq 30); do : > f$i; done", TreeLimits(max_files=20)
    )
    assert patch.empty
    assert "20 files" in patch.rejected[0][1]


async def test_an_oversize_file_is_left_out_and_not_taken_for_deleted(pristine: Path) -> None:
    limits = TreeLimits(max_file_bytes=1000)
    patch = await patch_after(pristine, "head -c 2000 /dev/zero > pkg/a.py; echo 2 > pkg/b.py", limits)
    assert patch.files == {"pkg/b.py": b"2\n"}
    assert patch.rejected[0][0] == "pkg/a.py"


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a//b", "./a", "", "a\nb", "a\0b", "\udc80"])
def test_paths_that_are_not_plain_are_left_out(pristine: Path, path: str) -> None:
    assert drop_reason(path, pristine)
    assert filter_patch(Patch({path: b"x"}), pristine).files == {}


async def test_a_patch_that_does_not_fit_says_so(pristine: Path) -> None:
    async with create_sandbox(SandboxConfig()) as sandbox:
        await sandbox.upload(pristine)
        with pytest.raises(WorkspaceError):
            await apply(Patch({"pkg": b"x"}), sandbox)


@settings(deadline=None)
@given(
    st.dictionaries(st.text(), st.none() | st.binary()),
    st.lists(st.tuples(st.text(), st.text())),
    st.text(),
)
def test_stored_patches_are_read_back_unchanged(
    files: dict[str, bytes | None], rejected: list[tuple[str, str]], text: str
) -> None:
    patch = Patch(files, tuple(rejected), text)
    assert Patch.from_json(patch.to_json()) == patch


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": {"a": "?"}, "rejected": [], "text": ""}', '{"files": 1}'])
def test_other_text_is_no_stored_patch(text: str) -> None:
    with pytest.raises(PatchError):
        Patch.from_json(text)


def test_text_of_large_changes_stays_small(pristine: Path) -> None:
    lines = "".join(f"{i}\n" for i in range(200_000)).encode()
    many = {f"f{i}": b"x" * 50_000 for i in range(20)}
    patch = filter_patch(Patch({"big": lines} | many), pristine)
    assert len(patch.text) < 400_000
    assert "200000 lines differ" in patch.text
    assert "are not shown" in patch.text
    assert json.loads(patch.to_json())["text"] == patch.text


def test_lines_without_newline_at_the_end_stay_apart(pristine: Path) -> None:
    patch = filter_patch(Patch({"pkg/a.py": b"one\ntwo"}), pristine)
    assert patch.text.endswith("-two\n+two\n\\ No newline at end of file\n")


HIDDEN = {"tests/test_core.py", "tests/helper.py", "tests/cases.json", "check_core.py", "unit/support/__init__.py"}


@pytest.mark.parametrize(
    "path",
    [
        *("tests/new.py", "pkg/tests/data.json", "test/support.py", "pkg/test_x.py", "pkg/x_test.py", "app/tests.py"),
        *("web/__tests__/a.js", "web/a.spec.ts", "web/a.test.jsx", "pkg/a_test.go"),
        *("pytest.toml", ".pytest.toml", "tox.toml", "noxfile.py", ".coveragerc", "jest.config.js", ".mocharc.json"),
        *(
            "pyvenv.cfg",
            "python311._pth",
            "x.egg-link",
            "pkg.egg-info/entry_points.txt",
            "a.dist-info/entry_points.txt",
        ),
        *(".git", ".git/hooks/x", "pkg/.git/config", ".hg/hgrc", ".svn/entries", "a/.tox/x.py", ".venv/lib/x.py"),
        *("pytest.py", "_pytest/runner.py", "pluggy/__init__.py", "src/unittest.py", "lib/json/__init__.py", "re.so"),
        *("check_core/__init__.py", "check_core.cpython-311-x86_64-linux-gnu.so", "check_core/deep/x.txt"),
        *("unit/support.py", "unit/support/more.py", "unit/json.py", "tests/cases.json/x"),
    ],
)
def test_paths_that_reach_into_the_grading_are_left_out(pristine: Path, path: str) -> None:
    for content in (b"x", None):
        patch = filter_patch(Patch({path: content}), pristine, HIDDEN)
        assert patch.files == {}
        assert [rejected for rejected, _ in patch.rejected] == [path]


@pytest.mark.parametrize(
    "path",
    [
        *("pkg/renamed.py", "new.py", "new/__init__.py", "new/json.py", "pkg/types.py", "pkg/check_core.py"),
        *("pkg/testing.py", "contest.py", "pkg/latest.py", "docs/tests.md", "pkg/conftest_tools.py", "calendar.py"),
        *("README.md", "requirements.txt", "setup.py", "Makefile", "src/new.py", "pkg/git/log.py", "unit/other.py"),
        *("pkg/core.cpython-311-x86_64-linux-gnu.so", ".gitignore", ".github/workflows/x.yml", "pyproject.toml"),
    ],
)
def test_paths_of_honest_solutions_pass(pristine: Path, path: str) -> None:
    patch = filter_patch(Patch({path: b""}), pristine, HIDDEN)
    assert patch.files == {path: b""}, patch.rejected


def test_a_module_named_like_a_trusted_one_passes_beside_hidden_tests_in_a_package(pristine: Path) -> None:
    (pristine / "pkg" / "__init__.py").write_text("")
    hidden = {"pkg/test_core.py"}
    assert not drop_reason("pkg/types.py", pristine, hidden)
    assert drop_reason("types.py", pristine, hidden), "the package's parent is what a runner puts on the path"
    (pristine / "pkg" / "__init__.py").unlink()
    assert drop_reason("pkg/types.py", pristine, hidden)


def test_pyproject_may_change_except_for_what_it_says_to_test_tools(pristine: Path) -> None:
    (pristine / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.pytest.ini_options]\naddopts = "-q"\n')

    def accepted(text: bytes | None) -> bool:
        return "pyproject.toml" in filter_patch(Patch({"pyproject.toml": text}), pristine).files

    assert accepted(
        b'[project]\nname = "x"\nversion = "2"\n[tool.ruff]\na = 1\n[tool.pytest.ini_options]\naddopts="-q"'
    )
    assert not accepted(b'[project]\nname = "x"\n[tool.pytest.ini_options]\naddopts = "-p evil"\n')
    assert not accepted(b'[project]\nname = "x"\n')
    assert not accepted(b"[[[")
    assert not accepted(b"\xff")
    assert not accepted(None)
