"""Rows in NeMo Gym's form, as Nemotron's sets have them: the task lies in the metadata of a request.

`responses_create_params.metadata` names the instance and, in `instance_dict`, holds the original row as JSON. Which set
that row comes from follows from its name or its columns.
"""

from collections.abc import Callable, Mapping
from typing import Any

from harness.pool.importers.base import register_rows
from harness.pool.importers.draft import Draft
from harness.pool.importers.r2e_gym import r2e_gym
from harness.pool.importers.swe_bench import swe_bench
from harness.pool.importers.swe_bench_pro import swe_bench_pro
from harness.pool.importers.swe_gym import swe_gym
from harness.pool.importers.swe_rebench import swe_rebench, swe_rebench_v2
from harness.pool.importers.swe_smith import swe_smith
from harness.pool.importers.values import Row

_BY_NAME: tuple[tuple[str, Callable[[Row], Draft]], ...] = (
    ("r2e", r2e_gym),
    ("smith", swe_smith),
    ("swe-gym", swe_gym),
    ("rebench-v2", swe_rebench_v2),
    ("rebench", swe_rebench),
    ("bench_pro", swe_bench_pro),
)


@register_rows("nemotron")
def nemotron(row: Row) -> Draft:
    """Nemotron and NeMo Gym: JSON lines with responses_create_params.metadata.instance_dict"""
    params = row.table("responses_create_params")
    metadata = params.get("metadata")
    outer: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    inner = Row(outer, row.origin).table("instance_dict") or row.table("instance_dict")
    top = {k: v for k, v in row.values.items() if k.lower() not in ("responses_create_params", "instance_dict")}
    # The same column in several places is one column: the original row's own counts.
    merged: dict[str, Any] = {}
    for values in (top, outer, inner):
        for key, value in values.items():
            if key.lower() != "instance_dict" and value not in (None, ""):
                merged[key.lower()] = value
    flat = Row(merged, row.origin)
    return _converter(flat)(flat)


def _converter(row: Row) -> Callable[[Row], Draft]:
    if row.has("expected_output_json"):
        return r2e_gym
    name = row.text("dataset_name", default="").lower()
    return next((convert for part, convert in _BY_NAME if part in name), swe_bench)
