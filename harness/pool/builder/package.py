"""One package, from its source to its admitted tasks."""

import asyncio
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.pool.admission import Admission, admit, first_look, judge_in
from harness.pool.builder.baseline import Baseline, measure, programs_digest
from harness.pool.builder.choose import Chooser
from harness.pool.builder.config import BuildConfig
from harness.pool.builder.emit import TASK_FORMAT, BrokenPackage, traces, write_built_task
from harness.pool.builder.instruct import fixed_wording, make_report, model_wording
from harness.pool.builder.layout import Layout, solvable, take_apart
from harness.pool.builder.mutate import SourceFile, UnreadableSource
from harness.pool.builder.probe import KEPT, Candidate, Probe, candidate, diff_lines, judge, leaves_trace
from harness.pool.builder.runner import SuiteRunner, TestEnd
from harness.pool.builder.source import PackageSource, SourceTree, fetch, tree_digest
from harness.pool.builder.store import PackageResult, Store, write_tree, write_whole
from harness.pool.builder.vendor import vendor
from harness.pool.lines import Lines
from harness.pool.task import Task
from harness.pool.together import together
from harness.sandbox import SandboxConfig
from harness.verifier import Status

WAVE = 16
"""Bugs tried at a time: what is chosen next depends on what came of them, so it is the same on every machine."""


@dataclass(frozen=True)
class Progress:
    """How far a package is."""

    label: str
    stage: str
    admitted: int = 0
    wanted: int = 0
    tried: int = 0


Tell = Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class Workshop:
    """All that the work on one package needs."""

    label: str
    key: str
    tree: SourceTree
    layout: Layout
    baseline: Baseline
    runner: SuiteRunner
    files: dict[str, SourceFile]
    context: str
    config: BuildConfig
    sandbox: SandboxConfig
    limit: asyncio.Semaphore

    @cached_property
    def texts(self) -> dict[str, str]:
        """What an agent can read, by path."""
        return {path: data.decode("utf-8", "replace") for path, data in self.layout.files.items()}


async def build_package(
    source: PackageSource,
    store: Store,
    config: BuildConfig,
    sandbox: SandboxConfig,
    limit: asyncio.Semaphore,
    tell: Tell = lambda _: None,
) -> PackageResult:
    """Build the tasks of a package in `store`, which the caller holds; what is there already is not made again.

    `limit` bounds the sandboxes at a time.

    Raises:
        SourceError: the package cannot be had, or has no tests that pass.
        SandboxError: no sandbox can be made.
    """
    began = time.monotonic()
    parts = await _take(source, store, config, tell)
    known = store.result(source.label)
    if known is not None and known.key == parts.key and _all_there(known, store):
        return known
    shop = await _open(parts, store, config, sandbox, limit, tell)
    result = await _work(shop, store, tell)
    notes = (f"dependencies {', '.join(parts.pins)}",) if parts.pins else ()
    # What was only looked up costs nothing now; what it did cost is what people ask for.
    before = known.seconds if known is not None and known.tasks == result.tasks else 0.0
    result = replace(result, seconds=max(before, time.monotonic() - began), notes=notes)
    store.put_result(result)
    return result


async def open_package(
    source: PackageSource,
    store: Store,
    config: BuildConfig,
    sandbox: SandboxConfig,
    limit: asyncio.Semaphore,
    tell: Tell = lambda _: None,
) -> Workshop:
    """All that comes before the first bug; see `build_package`."""
    return await _open(await _take(source, store, config, tell), store, config, sandbox, limit, tell)


@dataclass(frozen=True, eq=False)
class _Parts:
    """A package taken apart. `key` is of all that decides what becomes of it."""

    label: str
    tree: SourceTree
    layout: Layout
    pins: tuple[str, ...]
    key: str


async def _take(source: PackageSource, store: Store, config: BuildConfig, tell: Tell) -> _Parts:
    tell(Progress(source.label, "source"))
    tree = await asyncio.to_thread(fetch, source, store.build / "sources")
    dependencies, pins = await asyncio.to_thread(vendor, tree, config.requirements, store.build / "vendor")
    layout = await asyncio.to_thread(take_apart, tree, dependencies, config.exclude, config.only)
    key = _digest(tree.digest, pins, config.model_dump_json(exclude={"workers"}), builder_digest())
    return _Parts(source.label, tree, layout, tuple(pins), key)


