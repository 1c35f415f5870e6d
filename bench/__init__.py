"""Measurements: `python -m bench.NAME` prints a table for people and, as its last line, one JSON object."""
