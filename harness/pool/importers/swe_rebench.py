"""SWE-rebench, both versions, and SWE-Next: SWE-bench's columns, and in the row its image and test command."""

import shlex
from typing import Any

from harness.pool.importers.base import register_rows
from harness.pool.importers.draft import Draft
from harness.pool.importers.swe_bench import CONDA_PYTHON, common_fields, image_of
from harness.pool.importers.values import ImportProblem, Row


@register_rows("swe_rebench")
def swe_rebench(row: Row) -> Draft:
    """SWE-rebench V1, and SWE-Next"""
    return Draft(**_fields(row), image=image_of(row, None), python=CONDA_PYTHON)


@register_rows("swe_rebench_v2")
def swe_rebench_v2(row: Row) -> Draft:
    """SWE-rebench V2: many languages; the repository lies in /NAME of the image"""
    fields = _fields(row)
    if row.has("interface"):
        fields["instruction"] += f"\n\n## Interface\n\n{row.text('interface')}"
    return Draft(**fields, image=image_of(row, None), workdir="/" + fields["repo"].rpartition("/")[2])


def _fields(row: Row) -> dict[str, Any]:
    fields = common_fields(row)
    install = row.table("install_config")
    fields["test_command"] = _argv(install.get("test_cmd"))
    parser = install.get("log_parser")
    fields["log_parser"] = fields["log_parser"] or (parser if isinstance(parser, str) else None)
    return fields


def _argv(command: Any) -> list[str] | None:
    """A test command, which may be a line of shell, a list of lines, or a list of words."""
    if not command:
        return None
    if isinstance(command, str):
        command = [command]
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ImportProblem(f"install_config.test_cmd is {str(command)[:80]!r}, not text")
    if len(command) > 1 and not any(" " in word for word in command):
        return list(command)
    line = " && ".join(command)
    plain = not set(line) & set("&|;<>$`*?(){}\n\"'\\=")
    return shlex.split(line) if plain else ["sh", "-c", line]
