"""SWE-smith: bugs that were put into clean repositories. A row's `patch` is the bug, so the solution is its reverse."""

from harness.pool.importers.base import register_rows
from harness.pool.importers.draft import Draft
from harness.pool.importers.swe_bench import CONDA_PYTHON, common_fields, image_of
from harness.pool.importers.values import ImportProblem, Row

_OWNER = "jyangballin"  # of the images that early rows name without one


@register_rows("swe_smith")
def swe_smith(row: Row) -> Draft:
    """SWE-smith and its sets for other languages: `patch` is the bug, the solution its reverse"""
    statement = row.text("problem_statement", default="")
    if not statement:
        raise ImportProblem("no problem_statement: this bug has no text yet; take a split that has")
    fields = common_fields(row)
    # The mirror is called owner__name.commit: the clean code is at that commit.
    mirror = fields["repo"].rpartition("/")[2]
    if not fields["base_commit"]:
        fields["base_commit"] = mirror.rpartition(".")[2]
    image = image_of(row, None)
    if image is not None:
        owner, _, name = image.rpartition("/")
        image = f"{owner or _OWNER}/{name.replace('__', '_1776_')}"
    return Draft(**fields, image=image, patch_is_bug=True, python=CONDA_PYTHON if image else None)
