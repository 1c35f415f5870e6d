"""What the names of a Lego-RL `.env` file mean here: to a setting, to nothing, or to an error that says why.

A value is translated or refused, never dropped in silence: what cannot be had here and would change what is learned is
an error, what has no counterpart because it needs none is a note.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.config import ConfigError
from flows.configuration.dotenv_compound import Compound
from flows.configuration.dotenv_file import Given
from flows.configuration.dotenv_values import (
    Reader,
    Untranslatable,
    from_folder,
    integer,
    nothing,
    number,
    one_of,
    switch,
    text,
)
from flows.configuration.redaction import is_secret


@dataclass
class Translation:
    """Values and lines by dotted key, and what has no effect."""

    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


DIRECT: dict[str, tuple[str, Reader]] = {
    "PROJECT_NAME": ("project", text),
    "EXP_NAME": ("experiment", text),
    "BACKEND": (
        "profiles.backend",
        one_of(k8s="kubernetes", kubernetes="kubernetes", docker="docker", bubblewrap="bubblewrap"),
    ),
    "SCAFFOLD": (
        "profiles.scaffold",
        one_of(
            cc="cc",
            ohsdk="ohsdk",
            oc="oc",
            terminus="terminus",
            cx="codex",
            codex="codex",
            qwen="qwen",
            mini="mini",
            mini_text="mini_text",
            edit="edit",
        ),
    ),
    "MODEL_PATH": ("model.path", text),
    "TOOL_CALL_PARSER": ("serving.tool_call_parser", lambda value: None if nothing(value) else value),
    "TRAIN_FILES": ("data.train", text),
    "VAL_FILES": ("data.heldout", text),
    "N_RESP": ("rollout.attempts_per_task", integer),
    "AGENT_NUM_WORKERS": ("rollout.concurrency", integer),
    "TEMPERATURE": ("rollout.temperature", number),
    "TOP_P": ("rollout.top_p", number),
    "VAL_TOP_P": ("evaluation.top_p", number),
    "VAL_N": ("evaluation.attempts_per_task", integer),
    "GEN_TP": ("serving.tensor_parallel", integer),
    "GPU_MEM_UTIL": ("serving.gpu_memory_utilization", number),
    "ENFORCE_EAGER": ("serving.enforce_eager", switch),
    "ROLLOUT_MAX_NUM_SEQS": ("serving.max_num_seqs", integer),
    "ACTOR_LR": ("learner.lr", number),
    "LR_SCHEDULER": ("learner.lr_schedule", one_of(constant="constant", linear="linear", cosine="cosine")),
    "ACTOR_PPO_MAX_TOKEN_LEN_PER_GPU": ("learner.micro_batch_tokens", integer),
    "ENABLE_GRADIENT_CHECKPOINTING": ("learner.gradient_checkpointing", switch),
    "ENABLE_ACTIVATION_OFFLOAD": ("learner.offload_activations", switch),
    "NCCL_TIMEOUT": ("learner.timeout", number),
    "ADV_ESTIMATOR": ("algorithm.adv_estimator", text),
    "POLICY_LOSS_MODE": ("algorithm.policy_loss", lambda value: "ppo" if value == "vanilla" else value),
    "CLIP_LOW": ("algorithm.clip_ratio_low", number),
    "CLIP_HIGH": ("algorithm.clip_ratio_high", number),
    "LOSS_AGG_MODE": ("algorithm.loss_agg", text),
    "ENTROPY_COEFF": ("algorithm.entropy_coeff", number),
    "ROLLOUT_IS_THRESHOLD": ("algorithm.rollout_correction.high", number),
    "TOTAL_STEPS": ("schedule.total_steps", integer),
    "TRAINER_SAVE_FREQ": ("schedule.save_freq", integer),
    "TRAINER_VAL_BEFORE_TRAIN": ("schedule.eval_before", switch),
}
"""Names that stand for one setting."""

OLDER = {
    "TRAIN_MODE": "TRAINING_MODE",
    "ENGINE": "MODEL_ENGINE",
    "TOOL_PARSER": "TOOL_CALL_PARSER",
    "HARBOR_TOOL_PARSER": "TOOL_CALL_PARSER",
    "TRAIN_INDEX": "TRAIN_FILES",
    "VAL_INDEX": "VAL_FILES",
    "SAVE_FREQ": "TRAINER_SAVE_FREQ",
    "TEST_FREQ": "TRAINER_TEST_FREQ",
    "VAL_BEFORE_TRAIN": "TRAINER_VAL_BEFORE_TRAIN",
    "NUM_WORKERS": "AGENT_NUM_WORKERS",
    "AGENT_NAME": "HARBOR_AGENT_NAME",
    "POD_NAME_PREFIX": "HARBOR_POD_NAME_PREFIX",
    "INLINE_BUILD": "HARBOR_K8S_INLINE_BUILD",
    "TRAIN_PROMPT_BSZ": "TRAIN_BSZ",
}
"""Names of earlier generations of these files, by what they are called now."""

FIXED: dict[str, tuple[tuple[str, ...], str]] = {
    "TOP_K": (("-1", "0"), "log-probs of a truncated distribution are not the ones that the learner computes"),
    "EP_SIZE": (("1",), "the learner has no expert parallelism"),
    "FUSED_KERNELS": (("false", "0", "no"), "the learner computes log-probs in chunks; set learner.logprob_chunk"),
    "CALCULATE_LOG_PROBS": (("true", "1", "yes"), "the engine's log-probs are what faithfulness is measured by"),
    "USE_REMOVE_PADDING": (("true", "1", "yes"), "rows are packed without padding, always"),
    "USE_DYNAMIC_BSZ": (("true", "1", "yes"), "rows are filled by tokens, always; set learner.micro_batch_tokens"),
    "HARBOR_K8S_INLINE_BUILD": (("0", "false", "no"), "nothing is built in the cluster; set sandbox.kubernetes.image"),
    "HARBOR_K8S_EGRESS_ISOLATION": (("1", "true", "yes"), "no trial has a network, ever"),
    "HARBOR_BLOCK_GIT_HISTORY_LEAK": (("1", "true", "yes"), "snapshots come without their history, always"),
    "HARBOR_RECOMPUTE_MISMATCH_LOGPROBS": (("0", "false", "no"), "sampled ids are kept and never encoded again"),
    "REQUIRE_BATCHES": (("1",), "a step is one batch"),
    "TRIGGER_PARAMETER_SYNC_STEP": (("1",), "weights are synced after each step"),
    "ALLOW_SINGLE_NODE_ASYNC_SPLIT": (("0", "false", "no"), "GPUs are split by learner.ranks and serving.replicas"),
}
"""Names whose other values would change what is learned, and cannot be had."""

WITHOUT_EFFECT = {
    "VENV_PATH": "the running Python is used",
    "TRAINER_PROJECT_NAME": "PROJECT_NAME names the MLflow experiment",
    "TRAINER_EXPERIMENT_NAME": "EXP_NAME names the MLflow run",
    "TRAINER_LOGGER": "MLflow, the journal and the log are written, always",
    "TRAINER_NNODES": "it follows from the other counts of nodes",
    "VERL_ENTRY_MODULE": "`testgrad train` is the entry",
    "VERL_CONFIG_NAME": "`testgrad train` is the entry",
    "USE_NEW_VERL": "verl is not used",
    "NEW_VERL_DIR": "verl is not used",
    "WANDB_MODE": "MLflow is used",
    "SERVED_MODEL_NAME": "the engine and the agents share one name by construction",
    "RAY_PORT": "a private cluster chooses free ports; RAY_ADDRESS names another",
    "RAY_DASHBOARD_PORT": "there is no dashboard of Ray's",
    "RAY_OBJECT_STORE_MEMORY": "weights and batches do not pass through it",
    "HARBOR_LOG_DIR": "logs are in the run's journal",
    "HARBOR_AGENT_NAME": "SCAFFOLD names the agent",
    "HARBOR_AGENT_IMPORT_PATH": "SCAFFOLD names the agent; one of your own comes by `plugins`",
    "HARBOR_POD_NAME_PREFIX": "pods carry labels of their run",
    "HARBOR_NETADMIN_IMAGE": "no trial has a network",
    "HARBOR_CLUSTER_DNS_IP": "no trial has a network",
    "HARBOR_SESSION_LEVEL_SCHEDULER": "sessions stick to a replica, always",
    "HARBOR_MAIN_AGENT_PREFIX_MATCH": "scaffold.segments says what is trained",
    "DATA_TRUNCATION": "prompts are never cut",
    "PROMPT_KEY": "the index has one form",
    "RETURN_RAW_CHAT": "agents write their own prompts",
    "SEQ_DIST_METRICS": "the metrics are computed, always",
    "HYBRID_ENGINE": "N_NODES_ROLLOUT=0 says that learner and engine share their devices",
    "ENABLE_CHUNKED_PREFILL": "vLLM's own default holds",
    "ENABLE_SLEEP_MODE": "replicas sleep if they share the learner's devices, and only then",
    "FSDP_STRATEGY": "the learner is DeepSpeed ZeRO-3",
    "FSDP_SIZE": "ZeRO-3 shards over all ranks",
    "VAL_BSZ": "rollout.concurrency bounds the trials of evaluations too",
    "GEN_PROMPT_BSZ": "rollout.concurrency bounds the trials",
    "VALIDATION_ROLLOUT_MIN_IDLE_WORKERS": "evaluations come between steps",
    "TOTAL_ROLLOUT_STEPS": "schedule.total_steps is the only end",
    "KEEP_TRIALS": "trials are kept",
}
"""Names without a counterpart, since none is needed."""

COMPOUND = (
    *(
        "TRAINING_MODE",
        "STALENESS",
        "PARTIAL_ROLLOUT",
        "MODEL_ENGINE",
        "NNODES",
        "N_NODES_TRAIN",
        "N_NODES_ROLLOUT",
        "NGPUS_PER_NODE",
        "SP_SIZE",
    ),
    *("MAX_PROMPT", "MAX_RESP", "TRAIN_BSZ", "TRAIN_MINI_BSZ", "TOTAL_EPOCHS", "TRAINER_TEST_FREQ"),
    *("VAL_TEMPERATURE", "VAL_DO_SAMPLE", "USE_KL_LOSS", "USE_KL_IN_REWARD", "KL_LOSS_COEF", "KL_LOSS_TYPE"),
    *("KL_COEF", "ROLLOUT_IS", "ROLLOUT_CORRECTION_BYPASS", "TRAJ_FILTER_ENABLE", "TRAJ_FILTER_FILTER_OVERLONG"),
    *("TRAJ_FILTER_DROP_REASONS", "ENABLE_R3"),
)
"""Names that mean something together with others; see `Compound`."""

OTHER_DEFAULTS = {
    "USE_KL_LOSS": "True, here algorithm.kl.place is none",
    "ROLLOUT_IS": "null, here algorithm.rollout_correction.weights is token",
    "GEN_TP": "4, here serving.tensor_parallel is 1",
    "TRAJ_FILTER_ENABLE": "True, here filter.drop_outcomes is empty",
}
"""Names that are often left out, and then mean there what they do not mean here."""


def known_names() -> list[str]:
    """Every name that may stand in such a file."""
    return sorted({*DIRECT, *OLDER, *FIXED, *WITHOUT_EFFECT, *COMPOUND})


def names_of(key: str) -> list[str]:
    """The names that set the dotted `key` by themselves."""
    return [name for name, (target, _) in DIRECT.items() if target == key]


def translate(given: Mapping[str, Given], source: str, folder: Path) -> Translation:
    """The settings that the names stand for.

    Raises:
        ConfigError: unknown names, secrets, and values without a counterpart, a line each.
    """
    problems: list[str] = []
    names = _renamed(given, source, problems)
    result = Translation()
    for name, item in names.items():
        try:
            _one(name, item, folder, result)
        except Untranslatable as error:
            problems.append(f"{source}:{item.line}: {name}: {error}")
    compound = Compound(names, folder)
    for step in compound.steps():
        try:
            for key, (value, line) in step().items():
                result.values[key], result.lines[key] = value, line
        except Untranslatable as error:
            problems.append(f"{source}: {error}")
    if problems:
        raise ConfigError("\n".join(problems))
    result.notes += [
        f"{name} is not set: there it means {meaning}; write it, one way or the other"
        for name, meaning in OTHER_DEFAULTS.items()
        if name not in names
    ]
    return result


def _renamed(given: Mapping[str, Given], source: str, problems: list[str]) -> dict[str, Given]:
    """The same by the names that hold now; unknown names and secrets are problems."""
    names: dict[str, Given] = {}
    known = known_names()
    for written, item in given.items():
        name = OLDER.get(written, written)
        where = f"{source}:{item.line}"
        if name in names:
            problems.append(f"{where}: {written} is what {name} was called earlier, and both are set; keep {name}")
        elif name in known:
            names[name] = item
        elif is_secret(name):
            problems.append(f"{where}: {name}: secrets come from the shell only; take it out, and export it")
        else:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
            hint = (
                f"the nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}" if near else "no name is near it"
            )
            problems.append(f"{where}: {name}: unknown name; {hint}")
    return names


def _one(name: str, item: Given, folder: Path, result: Translation) -> None:
    """A name that stands for itself."""
    if name in DIRECT:
        key, read = DIRECT[name]
        value = read(item.value)
        if key in ("data.train", "data.heldout", "model.path"):
            value = from_folder(value, folder)
        result.values[key], result.lines[key] = value, item.line
    elif name in FIXED:
        allowed, why = FIXED[name]
        if item.value.lower() not in allowed:
            raise Untranslatable(f"{item.value!r} cannot be had: {why}; set it to {allowed[0]}, or leave it out")
    elif name in WITHOUT_EFFECT:
        result.notes.append(f"{name} has no effect: {WITHOUT_EFFECT[name]}")
