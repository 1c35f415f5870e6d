"""The catalogue: every function of the kata pool by name, in the order of its themes."""

from harness.pool.kata.catalogue import (
    bits,
    choices,
    dates,
    dicts,
    digits,
    filters,
    geometry,
    lists,
    loops,
    maps,
    numbers,
    predicates,
    sequences,
    sets,
    strings,
    text,
    units,
)
from harness.pool.kata.kata import Kata

_THEMES = (
    numbers,
    predicates,
    choices,
    lists,
    loops,
    digits,
    strings,
    text,
    filters,
    maps,
    dicts,
    sets,
    dates,
    geometry,
    bits,
    units,
    sequences,
)

CATALOGUE: dict[str, Kata] = {entry.name: entry for theme in _THEMES for entry in theme.KATAS}
