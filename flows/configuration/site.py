"""The site file: what is true of a cluster, whatever runs there. One a cluster, kept there, and never shared."""

import os
from collections.abc import Mapping
from pathlib import Path

from flows.config import ConfigError
from flows.configuration import schema
from flows.configuration.files import read_file
from flows.configuration.layers import Layer, Place

VARIABLE = "TESTGRAD_SITE"

ALLOWED = (
    "sandbox",
    "budgets",
    "scaffold.runtimes",
    "rollout.concurrency",
    "rollout.infra_attempts",
    "rollout.step_timeout",
    "rollout.workers",
    "learner.gpus_per_rank",
    "learner.nodes",
    "learner.ranks",
    "learner.sp_size",
    "learner.zero_stage",
    "learner.attention",
    "learner.share_prompts",
    "learner.optimizer",
    "learner.offload_activations",
    "learner.offload_optimizer",
    "learner.threads",
    "learner.timeout",
    "learner.micro_batch_tokens",
    "learner.gradient_checkpointing",
    "learner.logprob_chunk",
    "learner.matmul_dtype",
    "serving.replicas",
    "serving.tensor_parallel",
    "serving.max_num_seqs",
    "serving.kv_cache_gib",
    "serving.gpu_memory_utilization",
    "serving.enforce_eager",
    "serving.bucket_mib",
    "serving.threads",
    "serving.admission",
    "schedule.keep_trials",
    "schedule.max_hours",
    "tracing",
    "profiles.backend",
    "profiles.engine",
)
"""Where and how fast things run. What is learned, and from what, belongs to the run config, which is shared."""


def find_site(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The site file: the given one, that of TESTGRAD_SITE, or the user's own if there is one.

    Raises:
        ConfigError: TESTGRAD_SITE names no file.
    """
    if given is not None:
        return given
    if named := environment.get(VARIABLE):
        path = Path(named).expanduser()
        if not path.is_file():
            raise ConfigError(f"{VARIABLE} is {named!r}, and there is no such file; correct or unset it")
        return path
    usual = usual_site(environment)
    return usual if usual is not None and usual.is_file() else None


def usual_site(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where the user's own site file is looked for; None without a home directory."""
    folder = environment.get("XDG_CONFIG_HOME")
    home = environment.get("HOME")
    if folder:
        return Path(folder) / "testgrad" / "site.yaml"
    return Path(home) / ".config" / "testgrad" / "site.yaml" if home else None


def read_site(path: Path) -> Layer:
    """The layer of the site file at `path`. Empty values are left out: they turn nothing on.

    Raises:
        ConfigError: it cannot be read, or sets what a site has no say in.
    """
    layer = read_file(path, "site", may_be_empty=True)
    values = {key: value for key, value in layer.values.items() if value not in (None, "")}
    problems = [
        f"{layer.places.get(key, Place(str(path)))}: {key}: is not a site's to set: results depend on it, and a site "
        "file is not shared; move it to the run config"
        for key in values
        if not any(key in schema.under([key], allowed) for allowed in ALLOWED)
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return Layer(layer.name, values, layer.places, layer.notes)
