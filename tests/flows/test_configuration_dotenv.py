"""`.env` files of the other system: read as text, translated or refused, never executed."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.config import ConfigError
from flows.configuration import load_run
from flows.configuration.dotenv_names import COMPOUND, DIRECT, FIXED, OLDER, WITHOUT_EFFECT, known_names
from flows.configuration.files import read_file
from flows.configuration.schema import known_keys

PAGE = """\
PROJECT_NAME=my-project
EXP_NAME=first-run
SCAFFOLD=ohsdk                      # cc | ohsdk | oc | terminus
BACKEND=k8s
TRAINING_MODE=sync
MODEL_ENGINE=fsdp
NNODES=3
N_NODES_TRAIN=2
N_NODES_ROLLOUT=1
GEN_TP=4
MODEL_PATH=/models/Qwen3-8B
TOOL_CALL_PARSER=hermes
TRAIN_FILES=/data/train.parquet
VAL_FILES="/data/val.parquet"
TRAIN_BSZ=64
N_RESP=8
MAX_PROMPT=30000
MAX_RESP=170000
TRAINER_SAVE_FREQ=10
export TRAINER_TEST_FREQ=5
TOTAL_STEPS=126
ROLLOUT_IS=token
USE_KL_LOSS=True
KL_LOSS_COEF=0.001
KL_LOSS_TYPE=low_var_kl
TRAJ_FILTER_ENABLE=True
TRAJ_FILTER_FILTER_OVERLONG=False

