"""Which bug to try next: all kinds and all files in turn, decided by the seed and by what came of those before."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.pool.builder.bugs import DOUBLE
from harness.pool.builder.mutate import Site


@dataclass(frozen=True, eq=False)
class Choice:
    """One or two bugs in a file, to be tried. `kind` is `double` for two."""

    file: str
    sites: tuple[Site, ...]

    @property
    def kind(self) -> str:
        return self.sites[0].kind if len(self.sites) == 1 else DOUBLE

    @property
    def functions(self) -> list[str]:
        """The functions that they are in."""
        return [f"{self.file}:{site.function}" for site in self.sites]


class Chooser:
    """Draws from `sites` (by file), each at most once. Tell it with `tell` what was tried and what was admitted."""

    def __init__(self, sites: Mapping[str, Sequence[Site]], seed: str, double_share: float, per_function: int) -> None:
        self._rng = random.Random(seed)
        self._double_share, self._per_function = double_share, per_function
        self._queues: dict[str, dict[str, list[Site]]] = {}
        for file in sorted(sites):
            for site in sites[file]:
                self._queues.setdefault(site.kind, {}).setdefault(file, []).append(site)
        self._all = {file: list(found) for file, found in sorted(sites.items()) if found}
        kinds = sorted(self._queues)
        self._rng.shuffle(kinds)
        self._queues = {kind: self._queues[kind] for kind in kinds}
        for files in self._queues.values():
            for queue in files.values():
                self._rng.shuffle(queue)
        self._kinds, self._files, self._functions = Counter[str](), Counter[str](), Counter[str]()

    def tell(self, choice: Choice, admitted: bool) -> None:
        """What came of a choice: its kind and file have had a turn, and two more if it is a task now."""
        if admitted:
            self._kinds[choice.kind] += 2
            self._files[choice.file] += 2
            self._functions.update(choice.functions)

    def draw(self) -> Choice | None:
        """The next one to try; None if nothing is left."""
        if self._rng.random() < self._double_share and (double := self._draw_double()):
            return self._taken(double)
        while kinds := [kind for kind, files in self._queues.items() if files]:
            kind = min(kinds, key=lambda name: self._kinds[name])
            files = self._queues[kind]
            file = min(files, key=lambda name: self._files[name])
            site = files[file].pop()
            if not files[file]:
                del files[file]
            choice = Choice(file, (site,))
            if not self._full(choice):
                return self._taken(choice)
        return None

    def _draw_double(self) -> Choice | None:
        """Two bugs in different functions of one file; None if none is found quickly."""
        for _ in range(5):
            file = min(self._all, key=lambda name: (self._files[name], self._rng.random()), default=None)
            if file is None or len(self._all[file]) < 2:
                return None
            first, second = self._rng.sample(self._all[file], 2)
            choice = Choice(file, (first, second))
            if first.function != second.function and not _nested(first, second) and not self._full(choice):
                return choice
        return None

    def _full(self, choice: Choice) -> bool:
        return any(self._functions[name] >= self._per_function for name in choice.functions)

    def _taken(self, choice: Choice) -> Choice:
        self._kinds[choice.kind] += 1
        self._files[choice.file] += 1
        return choice


def _nested(first: Site, second: Site) -> bool:
    """Whether one function lies in the other: then one bug could undo the other."""
    names = sorted((first.function, second.function), key=len)
    return names[1].startswith(f"{names[0]}.")
