"""Checkpoints of real learners: resumed bit by bit, on other numbers of ranks, killed, exported, pruned."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.integration import TESTS
from support.mixture import tiny_mixture
from support.rollouts import write_batch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from flows.cli import app
from tasks.journal import Journal, step_label, write_json
from trainer.algorithms.config import AlgorithmConfig
from trainer.learner.checkpoint import Checkpoint, list_checkpoints
from trainer.learner.config import LearnerConfig
from trainer.learner.export import ExportError, export_checkpoint, read_report
from trainer.learner.group import LearnerGroup

on_ray = pytest.mark.usefixtures("cluster")
in_one_loop = pytest.mark.asyncio(loop_scope="module")


async def start(model: Path, name: str, **settings: object) -> LearnerGroup:
    config = LearnerConfig(**{"lr": 1e-3, "dtype": "float32", "lr_warmup_steps": 8} | settings)  # type: ignore[arg-type]
    return await LearnerGroup.start(f"checkpoints/{name}", model, config, AlgorithmConfig())


def moved(before: Path, after: Path) -> float:
    """The largest difference between two exported models' weights."""
    one, two = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert one.keys() == two.keys()
    return max(float((one[name] - two[name]).abs().max()) for name in one)


@on_ray
@in_one_loop
async def test_ten_updates_are_five_and_five_and_go_on_with_other_ranks(
    models: dict[str, Path], tmp_path: Path
) -> None:
    batch = write_batch(tmp_path / "batch.parquet")
    roots = {name: tmp_path / name for name in ("straight", "resumed", "one", "two")}

    two = await start(models["tied"], "straight", ranks=2)
    try:
        straight = []
        for step in range(1, 11):
            straight.append((await two.update(step, batch, 1.0)).fingerprint)
            if step in (5, 6):
                await two.save(roots["straight"], step)
        end = await two.save(roots["straight"], 10)
    finally:
        two.shutdown()
    five, six = (roots["straight"] / f"global_step_{step}" for step in (5, 6))

    one = await start(models["tied"], "one", ranks=1)
    try:
        assert await one.load(five) == 5, "raises unless the weights are those that two ranks saved"
        await one.update(6, batch, 1.0)
        six_of_one = await one.save(roots["one"], 6)
        await one.update(7, batch, 1.0)
        seven_of_one = await one.save(roots["one"], 7)
    finally:
        one.shutdown()

    two = await start(models["tied"], "resumed", ranks=2)
    try:
        assert await two.load(five) == 5
        resumed = [(await two.update(step, batch, 1.0)).fingerprint for step in range(6, 11)]
        assert resumed == straight[5:], "another process goes on bit by bit as the one before would have"
        ten = await two.save(roots["resumed"], 10)
        assert await two.load(six_of_one) == 6
        await two.update(7, batch, 1.0)
        seven_of_two = await two.save(roots["two"], 7)
    finally:
        two.shutdown()

    exported = {
        path: export_checkpoint(path, tmp_path / "exported" / str(i))
        for i, path in enumerate((five, six, six_of_one, seven_of_one, seven_of_two))
    }
    assert moved(exported[five], exported[six]) > 1e-4
    assert moved(exported[six], exported[six_of_one]) < 1e-6, "two ranks, then one"
    assert moved(exported[seven_of_one], exported[seven_of_two]) < 1e-6, "one rank, then two"
    assert Checkpoint.open(ten).fingerprint == Checkpoint.open(end).fingerprint
    assert not [path.name for root in roots.values() for path in root.iterdir() if path.name.startswith(".")]

    _is_the_bases_but_for_its_weights(models["tied"], exported[six])


def _is_the_bases_but_for_its_weights(base: Path, exported: Path) -> None:
    names = {path.name for path in base.iterdir()}
    assert {path.name for path in exported.iterdir()} - {"testgrad_export.json"} == names
    for name in names - {"model.safetensors"}:
        assert (exported / name).read_bytes() == (base / name).read_bytes(), name
    assert AutoTokenizer.from_pretrained(exported).chat_template == AutoTokenizer.from_pretrained(base).chat_template


def prune_a_finished_run(folder: Path, checkpoint: Path) -> None:
    """Its weights stay, verified; a second time there is nothing to do."""
    journal = Journal(folder / "root" / "project" / "run")
    write_json(journal.root / "config.json", {"config": {"schedule": {"total_steps": 1}}})
    write_json(journal.stage_dir(step_label(1)) / "record.json", {"step": 1, "metrics": {}})
    kept = journal.checkpoints / "global_step_1"
    shutil.copytree(checkpoint, kept)
    size, fingerprint = Checkpoint.open(kept).bytes, Checkpoint.open(kept).fingerprint
    saved = dict(os.environ)
    try:
        for freed in (size, 0):
            done = CliRunner().invoke(app, ["prune", "project/run", "--json", "--root", str(folder / "root")])
            assert done.exit_code == 0, done.output
            assert json.loads(done.stdout)[0]["freed_bytes"] == freed
    finally:
        os.environ.clear()
        os.environ.update(saved)
    assert list(journal.checkpoints.iterdir()) == []
    report = read_report(journal.root / "exports" / "global_step_1")
    assert report is not None and report.fingerprint == fingerprint and report.mean_difference < 1e-4
    assert (journal.root / "config.json").is_file() and journal.finished_steps() == [1]


@on_ray
@in_one_loop
async def test_a_mixture_is_exported_as_its_base_is_laid_out(tmp_path: Path) -> None:
    base = tiny_mixture(tmp_path / "base")
    batch = write_batch(tmp_path / "batch.parquet")
    group = await start(base, "mixture", lr=1e-2, lr_warmup_steps=0)
    try:
        await group.update(1, batch, 1.0)
        path = await group.save(tmp_path / "checkpoints", 1)
        live = await group.score(batch, ["old_logprobs"], 1.0, updates=1)
    finally:
        group.shutdown()
    folder = export_checkpoint(path, tmp_path / "exported")
    before, after = (load_file(place / "model.safetensors") for place in (base, folder))
    assert {name: tensor.shape for name, tensor in before.items()} == {n: t.shape for n, t in after.items()}
    assert any(".experts.3.up_proj.weight" in name for name in after)
    assert all(not torch.equal(before[name], after[name]) for name in after if "experts" in name)
    report = read_report(folder)
    assert report is not None and report.largest_difference < 1e-3 and report.carried_over == []
    assert live["old_logprobs"].size and AutoModelForCausalLM.from_pretrained(folder) is not None

    prune_a_finished_run(tmp_path, path)

    # what is exported computes something else: told with numbers, and not written
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"num_experts_per_tok": 1}))
    with pytest.raises(
        ExportError, match=r"other log-probs than the learner did: they differ by \d.* nats in the mean"
    ):
        export_checkpoint(path, tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir() if "other" in p.name) == []


def test_killed_at_every_stage_of_a_save(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.saved_learner", str(tmp_path)],
        env=os.environ
        | {"PYTHONPATH": f"{TESTS}:{TESTS.parent}", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["stages"]) > 25 and set(found["loaded"]) == {1, 2}
    assert found["loaded"] == sorted(found["loaded"][:-2]) + found["loaded"][-2:], "once it is complete, it stays"
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "checkpoints")] == [1, 2]
