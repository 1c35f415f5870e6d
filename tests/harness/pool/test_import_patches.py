"""Diffs of strangers: what is refused as text, and what applying them may touch."""

import pytest

from harness.pool.importers.patches import FileChange, apply_patch, parse_patch, safe_path
from harness.pool.importers.values import ImportProblem

FILES = {"a.py": b"one\ntwo\nthree\n", "b c.py": b"x\n", "d.py": b"gone\n", "crlf.txt": b"a\r\nb\r\n"}

CHANGE = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
NEW = "diff --git a/n/new.py b/n/new.py\nnew file mode 100644\nindex 0000000..e69de29\n"
DELETE = "diff --git a/d.py b/d.py\ndeleted file mode 100644\n--- a/d.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"
RENAME = "diff --git a/b c.py b/e.py\nsimilarity index 100%\nrename from b c.py\nrename to e.py\n"
QUOTED = (
    '--- "a/n\\303\\251.txt"\t2020\n+++ "b/n\\303\\251.txt"\t2020\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n'
)


def original(path):
    return FILES.get(path)


def test_the_files_of_a_diff():
    assert parse_patch(CHANGE + NEW + DELETE + RENAME) == [
        FileChange("a.py", "a.py"),
        FileChange(None, "n/new.py"),
        FileChange("d.py", None),
        FileChange("b c.py", "e.py"),
    ]
    assert parse_patch(QUOTED.replace("--- ", "--- ", 1)) == [FileChange("né.txt", "né.txt")]


def test_a_diff_is_applied():
    changed = apply_patch(CHANGE + NEW + DELETE + RENAME, original)
    assert changed == {"a.py": b"one\n2\nthree\n", "n/new.py": b"", "d.py": None, "b c.py": None, "e.py": b"x\n"}


def test_a_diff_is_reversed():
    assert apply_patch(CHANGE, lambda _: b"one\n2\nthree\n", reverse=True) == {"a.py": FILES["a.py"]}


def test_a_missing_last_newline_and_stripped_blanks_are_borne():
    assert apply_patch(CHANGE.rstrip("\n"), original)["a.py"] == b"one\n2\nthree\n"
    gap = "--- a/g\n+++ b/g\n@@ -1,3 +1,3 @@\n-x\n+y\n\n z\n"
    assert apply_patch(gap, lambda _: b"x\n\nz\n") == {"g": b"y\n\nz\n"}


def test_line_ends_are_kept():
    patch = "--- a/crlf.txt\n+++ b/crlf.txt\n@@ -1,2 +1,2 @@\n a\r\n-b\r\n+c\r\n"
    assert apply_patch(patch, original) == {"crlf.txt": b"a\r\nc\r\n"}


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("", "changes no file"),
        ("please change a.py", "changes no file"),
        (CHANGE.replace(" three\n", ""), "ends before"),
        (CHANGE.replace("-1,3", "-1,2"), "more lines than it says|ends before"),
        ("@@ -1 +1 @@\n-a\n+b\n", "without the name"),
        (CHANGE.replace("+++ b/a.py\n", ""), r"without '\+\+\+'"),
        ("--- a/a.py\n+++ b/a.py\n", "without hunks"),
        ("--- a.py\n+++ a.py\n@@ -1 +1 @@\n-a\n+b\n", "does not begin with a/"),
        ("diff --git a.py a.py\n@@\n", "not 'diff --git|do not begin"),
        ("diff --git a/x.bin b/x.bin\nindex 1..2\nBinary files a/x.bin and b/x.bin differ\n", "is binary"),
        (CHANGE.replace("two", "zwei"), "does not apply"),
    ],
)
def test_a_broken_diff_is_refused(patch, message):
    with pytest.raises(ImportProblem, match=message):
        apply_patch(patch, original)


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", ".git/config", "sub/.GIT/hooks/x", "a\\b", "", ".", "a\nb"]
)
def test_a_path_that_leads_out_is_refused(path):
    with pytest.raises(ImportProblem, match="leads out"):
        safe_path(path)


@pytest.mark.parametrize(
    "patch",
    [
        CHANGE.replace("b/a.py", "b/../../a.py"),
        "--- /dev/null\n+++ b/../evil\n@@ -0,0 +1 @@\n+x\n",
        "--- /dev/null\n+++ b//etc/evil\n@@ -0,0 +1 @@\n+x\n",
        "--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+x\n",
        "diff --git a/a.py b/a.py\nrename from a.py\nrename to ../a.py\n",
        '--- /dev/null\n+++ "b/\\056\\056/evil"\n@@ -0,0 +1 @@\n+x\n',
        "diff --git a/../a.py b/../a.py\nnew file mode 100644\n",
    ],
)
def test_a_diff_that_leads_out_is_refused(patch):
    with pytest.raises(ImportProblem, match="leads out"):
        parse_patch(patch)


def test_a_diff_that_makes_a_link_is_refused():
    link = "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n"
    with pytest.raises(ImportProblem, match="made a link"):
        parse_patch(link)


def test_what_a_diff_may_touch_is_a_copy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_bytes(FILES["a.py"])
    apply_patch(CHANGE, original)
    assert (tmp_path / "a.py").read_bytes() == FILES["a.py"]
