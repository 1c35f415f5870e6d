"""Reading file edits from a model's answer."""

import pytest

from harness.scaffolds.fences import Block, Edit, fenced_blocks, read_edits, refusal

ONE = ["solution.py"]
TWO = ["src/a.py", "src/b.py"]


@pytest.mark.parametrize(
    ("answer", "blocks"),
    [
        ("no block", []),
        ("", []),
        ("```python\nx = 1\n```", [Block("python", "x = 1\n", True)]),
        ("```python\nx = 1\n```\nbye\n", [Block("python", "x = 1\n", True)]),
        ("```python\nx = 1", [Block("python", "x = 1\n", False)]),
        ("```python\nx = 1\n", [Block("python", "x = 1\n", False)]),
        ("```python\nx = 1```", [Block("python", "x = 1\n", True)]),
        ("```python\n\nx = 1\n\n```", [Block("python", "\nx = 1\n\n", True)]),
        ("```\n```", [Block("", "", True)]),
        ("```", [Block("", "", False)]),
        ("Sure: ```python\nx\n```", [Block("python", "x\n", True)]),
        ("````md\n```\nx\n```\n````", [Block("md", "```\nx\n```\n", True)]),
        ("```a\n1\n```\ntext\n```b\n2", [Block("a", "1\n", True), Block("b", "2\n", False)]),
        ("inline ```code``` only", []),
    ],
)
def test_blocks_of_an_answer(answer, blocks):
    assert fenced_blocks(answer) == blocks


@pytest.mark.parametrize(
    "answer",
    [
        "```python\nx\n```",
        "```python\nx",  # the stop string took the newline and the fence
        "```\nx\n```",
        "```python solution.py\nx\n```",
        "```python:solution.py\nx\n```",
        '```python title="solution.py"\nx\n```',
        "```solution.py\nx\n```",
        "```python\n# solution.py\nx\n```",
        "```text/x-python\nx\n```",
        "```python\nold\n```\nor better\n```python\nx\n```",
    ],
)
def test_a_single_editable_file_need_not_be_named(answer):
    assert read_edits(answer, ONE, cut=False) == ([Edit("solution.py", "x\n")], [])


def test_several_files_are_told_apart_by_the_info_string_or_the_first_line():
    named = "```python src/a.py\n1\n```\n```python\n# src/b.py\n2\n```\n```python ./src/new.py\n3\n```\n"
    answer = f"{named}```python\n4\n```"
    edits, problems = read_edits(answer, TWO, cut=False)
    assert edits == [Edit("src/a.py", "1\n"), Edit("src/b.py", "2\n"), Edit("src/new.py", "3\n")]
    assert problems == ["a block does not name its file after the language"]


def test_half_a_file_is_no_edit_but_the_closed_blocks_before_it_are():
    answer = "```python src/a.py\n1\n```\n```python src/b.py\nhal"
    edits, problems = read_edits(answer, TWO, cut=True)
    assert edits == [Edit("src/a.py", "1\n")]
    assert problems == ["the last block was cut off"]


def test_an_empty_block_is_no_edit():
    assert read_edits("```python\n\n```", ONE, cut=False) == ([], ["a block is empty"])


OUTSIDE = ["/etc/passwd", "../x.py", "a/../../x.py", ".", ""]
ODD = [".git/config", "a/.GIT/hooks/x", "a\0b", "a\nb", "a\\b", "ä" * 200]
TAKEN = ["test_seen.py", "link", "linked/x.py", "folder"]


@pytest.mark.parametrize("path", OUTSIDE + ODD + TAKEN)
def test_paths_that_may_not_be_written(tmp_path, path):
    (tmp_path / "test_seen.py").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/nowhere")
    (tmp_path / "linked").symlink_to("folder")
    (tmp_path / "folder" / "x.py").write_text("")
    assert refusal(path, tmp_path, ONE)


@pytest.mark.parametrize("path", ["solution.py", "new.py", "pkg/new.py", ".gitignore"])
def test_paths_that_may_be_written(tmp_path, path):
    (tmp_path / "solution.py").write_text("")
    assert refusal(path, tmp_path, ONE) is None
