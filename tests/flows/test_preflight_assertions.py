"""Each assertion by two configurations: one that passes it, and one that trips it, by its message."""

import dataclasses
import json
import os
import shutil
import time

import pytest

from bench.tiny import CHATML, tiny_model
from flows.config import parse_config
from flows.diagnosis import process
from flows.preflight import checks  # noqa: F401  (registers them)
from flows.preflight.checks import host
from flows.preflight.checks.memory import learner_memory
from flows.preflight.facts import Facts
from flows.preflight.findings import Level
from flows.preflight.machine import GIB, Gpu, GpuProcess, Machine
from flows.preflight.registry import CHECKS, Cost
from flows.preflight.run import PreflightError, preflight, run_checks
from harness.pool.index import TaskPointer, write_index
from harness.pool.sample import sample_task
from harness.reaper import Sweep
from harness.sandbox.leftovers import Leftover
from tasks.journal import write_json
from tasks.lease import lease

CPUS = Machine(
    cpus=8,
    memory=64 * GIB,
    memory_available=48 * GIB,
    shared_memory=8 * GIB,
    shared_memory_free=7 * GIB,
    open_files=65536,
    processes=65536,
    address_space=None,
    clock_synchronised=True,
)
GPUS = dataclasses.replace(CPUS, gpus=[Gpu("big", 80 * GIB)] * 4)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A root with a tiny model and two pools; files of the model can be varied by copies."""
    root = tmp_path_factory.mktemp("root")
    tiny_model(root / "tiny")
    task = sample_task(root / "tasks" / "t0").path
    for number in range(1, 8):
        shutil.copytree(task, root / "tasks" / f"t{number}")
    shutil.copytree(task, root / "tasks" / "broken")
    (root / "tasks" / "broken" / "instruction.md").unlink()
    index(root, "train", range(6))
    index(root, "heldout", (6, 7))
    return root


def index(root, name, numbers, **extra):
    rows = [TaskPointer(f"t{n}", root / "tasks" / f"t{n}", extra=dict(extra)) for n in numbers]
    write_index(rows, root / f"{name}.parquet")
    return str(root / f"{name}.parquet")


def variant(root, name, config=None, generation=None, tokenizer=None):
    """A copy of the tiny model with other values in its files."""
    folder = root / name
    if not folder.exists():
        shutil.copytree(root / "tiny", folder)
        for file, changes in (
            ("config.json", config),
            ("generation_config.json", generation),
            ("tokenizer_config.json", tokenizer),
        ):
            if changes:
                values = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
                (folder / file).write_text(json.dumps(values | changes))
    return str(folder)


def facts_of(root, values, machine=CPUS):
    """Facts of a small run that trips nothing, with `values` by dotted key on top."""
    config = {
        "experiment": "e",
        "model": {"path": str(root / "tiny")},
        "data": {"train": str(root / "train.parquet"), "heldout": str(root / "heldout.parquet")},
        "rollout": {"tasks_per_step": 4, "attempts_per_task": 4, "max_tokens_per_turn": 64, "concurrency": 16},
        "learner": {"gpus_per_rank": 0, "lr": 1e-5, "micro_batch_tokens": 2048, "lr_warmup_steps": 2},
        "serving": {"window": 1024, "tool_call_parser": None},
        "scaffold": {"name": "edit", "agent_timeout": 60},
        "sandbox": {"backend": "bubblewrap"},
        "algorithm": {"rollout_correction": {"mode": "decoupled", "weights": "token"}},
        "schedule": {"total_steps": 20, "save_freq": 5, "test_freq": 5},
        "evaluation": {"temperature": 1.0},
    }
    for key, value in values.items():
        *sections, name = key.split(".")
        target = config
        for section in sections:
            target = target.setdefault(section, {})
        if value is UNSET:
            target.pop(name, None)
        else:
            target[name] = value
    return Facts(parse_config(config, "test"), root, machine)


UNSET = object()


def findings_of(root, check, values, machine=CPUS):
    return list(run_checks(facts_of(root, values, machine), only=[check]))


W, F = Level.WARN, Level.FATAL

# check, values that trip it, level, words of its message
TRIPPED = [
    # a name that resumes
    ("name", {"experiment": "grpo-20260806"}, W, "experiment is grpo-20260806: has a time in it"),
    ("name", {"experiment": "x_2026-08-06_12"}, W, "goes on under the same name only"),
    # topology
    ("devices", {"learner.gpus_per_rank": UNSET}, W, "learner.gpus_per_rank is unset, so 0"),
    ("devices", {"learner.gpus_per_rank": 1}, F, "1 ranks x 1 + 1 replicas x 1 = 2 GPUs, and this machine has 0"),
    ("devices", {"learner.ranks": 16}, W, "learner.ranks is 16: is more than the 8 cores"),
    ("devices", {"learner.ranks": 4, "learner.threads": 4}, W, "4 ranks compute with 16 threads on 8 cores"),
    ("devices", {"serving.tensor_parallel": 2}, W, "compete for the same cores"),
    ("tensor-parallel", {"serving.tensor_parallel": 3},
     F, "does not divide the model's 2 num_key_value_heads; use 1, 2"),
    ("tensor-parallel", {"serving.tensor_parallel": 4}, F, "does not divide the model's 2 num_key_value_heads"),
    ("sequence-parallel", {"learner.ranks": 3, "learner.sp_size": 3},
     F, "learner.sp_size is 3: does not divide the model's 4 num_attention_heads; use 1, 2, 4"),
    ("sequence-parallel", {"learner.ranks": 2, "learner.nodes": 2, "learner.sp_size": 2},
     W, "does not divide the 1 ranks of a node"),
    # batch
    ("batch", {"rollout.tasks_per_step": UNSET}, W, "rollout.tasks_per_step is unset, so 64"),
    ("batch", {"learner.ranks": 3}, W, "does not divide 4 tasks x 4 attempts = 16 trials a step"),
    ("batch", {"learner.ranks": 32}, W, "some ranks would have none"),
    ("batch", {"learner.mini_batch_size": 5}, Level.OK, "3 updates a step, with 5.333 of 4 tasks"),
    ("batch", {"learner.mini_batch_size": 2, "learner.ranks": 4}, W, "is less than the 4 ranks"),
    ("batch", {"rollout.concurrency": 100}, W, "is more than a step ever has"),
    ("batch", {"serving.max_num_seqs": 4}, W, "1 replicas x 4 sequences = 4 that are decoded at once"),
    ("nodes", {"learner.nodes": 2, "learner.ranks": 4}, F, "needs a cluster, and a private one has this machine only"),
    # what is trained
    ("trainable", {"learner.freeze": ["no_such_name"]}, F, "no_such_name: is found in no name of the model's"),
    ("trainable", {"learner.freeze": ["."]}, F, "leaves nothing to train"),
    ("trainable", {"learner.lora": {"target_modules": ["w_proj"]}}, F, "w_proj: is none of the model's layers"),
    # window
    ("window", {"serving.window": 8192}, F, "is more than the 4096 positions of the model; lower it to 4096"),
    ("window", {"serving.window": UNSET}, W, "serving.window is unset, so 2048"),
    ("window", {"rollout.max_tokens_per_turn": UNSET}, W, "rollout.max_tokens_per_turn is unset, so 512"),
    # memory and disk
    ("learner-memory", {"learner.micro_batch_tokens": UNSET}, W, "learner.micro_batch_tokens is unset, so 2048"),
    ("learner-memory", {"learner.micro_batch_tokens": 512}, W, "is less than serving.window of 1024"),
    ("replica-memory", {"serving.window": 4096, "serving.max_num_seqs": 64, "rollout.concurrency": 64}, None, ""),
    # agent
    ("scaffold", {"scaffold.name": UNSET}, W, "scaffold.name is unset, so edit"),
    ("scaffold", {"scaffold.name": "cc", "serving.tool_call_parser": "hermes", "scaffold.runtimes": "/nowhere"},
     F, "is not prepared in /nowhere"),
    ("agent-limits", {"scaffold.agent_timeout": UNSET}, W, "half an hour where it has none; in evaluations as well"),
    ("agent-limits", {"scaffold.name": "terminus"}, W, "can look at nothing before it answers"),
    ("agent-limits", {"scaffold.max_turns": 300, "rollout.max_tokens_per_turn": 512}, W, "end as overlong"),
    # algorithm
    ("algorithm", {"algorithm.kl": {"place": "both"}}, W, "the divergence is paid twice"),
    ("critic", {"learner.critic": {}}, F, "the estimator grpo asks for no values"),
    ("critic", {"learner.critic": {}, "algorithm.adv_estimator": "gae", "learner.lr_warmup_steps": 0},
     W, "from a critic that knows nothing yet"),
    ("critic", {"learner.critic": {}, "algorithm.adv_estimator": "gae", "learner.micro_batch_tokens": 512},
     W, "policy and critic both compute such a row"),
    ("correction", {"algorithm.rollout_correction": UNSET},
     W, "algorithm.rollout_correction is unset, so decoupled, token"),
    ("correction", {"algorithm.rollout_correction.weights": "sequence"}, W, "is near 0 for most rollouts"),
    ("correction", {"algorithm.rollout_correction": {"mode": "bypass"}, "algorithm.policy_loss": "reinforce"},
     F, "and reinforce has none"),
    ("correction", {"algorithm.rollout_correction": {"mode": "off"}}, W, "measured and left as they are"),
    ("correction", {"fidelity.patience": None}, W, "no run is ever stopped"),
    # schedule
    ("learning-rate", {"learner.lr": UNSET}, W, "learner.lr is unset, so 1e-06"),
    ("learning-rate", {"learner.lr_warmup_steps": 21}, W, "20 steps, so that the rate never arrives"),
    ("learning-rate", {"learner.lr": 1e-3}, W, "is large for reinforcement learning"),
    ("saving", {"schedule.save_freq": UNSET}, W, "schedule.save_freq is unset, so 10"),
    ("saving", {"schedule.save_freq": 50}, W, "only the last has a checkpoint"),
    ("scoring", {"schedule.test_freq": UNSET}, W, "schedule.test_freq is unset"),
    ("scoring", {"schedule.test_freq": 0, "schedule.eval_before": False, "schedule.eval_after": False},
     W, "nothing is ever scored"),
    ("scoring", {"schedule.eval_before": False}, W, "no gain can be told"),
    ("scoring", {"evaluation.temperature": 0.7}, W, "scored at another temperature"),
    ("scoring", {"evaluation.top_p": 0.9}, W, "truncated distribution"),
    # pools
    ("indexes", {"data.train": UNSET}, W, "data.train is unset, so builtin:kata"),
    ("indexes", {"data.train": UNSET}, W, "is built when a run starts"),
    ("indexes", {"data.train": "/nowhere/train.parquet"}, F, "/nowhere/train.parquet: no such index"),
    ("pool-size", {"rollout.tasks_per_step": 7}, F, "is more than the 6 tasks of data.train"),
    ("signal", {}, W, "its index tells no pass rates"),
    # backends
    ("backend", {"sandbox.backend": UNSET}, W, "sandbox.backend is unset, so bubblewrap"),
    ("backend", {"sandbox.backend": "kubernetes", "sandbox.kubernetes": {"kubeconfig": "/nowhere/config"}},
     F, "sandbox.kubernetes.kubeconfig is /nowhere/config: there is no such file"),
    ("backend", {"sandbox.backend": "kubernetes"}, W, "names no registry: a node that lacks it cannot have it"),
    ("backend", {"sandbox.backend": "kubernetes", "sandbox.kubernetes": {"image_pull_policy": "Always"}},
     F, "image_pull_policy Always pulls it from one"),
    ("backend", {"sandbox.backend": "docker", "sandbox.docker": {"hosts": ["unix:///nowhere.sock"]}},
     F, "unix:///nowhere.sock: there is no such socket"),
    ("backend", {"sandbox.backend": "docker", "sandbox.docker": {"image": "mine:1"}}, W, "asks Docker Hub"),
    ("backend", {"sandbox.backend": "docker", "sandbox.docker": {"hosts": [{"url": "tcp://h:1", "tls": "/nowhere"}]}},
     F, "lacks ca.pem, cert.pem, key.pem"),
    ("backend", {"sandbox.backend": "docker", "sandbox.docker": {"hosts": [{"slots": 3}]}},
     W, "is more than the 3 slots"),
    # model
    ("model", {"model.path": UNSET}, W, "model.path is unset, so builtin:smollm2-135m-instruct"),
    ("model", {"model.path": UNSET}, W, "is unpacked when a run starts"),
    ("model", {"model.path": "/nowhere/model"}, F, "no folder '/nowhere/model'"),
    ("model", {"model.path": "org/name"}, W, "is fetched from the hub when a run starts"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "values", "level", "words"), [row for row in TRIPPED if row[2]])
def test_an_assertion_is_tripped(place, check, values, level, words):
    found = findings_of(place, check, values)
    assert any(finding.level is level and words in finding.message for finding in found), found
    assert all(finding.mend for finding in found if finding.level is not Level.OK)


@pytest.mark.parametrize("check", sorted({row[0] for row in TRIPPED} - {"signal"}))
def test_the_same_assertions_pass(place, check):
    found = findings_of(place, check, {})
    assert found and all(finding.level is Level.OK for finding in found), found


GPU_RUN = {"learner.gpus_per_rank": 1, "learner.ranks": 2, "serving.replicas": 2}


def test_all_gpus_in_use_is_well(place):
    (found,) = findings_of(place, "devices", GPU_RUN, GPUS)
    assert found.level is Level.OK and "2 ranks x 1 + 2 replicas x 1 = 4 GPUs, all of this machine's" in found.message


def test_idle_gpus_are_told(place):
    found = findings_of(place, "devices", GPU_RUN | {"serving.replicas": 1}, GPUS)
    assert any("the rest idles" in finding.message for finding in found)
    found = findings_of(place, "devices", {}, GPUS)
    assert any("4 GPUs, which stay idle" in finding.message for finding in found)


def test_replicas_that_share_gpus_take_none_of_their_own(place):
    shared = GPU_RUN | {"learner.ranks": 4, "serving.colocated": True}
    (found,) = findings_of(place, "devices", shared, GPUS)
    assert found.level is Level.OK and "4 ranks x 1 = 4 GPUs, which 2 replicas share in turns" in found.message
    (found,) = findings_of(place, "devices", shared | {"learner.ranks": 8}, GPUS)
    assert found.level is Level.FATAL and "replicas share in turns, and this machine has 4" in found.message


def test_ranks_on_several_machines(place, monkeypatch):
    spread = GPU_RUN | {"learner.nodes": 2}
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    (found,) = findings_of(place, "nodes", spread)
    assert found.level is Level.OK and "with 1 ranks each, in the cluster" in found.message
    (found,) = findings_of(place, "nodes", spread | {"serving.transport": "shared_memory"})
    assert found.level is Level.FATAL and "reaches replicas of one machine only" in found.message


def test_what_is_frozen_and_what_gets_adapters(place):
    (found,) = findings_of(place, "trainable", {"learner.freeze": ["embed_tokens", "norm"]})
    assert found.level is Level.OK and "tensors out of training" in found.message
    found = findings_of(place, "trainable", {"learner.lora": {"target_modules": ["q_proj", "v_proj"]}})
    assert [f.level for f in found] == [Level.OK, Level.OK]
    (found,) = findings_of(place, "trainable", {"learner.lora": {}})
    assert found.level is Level.OK and "all-linear: get adapters of rank 16" in found.message
    mixture = variant(place, "mixture-names", {"model_type": "qwen3_moe"})
    found = findings_of(place, "trainable", {"model.path": mixture, "learner.freeze": ["mlp.gate.weight"]})
    assert found[0].level is Level.WARN and "experts have other names once they are loaded" in found[0].message


def states_of(place, values):
    model = facts_of(place, {}).model
    return learner_memory(facts_of(place, GPU_RUN | values, GPUS), model)


def test_memory_by_what_ranks_share_out(place):
    whole = facts_of(place, {}).model.parameters
    least = {stage: states_of(place, {"learner.zero_stage": stage}).least for stage in (0, 1, 2, 3)}
    assert least == {
        0: 20 * whole, 1: (2 + 2) * whole + 16 * whole / 2, 2: 2 * whole + 22 * whole / 2, 3: 24 * whole / 2,
    }  # fmt: skip
    offloaded = states_of(place, {"learner.offload_optimizer": True})
    assert offloaded.least == 8 * whole / 2
    adapters = states_of(place, {"learner.lora": {"rank": 4}})
    assert 2 * whole / 2 < adapters.least < 4 * whole / 2
    assert "(weights)" in adapters.arithmetic and "(optimizer)" in adapters.arithmetic
    kept = states_of(place, {"learner.gradient_checkpointing": True})
    saved = states_of(place, {"learner.gradient_checkpointing": True, "learner.offload_activations": True})
    assert saved.total < kept.total and "saved in host memory" in saved.arithmetic


def test_what_is_offloaded_must_fit_the_host(place):
    assert findings_of(place, "host-memory", GPU_RUN, GPUS) == []
    offloads = GPU_RUN | {"learner.offload_optimizer": True}
    (found,) = findings_of(place, "host-memory", offloads, GPUS)
    assert found.level is Level.OK and "of optimizer states = " in found.message
    tight = dataclasses.replace(GPUS, memory=1000)
    (found,) = findings_of(place, "host-memory", offloads, tight)
    assert found.level is Level.FATAL and "this machine has" in found.message
    asleep = GPU_RUN | {"serving.colocated": True}
    (found,) = findings_of(place, "host-memory", asleep, GPUS)
    assert "weights of 2 sleeping replicas" in found.message


def test_a_run_whose_lease_is_held(place):
    folder = place / "testgrad" / "held"
    with lease(folder, "train"):
        (found,) = findings_of(place, "in-flight", {"experiment": "held"})
    assert found.level is Level.FATAL and f"is held by process {os.getpid()} on " in found.message
    assert {f.level for f in findings_of(place, "in-flight", {"experiment": "held"})} == {Level.OK}


def test_a_cluster_elsewhere_is_not_counted_here(place, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    (found,) = findings_of(place, "devices", GPU_RUN)
    assert found.level is Level.WARN and "of the cluster at RAY_ADDRESS" in found.message


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_that_share_rows(place, size):
    """They divide heads of queries, those of keys or not, and the activations of a window."""
    shared = {"learner.ranks": 4, "learner.sp_size": size}
    assert {f.level for f in findings_of(place, "sequence-parallel", shared)} == {Level.OK}
    (found,) = findings_of(place, "learner-memory", shared | {"serving.window": 4096, "learner.micro_batch_tokens": 1})[
        -1:
    ]
    assert f"{4096 // size} tokens x" in found.message


@pytest.mark.parametrize("size", [1, 2])
def test_tensor_parallel_that_divides_the_heads(place, size):
    assert {f.level for f in findings_of(place, "tensor-parallel", {"serving.tensor_parallel": size})} == {Level.OK}


def test_learner_and_replicas_against_the_gpus(place):
    small = dataclasses.replace(GPUS, gpus=[Gpu("small", GIB // 2048)] * 4)
    (found,) = [f for f in findings_of(place, "learner-memory", GPU_RUN, small) if f.field == "learner.ranks"]
    assert found.level is Level.FATAL and "24 B x 0 M / 2 ranks" in found.message
    close = dataclasses.replace(GPUS, gpus=[Gpu("close", GIB // 64)] * 4)
    (found,) = [f for f in findings_of(place, "learner-memory", GPU_RUN, close) if f.field == "learner.ranks"]
    assert found.level is Level.WARN and "a GPU has 16 MiB: it may not do" in found.message
    assert findings_of(place, "learner-memory", GPU_RUN, GPUS)[0].level is Level.OK
    (found,) = findings_of(place, "replica-memory", GPU_RUN, small)
    assert found.level is Level.FATAL and "none is left" in found.message
    assert {f.level for f in findings_of(place, "replica-memory", GPU_RUN, GPUS)} == {Level.OK}
    (found,) = findings_of(place, "replica-memory", GPU_RUN)
    assert found.level is Level.WARN and "no GPU here to compare with" in found.message


def test_a_cache_that_holds_no_window(place):
    model = variant(place, "wide", {"num_hidden_layers": 4096, "num_key_value_heads": 64, "head_dim": 1024})
    (found,) = findings_of(place, "replica-memory", {"model.path": model})
    assert found.level is Level.FATAL and "a long trial would never fit" in found.message
    model = variant(place, "wider", {"num_hidden_layers": 32, "num_key_value_heads": 32, "head_dim": 128})
    (found,) = findings_of(place, "replica-memory", {"model.path": model})
    assert found.level is Level.WARN and "most of them wait" in found.message


def test_host_memory(place):
    assert {f.level for f in findings_of(place, "host-memory", {})} == {Level.OK}
    tight = dataclasses.replace(CPUS, memory=GIB // 2, memory_available=GIB // 2)
    (found,) = findings_of(place, "host-memory", {}, tight)
    assert found.level is Level.FATAL and "1 ranks = " in found.message and "this machine has 0.5 GiB" in found.message
    busy = dataclasses.replace(CPUS, memory_available=GIB // 2)
    assert any("0.5 GiB are free now" in f.message for f in findings_of(place, "host-memory", {}, busy))


def test_disk(place, monkeypatch):
    from flows.preflight.checks import memory

    assert {f.level for f in findings_of(place, "disk", {})} == {Level.OK}
    monkeypatch.setattr(memory, "disk_free", lambda path: 10_000)
    (found,) = findings_of(place, "disk", {})
    assert found.level is Level.FATAL and "(2 kept + 1 being written) x 14 B" in found.message
    monkeypatch.setattr(memory, "disk_free", lambda path: GIB)
    (found,) = findings_of(place, "disk", {"schedule.total_steps": 10_000})
    assert found.level is Level.WARN and "perhaps not for all trials" in found.message


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "deepseek_moe"}, "of type 'deepseek_moe': its experts cannot be synced"),
        ({"text_config": {"num_experts": 8}}, "is a mixture of experts"),
        ({"llm_config": {"n_routed_experts": 8}}, "is a mixture of experts"),
        ({"num_experts_per_tok": 2}, "is a mixture of experts"),
        ({"quantization_config": {"bits": 4}}, "has quantised weights"),
    ],
)
def test_models_that_cannot_be_trained(place, config, words):
    path = variant(place, f"odd-{abs(hash(json.dumps(config)))}", config)
    found = findings_of(place, "experts", {"model.path": path})
    assert any(f.level is Level.FATAL and words in f.message for f in found), found


@pytest.mark.parametrize(
    ("config", "values", "level", "words"),
    [
        ({}, {}, Level.OK, "attend to all of a rollout"),
        ({"layer_types": ["full_attention", "linear_attention"]}, {}, F, "has layers of linear_attention"),
        ({"final_logit_softcapping": 30.0}, {}, F, "has final_logit_softcapping 30.0"),
        (
            {"use_sliding_window": True, "sliding_window": 512},
            {},
            F,
            "more than the 512 tokens that layers of the model look back over",
        ),
        (
            {"use_sliding_window": True, "sliding_window": 1024},
            {},
            F,
            "makes rows of 2048 tokens, and layers of the model look back over 1024",
        ),
        (
            {"use_sliding_window": True, "sliding_window": 1024},
            {"learner.micro_batch_tokens": 1024},
            Level.OK,
            "no row is longer",
        ),
        ({"sliding_window": 512, "use_sliding_window": False}, {}, Level.OK, "attend to all of a rollout"),
    ],
)
def test_rows_of_rollouts_can_be_computed(place, config, values, level, words):
    path = variant(place, f"rows-{abs(hash(json.dumps(config)))}", config)
    (found,) = findings_of(place, "rows", {"model.path": path} | values)
    assert found.level is level and words in found.message, found


@pytest.mark.parametrize(
    ("kind", "window", "fatal"),
    [("longrope", 1024, True), ("dynamic", 1024, True), ("longrope", 512, False), ("yarn", 1024, False)],
)
def test_a_rotary_embedding_that_depends_on_the_length_of_a_row(place, kind, window, fatal):
    scaled = {"rope_scaling": {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 512}}
    path = variant(place, f"rotary-{kind}", scaled | {"rope_parameters": None})
    found = findings_of(place, "rows", {"model.path": path, "serving.window": window})
    told = [f for f in found if f.level is Level.FATAL]
    assert bool(told) is fatal and all(f"rotary embedding ({kind})" in f.message for f in told)


def test_a_dense_model_passes(place):
    assert {f.level for f in findings_of(place, "experts", {})} == {Level.OK}


@pytest.mark.parametrize(
    ("kind", "replay", "gpus", "level", "words"),
    [
        ("qwen3_moe", False, 1, Level.WARN, "wherever two are nearly tied"),
        ("qwen3_moe", True, 0, Level.FATAL, "vLLM's CPU engine does not tell"),
        ("olmoe_moe", False, 1, Level.FATAL, "known are mixtral, olmoe, qwen2_moe, qwen3_moe"),
        ("qwen2_moe", True, 1, Level.OK, "is replayed"),
        ("qwen3", True, 1, Level.FATAL, "the model is dense"),
    ],
)
def test_replay_of_routing_fits_model_and_machine(place, kind, replay, gpus, level, words):
    path = variant(place, f"{kind}-{replay}-{gpus}", {"model_type": kind})
    settings = {"learner.moe.replay": replay, "serving.capture_routing": replay, "learner.gpus_per_rank": gpus}
    found = findings_of(place, "experts", {"model.path": path} | settings)
    assert any(f.level is level and words in f.message for f in found), found


def test_scaled_positions_widen_the_window(place):
    scaled = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}
    path = variant(place, "yarn", scaled | {"rope_parameters": None})
    found = findings_of(place, "window", {"model.path": path, "serving.window": 16384})
    assert all(f.level is Level.OK for f in found), found


def test_a_damaged_config_is_told(place):
    path = variant(place, "damaged")
    (place / "damaged" / "config.json").write_text("{")
    found = findings_of(place, "window", {"model.path": path})
    assert any(f.level is Level.FATAL and "cannot be read" in f.message for f in found), found


@pytest.mark.parametrize(
    ("name", "files", "level", "words"),
    [
        ("vocabulary", {"config": {"vocab_size": 100}}, F, "rows: some prompts would read beyond them"),
        ("ends", {"generation": {"eos_token_id": 7}, "config": {"eos_token_id": 7}}, W, "the generation config with 7"),
        ("no-end", {"tokenizer": {"eos_token": None}}, F, "names no eos_token"),
    ],
)
def test_tokenizer_and_generation_config_disagree(place, name, files, level, words):
    found = findings_of(place, "tokenizer", {"model.path": variant(place, name, **files)})
    assert any(f.level is level and words in f.message for f in found), found


def test_tokenizer_and_generation_config_agree(place):
    assert {f.level for f in findings_of(place, "tokenizer", {})} == {Level.OK}
    bent = variant(place, "bent", generation={"top_k": 20, "temperature": 0.6})
    found = findings_of(place, "tokenizer", {"model.path": bent})
    assert {f.level for f in found} == {Level.OK} and any("which the engine ignores" in f.message for f in found)


def template(root, name, text):
    folder = root / name
    if not folder.exists():
        shutil.copytree(root / "tiny", folder)
        for file in folder.glob("*chat_template*"):
            file.unlink()
        (folder / "chat_template.jinja").write_text(text)
    return str(folder)


def test_a_template_that_ends_turns_as_the_engine_does(place):
    assert {f.level for f in findings_of(place, "chat-template", {})} == {Level.OK}


def test_a_template_that_ends_turns_elsewhere(place):
    path = template(place, "other-end", CHATML.replace("<|im_end|>", "<|endoftext|>"))
    (found,) = findings_of(place, "chat-template", {"model.path": path})
    assert found.level is Level.FATAL and "'<|endoftext|>'" in found.message and "to its last token" in found.message


def test_a_template_that_forgets_answers(place):
    text = (
        "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    )
    path = template(place, "forgets", text)
    (found,) = findings_of(place, "chat-template", {"model.path": path})
    assert found.level is Level.WARN and "trials have one turn, and do without" in found.message
    (found,) = findings_of(place, "chat-template", {"model.path": path, "scaffold.max_turns": 5})
    assert found.level is Level.FATAL


def test_a_task_that_is_broken(place):
    rows = [TaskPointer("broken", place / "tasks" / "broken"), TaskPointer("t0", place / "tasks" / "t0")]
    write_index(rows, place / "odd.parquet")
    found = findings_of(place, "indexes", {"data.train": str(place / "odd.parquet")})
    assert any(f.level is Level.FATAL and "1 of 2 sampled tasks cannot be used" in f.message for f in found), found


def test_tasks_that_are_scored_and_trained(place):
    both = index(place, "both", (5, 6))
    found = findings_of(place, "pool-size", {"data.heldout": both})
    assert any(f.level is Level.WARN and "1 of its 2 tasks are trained on as well, t5" in f.message for f in found)


@pytest.mark.parametrize(
    ("extra", "level", "share"),
    [({"pass_rate": 0.5}, Level.OK, "88%"), ({"difficulty": 0.5}, Level.OK, "88%"), ({"pass_rate": 0.02}, W, "8%")],
)
def test_the_share_of_groups_with_a_signal(place, extra, level, share):
    path = index(place, f"rates-{extra}", range(4), **extra)
    (found,) = findings_of(place, "signal", {"data.train": path})
    assert found.level is level and found.why.startswith(f"{share} of groups are expected"), found


def test_the_images_that_tasks_name(place):
    task = place / "tasks" / "imaged"
    shutil.copytree(place / "tasks" / "t0", task)
    text = (task / "task.toml").read_text()
    (task / "task.toml").write_text(text + '\n[environment]\ndocker_image = "hub/x:1"\n')
    write_index([TaskPointer("imaged", task)], place / "imaged.parquet")
    values = {"data.train": str(place / "imaged.parquet")}
    found = [f for f in findings_of(place, "backend", values) if f.level is Level.FATAL]
    assert len(found) == 1 and "needs image hub/x:1: sandbox.backend bubblewrap runs no images" in found[0].message
    ignored = findings_of(place, "backend", values | {"sandbox.task_images": False})
    assert any(f.level is Level.WARN and "(hub/x:1) and are not used" in f.message for f in ignored)
    assert Level.FATAL not in {f.level for f in ignored}
    values |= {"sandbox.backend": "kubernetes", "sandbox.kubernetes": {"image": "hub/y:1"}}
    found = findings_of(place, "backend", values)
    assert {f.level for f in found} == {Level.OK} and "in the 1 images that they name" in found[-1].message


@pytest.mark.parametrize(
    ("check", "changes", "level", "words"),
    [
        ("limits", {"open_files": 256}, F, "ulimit -n is 256"),
        ("limits", {"processes": 64}, F, "ulimit -u is 64"),
        ("limits", {"address_space": GIB}, W, "ulimit -v is 1.0 GiB"),
        ("shared-memory", {"shared_memory_free": 64 << 20}, F, "/dev/shm is 64 MiB: free is less than a bucket of"),
        ("shared-memory", {"shared_memory_free": 3 * GIB}, W, "something fills it"),
        ("shared-memory", {"shared_memory": None, "shared_memory_free": None}, W, "is not there"),
        ("clock", {"clock_synchronised": False}, W, "nothing keeps it right"),
        ("clock", {"clock_synchronised": None}, W, "does not say"),
    ],
)
def test_a_machine_that_will_not_do(place, check, changes, level, words):
    assert {f.level for f in findings_of(place, check, {})} == {Level.OK}
    found = findings_of(place, check, {}, dataclasses.replace(CPUS, **changes))
    assert any(f.level is level and words in f.message for f in found), found


def test_a_clock_that_is_behind_its_own_files(place, tmp_path):
    ahead = time.time() + 3600
    (tmp_path / "file").write_text("x")
    os.utime(tmp_path / "file", (ahead, ahead))
    facts = facts_of(place, {})
    (found,) = run_checks(Facts(facts.config, tmp_path, CPUS), only=["clock"])
    assert found.level is Level.FATAL and "behind the newest file" in found.message


def test_gpus_that_others_use(place):
    assert {f.level for f in findings_of(place, "gpus-in-use", GPU_RUN, GPUS)} == {Level.OK}
    used = dataclasses.replace(GPUS, gpu_processes=[GpuProcess(4711, "GPU-1", "python")])
    (found,) = findings_of(place, "gpus-in-use", GPU_RUN, used)
    assert found.level is Level.FATAL and "python (4711)" in found.message
    assert findings_of(place, "gpus-in-use", {}, used) == []


def test_leftovers(place, monkeypatch):
    monkeypatch.setattr(host, "reap", lambda *args, **options: Sweep())
    assert {f.level for f in findings_of(place, "leftovers", {})} == {Level.OK}
    left = Leftover("host", "folder", "/tmp/left", {}, None, lambda: None)
    monkeypatch.setattr(host, "reap", lambda *args, **options: Sweep([left]))
    (found,) = findings_of(place, "leftovers", {})
    assert found.level is Level.WARN and "/tmp/left" in found.message and found.mend == "testgrad clean --apply"


def test_packages(place, monkeypatch):
    assert {f.level for f in findings_of(place, "packages", {})} == {Level.OK}
    real = host.importlib.util.find_spec
    monkeypatch.setattr(host.importlib.util, "find_spec", lambda name: None if name == "vllm" else real(name))
    (found,) = findings_of(place, "packages", {})
    assert found.level is Level.FATAL and found.mend == "install testgrad[cpu]"


def test_a_run_that_exists_with_other_settings(place):
    facts = facts_of(place, {"experiment": "old"})
    stored = {"identity": facts.config.identity(), "config": facts.config.model_dump(mode="json")}
    write_json(place / "testgrad" / "old" / "config.json", stored)
    assert {f.level for f in findings_of(place, "journal", {"experiment": "old"})} == {Level.OK}
    assert {f.level for f in findings_of(place, "journal", {"experiment": "old", "schedule.total_steps": 99})} == {
        Level.OK
    }
    (found,) = findings_of(place, "journal", {"experiment": "old", "learner.lr": 2e-5})
    assert found.level is Level.FATAL and "learner.lr 1e-05 -> 2e-05" in found.message


def test_a_run_that_is_going_on(place, monkeypatch):
    assert {f.level for f in findings_of(place, "in-flight", {"experiment": "live"})} == {Level.OK}
    log = place / "testgrad" / "live" / "logs" / "live_vllm.log"
    log.parent.mkdir(parents=True)
    with log.open("w"):
        assert process.holders(log.parent) == []  # this process itself
        monkeypatch.setattr(process.os, "getpid", lambda: -1)
        found = findings_of(place, "in-flight", {"experiment": "live"})
    assert any(f.level is Level.FATAL and "is running: process" in f.message for f in found), found


def test_servers_that_are_named_must_answer(place, monkeypatch):
    for variable in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
    assert findings_of(place, "servers", {}) == []
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////tmp/x.db")
    assert findings_of(place, "servers", {}) == []
    monkeypatch.setenv("PREFECT_API_URL", "http://me:secret9@127.0.0.1:1/api")
    (found,) = findings_of(place, "servers", {})
    assert found.level is Level.FATAL and "does not answer" in found.message and "secret9" not in found.message


def test_a_check_that_breaks_is_no_comfort(place, monkeypatch):
    monkeypatch.delenv("TESTGRAD_DEBUG", raising=False)

    def breaks(facts):
        raise RuntimeError("oops")
        yield

    monkeypatch.setitem(CHECKS, "saving", dataclasses.replace(CHECKS["saving"], function=breaks))
    (found,) = findings_of(place, "saving", {})
    assert found.level is Level.FATAL and "the check itself failed: RuntimeError: oops" in found.message


def test_before_training_only_cheap_checks_are_made_and_fatal_ones_stop_it(place, monkeypatch):
    made = []
    for name, check in list(CHECKS.items()):
        monkeypatch.setitem(
            CHECKS, name, dataclasses.replace(check, function=lambda facts, name=name: made.append(name) or [])
        )
    preflight(facts_of(place, {}).config, place)
    assert made == [name for name, check in CHECKS.items() if check.cost is Cost.CHEAP]
    monkeypatch.undo()
    with pytest.raises(PreflightError, match=r"must not start:\n(.*\n)*.*is more than the 6 tasks of data\.train"):
        preflight(facts_of(place, {"rollout.tasks_per_step": 7}).config, place)


def test_every_check_says_what_it_is_for():
    assert all(check.about for check in CHECKS.values())
