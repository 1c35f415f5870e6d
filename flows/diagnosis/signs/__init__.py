"""The signatures, a file a family; importing this registers them in the order in which they are told."""

# isort: off
from flows.diagnosis.signs import process  # noqa: F401
from flows.diagnosis.signs import environment  # noqa: F401
from flows.diagnosis.signs import learning  # noqa: F401
from flows.diagnosis.signs import behaviour  # noqa: F401
from flows.diagnosis.signs import speed  # noqa: F401
