"""How fast bugs are tried, against running each one's selected tests bare; and what of a small pool is admitted.

The package is made of the catalogue's functions, so that nothing is fetched. Bare means: a copy of the package with the
bug, and `python -m pytest` with the ids of the tests that run the changed lines; as many at a time as the builder runs.
A bug whose tests hang is left out on both sides: the builder cuts it off, and bare it has no end.
"""

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.output import arguments, report, say, scratch
from harness.pool.builder import BuildConfig, PackageSource, Store, build_package
from harness.pool.builder.layout import SETTINGS
from harness.pool.builder.package import Workshop, draw_wave, make_chooser, open_package, try_candidates
from harness.pool.builder.probe import Candidate
from harness.pool.builder.store import write_tree
from harness.pool.kata.catalogue import CATALOGUE
from harness.sandbox import SandboxConfig

AT_A_TIME = 2


@dataclass(frozen=True)
class _Size:
    functions: int
    candidates: int
    tasks: int


QUICK, FULL = _Size(12, 24, 3), _Size(80, 160, 12)


def main() -> None:
    """Measure."""
    options = arguments(__doc__ or "")
    logging.disable(logging.CRITICAL)
    with scratch(options.root) as root:
        root.chmod(0o755)  # sandboxes may run as another user
        rows, figures = asyncio.run(_measure(root, QUICK if options.quick else FULL))
    report("pool builder", ["measure", "value"], rows, figures)


async def _measure(root: Path, size: _Size) -> tuple[list[list[object]], dict[str, Any]]:
    source = PackageSource.folder(str(_package(root / "katas", size.functions)))
    config = BuildConfig(tasks_per_package=size.tasks, workers=AT_A_TIME, per_function=1)
    store, sandbox, limit = Store(root / "pool"), SandboxConfig(), asyncio.Semaphore(AT_A_TIME)
    with store.held():
        say("the clean suite")
        shop = await open_package(source, store, config, sandbox, limit)
        say(f"{size.candidates} bugs, in sandboxes")
        drawing, found, dropped = await asyncio.to_thread(_draw, shop, size.candidates)
        outcomes = await try_candidates(shop, found)
        ending = [one for one, probe in zip(found, outcomes, strict=True) if probe.outcome not in ("hang", "crash")]
        began = time.perf_counter()
        await try_candidates(shop, ending)
        tried = time.perf_counter() - began
        wall = drawing * len(ending) / len(found) + tried
        say(f"{len(ending)} bugs, bare")
        bare = await asyncio.to_thread(_run_bare, shop, ending, root / "bare")
        say(f"{size.tasks} tasks, admitted by grading")
        began = time.perf_counter()
        result = await build_package(source, store, config, sandbox, limit)
        admission = time.perf_counter() - began
    figures = {
        "candidates_per_minute": 60 * len(ending) / wall,
        "overhead_ratio": wall / bare,
        "admitted": len(result.tasks),
        "rejected_by_reason": result.reasons,
    }
    tests = sum(len(one.tests) for one in ending) / len(ending)
    rows: list[list[object]] = [
        ["candidates tried", len(ending)],
        ["tests of one, on average", tests],
        ["drawn but not worth a run", dropped],
        ["seconds, builder", wall],
        ["seconds, bare", bare],
        ["seconds an admitted task, all counted", admission / max(len(result.tasks), 1)],
    ]
    return rows, figures


def _draw(shop: Workshop, wanted: int) -> tuple[float, list[Candidate], int]:
    """Seconds, the candidates that are worth a run, and the number of others."""
    began = time.perf_counter()
    chooser, seen = make_chooser(shop), set[str]()
    found: list[Candidate] = []
    dropped = 0
    while len(found) < wanted:
        more, rejected, drawn = draw_wave(shop, chooser, seen)
        if not drawn:
            break
        found += more
        dropped += sum(rejected.values())
    return time.perf_counter() - began, found[:wanted], dropped


def _run_bare(shop: Workshop, found: Sequence[Candidate], folder: Path) -> float:
    """Seconds of each candidate's tests by nothing but pytest on the host. Copies are made beforehand."""
    places = []
    for number, one in enumerate(found):
        place = folder / str(number)
        shutil.copytree(shop.runner.snapshot, place)
        write_tree(place, {**shop.layout.hidden, one.choice.file: one.rendered.text.encode()})
        places.append(place)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": ".", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # as in a sandbox; those of this machine cost seconds

    def run(place: Path, one: Candidate) -> None:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--assert=plain",
            "-p",
            "no:cacheprovider",
            "-c",
            SETTINGS,
            *one.tests,
        ]
        try:
            subprocess.run(command, cwd=place, env=environment, capture_output=True, timeout=300)
        except subprocess.TimeoutExpired:
            say(f"{place} did not end")

    began = time.perf_counter()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(run, places, found))
    return time.perf_counter() - began


def _package(folder: Path, functions: int) -> Path:
    """A package with a module, and a test file, for each of so many functions of the catalogue."""
    files = {"pyproject.toml": b'[project]\nname = "katas"\nversion = "1"\n', "katas/__init__.py": b""}
    for kata in list(CATALOGUE.values())[:: max(1, len(CATALOGUE) // functions)][:functions]:
        files[f"katas/{kata.name}.py"] = kata.source.encode()
        test = kata.test_source.replace("from solution import", f"from katas.{kata.name} import")
        files[f"tests/test_{kata.name}.py"] = test.encode()
    write_tree(folder, files)
    return folder


if __name__ == "__main__":
    main()
