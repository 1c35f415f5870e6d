"""What is made of a policy's answers for the terminal, however they come."""

import json
import math

import pytest

from harness.scaffolds.terminus_answer import (
    DEFAULT_SECONDS,
    MAX_COMMANDS,
    MAX_KEYSTROKES,
    MAX_SECONDS,
    Command,
    Reading,
    read_answer,
)


def answer(*commands, **changes):
    """A right answer with these commands, each a text or a whole object."""
    listed = [{"keystrokes": c, "duration": 1} if isinstance(c, str) else c for c in commands]
    fields = {"analysis": "a", "plan": "p", "commands": listed, "task_complete": False}
    return json.dumps(fields | changes)


def seconds_of(value):
    (command,) = read_answer('{"commands": [{"keystrokes": "x", "duration": ' + value + "}]}").commands
    return command.seconds


def test_a_right_answer_is_read_without_a_word():
    reading = read_answer(answer("ls\n", {"keystrokes": "make\n", "duration": 12.5}, task_complete=True))
    assert reading == Reading((Command("ls\n", 1.0), Command("make\n", 12.5)), task_complete=True)


def test_the_object_is_found_in_prose_and_fences():
    for text in (f"```json\n{answer('ls')}\n```", f"I think {{so}} [1] {{}}.\n{answer('ls')} Good luck {{"):
        reading = read_answer(text)
        assert reading.commands == (Command("ls", 1.0),) and not reading.error
        assert reading.warnings == ("text outside the JSON object is ignored",)


def test_the_first_object_with_commands_counts():
    reading = read_answer(f'{{"thought": {{"commands": "none"}}}} {answer("one")} {answer("two")}')
    assert [c.keystrokes for c in reading.commands] == ["one"]


def test_line_breaks_inside_of_texts_are_taken():
    text = '{"analysis": "two\nlines", "plan": "", "commands": [{"keystrokes": "a\nb\t", "duration": 0}]}'
    assert read_answer(text).commands == (Command("a\nb\t", 0.0),)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no JSON object"),
        ("just words", "no JSON object"),
        ('{"commands": [', "cannot be read: Expecting value (line 1, column 15)"),
        (answer("ls")[:-1], "cannot be read"),
        ("{'commands': []}", "cannot be read"),
        ('{"analysis": "a"}', 'no "commands"'),
        ('["commands"]', "no JSON object"),
        ('{"commands": "ls"}', '"commands" must be a list'),
        ('{"commands": {"keystrokes": "ls"}}', '"commands" must be a list'),
        ('{"commands": ["ls"]}', "command 1"),
        ('{"commands": [{"keystrokes": "ls"}, {"keys": "ls"}]}', "command 2"),
        ('{"commands": [{"keystrokes": ["ls"]}]}', "command 1"),
        ('{"commands": [{"keystrokes": "\\ud800"}]}', "surrogate"),
        ('{"commands": [], "task_complete": "perhaps"}', '"task_complete"'),
        ('{"commands": [], "task_complete": 1}', '"task_complete"'),
        (answer(*["x"] * (MAX_COMMANDS + 1)), f"at most {MAX_COMMANDS}"),
        (answer("x" * (MAX_KEYSTROKES // 2), "y" * (MAX_KEYSTROKES // 2 + 1)), f"at most {MAX_KEYSTROKES}"),
        ('{"commands": ' + "[" * 100_000, "nested too deeply"),
        ('{"commands": [{"keystrokes": "ls", "duration": ' + "9" * 10_000 + "}]}", "a number is too long"),
        ("{" * 100_000, "cannot be read"),
    ],
    ids=range(20),
)
def test_a_malformed_answer_types_nothing_and_says_why(text, error):
    reading = read_answer(text)
    assert error in reading.error
    assert (reading.commands, reading.task_complete) == ((), False)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("0.1", 0.1),
        ('"5"', 5.0),
        ("60", 60.0),
        ("61", MAX_SECONDS),
        ("1e308", MAX_SECONDS),
        ("1e999", MAX_SECONDS),
        ("Infinity", MAX_SECONDS),
        ("-3", 0.0),
        ("-Infinity", 0.0),
        ("9" * 400, DEFAULT_SECONDS),
        ("NaN", DEFAULT_SECONDS),
        ("true", DEFAULT_SECONDS),
        ("null", DEFAULT_SECONDS),
        ('"soon"', DEFAULT_SECONDS),
        ("[1]", DEFAULT_SECONDS),
    ],
    ids=range(16),
)
def test_durations_are_finite_and_bounded(value, seconds):
    assert seconds_of(value) == seconds and math.isfinite(seconds_of(value))


def test_what_was_mended_is_told():
    reading = read_answer(answer({"keystrokes": "a", "duration": 1e9}, {"keystrokes": "b", "duration": None}, plan=3))
    assert len(reading.warnings) == 3 and not reading.error
    assert "command 1" in reading.warnings[0] and "command 2" in reading.warnings[1] and "plan" in reading.warnings[2]


def test_completion_said_as_a_text_counts_and_silence_does_not():
    assert read_answer(answer(task_complete=" True ")).task_complete is True
    assert read_answer('{"commands": []}').task_complete is False


@pytest.mark.parametrize(
    "key", ["C-c", "C-d", "M-x", "C-M-a", "Enter", "Escape", "BSpace", "F12", "S-Up", "PageDown", "C-\\"]
)
def test_a_key_is_pressed_when_its_name_is_all_there_is(key):
    assert Command(key, 0).key == key


@pytest.mark.parametrize(
    "text", ["C-c\n", "C-cc", " Enter", "enter", "F13", "-t other", "q", "", "C-", "ls Enter", "C-c;"]
)
def test_everything_else_is_typed(text):
    assert Command(text, 0).key is None