async def _open(
    parts: _Parts, store: Store, config: BuildConfig, sandbox: SandboxConfig, limit: asyncio.Semaphore, tell: Tell
) -> Workshop:
    """Write the snapshot and run the clean suite, unless that was done; then read the files that may get bugs."""
    tree, layout = parts.tree, parts.layout
    folder = await asyncio.to_thread(_write_snapshot, layout, tree, store)
    runner = SuiteRunner(folder / "repo", layout, sandbox, limit)
    context = _digest(folder.name, config.suite_runs, config.test_seconds, programs_digest())
    stored = store.build / "baselines" / f"{tree.name}-{tree.version}-{context}.json.gz"
    if stored.is_file():
        baseline = Baseline.from_bytes(stored.read_bytes())
    else:
        tell(Progress(parts.label, "suite"))
        baseline = await measure(runner, parts.label, config.suite_runs, config.test_seconds, folder / "hidden")
        write_whole(stored, baseline.to_bytes())
    tell(Progress(parts.label, "syntax"))
    runner = SuiteRunner(folder / "repo", layout, sandbox, limit, [m for m in baseline.modules if m in layout.files])
    sources = {path: text for path, text in layout.sources.items() if path in baseline.lines}
    files = await asyncio.to_thread(_parse, solvable(sources, folder / "repo", list(layout.hidden)))
    return Workshop(parts.label, parts.key, tree, layout, baseline, runner, files, context, config, sandbox, limit)


async def _work(shop: Workshop, store: Store, tell: Tell) -> PackageResult:
    """Choose, try and admit bugs, wave by wave, until there are enough tasks or bugs have run out."""
    config = shop.config
    chooser = await asyncio.to_thread(make_chooser, shop)
    name = f"{shop.tree.name}-{shop.tree.version}"
    probes = Lines(store.build / "probes" / f"{name}-{shop.context}.jsonl")
    admissions = Lines(store.build / "admissions" / f"{name}.jsonl")
    tasks: list[dict[str, Any]] = []
    quarantined: list[dict[str, str]] = []
    reasons: Counter[str] = Counter()
    seen: set[str] = set()
    tried = candidates = 0
    final = True
    try:
        while len(tasks) < config.tasks_per_package and tried < config.candidates_per_task * config.tasks_per_package:
            tell(Progress(shop.label, "bugs", len(tasks), config.tasks_per_package, tried))
            found, rejected, drawn = await asyncio.to_thread(draw_wave, shop, chooser, seen)
            if not drawn:
                break
            reasons.update(rejected)
            candidates += drawn
            tried += len(found)
            outcomes = await _try(shop, found, probes)
            reasons.update(probe.outcome for probe in outcomes if probe.outcome != KEPT)
            kept = [(one, probe) for one, probe in zip(found, outcomes, strict=True) if probe.outcome == KEPT]
            for part in _parts(kept, config.tasks_per_package - len(tasks)):
                if len(tasks) >= config.tasks_per_package:
                    reasons["surplus"] += len(part)
                    continue
                entries = await together(_enter(shop, one, probe, store, admissions) for one, probe in part)
                for (one, _), (facts, answer) in zip(part, entries, strict=True):
                    if answer.admitted:
                        tasks.append(facts)
                    else:
                        reasons["admission"] += 1
                        final = final and answer.final
                        quarantined.append({"task": facts["instance_id"], "reason": answer.reason})
                    chooser.tell(one.choice, answer.admitted)
                tell(Progress(shop.label, "bugs", len(tasks), config.tasks_per_package, tried))
    finally:
        probes.close()
        admissions.close()
    return PackageResult(
        label=shop.label,
        package=shop.tree.name,
        version=shop.tree.version,
        key=shop.key if final else "",
        tasks=tuple(tasks),
        candidates=candidates,
        reasons=dict(reasons),
        quarantined=tuple(quarantined),
        tests=len(shop.baseline.tests),
        tests_quarantined=dict(shop.baseline.quarantined),
    )


def _parts(kept: Sequence[tuple[Candidate, Probe]], wanted: int) -> list[Sequence[tuple[Candidate, Probe]]]:
    """`kept` in parts of which no more are admitted than are wanted, whatever the first ones come to."""
    parts = [kept[:wanted]]
    parts += [kept[at : at + 1] for at in range(wanted, len(kept))]
    return [part for part in parts if part]


