"""Importers: public data sets of repair tasks, and Harbor's folders, as tasks of a pool."""

from harness.pool.importers import (  # noqa: F401  (each registers its importers)
    harbor,
    nemotron,
    r2e_gym,
    swe_bench,
    swe_bench_pro,
    swe_gym,
    swe_rebench,
    swe_smith,
)
from harness.pool.importers.base import (
    IMPORTERS,
    Candidate,
    Importer,
    ImportOptions,
    Rejected,
    Written,
    register_importer,
    register_rows,
)
from harness.pool.importers.draft import Draft
from harness.pool.importers.export import export_pool
from harness.pool.importers.folder import fill_task
from harness.pool.importers.repos import RepoFolder
from harness.pool.importers.run import ImportReport, import_pool
from harness.pool.importers.values import ImportProblem, Row

__all__ = [
    "IMPORTERS",
    "Candidate",
    "Draft",
    "ImportOptions",
    "ImportProblem",
    "ImportReport",
    "Importer",
    "Rejected",
    "RepoFolder",
    "Row",
    "Written",
    "export_pool",
    "fill_task",
    "import_pool",
    "register_importer",
    "register_rows",
]
