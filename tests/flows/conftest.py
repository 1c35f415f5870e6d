"""Keeps Prefect away from the home directory."""

import support.quiet_prefect  # noqa: F401
