"""From any Python package with tests to graded, proven tasks.

Its suite is run until it is known which tests can be relied on and which lines each runs. Then bugs are put into its
syntax tree, tried by the tests that run the changed lines, written as tasks, and admitted once the grader itself scores
the bug 0 and the solution 1, several times.
"""

from harness.pool.builder.config import BuildConfig, WriterConfig
from harness.pool.builder.package import Progress, build_package
from harness.pool.builder.source import PackageSource, SourceError
from harness.pool.builder.store import PackageResult, Store

__all__ = [
    "BuildConfig",
    "PackageResult",
    "PackageSource",
    "Progress",
    "SourceError",
    "Store",
    "WriterConfig",
    "build_package",
]
