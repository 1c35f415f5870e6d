"""SWE-Gym: SWE-bench's columns for eleven more repositories, with images under another owner's name."""

from harness.pool.importers.base import register_rows
from harness.pool.importers.draft import Draft
from harness.pool.importers.swe_bench import CONDA_PYTHON, common_fields, derived_image, image_of
from harness.pool.importers.values import Row


@register_rows("swe_gym")
def swe_gym(row: Row) -> Draft:
    """SWE-Gym and SWE-Gym Lite"""
    fields = common_fields(row)
    derived = derived_image("xingyaoww/sweb.eval.x86_64.{}:latest", fields["instance_id"], "_s_")
    return Draft(**fields, image=image_of(row, derived), python=CONDA_PYTHON)
