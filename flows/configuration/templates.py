"""Templates of run configs and site files, made from the model: what they say of a setting is what the code says."""

from collections.abc import Iterable, Sequence
from typing import Any

from flows.config import ConfigError
from flows.configuration import schema
from flows.configuration.explain import as_text
from flows.configuration.layers import CHANGEME
from flows.configuration.profiles import available
from flows.configuration.resolve import plain

FORMATS = ("yaml", "toml", "env")

REQUIRED = ("project", "experiment", "model.path", "data.train", "data.heldout")
OFTEN = (
    *("rollout.tasks_per_step", "rollout.attempts_per_task", "rollout.max_tokens_per_turn", "rollout.concurrency"),
    *("serving.window", "serving.tool_call_parser", "serving.reasoning_parser", "serving.replicas"),
    *(
        "serving.tensor_parallel",
        "learner.ranks",
        "learner.lr",
        "learner.lr_warmup_steps",
        "learner.micro_batch_tokens",
    ),
    *("algorithm.adv_estimator", "algorithm.policy_loss", "algorithm.kl.place", "scaffold.agent_timeout"),
    *("schedule.total_steps", "schedule.save_freq", "schedule.test_freq", "schedule.keep_checkpoints"),
    *("evaluation.attempts_per_task", "evaluation.max_tasks", "evaluation.temperature"),
)
SITE = (
    *("sandbox.root", "sandbox.docker.hosts", "sandbox.docker.image", "sandbox.kubernetes.kubeconfig"),
    *("sandbox.kubernetes.namespace", "sandbox.kubernetes.image", "sandbox.kubernetes.node_selector"),
    *("scaffold.runtimes", "rollout.concurrency", "learner.threads", "serving.threads", "serving.kv_cache_gib"),
)

_MUST_CHANGE = {"experiment", "model.path", "data.train", "data.heldout"}

_ENV = (
    ("PROJECT_NAME", CHANGEME, "names the folder of runs and the MLflow experiment"),
    ("EXP_NAME", CHANGEME, "names the run; the same name goes on where it stopped, so no time stamp"),
    ("BACKEND", "{backend}", "docker, k8s or bubblewrap"),
    ("SCAFFOLD", "{scaffold}", "the agent"),
    ("TRAINING_MODE", "{mode}", "sync, one_step_off or async"),
    ("MODEL_ENGINE", "{engine}", "gpu or cpu"),
    ("N_NODES_TRAIN", CHANGEME, "nodes of the learner; leave the nodes out with MODEL_ENGINE=cpu"),
    ("N_NODES_ROLLOUT", CHANGEME, "nodes of the engine"),
    ("NNODES", CHANGEME, "their sum"),
    ("NGPUS_PER_NODE", "8", "GPUs of a node"),
    ("GEN_TP", "4", "GPUs of a replica; divides the model's key-value heads"),
    ("MODEL_PATH", CHANGEME, "a folder in Hugging Face format"),
    ("TOOL_CALL_PARSER", CHANGEME, "vLLM's parser of this model's tool calls; null if the agent needs none"),
    ("TRAIN_FILES", CHANGEME, "index of the tasks to train on"),
    ("VAL_FILES", CHANGEME, "index of the tasks to score on"),
    ("TRAIN_BSZ", "64", "tasks a step"),
    ("N_RESP", "8", "trials of a task"),
    ("MAX_PROMPT", "30000", "with MAX_RESP the window, in tokens"),
    ("MAX_RESP", "170000", ""),
    ("ACTOR_LR", "1e-6", "learning rate"),
    ("USE_KL_LOSS", "False", "whether the policy is held near its beginning"),
    ("ROLLOUT_IS", "token", "null, token or sequence"),
    ("TRAJ_FILTER_ENABLE", "True", "whether trials that ran out of time are left out"),
    ("TOTAL_STEPS", CHANGEME, "or TOTAL_EPOCHS"),
    ("TRAINER_SAVE_FREQ", "10", "steps between checkpoints"),
    ("TRAINER_TEST_FREQ", "10", "steps between evaluations"),
)


def run_template(format_: str, axes: dict[str, str], *, everything: bool = False) -> str:
    """A run config to be filled in. What must be changed says CHANGEME; what need not be is commented out.

    Args:
        format_: yaml, toml, or env.
        axes: The profile of each axis.
        everything: Every setting there is, and not only those that are often tuned.

    Raises:
        ConfigError: an unknown format or profile.
    """
    for axis, name in axes.items():
        if name not in available(axis):
            raise ConfigError(f"--{axis} {name!r}: there is no such profile; known are {', '.join(available(axis))}")
    if format_ == "env":
        return _env_template(axes)
    keys = list(schema.settings()) if everything else [*REQUIRED, *OFTEN]
    top = ["# A run of testgrad. Replace each CHANGEME, then: testgrad check FILE", ""]
    return "\n".join([*top, *_profiles_lines(format_, axes), *_lines(format_, keys, _MUST_CHANGE)]) + "\n"


