"""Rows and files in every spelling that public sets have."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.pool.importers.rows import BadRow, RawRow, read_rows
from harness.pool.importers.values import ImportProblem, Row
from harness.pool.index import PoolError

IDS = ["tests/a.py::test_x[1 - 'é']", 'tests/a.py::test_y["q"]']


@pytest.mark.parametrize(
    "value", [IDS, tuple(IDS), json.dumps(IDS), repr(IDS), repr(tuple(IDS)), json.dumps(json.dumps(IDS)), IDS + IDS]
)
@pytest.mark.parametrize("name", ["FAIL_TO_PASS", "fail_to_pass", "Fail_To_Pass"])
def test_lists_of_tests_in_every_spelling(name, value):
    assert Row({name: value}, "o").tests("FAIL_TO_PASS") == IDS


@pytest.mark.parametrize("value", [None, "", "[]", [], "nan", float("nan"), "None", ()])
def test_no_tests_in_every_spelling(value):
    assert Row({"FAIL_TO_PASS": value}, "o").tests("FAIL_TO_PASS") == []


@pytest.mark.parametrize(
    "value", ["tests/a.py::test_x", "[1, 2]", '{"a": 1}', "[", "__import__('os').getcwd()", 3, [None]]
)
def test_what_is_no_list_of_tests_is_refused(value):
    with pytest.raises(ImportProblem, match="FAIL_TO_PASS"):
        Row({"FAIL_TO_PASS": value}, "o").tests("FAIL_TO_PASS")


def test_a_list_nested_too_deep_is_refused():
    with pytest.raises(ImportProblem, match="neither JSON nor a Python literal"):
        Row({"a": "[" * 100_000}, "o").tests("a")


def test_two_spellings_of_one_column_must_agree():
    assert Row({"A": "x", "a": ""}, "o").text("a") == "x"
    assert Row({"A": "x", "a": "x"}, "o").text("a") == "x"
    with pytest.raises(ImportProblem, match="two spellings"):
        Row({"A": "x", "a": "y"}, "o").text("a")


def test_tables_as_structs_json_and_python():
    for value in ({"test_cmd": "x"}, '{"test_cmd": "x"}', "{'test_cmd': 'x'}"):
        assert Row({"install_config": value}, "o").table("install_config") == {"test_cmd": "x"}
    with pytest.raises(ImportProblem, match="not a table"):
        Row({"install_config": "[1]"}, "o").table("install_config")


def test_missing_text_names_the_columns():
    with pytest.raises(ImportProblem, match="no patch: it has none of the columns patch, diff"):
        Row({"patch": None}, "o").text("patch", "diff")


def test_the_digest_follows_every_value():
    assert Row({"a": 1, "b": [2]}, "o").digest == Row({"b": [2], "a": 1}, "p").digest
    assert Row({"a": 1}, "o").digest != Row({"a": 2}, "o").digest


def test_every_kind_of_file_gives_the_same_rows(tmp_path):
    rows = [{"instance_id": "a", "n": 1}, {"instance_id": "b", "n": 2}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "list.json").write_text(json.dumps(rows))
    (tmp_path / "served.json").write_text(json.dumps({"rows": [{"row": row} for row in rows]}))
    (tmp_path / "keyed.json").write_text(json.dumps({"a": {"n": 1}, "b": {"n": 2}}))
    for file in tmp_path.iterdir():
        found = list(read_rows(file))
        assert [dict(row.values) for row in found] == rows, file
        assert [row.origin for row in found] == [f"{file.name}#1", f"{file.name}#2"]


def test_a_folder_is_read_file_by_file(tmp_path):
    for name in ("b.jsonl", "a.jsonl"):
        (tmp_path / name).write_text(json.dumps({"instance_id": name}))
    (tmp_path / "README.md").write_text("no rows")
    assert [row.values["instance_id"] for row in read_rows(tmp_path)] == ["a.jsonl", "b.jsonl"]


def test_a_bad_line_is_told_and_the_others_are_read(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n{"a": \n[1]\n{"a": 2}\n')
    first, bad, listed, last = read_rows(tmp_path / "x.jsonl")
    assert isinstance(first, RawRow) and isinstance(last, RawRow)
    assert bad.origin == "x.jsonl#2" and "not JSON" in bad.reason
    assert listed == BadRow("x.jsonl#3", "a list, not a table of columns")


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(PoolError, match="no such file"):
        list(read_rows(tmp_path / "none.parquet"))
    with pytest.raises(PoolError, match=r"no \.parquet"):
        list(read_rows(tmp_path))
    (tmp_path / "x.csv").write_text("a\n1\n")
    with pytest.raises(PoolError, match="convert it"):
        list(read_rows(tmp_path / "x.csv"))
    (tmp_path / "x.parquet").write_text("no parquet")
    with pytest.raises(PoolError, match="not a readable parquet"):
        list(read_rows(tmp_path / "x.parquet"))
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(PoolError, match="not JSON"):
        list(read_rows(tmp_path / "x.json"))
