"""Numbers under verl's names."""

import math

from trainer.metrics import distribution, step_line


def test_distribution():
    assert distribution("x", [1.0, 2.0, 6.0]) == {"x/mean": 3.0, "x/max": 6.0, "x/min": 1.0}


def test_no_values_give_no_numbers():
    assert distribution("x", []) == {}


def test_step_line_is_sorted_and_writes_whole_numbers_short():
    line = step_line(3, {"b/two": 0.5, "a/one": 2.0, "c": math.nan})
    assert line == "step:3 - a/one:2 - b/two:0.5 - c:nan"


def test_step_line_keeps_all_digits():
    value = 0.1 + 0.2
    assert float(step_line(1, {"x": value}).rpartition(":")[2]) == value
