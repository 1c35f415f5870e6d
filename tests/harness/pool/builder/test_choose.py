"""Which bug comes next: by the seed alone, all kinds and files in turn."""

from collections import Counter

import libcst as cst

from harness.pool.builder.choose import Chooser
from harness.pool.builder.mutate import Site

NODE = cst.Pass()


def sites():
    return {
        file: [Site(kind, 0, f"f{n}", NODE, NODE) for kind, count in (("often", 50), ("rare", 5)) for n in range(count)]
        for file in ("a.py", "b.py")
    }


def drawn(chooser, count, admitted=lambda choice: True):
    found = []
    while len(found) < count and (choice := chooser.draw()):
        chooser.tell(choice, admitted(choice))
        found.append((choice.file, choice.kind, tuple(site.function for site in choice.sites)))
    return found


def test_the_same_seed_draws_the_same_and_another_does_not():
    first = drawn(Chooser(sites(), "1", 0.2, 99), 20)
    assert first == drawn(Chooser(sites(), "1", 0.2, 99), 20)
    assert first != drawn(Chooser(sites(), "2", 0.2, 99), 20)


def test_kinds_and_files_take_turns():
    found = drawn(Chooser(sites(), "1", 0.0, 99), 8)
    assert Counter(kind for _, kind, _ in found) == {"often": 4, "rare": 4}
    assert Counter(file for file, _, _ in found) == {"a.py": 4, "b.py": 4}


def test_a_kind_that_is_admitted_waits_longer_than_one_that_is_not():
    found = drawn(Chooser(sites(), "1", 0.0, 99), 8, admitted=lambda choice: choice.kind == "rare")
    assert Counter(kind for _, kind, _ in found)["often"] > 4


def test_a_function_gets_no_more_tasks_than_allowed():
    found = drawn(Chooser(sites(), "1", 0.0, 1), 200)
    assert max(Counter((file, name) for file, _, names in found for name in names).values()) == 1
    assert len(found) == 100


def test_nothing_is_drawn_twice_and_all_is_drawn():
    found = drawn(Chooser(sites(), "1", 0.0, 99), 1000)
    assert len(found) == len(set(found)) == 110


def test_doubles_are_in_functions_apart():
    pair = {"a.py": [Site("k", 0, "C", NODE, NODE), Site("k", 0, "C.f", NODE, NODE)]}
    assert not [kind for _, kind, _ in drawn(Chooser(pair, "1", 1.0, 99), 9) if kind == "double"]
    assert {kind for _, kind, _ in drawn(Chooser(sites(), "1", 1.0, 99), 5)} == {"double"}
