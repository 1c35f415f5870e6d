"""Kinds of bugs: each changes what it says, and nothing else of the file."""

import ast

import pytest

from harness.pool.builder.bugs import BUGS, register_bug
from harness.pool.builder.mutate import SourceFile, UnreadableSource

SOURCE = '''"""Doc."""
import functools
FORMAT = "%s"    # kept   as it is


def plain(a, b=True, *, key=1):
    """Doc of plain."""
    if not a and b:
        return a, b
    elif a is None:
        raise ValueError("no " + "a")
    else:
        b = sorted(a)[1:] if a else list(b)
    for item in a:
        if item == ' ':
            continue
        if item in b:
            break
        b.append(item)
        key += -1
    x, y = divmod(a - 1, b[0])
    a.value = max(x, y, key=len)
    with b:
        try:
            a = a.strip()
        except (KeyError, IndexError):
            a = None
        except ValueError:
            a = [c for c in b if c]
    if b:
        x = 1
    else:
        y = 2
    yield from a
    return plain(a, b)


class Base(functools.partial, object):
    alias = None

    @property
    def size(self):
        return self.a < 3.5
'''


@pytest.fixture(scope="module")
def source() -> SourceFile:
    return SourceFile("m.py", SOURCE)


def rendered(source, kind):
    results = [source.render([site]) for site in source.sites([kind])]
    return [result for result in results if result is not None]


def test_there_are_many_kinds_in_many_families():
    assert len(BUGS) >= 12
    families = {bug.family for bug in BUGS.values()}
    assert {"operators", "constants", "conditions", "loops", "assignments", "wrappers", "returns"} <= families
    assert {"exceptions", "class members", "control flow"} <= families


@pytest.mark.parametrize("kind", sorted(BUGS))
def test_each_kind_changes_the_sample_and_leaves_python(source, kind):
    results = rendered(source, kind)
    assert results, f"{kind} found nothing to change"
    for result in results:
        assert ast.dump(ast.parse(result.text)) != ast.dump(ast.parse(SOURCE))
        assert "# kept   as it is" in result.text and result.lines


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("operator_change", "divmod(a - 1,", "divmod(a + 1,"),
        ("boolean_change", "not a and b", "not a or b"),
        ("comparison_change", "a is None", "a is not None"),
        ("operand_swap", "a - 1", "1 - a"),
        ("truth_change", "b=True", "b=False"),
        ("slice_shift", "[1:]", "[2:]"),
        ("loop_exit", "break", "continue"),
        ("except_change", "except ValueError", "except TypeError"),
        ("raise_change", "raise ValueError", "raise TypeError"),
        ("target_swap", "x, y = divmod", "y, x = divmod"),
        ("yield_change", "yield from a", "yield a"),
        ("argument_swap", "plain(a, b)", "plain(b, a)"),
        ("wrapper_drop", "a.strip()", "a"),
        ("base_drop", "class Base(functools.partial, object)", "class Base(object)"),
    ],
)
def test_a_kind_makes_its_change(source, kind, before, after):
    assert any(before in SOURCE and after in result.text for result in rendered(source, kind))


def test_only_the_changed_lines_differ(source):
    (result,) = rendered(source, "target_swap")
    assert [line.strip() for line in result.removed] == ["x, y = divmod(a - 1, b[0])"]
    number = next(n for n, line in enumerate(SOURCE.splitlines(), start=1) if "divmod" in line)
    assert result.lines == 1 << number
    before, after = SOURCE.splitlines(), result.text.splitlines()
    assert [a for a, b in zip(before, after, strict=True) if a != b] == list(result.removed)


def test_lines_of_a_head_count_as_those_of_its_call(source):
    results = rendered(source, "decorator_drop")
    first = next(n for n, line in enumerate(SOURCE.splitlines(), start=1) if "@property" in line)
    assert all(result.lines & (1 << first) for result in results)


def test_a_dropped_statement_leaves_no_lone_pass(source):
    (result,) = rendered(source, "call_drop")
    assert "append" not in result.text and "pass" not in result.text


def test_two_bugs_at_once(source):
    first = source.sites(["target_swap"])[0]
    second = next(site for site in source.sites(["comparison_change"]) if site.function == "Base.size")
    result = source.render([first, second])
    assert "y, x = divmod" in result.text and "self.a <= 3.5" in result.text
    assert len(result.removed) == 2 and bin(result.lines).count("1") == 2


def test_docstrings_and_annotations_are_left_alone():
    source = SourceFile("m.py", 'def f(a: "int" = None) -> "str":\n    " "\n    return a\n')
    assert {site.kind for site in source.sites()} == {"return_change"}


def test_what_is_no_python_is_refused():
    with pytest.raises(UnreadableSource, match="cannot be parsed"):
        SourceFile("m.py", "def f(:\n")


def test_a_kind_is_registered_once():
    with pytest.raises(ValueError, match="registered twice"):
        register_bug("x")(BUGS["loop_once"].change)