def make_chooser(shop: Workshop) -> Chooser:
    """What draws from all bugs that the package's files could have."""
    sites = {path: file.sites(shop.config.kinds) for path, file in shop.files.items()}
    double_share = 0.0 if shop.config.kinds else shop.config.double_share
    return Chooser(sites, f"{shop.config.seed}/{shop.tree.name}", double_share, shop.config.per_function)


def draw_wave(shop: Workshop, chooser: Chooser, seen: set[str]) -> tuple[list[Candidate], Counter[str], int]:
    """The next candidates that are worth a run, why others were not, and how many were drawn in all."""
    found: list[Candidate] = []
    rejected: Counter[str] = Counter()
    drawn = 0
    while len(found) < WAVE and drawn < 10 * WAVE and (choice := chooser.draw()):
        drawn += 1
        rendered = shop.files[choice.file].render(choice.sites)
        if rendered is None:
            rejected["no change"] += 1
            continue
        one = candidate(choice, rendered, shop.baseline, shop.runner.snapshot.parent.name)
        if one.digest in seen:
            rejected["repeated"] += 1
        elif not one.tests:
            rejected["uncovered"] += 1
        elif leaves_trace(one, shop.texts):
            rejected["trace"] += 1
        else:
            found.append(one)
        seen.add(one.digest)
    return found, rejected, drawn


async def try_candidates(shop: Workshop, found: Sequence[Candidate]) -> list[Probe]:
    """What comes of candidates, each run by the tests that come by it; spread over the sandboxes at a time."""
    workers = min(shop.config.at_a_time, len(found)) or 1
    # Dealt by the cost, the dearest first, so that no sandbox is left with most of the work.
    order = sorted(found, key=lambda one: -one.run(shop.baseline).seconds)
    hands = [order[number::workers] for number in range(workers)]
    results = await together(shop.runner.run([one.run(shop.baseline) for one in hand]) for hand in hands)
    by_key = {result.key: result for part in results for result in part}
    return [judge(one, by_key[one.digest], shop.baseline, shop.config.most_failing) for one in found]


async def _try(shop: Workshop, found: Sequence[Candidate], probes: Lines) -> list[Probe]:
    fresh = [one for one in found if one.digest not in probes.values]
    for one, probe in zip(fresh, await try_candidates(shop, fresh) if fresh else [], strict=True):
        probes.put(one.digest, probe.to_dict())
    return [Probe.from_dict(probes.values[one.digest]) for one in found]


