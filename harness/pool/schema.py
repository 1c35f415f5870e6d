"""The models of `task.toml`: Harbor's schema 1.4, and in its free `[metadata]` table the facts testgrad grades by.

Harbor has no field for the tests that must pass, so they lie in `[metadata]` and any other reader ignores them. Keys
that no model knows are kept out and reported by `unknown_keys`: a misspelt key would otherwise be a silent default.
"""

import json
import re
from collections import Counter
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.pool.kinds import REPORT_KINDS

SCHEMA_VERSION = "1.4"
NetworkMode = Literal["public", "no-network", "allowlist"]


class Section(BaseModel):
    """A table of `task.toml`. Unknown keys are accepted here and named by `unknown_keys`."""

    model_config = ConfigDict(extra="allow", frozen=True)


class TaskSection(Section):
    """`[task]`: how the task is called."""

    name: str = Field(description="organisation/name", pattern=r"^[\w.-]+/[\w.-]+$")
    version: str | None = None
    description: str = ""
    authors: list[dict[str, Any]] = []
    keywords: list[str] = []


class AgentSection(Section):
    """`[agent]`: limits of the agent's phase."""

    timeout_sec: float | None = Field(default=None, gt=0, description="seconds the agent may run; none: no limit")
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class VerifierSection(Section):
    """`[verifier]`: limits of the grading phase."""

    timeout_sec: float = Field(default=600.0, gt=0, description="seconds the hidden tests may run")
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None
    collect: list[dict[str, Any]] = []
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class EnvironmentSection(Section):
    """`[environment]`: the machine the task wants. testgrad gives no trial a network, whatever the mode says."""

    network_mode: NetworkMode = "public"
    allowed_hosts: list[str] | None = None
    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None
    workdir: str | None = None


class SolutionSection(Section):
    """`[solution]`: what the reference solution is run with."""

    env: dict[str, str] = {}


class TaskConfig(Section):
    """The whole of `task.toml`."""

    schema_version: str = SCHEMA_VERSION
    task: TaskSection
    metadata: dict[str, Any] = Field(default={}, description="free table; the keys of `Grading` are testgrad's")
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    environment: EnvironmentSection = EnvironmentSection()
    solution: SolutionSection = SolutionSection()
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: list[dict[str, Any]] | None = None
    artifacts: list[str | dict[str, Any]] = []

    def to_toml(self) -> str:
        """This configuration as TOML text, without the values that are Harbor's defaults."""
        set_values = self.model_dump(exclude_defaults=True, exclude_none=True)
        return _toml({"schema_version": self.schema_version} | set_values)


class Grading(BaseModel):
    """How the host grades a patch: the kind of report, and the tests that must pass by the ids that it reports.

    `report` names an entry of `REPORT_KINDS`, which also says what the other fields must hold.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    report: str = Field(
        default="unittest",
        description="grading kind: unittest, pytest, junit, log, script, or one of a plugin",
        json_schema_extra=lambda schema: schema.update(enum=list(REPORT_KINDS)),
    )
    test_command: list[str] | None = Field(default=None, description="junit, log: argv of the hidden tests")
    log_parser: str | None = Field(
        default=None, description="log: form of the output: pytest, unittest, django or sympy"
    )
    pytest_plugins: list[str] = Field(default=[], description="pytest: installed plugin modules that the tests need")
    fail_to_pass: list[str] = Field(default=[], description="tests that the snapshot fails and a solution passes")
    pass_to_pass: list[str] = Field(default=[], description="tests that the snapshot passes and a solution too")
    visible_tests: list[str] = Field(default=[], description="test files in the snapshot, to see, not to edit")

    @property
    def expected(self) -> list[str]:
        """Ids of all tests that must pass."""
        return self.fail_to_pass + self.pass_to_pass

    @model_validator(mode="after")
    def _facts_are_usable(self) -> Self:
        if self.report not in REPORT_KINDS:
            known = ", ".join(REPORT_KINDS)
            raise ValueError(f"report {self.report!r} is unknown; choose one of: {known}, or load its plugin")
        if self.test_command is not None and not self.test_command:
            raise ValueError("test_command is an empty list; leave it out, or give the program and its arguments")
        REPORT_KINDS[self.report].facts(self)
        repeated = sorted(test_id for test_id, count in Counter(self.expected).items() if count > 1)
        if repeated:
            raise ValueError(f"fail_to_pass and pass_to_pass name {repeated[0]} more than once; name each test once")
        return self


def unknown_keys(config: TaskConfig) -> list[str]:
    """Dotted names of the keys in `task.toml` that no model knows; `[metadata]` is free and never reported."""
    found = sorted(config.model_extra or {})
    for name in type(config).model_fields:
        section = getattr(config, name)
        if isinstance(section, Section):
            found += [f"{name}.{key}" for key in sorted(section.model_extra or {})]
    return found


def _toml(table: dict[str, Any], path: str = "") -> str:
    """TOML text of a table: plain values first, since a key after a sub-table's header would belong to that."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"{_key(key)} = {_value(value)}\n" for key, value in plain.items()]
    text = f"\n[{path}]\n" * bool(path) + "".join(lines)
    for key, value in table.items():
        if isinstance(value, dict):
            text += _toml(value, f"{path}.{_key(key)}" if path else _key(key))
    return text


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: Any) -> str:
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool() | int() | float():
            return json.dumps(value)
        case list() if any(isinstance(item, str) for item in value) and len(value) > 1:
            return "[\n" + "".join(f"    {_value(item)},\n" for item in value) + "]"
        case list():
            return "[" + ", ".join(_value(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    raise TypeError(f"{value!r} has no form in task.toml; use strings, numbers, booleans, lists and tables")
