"""The checks, a file a family; importing this registers them in the order in which they are told."""

# isort: off
from flows.preflight.checks import identity  # noqa: F401
from flows.preflight.checks import topology  # noqa: F401
from flows.preflight.checks import model  # noqa: F401
from flows.preflight.checks import trainable  # noqa: F401
from flows.preflight.checks import parser  # noqa: F401
from flows.preflight.checks import memory  # noqa: F401
from flows.preflight.checks import agent  # noqa: F401
from flows.preflight.checks import algorithm  # noqa: F401
from flows.preflight.checks import schedule  # noqa: F401
from flows.preflight.checks import pool  # noqa: F401
from flows.preflight.checks import images  # noqa: F401
from flows.preflight.checks import host  # noqa: F401
from flows.preflight.checks import services  # noqa: F401
from flows.preflight.checks import trial  # noqa: F401
