"""Build the kata pool: break every function of the catalogue, keep the bugs that its hidden tests prove.

The pool is split by function, so that a policy is never evaluated on a function it was trained on. All is determined by
the seed and by the text of this package.
"""

import hashlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.pool.index import PoolError, TaskPointer, write_index
from harness.pool.kata.catalogue import CATALOGUE
from harness.pool.kata.kata import SOLUTION_FILE, TEST_MODULE, Kata
from harness.pool.kata.operators import Mutant, mutants
from harness.pool.kata.prove import ProvenBug, prove
from harness.pool.schema import AgentSection, EnvironmentSection, Grading, TaskConfig, TaskSection, VerifierSection
from harness.pool.write import write_task

HELDOUT_SHARE = 0.3
AGENT_TIMEOUT = 120.0
VERIFIER_TIMEOUT = 30.0
MARKER = "pool.json"


@dataclass(frozen=True)
class PoolPaths:
    """A built pool: its folder and its two indexes, whose functions are disjoint."""

    root: Path
    train: Path
    heldout: Path


def build_pool(
    root: Path | str,
    seed: int = 0,
    bugs_per_function: int = 5,
    progress: Callable[[int, int], None] | None = None,
    workers: int = 2,
) -> PoolPaths:
    """Build the pool at `root`, complete or not at all; where it already is, do nothing.

    `progress(done, total)` is called after each function. The result does not depend on `workers`.

    Raises:
        PoolError: `root` holds something else: another pool, or files of other origin.
    """
    if bugs_per_function < 1:
        raise PoolError(f"bugs_per_function is {bugs_per_function}; a pool needs at least 1")
    root = Path(root).resolve()
    identity = {"pool": "kata", "seed": seed, "bugs_per_function": bugs_per_function, "generator": generator_digest()}
    if _is_built(root, identity):
        return _paths(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{root.name}.", suffix=".partial", dir=root.parent))
    try:
        partial.chmod(0o755)
        counts = _build(partial, seed, bugs_per_function, progress, workers)
        (partial / MARKER).write_text(json.dumps(identity | counts, indent=2) + "\n", encoding="utf-8")
        try:
            os.rename(partial, root)
        except OSError:
            # Someone else may have built the same pool meanwhile; anything else at `root` is an error, as above.
            if not _is_built(root, identity):
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return _paths(root)


def generator_digest() -> str:
    """Digest of all sources that decide a pool's bytes: catalogue, operators, build, and the writers of its files."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in [
        *sorted(folder.glob("kata/**/*.py")),
        *(folder / name for name in ("index.py", "schema.py", "write.py")),
    ]:
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def split_functions(seed: int) -> tuple[list[str], list[str]]:
    """Names of the train and of the held-out functions; each theme gives about `HELDOUT_SHARE` of its own."""
    heldout: set[str] = set()
    for theme in dict.fromkeys(kata.theme for kata in CATALOGUE.values()):
        names = sorted(kata.name for kata in CATALOGUE.values() if kata.theme == theme)
        heldout |= set(random.Random(f"{seed}/split/{theme}").sample(names, max(1, round(len(names) * HELDOUT_SHARE))))
    return [name for name in CATALOGUE if name not in heldout], [name for name in CATALOGUE if name in heldout]


def candidates(kata: Kata, seed: int) -> list[Mutant]:
    """The mutants of a function in the order in which to try them: shuffled, one operator after the other in turn."""
    rng = random.Random(f"{seed}/order/{kata.name}")
    by_operator: dict[str, list[Mutant]] = {}
    for mutant in mutants(kata.tree):
        by_operator.setdefault(mutant.operator, []).append(mutant)
    queues = list(by_operator.values())
    rng.shuffle(queues)
    for queue in queues:
        rng.shuffle(queue)
    rounds = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(rounds) for queue in queues if turn < len(queue)]


def _build(
    root: Path, seed: int, bugs: int, progress: Callable[[int, int], None] | None, workers: int
) -> dict[str, int]:
    rows: dict[str, list[TaskPointer]] = {"train": [], "heldout": []}
    splits = dict(zip(rows, split_functions(seed), strict=True))
    split_of = {name: split for split, names in splits.items() for name in names}
    katas = list(CATALOGUE.values())
    with ThreadPoolExecutor(workers) as pool:
        proofs = pool.map(lambda kata: prove(kata, candidates(kata, seed), bugs), katas)
        for done, (kata, proven) in enumerate(zip(katas, proofs, strict=True), start=1):
            split = split_of[kata.name]
            rows[split] += [_write(root, kata, bug, name, split) for name, bug in _named(kata, proven)]
            if progress:
                progress(done, len(katas))
    for split, pointers in rows.items():
        write_index(pointers, root / f"{split}.parquet")
    tasks = {f"{split}_tasks": len(pointers) for split, pointers in rows.items()}
    return tasks | {f"{split}_functions": len(names) for split, names in splits.items()}


def _named(kata: Kata, proven: list[ProvenBug]) -> Iterator[tuple[str, ProvenBug]]:
    numbers: dict[str, int] = {}
    for bug in proven:
        operator = bug.mutant.operator
        numbers[operator] = numbers.get(operator, 0) + 1
        yield f"kata-{kata.name.replace('_', '-')}-{operator}-{numbers[operator]}", bug


def _write(root: Path, kata: Kata, bug: ProvenBug, instance_id: str, split: str) -> TaskPointer:
    path = root / "tasks" / instance_id
    grading = Grading(fail_to_pass=bug.fail_to_pass, pass_to_pass=bug.pass_to_pass)
    facts: dict[str, Any] = {
        "function": kata.name,
        "theme": kata.theme,
        "bug": bug.mutant.operator,
        "difficulty": kata.difficulty,
    }
    config = TaskConfig(
        task=TaskSection(name=f"testgrad/{instance_id}", keywords=["python", "repair", kata.theme]),
        metadata=facts | grading.model_dump(exclude_none=True),
        agent=AgentSection(timeout_sec=AGENT_TIMEOUT, network_mode="no-network"),
        verifier=VerifierSection(timeout_sec=VERIFIER_TIMEOUT),
        environment=EnvironmentSection(network_mode="no-network"),
    )
    write_task(
        path,
        instruction=kata.instruction,
        config=config,
        repo={SOLUTION_FILE: bug.mutant.source},
        tests={f"{TEST_MODULE}.py": kata.test_source},
        solution={SOLUTION_FILE: kata.source},
    )
    return TaskPointer(instance_id, path, "kata", facts | {"split": split})


def _is_built(root: Path, identity: dict[str, Any]) -> bool:
    """Whether `root` is the finished pool of that identity; False only where a build may put one."""
    marker = root / MARKER
    if not marker.is_file():
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise PoolError(f"{root} exists and is not a kata pool; give the pool a folder of its own")
        return False
    found = json.loads(marker.read_text(encoding="utf-8"))
    for key, value in identity.items():
        if found.get(key) != value:
            raise PoolError(
                f"{root} holds a pool whose {key} is {found.get(key)!r}, not {value!r}; remove it, or build elsewhere"
            )
    return True


def _paths(root: Path) -> PoolPaths:
    return PoolPaths(root, root / "train.parquet", root / "heldout.parquet")
