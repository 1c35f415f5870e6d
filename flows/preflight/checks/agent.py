"""The agent: whether it is there, fits its sandbox, and has limits that somebody chose."""

from collections.abc import Iterator

from flows.preflight.facts import Facts
from flows.preflight.findings import Finding, fatal, ok, unset, warn
from flows.preflight.registry import check
from harness.sandbox.docker_config import hosts_of
from harness.scaffolds.base import ScaffoldConfig, ScaffoldError, find_scaffold
from harness.scaffolds.runtimes import RuntimeBuildError, RuntimeMissing


@check("scaffold")
def scaffold(facts: Facts) -> Iterator[Finding]:
    """Each agent is registered, has settings that fit it, and is prepared on this machine."""
    name = facts.config.scaffold.name
    if not facts.is_set("scaffold.name"):
        yield unset(
            "scaffold.name", name, "the small built-in agent works on the tasks", "set it, or profiles.scaffold"
        )
    try:
        agents = facts.scaffolds
        find_scaffold(name).check(facts.config.scaffold)
        for agent in agents:
            find_scaffold(agent.name).check(agent)
    except ScaffoldError as error:
        yield fatal("scaffold.name", name, str(error), "correct the scaffold section")
        return
    for agent in agents:
        yield from _prepared(facts, agent)


def _prepared(facts: Facts, agent: ScaffoldConfig) -> Iterator[Finding]:
    kind, backend = find_scaffold(agent.name), facts.config.sandbox.backend
    try:
        kind.require(agent)
    except (RuntimeMissing, RuntimeBuildError) as error:
        yield fatal("scaffold.name", agent.name, str(error), "prepare it, or choose another scaffold")
        return
    remote = (
        [host.url for host in hosts_of(facts.config.sandbox.docker) if not host.local] if backend == "docker" else []
    )
    if kind.runs_inside and remote:
        yield fatal(
            "sandbox.docker.hosts",
            ", ".join(remote),
            f"{agent.name} runs inside the sandbox, and reaches the proxy through a socket of this machine only",
            "use a local engine, or a scaffold that runs on the host",
        )
        return
    where = f"runs in the {backend} sandbox" if kind.runs_inside else "runs on the host"
    yield ok("scaffold.name", agent.name, f"is ready, and {where}")


@check("agent-limits")
def limits(facts: Facts) -> Iterator[Finding]:
    """Turns, time and words of an agent: a trial without an end holds up its whole step."""
    config = facts.config
    for agent in facts.scaffolds if config.scaffold.name in _known() else []:
        if agent.agent_timeout is None:
            yield unset(
                "scaffold.agent_timeout",
                "null",
                f"each task's own limit holds for {agent.name}, and half an hour where it "
                "has none; in evaluations as well",
                "set it to the longest time that a trial is worth",
            )
        else:
            yield ok("scaffold.agent_timeout", agent.agent_timeout, f"seconds for {agent.name}, in evaluations as well")
        room = config.serving.window // config.rollout.max_tokens_per_turn
        if agent.name != "edit" and agent.max_turns == 1:
            yield warn(
                "scaffold.max_turns",
                1,
                f"{agent.name} can look at nothing before it answers",
                "raise it, to 50 or more",
            )
        elif agent.max_turns > 1 and agent.max_turns > 16 * room:
            yield warn(
                "scaffold.max_turns",
                agent.max_turns,
                f"is far more than the {room} whole answers of "
                f"{config.rollout.max_tokens_per_turn} tokens that serving.window of {config.serving.window} holds: "
                "trials "
                "end as overlong",
                "raise serving.window, or lower rollout.max_tokens_per_turn",
            )


def _known() -> set[str]:
    from harness.scaffolds.base import SCAFFOLDS

    return set(SCAFFOLDS)
