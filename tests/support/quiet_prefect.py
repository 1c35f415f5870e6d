"""Prefect with a home of its own for the test session; import this before anything that imports Prefect."""

import atexit
import os
import shutil
import tempfile
from unittest.mock import patch

_home = tempfile.mkdtemp(prefix="testgrad-prefect-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)

# it reads its settings when it is imported; the environment stays as it was for processes that tests start
with patch.dict(os.environ, PREFECT_HOME=_home, PREFECT_LOGGING_LEVEL="CRITICAL", DO_NOT_TRACK="1"):
    import prefect  # noqa: F401