async def _enter(
    shop: Workshop, one: Candidate, probe: Probe, store: Store, admissions: Lines
) -> tuple[dict[str, Any], Admission]:
    """Write the task of a kept candidate, grade it, and put it into the pool or the quarantine."""
    task_id = f"{shop.tree.name}-{one.choice.kind.replace('_', '-')}-{_digest(one.digest, _options(shop.config))[:10]}"
    target = store.tasks / task_id
    stored = admissions.values.get(task_id)
    if stored is not None and (target.is_dir() or not stored["answer"]["admitted"]):
        return stored["facts"], Admission(**{**stored["answer"], "failing": tuple(stored["answer"]["failing"])})
    store.tasks.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".new.", dir=store.tasks))
    try:
        scratch.chmod(0o755)
        folder = scratch / task_id
        facts, answer = await _grade_new(shop, one, probe, folder, task_id)
        facts = {"instance_id": task_id, "extra": facts}
        if answer.final:
            admissions.put(task_id, {"facts": facts, "answer": asdict(answer)})
        if answer.admitted:
            shutil.rmtree(target, ignore_errors=True)
            os.rename(folder, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return facts, answer


async def _grade_new(
    shop: Workshop, one: Candidate, probe: Probe, folder: Path, task_id: str
) -> tuple[dict[str, Any], Admission]:
    facts: dict[str, Any] = {
        "package": shop.tree.name,
        "version": shop.tree.version,
        "source": shop.tree.origin,
        "bug": "+".join(site.kind for site in one.choice.sites),
        "file": one.choice.file,
        "function": ", ".join(site.function for site in one.choice.sites),
        "changed_lines": max(len(one.rendered.removed), len(one.rendered.added)),
    }
    guarded = shop.baseline.tests if shop.config.pass_to_pass == "suite" else shop.baseline.touching(one.choice.file)
    failing = [test for test in shop.baseline.tests if test in probe.failing]
    task, worded = await _write(shop, one, probe, folder, task_id, failing, guarded, facts)
    judge = judge_in(shop.sandbox, shop.limit)
    first, seen = await first_look(task, judge)
    if not seen or not first.tests:
        reason = f"the grader sees no test fail: {first.reason}"[:300]
        return facts, Admission(False, reason, final=first.status is not Status.INFRA_ERROR)
    if set(seen) != set(failing):
        # Tests that do not run the changed lines may fail all the same, by what the code leaves behind.
        shutil.rmtree(folder)
        task, worded = await _write(shop, one, probe, folder, task_id, seen, guarded, facts)
    if not task.grading.pass_to_pass:
        return facts, Admission(False, "the grader sees no test pass")
    if found := traces(folder, shop.files[one.choice.file].text):
        return facts, Admission(False, f"the clean text is left in the snapshot: {found[0]}")
    answer = await admit(task, first, shop.config.admission_runs, judge)
    facts |= {
        "fail_to_pass": len(task.grading.fail_to_pass),
        "pass_to_pass": len(task.grading.pass_to_pass),
        "grading_seconds": round(answer.seconds, 2),
        "report_bytes": answer.report_bytes,
        "wording": worded,
    }
    return facts, answer


async def _write(
    shop: Workshop,
    one: Candidate,
    probe: Probe,
    folder: Path,
    task_id: str,
    failing: Sequence[str],
    guarded: Iterable[str],
    facts: dict[str, Any],
) -> tuple[Task, str]:
    passing = [test for test in guarded if test not in set(failing)]
    unknown = TestEnd("failed", 0.0)  # a test that was not tried, since it does not run the changed lines
    ends = {test: probe.failing.get(test, unknown) for test in failing}
    diff = diff_lines(one.rendered)
    report = make_report(
        shop.tree.name, shop.tree.version, shop.layout.paths, ends, len(passing), shop.layout.hidden, diff
    )
    instruction, worded = fixed_wording(report), "fixed"
    if shop.config.writer is not None:
        answer = await model_wording(report, shop.config.writer, diff)
        instruction, worded = (answer, "model") if answer is not None else (instruction, worded)
    broken = BrokenPackage(
        shop.layout, one.choice.file, shop.files[one.choice.file].text, one.rendered.text, failing,
        passing,
    )  # fmt: skip
    await asyncio.to_thread(write_built_task, folder, task_id, instruction, broken, facts, shop.config)
    return await asyncio.to_thread(Task.load, folder), worded


def _write_snapshot(layout: Layout, tree: SourceTree, store: Store) -> Path:
    """The folder with `repo` and `hidden` of a layout."""
    digest = hashlib.sha256()
    for kind, files in (("repo", layout.files), ("hidden", layout.hidden)):
        for path, data in sorted(files.items()):
            digest.update(f"{kind}/{path}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    target = store.build / "snapshots" / f"{tree.name}-{tree.version}-{digest.hexdigest()[:16]}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".new.", dir=target.parent))
        write_tree(partial / "repo", dict(layout.files))
        write_tree(partial / "hidden", dict(layout.hidden))
        os.rename(partial, target)
    return target


def _parse(sources: dict[str, str]) -> dict[str, SourceFile]:
    files = {}
    for path, text in sources.items():
        try:
            files[path] = SourceFile(path, text)
        except UnreadableSource:
            continue
    return files


def _all_there(result: PackageResult, store: Store) -> bool:
    return all((store.tasks / facts["instance_id"] / "task.toml").is_file() for facts in result.tasks)


def _options(config: BuildConfig) -> str:
    """What of the options decides a single task, once its bug is given."""
    used = {"pass_to_pass", "admission_runs", "agent_timeout", "verifier_timeout", "writer"}
    return json.dumps([TASK_FORMAT, config.model_dump(mode="json", include=used)], sort_keys=True)


def builder_digest() -> str:
    """Digest of the builder itself: another one may choose and word differently."""
    return tree_digest(Path(__file__).parent)[:16]


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:24]