def site_template(format_: str) -> str:
    """A site file to be filled in; as it is, it changes nothing.

    Raises:
        ConfigError: an unknown format.
    """
    if format_ == "env":
        raise ConfigError("--format 'env': a site file is YAML or TOML; choose one of them")
    top = [
        "# What is true of this cluster, whatever runs here. Keep it here: it is never shared.",
        "# testgrad finds it by TESTGRAD_SITE, or as ~/.config/testgrad/site.yaml.",
        "",
    ]
    return "\n".join([*top, *_lines(format_, SITE, set())]) + "\n"


def _profiles_lines(format_: str, axes: dict[str, str]) -> list[str]:
    sign = ": " if format_ == "yaml" else " = "
    indent = "  " if format_ == "yaml" else ""
    quoted = {axis: name if format_ == "yaml" else f'"{name}"' for axis, name in axes.items()}
    lines = [f"{indent}{axis}{sign}{quoted[axis]}  # {', '.join(available(axis))}" for axis in axes]
    if format_ == "yaml":
        return ["profiles:", *lines, ""]
    return [f"profiles.{line}" for line in lines] + [""]


def _lines(format_: str, keys: Iterable[str], must_change: set[str]) -> list[str]:
    """The settings by section, each below what it means."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(key.partition(".")[0] if "." in key else "", []).append(key)
    lines: list[str] = []
    for section, inside in groups.items():
        for key in inside if not section else []:
            lines += [f"# {schema.settings()[key].description}", _assignment(format_, key, key, must_change), ""]
        if section and format_ == "yaml":
            lines += [*_yaml_section(section, inside, must_change), ""]
        elif section:
            for key in inside:
                lines += [f"# {schema.settings()[key].description}", _assignment(format_, key, key, must_change)]
            lines.append("")
    return lines


def _yaml_section(section: str, keys: Sequence[str], must_change: set[str]) -> list[str]:
    """A section with those below it. It is commented out where nothing in it must be changed, so that it is no null."""
    live = any(key in must_change for key in keys)
    lines = [f"{section}:" if live else f"# {section}:"]
    opened: list[str] = [section]
    for key in keys:
        parents = key.split(".")[:-1]
        for depth in range(1, len(parents)):
            if parents[: depth + 1] != opened[: depth + 1]:
                opened = parents[: depth + 1]
                lines.append(f"# {'  ' * depth}{parents[depth]}:")
        opened = parents
        indent = "  " * len(parents)
        setting = schema.settings()[key]
        if key in must_change:
            lines += [f"{indent}# {setting.description}", f"{indent}{parents and key.rpartition('.')[2]}: {CHANGEME}"]
        else:
            value = as_text(plain(setting.default))
            lines.append(f"# {indent}{key.rpartition('.')[2]}: {value}  # {setting.description}")
    return lines


def _assignment(format_: str, key: str, name: str, must_change: set[str]) -> str:
    setting = schema.settings()[key]
    sign = ": " if format_ == "yaml" else " = "
    if key in must_change:
        return f"{name}{sign}{CHANGEME if format_ == 'yaml' else _toml_value(CHANGEME)}"
    value = plain(setting.default)
    text = as_text(value) if format_ == "yaml" else _toml_value(value)
    return f"# {name}{sign}{text}"


def _toml_value(value: Any) -> str:
    """TOML has no null: what is unset is shown as an empty text, in a comment."""
    import json

    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{key} = {_toml_value(inner)}" for key, inner in value.items()) + " }" if value else "{}"
        )
    return json.dumps("" if value is None else value, ensure_ascii=False)


def _env_template(axes: dict[str, str]) -> str:
    words = dict(axes) | {"backend": "k8s" if axes.get("backend") == "kubernetes" else axes.get("backend", CHANGEME)}
    width = max(len(name) for name, _, _ in _ENV) + 16
    lines = ["# A run of testgrad, in the names of Lego-RL. Plain values only: this file is read, never executed.", ""]
    for name, value, about in _ENV:
        assigned = f"{name}={value.format(**words)}"
        lines.append(f"{assigned.ljust(width)}# {about}" if about else assigned)
    return "\n".join(lines) + "\n"