TEMPLATE_MODULES=(
  runtime/process.env
  backend/$BACKEND.env verl/$MODEL_ENGINE.env
)
"""


@pytest.fixture
def values(tmp_path):
    """The flat settings of a file."""

    def read(text):
        (tmp_path / "run.env").write_text(text)
        return read_file(tmp_path / "run.env", "run").values

    return read


def refused(values, text):
    with pytest.raises(ConfigError) as error:
        values(text)
    return str(error.value)


def test_a_whole_file_means_what_it_meant(tmp_path):
    (tmp_path / "run.env").write_text(PAGE)
    resolved = load_run(tmp_path / "run.env", environment={})
    config = resolved.config
    assert (config.project, config.experiment, config.scaffold.name) == ("my-project", "first-run", "ohsdk")
    assert config.sandbox.backend == "kubernetes"
    assert (config.learner.ranks, config.learner.gpus_per_rank) == (16, 1)
    assert (config.serving.replicas, config.serving.tensor_parallel) == (2, 4)
    assert config.serving.window == 200_000
    assert config.serving.tool_call_parser == "hermes"
    assert (config.data.train, config.data.heldout) == ("/data/train.parquet", "/data/val.parquet")
    assert (config.rollout.tasks_per_step, config.rollout.attempts_per_task) == (64, 8)
    assert (config.schedule.save_freq, config.schedule.test_freq, config.schedule.total_steps) == (10, 5, 126)
    assert (config.algorithm.kl.place, config.algorithm.kl.coef, config.algorithm.kl.estimator) == (
        "loss",
        0.001,
        "low_var_kl",
    )
    assert [str(outcome) for outcome in config.filter.drop_outcomes] == ["agent_timeout"]
    assert str(resolved.origin("learner.ranks").place) == f"{tmp_path / 'run.env'}:8"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TRAIN_MODE=sync", {"profiles.mode": "sync"}),
        ("TOOL_PARSER=null", {"serving.tool_call_parser": None}),
        ("TRAIN_BSZ=64\nTRAIN_MINI_BSZ=16\nN_RESP=4", {"learner.mini_batch_size": 64}),
        ("TRAIN_BSZ=32\nTRAIN_MINI_BSZ=32", {"rollout.tasks_per_step": 32}),
        ("VAL_DO_SAMPLE=False\nVAL_TEMPERATURE=0.7", {"evaluation.temperature": 0.0}),
        ("VAL_TEMPERATURE=0.7", {"evaluation.temperature": 0.7}),
        ("ROLLOUT_IS=null", {"algorithm.rollout_correction.weights": "none"}),
        ("ROLLOUT_CORRECTION_BYPASS=True", {"algorithm.rollout_correction.mode": "bypass"}),
        ("USE_KL_LOSS=False", {"algorithm.kl.place": "none"}),
        ("USE_KL_IN_REWARD=True\nKL_COEF=0.01", {"algorithm.kl.place": "reward", "algorithm.kl.coef": 0.01}),
        ("USE_KL_LOSS=True\nKL_LOSS_COEF=0", {"algorithm.kl.place": "none"}),
        ("TRAINER_TEST_FREQ=-1", {"schedule.test_freq": 0}),
        (
            "TRAJ_FILTER_ENABLE=True\nTRAJ_FILTER_DROP_REASONS=timeout,env_setup_failed,overlong",
            {"filter.drop_outcomes": ["agent_timeout", "overlong"]},
        ),
        ("TRAJ_FILTER_ENABLE=False\nTRAJ_FILTER_DROP_REASONS=timeout", {}),
        ("POLICY_LOSS_MODE=vanilla", {"algorithm.policy_loss": "ppo"}),
        ("EXP_NAME=", {}),
        ("EXP_NAME='pays $5'", {"experiment": "pays $5"}),
        ("SERVED_MODEL_NAME=vllm_model", {}),
        ("LR_SCHEDULER=cosine", {"learner.lr_schedule": "cosine"}),
        ("ENABLE_ACTIVATION_OFFLOAD=True", {"learner.offload_activations": True}),
    ],
)
def test_names_that_belong_together(values, text, expected):
    assert expected.items() <= dict(values(text)).items()
    assert len(values(text)) - len(expected) <= 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("EXP_NAM=x", ["run.env:1: EXP_NAM: unknown name", "EXP_NAME"]),
        ("\n\nNRESP=8", ["run.env:3: NRESP: unknown name", "N_RESP"]),
        ("EXP_NAME=$(date)", ["run.env:1: EXP_NAME", "would need a shell", "write the value out"]),
        ('EXP_NAME="a-${PROJECT_NAME}"', ["would need a shell"]),
        ("EXP_NAME=`id`", ["would need a shell"]),
        ("EXP_NAME=a && rm -r x", ["would need a shell"]),
        ("source other.env", ["'source other.env' is no assignment"]),
        (': "${X:=1}"', ["is no assignment"]),
        ("MODULES=(a b)", ["MODULES: is an array"]),
        ("TEMPLATE_MODULES=(\na.env", ["never closed"]),
        ("EXP_NAME=a\nEXP_NAME=b", ["run.env:2: EXP_NAME: is set in line 1 already"]),
        ("TRAIN_MODE=sync\nTRAINING_MODE=sync", ["TRAINING_MODE", "both are set"]),
        ("WANDB_API_KEY=abc123", ["WANDB_API_KEY: secrets come from the shell only"]),
        ("EXP_NAME=CHANGEME", ["EXP_NAME: is still 'CHANGEME'"]),
        ("N_RESP=many", ["N_RESP: 'many' is no whole number"]),
        ("ENFORCE_EAGER=maybe", ["neither True nor False"]),
        ("SCAFFOLD=oh", ["SCAFFOLD: 'oh' has no counterpart"]),
        ("TRAINING_MODE=offline", ["TRAINING_MODE: 'offline' has no counterpart", "async, one_step_off, sync"]),
        ("NNODES=4\nN_NODES_TRAIN=2\nN_NODES_ROLLOUT=1", ["NNODES is 4", "make 3"]),
        ("NNODES=4", ["set N_NODES_TRAIN and N_NODES_ROLLOUT"]),
        ("N_NODES_TRAIN=0\nN_NODES_ROLLOUT=2", ["N_NODES_TRAIN is 0", "give the learner a node"]),
        ("N_NODES_TRAIN=2\nN_NODES_ROLLOUT=0\nGEN_TP=4", ["GEN_TP is 4", "set GEN_TP to 1"]),
        ("N_NODES_TRAIN=1\nN_NODES_ROLLOUT=1\nSP_SIZE=3", ["SP_SIZE is 3", "does not divide the 8 GPUs"]),
        ("SP_SIZE=0", ["SP_SIZE is 0", "or to 1"]),
        ("N_NODES_TRAIN=1\nN_NODES_ROLLOUT=1\nGEN_TP=3", ["GEN_TP is 3", "choose a divisor"]),
        ("MAX_PROMPT=30000", ["set both"]),
        ("FUSED_KERNELS=True", ["FUSED_KERNELS: 'True' cannot be had", "set it to false"]),
        ("LR_SCHEDULER=stepped", ["LR_SCHEDULER", "stepped"]),
        ("CALCULATE_LOG_PROBS=False", ["cannot be had"]),
        ("TOP_K=50", ["cannot be had"]),
        ("HARBOR_K8S_INLINE_BUILD=1", ["nothing is built in the cluster"]),
        ("STALENESS=1.0", ["STALENESS: with TRAINING_MODE=sync", "set TRAINING_MODE to async"]),
        ("TRAINING_MODE=async\nSTALENESS=0.1", ["STALENESS: 0.1 is no number of weight versions"]),
        ("TRAINING_MODE=async\nPARTIAL_ROLLOUT=False", ["PARTIAL_ROLLOUT: 'False' cannot be had"]),
        ("TOTAL_EPOCHS=3", ["TOTAL_EPOCHS is 3", "set TOTAL_STEPS"]),
        ("TRAJ_FILTER_ENABLE=True\nTRAJ_FILTER_DROP_REASONS=lazy", ["'lazy' is no reason"]),
        ("USE_KL_LOSS=1\nUSE_KL_IN_REWARD=1\nKL_LOSS_COEF=0.1\nKL_COEF=0.2", ["make them equal"]),
    ],
)
def test_what_cannot_be_had_is_refused(values, text, words):
    message = refused(values, text)
    assert all(word in message for word in words), message


def test_replay_of_routing_is_a_setting_of_learner_and_engine(values):
    read = values("ENABLE_R3=True")
    assert read["learner.moe.replay"] is read["serving.capture_routing"] is True
    assert "learner.moe.replay" not in values("")


def test_nodes_of_the_learner_and_replicas_that_share_them(values):
    apart = values("N_NODES_TRAIN=2\nN_NODES_ROLLOUT=1\nNGPUS_PER_NODE=4")
    assert (apart["learner.nodes"], apart["learner.ranks"], apart["serving.replicas"]) == (2, 8, 4)
    assert "serving.colocated" not in apart
    shared = values("N_NODES_TRAIN=2\nN_NODES_ROLLOUT=0\nNGPUS_PER_NODE=4")
    assert (shared["learner.ranks"], shared["serving.replicas"], shared["serving.colocated"]) == (8, 8, True)
    assert "learner.sp_size" not in shared
    assert values("N_NODES_TRAIN=2\nN_NODES_ROLLOUT=0\nNGPUS_PER_NODE=4\nSP_SIZE=4")["learner.sp_size"] == 4


def test_all_mistakes_are_told_at_once(values):
    message = refused(values, "EXP_NAM=x\nN_RESP=many\nTOP_K=5\nNNODES=2")
    assert len(message.splitlines()) == 4


def test_epochs_become_steps_by_the_index(values, tmp_path):
    pq.write_table(pa.table({"x": list(range(130))}), tmp_path / "train.parquet")
    read = values("TRAIN_FILES=./train.parquet\nTRAIN_BSZ=64\nTOTAL_EPOCHS=3")
    assert read["schedule.total_steps"] == 6
    assert read["data.train"] == str(tmp_path / "train.parquet")


def test_what_has_no_effect_is_told(tmp_path):
    (tmp_path / "run.env").write_text("EXP_NAME=e\nRAY_PORT=6379\n")
    notes = " ".join(read_file(tmp_path / "run.env", "run").notes)
    assert "RAY_PORT has no effect" in notes
    assert "USE_KL_LOSS is not set: there it means True" in notes


def test_nothing_is_executed(tmp_path, values):
    mark = tmp_path / "mark"
    refused(values, f"EXP_NAME=$(touch {mark})\nPROJECT_NAME=`touch {mark}`\ntouch {mark}\n")
    values(f"EXP_NAME='$(touch {mark})'")
    assert not mark.exists()


def test_tables_agree_with_the_settings():
    assert {target for target, _ in DIRECT.values()} <= set(known_keys())
    assert set(OLDER.values()) <= set(known_names())
    tables = [set(DIRECT), set(FIXED), set(WITHOUT_EFFECT), set(COMPOUND), set(OLDER)]
    assert len(set.union(*tables)) == sum(map(len, tables))
