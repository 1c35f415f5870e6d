"""The APIs that agents speak to the proxy, by route.

Importing this takes seconds, for the vendors' own types: the server does it when it starts, never while it serves.
"""

from harness.proxy.surfaces import chat, messages, responses  # noqa: F401  (registers them)
from harness.proxy.surfaces.base import SURFACES
from harness.proxy.surfaces.listing import models
from harness.proxy.surfaces.messages import parse_count

__all__ = ["SURFACES", "models", "parse_count"]
