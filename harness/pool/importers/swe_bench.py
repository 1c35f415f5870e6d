"""SWE-bench and its descendants with the same columns: repo, base_commit, patch, test_patch and two lists of tests."""

from typing import Any

from harness.pool.importers.base import register_rows
from harness.pool.importers.draft import Draft
from harness.pool.importers.values import ImportProblem, Row

CONDA_PYTHON = "/opt/miniconda3/envs/testbed/bin/python"
"""The interpreter of SWE-bench's images, and of those that are built like them."""

IMAGE_COLUMNS = ("image_name", "docker_image", "image")
_EXTRAS = ("difficulty", "version", "created_at", "split")
_PICTURES = ("image_assets",)


def common_fields(row: Row) -> dict[str, Any]:
    """The fields of a `Draft` that most sets spell alike."""
    notes = [f"column {name} (pictures) is ignored: agents get text" for name in _PICTURES if row.has(name)]
    return {
        "instance_id": row.text("instance_id"),
        "instruction": row.text("problem_statement"),
        "repo": row.text("repo"),
        "base_commit": row.text("base_commit", default=""),
        "patch": row.text("patch", default=""),
        "test_patch": row.text("test_patch", default=""),
        "fail_to_pass": row.tests("FAIL_TO_PASS"),
        "pass_to_pass": row.tests("PASS_TO_PASS"),
        "log_parser": row.text("log_parser", default="") or None,
        "extra": extras(row),
        "notes": tuple(notes),
    }


def extras(row: Row) -> dict[str, Any]:
    """What an index can be filtered by, as text."""
    found = {name: row.text(name, default="") for name in _EXTRAS}
    found["language"] = row.text("language", "repo_language", default="")
    return {name: value for name, value in found.items() if value}


def image_of(row: Row, derived: str | None) -> str | None:
    """The image that the row names, else the one that follows from its id."""
    return row.text(*IMAGE_COLUMNS, default="") or derived


def derived_image(template: str, instance_id: str, separator: str) -> str:
    """An image's name by the id: registries do not take two underscores in a row, nor capitals."""
    return template.format(instance_id.lower().replace("__", separator))


@register_rows("swe_bench")
def swe_bench(row: Row) -> Draft:
    """SWE-bench, Verified, Lite and Multimodal; SWE-bench-extra with --repos"""
    fields = common_fields(row)
    if not fields["test_patch"].strip():
        raise ImportProblem("no test_patch: the failing tests are not in the row")
    # SWE-bench-extra looks alike but for `meta`, and has no images under these names.
    derived = None if row.has("meta", "environment", "requirements") else "swebench/sweb.eval.x86_64.{}:latest"
    image = image_of(row, derived and derived_image(derived, fields["instance_id"], "_1776_"))
    return Draft(**fields, image=image, python=CONDA_PYTHON if image else None)
