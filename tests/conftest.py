"""Makes the helpers in tests/support importable, as `from support.tiny import tiny_tokenizer`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
