"""SWE-bench Pro: every column is text, its lists are written as Python writes them."""

from harness.pool.importers.base import register_rows
from harness.pool.importers.draft import Draft
from harness.pool.importers.swe_bench import common_fields, image_of
from harness.pool.importers.values import ImportProblem, Row


@register_rows("swe_bench_pro")
def swe_bench_pro(row: Row) -> Draft:
    """SWE-bench Pro, its tasks in Python: the others are graded by programs that the rows do not hold"""
    language = row.text("repo_language", default="python").lower()
    if language not in ("python", "py"):
        raise ImportProblem(f"repo_language is {language}: its grading goes by scripts that are not in the row")
    fields = common_fields(row)
    for title, column in (("Requirements", "requirements"), ("Interface", "interface")):
        if row.has(column):
            fields["instruction"] += f"\n\n## {title}\n\n{row.text(column)}"
    tag = row.text("dockerhub_tag", default="")
    image = image_of(row, f"jefzda/sweap-images:{tag}" if tag else None)
    return Draft(**fields, image=image, workdir="/app")
