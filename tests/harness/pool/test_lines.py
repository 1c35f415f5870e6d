"""Answers on file survive a kill."""

from harness.pool.lines import Lines


def test_a_line_that_was_cut_short_is_none_and_harms_no_other(tmp_path):
    lines = Lines(tmp_path / "x.jsonl")
    lines.put("a", 1)
    lines.put("b", 2)
    lines.close()
    path = tmp_path / "x.jsonl"
    path.write_bytes(path.read_bytes()[:-3])
    again = Lines(path)
    assert again.values == {"a": 1}
    again.put("b", 3)
    again.close()
    assert Lines(path).values == {"a": 1, "b": 3}
