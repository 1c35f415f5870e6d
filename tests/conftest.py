"""Makes the helpers in tests/support importable, as `from support.tiny import tiny_tokenizer`."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# On a shared machine any example may stand still for a second; and what fails fails each time.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
