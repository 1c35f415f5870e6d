"""`testgrad check`: its lines, its JSON, its exit status, and the launch that it shows."""

import asyncio
import json
import sys
import types
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from flows.commands import check as command
from flows.config import parse_config
from flows.preflight import checks  # noqa: F401  (registers them)
from flows.preflight.facts import Facts
from flows.preflight.findings import Level
from flows.preflight.launch import deepspeed_config, deployments, engine_arguments, launch_plan
from flows.preflight.run import run_checks
from harness.pool.index import TaskPointer, write_index
from harness.pool.sample import sample_task
from trainer.serving.config import ServingConfig
from trainer.serving.pool import EXTENSION
from trainer.serving.replica import Replica
from trainer.serving.transports import transport_of


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(command, "console", Console(width=250))
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command.check)
    return lambda *words: CliRunner().invoke(app, [*map(str, words), "--root", str(tmp_path / "root")])


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("experiment: e\nschedule: {total_steps: 20, save_freq: 5, test_freq: 5}\nlearner: {lr: 1.0e-5}\n")
    return path


def test_lines_and_exit_status(run, config):
    result = run(config, "--only", "saving", "--only", "learning-rate")
    assert result.exit_code == 0, result.output
    assert "✓ OK    saving" in result.output and "0 WARN, 0 FATAL: may start" in result.output
    result = run(config, "--only", "saving", "--set", "schedule.save_freq=50")
    assert result.exit_code == 0 and "! WARN  saving" in result.output
    result = run(config, "--only", "critic", "--set", "learner.critic={}")
    assert result.exit_code == 1 and "✗ FATAL critic" in result.output and "must not start" in result.output
    assert run(config, "--only", "nonsense").exit_code == 2


def test_the_run_block_comes_first(run, config):
    output = run(config, "--only", "saving").output
    for words in (
        "testgrad/e",
        "64 tasks x 8 attempts = 512 trials",
        "window 2048",
        "grpo, gspo",
        "20 steps, a checkpoint every 5",
    ):
        assert words in output
    assert output.index("grpo, gspo") < output.index("✓")


def test_a_configuration_that_cannot_be_resolved_is_fatal(run, config):
    config.write_text("experiment: CHANGEME\nlearner: {lr: 1.0e-5}\n")
    result = run(config, "--json")
    answer = json.loads(result.output)
    assert result.exit_code == 1 and not answer["safe"]
    (finding,) = answer["findings"]
    assert finding["level"] == "FATAL" and finding["field"] == "experiment" and "run.yaml:1" in finding["why"]
    assert finding["mend"].startswith("put your own value there")
    assert run(config.with_name("none.yaml")).exit_code == 1


def test_json_has_field_value_why_and_mend(run, config):
    result = run(config, "--json", "--only", "saving", "--set", "schedule.save_freq=50")
    answer = json.loads(result.output)
    assert answer["safe"] and answer["counts"] == {"WARN": 1}
    assert answer["run"]["run"] == "testgrad/e"
    (finding,) = answer["findings"]
    assert finding.keys() == {"level", "field", "value", "why", "mend", "check"}
    assert (finding["field"], finding["value"]) == ("schedule.save_freq", "50")


def test_notes_of_the_configuration_are_warnings(run, config, tmp_path):
    path = tmp_path / "run.env"
    path.write_text("EXP_NAME=e\nRAY_PORT=6379\n")
    output = run(path, "--only", "saving").output
    assert "! WARN  configuration" in output and "RAY_PORT has no effect" in output


def test_there_is_no_way_to_force(run, config):
    assert "force" not in run("--help").output.replace("nothing is forced", "")


def test_a_dry_run_shows_the_launch_and_launches_nothing(run, config, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "init", lambda *args, **options: pytest.fail("a cluster was started"))
    result = run(config, "--json", "--dry-run", "--only", "saving", "--set", "learner.ranks=2")
    launch = json.loads(result.output)["launch"]
    names = [actor["name"] for actor in launch["actors"]]
    assert names == ["testgrad/e/learner/0", "testgrad/e/learner/1", "testgrad/e/replica/0"]
    assert launch["engine_arguments"]["max_model_len"] == 2048
    assert launch["deepspeed"]["zero_optimization"]["stage"] == 3
    assert launch["deepspeed"] == deepspeed_config(parse_config({"experiment": "e"}, "x").learner)
    assert "max_model_len: 2048" in run(config, "--dry-run", "--only", "saving").output


def test_devices_of_the_launch():
    values = {
        "experiment": "e",
        "learner": {"gpus_per_rank": 1, "ranks": 4},
        "serving": {"replicas": 2, "tensor_parallel": 2},
    }
    plan = launch_plan(parse_config(values, "x"), Path("r"))
    assert plan["cluster"]["gpus_needed"] == 8 == sum(actor["gpus"] for actor in plan["actors"])
    assert plan["weight_transport"] == "nccl"


