"""Why every reward may be the same, by how the trials ended and what their verdicts say."""

from collections import Counter

import pyarrow as pa

from flows.diagnosis.causes import LikelyCause
from flows.diagnosis.facts import RunFacts, counted

_LEAST = 0.2
"""Share of the trials from which a cause is named."""


def zero_causes(facts: RunFacts, trials: pa.Table) -> list[LikelyCause]:
    """Likely causes of a reward that is 0 throughout, the one that most trials show first."""
    count = trials.num_rows
    if not count:
        return [LikelyCause("not known", "the trials of the step are gone", "testgrad check, which grades a solution")]
    outcomes, statuses = counted(trials, "outcome"), counted(trials, "status")
    turns = [turn or 0 for turn in trials["turns"].to_pylist()]
    said = [length or 0 for length in trials["response_length"].to_pylist()]
    found: list[tuple[float, LikelyCause]] = []

    def name(trials_: float, cause: str, mend: str, evidence: str = "") -> None:
        if trials_ >= _LEAST * count:
            found.append((trials_, LikelyCause(cause, evidence or f"{trials_:.0f} of {count} trials", mend)))

    name(
        sum(not tokens for tokens in said),
        "the policy is never asked",
        "the agent fails before its first request: read such a trial (testgrad trials RUN)",
    )
    name(
        statuses["broken"],
        "patches leave code that cannot be imported or tested",
        "read some patches; where they are sound, the grading environment lacks something: testgrad check",
        f"{statuses['broken']} of {count} verdicts are broken; the commonest says: {_commonest(trials, 'broken')}",
    )
    name(
        outcomes["agent_timeout"],
        "agents run out of time",
        "raise scaffold.agent_timeout, or give the engine more replicas",
    )
    name(
        outcomes["overlong"],
        "answers are cut, or conversations fill the window",
        "raise rollout.max_tokens_per_turn, or serving.window",
    )
    name(outcomes["max_turns"], "agents run out of turns", "raise scaffold.max_turns")
    if int(facts.setting("scaffold.max_turns", 1)) > 1:
        name(
            sum(turn == 1 for turn in turns),
            "agents end after one answer: no tool call is understood",
            "testgrad check RUN-CONFIG --only parser; read such a trial",
        )
    name(statuses["tampered"], "verdicts are tampered: agents bend the tests", "read such trials: testgrad trials RUN")
    name(
        statuses["failed"],
        "the tasks are too hard for this policy, or their tests cannot pass as they are graded",
        "testgrad check grades a solution (it must score 1); then take easier tasks: testgrad pool, data.difficulty",
        f"{statuses['failed']} of {count} patches were tested and failed; the commonest says: "
        f"{_commonest(trials, 'failed')}",
    )
    found.sort(key=lambda entry: -entry[0])
    return [cause for _, cause in found] or [
        LikelyCause("not known", f"outcomes {dict(outcomes)}, verdicts {dict(statuses)}", "testgrad trials RUN")
    ]


def one_causes(trials: pa.Table) -> list[LikelyCause]:
    """Likely causes of a reward that is 1 throughout."""
    solved = f"{counted(trials, 'status')['passed']} of {trials.num_rows} verdicts are passed"
    return [
        LikelyCause("the tasks are too easy", solved, "take harder ones: testgrad pool, data.difficulty"),
        LikelyCause(
            "the grading passes whatever it is given", solved, "testgrad check: nothing done must score 0 on a task"
        ),
    ]


def _commonest(trials: pa.Table, status: str) -> str:
    reasons = Counter(
        reason
        for reason, verdict in zip(trials["reason"].to_pylist(), trials["status"].to_pylist(), strict=True)
        if verdict == status and reason
    )
    return reasons.most_common(1)[0][0].splitlines()[0][:160] if reasons else "nothing"
