"""One task of the kata pool by itself: what checks and benches try out."""

from pathlib import Path

from harness.pool.kata.build import candidates
from harness.pool.kata.catalogue import CATALOGUE
from harness.pool.kata.kata import SOLUTION_FILE, TEST_MODULE
from harness.pool.kata.prove import prove
from harness.pool.schema import AgentSection, Grading, TaskConfig, TaskSection, VerifierSection
from harness.pool.task import Task
from harness.pool.write import write_task


def sample_task(path: Path, name: str | None = None) -> Task:
    """Write the task of a broken function (none: the catalogue's first) at `path`, which must not exist yet."""
    kata = CATALOGUE[name or next(iter(CATALOGUE))]
    (bug,) = prove(kata, candidates(kata, seed=0), 1)
    grading = Grading(fail_to_pass=bug.fail_to_pass, pass_to_pass=bug.pass_to_pass)
    config = TaskConfig(
        task=TaskSection(name=f"testgrad/{path.name}"),
        metadata=grading.model_dump(exclude_none=True),
        agent=AgentSection(timeout_sec=60.0),
        verifier=VerifierSection(timeout_sec=30.0),
    )
    write_task(
        path,
        instruction=kata.instruction,
        config=config,
        repo={SOLUTION_FILE: bug.mutant.source},
        tests={f"{TEST_MODULE}.py": kata.test_source},
        solution={SOLUTION_FILE: kata.source},
    )
    return Task.load(path)