def test_replicas_that_share_the_learners_gpus():
    values = {
        "experiment": "e",
        "learner": {"gpus_per_rank": 1, "ranks": 4, "nodes": 2},
        "serving": {"replicas": 2, "colocated": True},
    }
    plan = launch_plan(parse_config(values, "x"), Path("r"))
    assert plan["cluster"]["gpus_needed"] == 4 == sum(actor["gpus"] for actor in plan["actors"])
    assert plan["weight_transport"] == "cuda_ipc"
    group = plan["cluster"]["placement_group"]
    assert group == {"name": "testgrad/e/learner", "strategy": "STRICT_SPREAD", "bundles": [{"GPU": 2}] * 2}
    nodes = {actor["name"]: actor["node"] for actor in plan["actors"]}
    assert [nodes[f"testgrad/e/learner/{rank}"][:8] for rank in range(4)] == ["bundle 0"] * 2 + ["bundle 1"] * 2
    assert nodes["testgrad/e/replica/1"] == "that of testgrad/e/learner/1, whose GPU it shares in turns"


def test_the_bundles_that_are_shown_are_those_that_are_reserved(monkeypatch):
    import ray

    from trainer.learner import bundles

    asked = {}

    class Group:
        def wait(self, seconds):
            return True

    def absent(name):
        raise ValueError(name)

    def make(wanted, strategy, name, lifetime):
        asked.update(name=name, strategy=strategy, bundles=wanted)
        return Group()

    monkeypatch.setattr(ray.util, "get_placement_group", absent)
    monkeypatch.setattr(ray.util, "placement_group", make)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"GPU": 8.0}}] * 2)
    values = {"experiment": "e", "learner": {"gpus_per_rank": 1, "ranks": 4, "nodes": 2}}
    config = parse_config(values, "x")
    bundles.reserve("testgrad/e/learner", config.learner)
    assert launch_plan(config, Path("r"))["cluster"]["placement_group"] == asked


def test_deployments_of_the_launch():
    shown = {entry["name"]: entry for entry in deployments()}
    assert set(shown) == {"train", "evaluate"}
    assert shown["train"]["entrypoint"].endswith(":train") and shown["train"]["work_pool"] == "testgrad"
    assert shown["evaluate"]["schedules"] == ["23 * * * *"]


async def test_the_engine_arguments_that_are_shown_are_those_that_are_given(tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    given = {}
    # booting sends vLLM's log to the replica's file
    monkeypatch.setattr("trainer.serving.engine._log_to", lambda file: None)

    def capture(**arguments):
        given.update(arguments)
        raise Stop

    vllm, base, llm = (types.ModuleType(name) for name in ("vllm", "base", "llm"))
    vllm.AsyncEngineArgs, base.WeightTransferInitRequest, llm.AsyncLLM = capture, None, None
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.base", base)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.async_llm", llm)
    for gpus, config in (
        (False, ServingConfig()),
        (False, ServingConfig(tensor_parallel=2, window=99, enforce_eager=False, lora_rank=5)),
        (True, ServingConfig(capture_routing=True)),
        (True, ServingConfig(colocated=True)),
    ):
        monkeypatch.setattr("torch.cuda.is_available", lambda gpus=gpus: gpus)
        with pytest.raises(Stop):
            await Replica(str(tmp_path / "log")).boot("model", config, EXTENSION, transport_of(config, gpus))
        assert 0 <= given.pop("seed") < 2**31
        assert given == engine_arguments("model", config, gpus)


def test_a_trial_of_the_pool(tmp_path):
    task = sample_task(tmp_path / "t0")
    write_index([TaskPointer("t0", task.path)], tmp_path / "i.parquet")
    values = {"experiment": "e", "data": {"train": str(tmp_path / "i.parquet"), "heldout": str(tmp_path / "i.parquet")}}
    facts = Facts(parse_config(values, "x"), tmp_path)
    found = list(run_checks(facts, only=["trial"]))
    assert [f.level for f in found] == [Level.OK, Level.OK], found
    assert "nothing done scores 0" in found[0].message and "the solution scores 1" in found[1].message
    assert task.solution is not None
    (task.solution / "solution.py").write_text((task.snapshot / "solution.py").read_text())
    found = list(run_checks(Facts(facts.config, tmp_path), only=["trial"]))
    assert found[1].level is Level.FATAL and "the solution scores 0 instead of 1" in found[1].message


async def test_the_flow_fails_where_a_run_must_not_start(tmp_path, monkeypatch):
    from flows.preflight import flow
    from flows.preflight.findings import fatal, ok

    config = parse_config({"experiment": "e"}, "x")
    monkeypatch.setattr(flow, "run_checks", lambda facts, most: [ok("a", 1, "well")])
    assert (await flow.preflight_flow.fn(config, tmp_path))[0]["level"] == "OK"
    monkeypatch.setattr(flow, "run_checks", lambda facts, most: [fatal("a", 1, "bad", "mend it")])
    with pytest.raises(ValueError, match="a is 1: bad; mend it"):
        await asyncio.wait_for(flow.preflight_flow.fn(config, tmp_path), 60)
