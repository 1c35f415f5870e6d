"""The catalogue: every function of the kata pool by name, in the order of its themes."""

from harness.pool.kata.catalogue import (
    arithmetic,
    bits,
    choices,
    collections,
    comparisons,
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
    words,
)
from harness.pool.kata.kata import Kata

_THEMES = (
    arithmetic,
    comparisons,
    collections,
    words,
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
