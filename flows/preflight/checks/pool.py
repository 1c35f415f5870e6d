"""The pools: readable, large enough, apart from each other, and neither too easy nor too hard."""

from collections.abc import Iterator, Sequence

from flows.preflight.facts import Facts, Pool
from flows.preflight.findings import Finding, fatal, ok, unset, warn
from flows.preflight.registry import check
from harness.pool.index import TaskPointer
from harness.pool.task import Task, TaskError
from tasks.config import BUILTIN_KATA
from tasks.draw import spread

SAMPLED = 16
"""Tasks of an index that are loaded."""
LITTLE_SIGNAL = 0.3


@check("indexes")
def indexes(facts: Facts) -> Iterator[Finding]:
    """Both indexes can be read, and tasks sampled from them are tasks."""
    for field, pool in (("data.train", facts.train_pool), ("data.heldout", facts.heldout_pool)):
        value = getattr(facts.config.data, field.removeprefix("data."))
        if not facts.is_set(field):
            yield unset(field, value, "the small functions that come with the package are used", "set it to your index")
        if pool.problem and value == BUILTIN_KATA and not pool.index.exists():
            yield warn(
                field,
                value,
                "is built when a run starts, so that nothing of it could be checked",
                "build it now (testgrad pool kata), and check again",
            )
        elif pool.problem:
            yield fatal(field, value, pool.problem, "correct the path, or build the index again")
        else:
            yield from _sampled(field, value, pool)


def _sampled(field: str, value: str, pool: Pool) -> Iterator[Finding]:
    chosen = spread(pool.rows, SAMPLED)
    broken = []
    for row in chosen:
        try:
            Task.load(row.task_path)
        except TaskError as error:
            broken.append(str(error))
    if broken:
        yield fatal(
            field,
            value,
            f"{len(broken)} of {len(chosen)} sampled tasks cannot be used, the first: {broken[0]}",
            "testgrad pool validate names them all",
        )
    else:
        yield ok(field, value, f"{len(pool.rows)} tasks; {len(chosen)} of them were loaded")


@check("pool-size")
def pool_size(facts: Facts) -> Iterator[Finding]:
    """A step draws no task twice, and the scored tasks are not among the trained."""
    rows, wanted = facts.train_pool.rows, facts.config.rollout.tasks_per_step
    if not rows:
        return
    if wanted > len(rows):
        yield fatal("rollout.tasks_per_step", wanted, f"is more than the {len(rows)} tasks of data.train", "lower it")
        return
    steps, epoch = facts.config.schedule.total_steps, len(rows) // wanted
    yield ok("rollout.tasks_per_step", wanted, f"of {len(rows)} tasks: {steps} steps are {steps / epoch:.1f} epochs")
    trained = {row.instance_id for row in rows}
    shared = [row.instance_id for row in facts.heldout_pool.rows if row.instance_id in trained]
    if shared:
        yield warn(
            "data.heldout",
            facts.config.data.heldout,
            f"{len(shared)} of its {len(facts.heldout_pool.rows)} tasks are "
            f"trained on as well, {shared[0]} for one: their score is no measure",
            "testgrad pool split makes them apart",
        )


@check("signal")
def signal(facts: Facts) -> Iterator[Finding]:
    """Groups whose trials all pass, or all fail, have no gradient: the expected share of the others."""
    rows, attempts = facts.train_pool.rows, facts.config.rollout.attempts_per_task
    if not rows:
        return
    rates = known_rates(rows)
    if not rates:
        yield warn(
            "data.train",
            facts.config.data.train,
            "its index tells no pass rates, so that nobody knows how many groups will carry a signal",
            "measure them: testgrad pool filter",
        )
        return
    share = expected_signal(rates, attempts)
    text = (
        f"{share:.0%} of groups are expected to carry a signal: the mean of 1 - p^{attempts} - (1 - p)^{attempts} over "
        f"{len(rates)} of {len(rows)} tasks whose pass rate p is known"
    )
    if share < LITTLE_SIGNAL:
        yield warn(
            "rollout.attempts_per_task", attempts, text, "choose tasks of a band (testgrad pool filter), or raise it"
        )
    else:
        yield ok("rollout.attempts_per_task", attempts, text)


def known_rates(rows: Sequence[TaskPointer]) -> list[float]:
    """Pass rates of the rows that have one: as `pass_rate`, or as a difficulty that is a number in [0, 1]."""
    rates = []
    for row in rows:
        values = (row.extra.get("pass_rate"), row.extra.get("difficulty"))
        rate = next((v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 1), None)
        rates += [] if rate is None else [float(rate)]
    return rates


def expected_signal(rates: Sequence[float], attempts: int) -> float:
    """Expected share of groups in which some trials pass and some fail."""
    return sum(1 - p**attempts - (1 - p) ** attempts for p in rates) / len(rates)
