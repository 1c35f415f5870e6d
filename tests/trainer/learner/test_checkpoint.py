"""Checkpoints are complete or absent, whatever happens while they are written or deleted."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.checkpoints import holds, make_checkpoint, make_shards, write_checkpoint

from trainer.learner import checkpoint as module
from trainer.learner.checkpoint import (
    MARKER,
    Checkpoint,
    CheckpointError,
    Probe,
    list_checkpoints,
    remove,
    remove_garbage,
    write,
)

TESTS = Path(__file__).parents[2]


def test_opens_what_was_written(tmp_path):
    written = make_checkpoint(tmp_path, 8, notes={"sampler": "abc"}, scaling=2.0)
    path = write(make_shards(8), written)
    found = Checkpoint.open(path)
    assert (found.step, found.ranks, found.fingerprint, found.notes) == (8, 1, "f8", {"sampler": "abc"})
    assert found.probe == Probe([1, 2, 3], [-0.5, -1.5]) and found.scaling == 2.0
    assert set(found.files) == {"model_states.pt", "optim_states.pt", "critic/optim_states.pt"}
    assert found.bytes == sum(file.stat().st_size for file in path.rglob("*.pt"))
    assert holds(found, 8)


def test_a_folder_without_marker_is_none(tmp_path):
    (write_checkpoint(tmp_path, 8).path / MARKER).unlink()
    with pytest.raises(CheckpointError, match="was never finished"):
        Checkpoint.open(tmp_path / "global_step_8")
    with pytest.raises(CheckpointError):
        Checkpoint.open(tmp_path / "missing")


def test_a_marker_of_another_version_is_told(tmp_path):
    marker = write_checkpoint(tmp_path, 8).path / MARKER
    fields = json.loads(marker.read_text())
    del fields["probe"]
    marker.write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match="another version of testgrad; remove the folder"):
        Checkpoint.open(marker.parent)


def test_lists_by_number_and_leaves_out_what_is_unfinished(tmp_path):
    for step in (10, 9, 100):
        write_checkpoint(tmp_path, step)
    (write_checkpoint(tmp_path, 200).path / MARKER).unlink()
    shutil.copytree(tmp_path / "global_step_9", tmp_path / ".global_step_300.partial")
    (tmp_path / "notes.txt").write_text("")
    assert [c.step for c in list_checkpoints(tmp_path)] == [9, 10, 100]
    assert list_checkpoints(tmp_path / "missing") == []


def test_the_second_save_of_a_step_changes_nothing(tmp_path):
    first = write_checkpoint(tmp_path, 8)
    write(make_shards(9), make_checkpoint(tmp_path, 8, fingerprint="other"))
    assert Checkpoint.open(first.path) == first and holds(first, 8)


def test_a_folder_whose_marker_is_gone_is_made_anew(tmp_path):
    (write_checkpoint(tmp_path, 8).path / MARKER).unlink()
    assert holds(write_checkpoint(tmp_path, 8), 8)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_a_file_that_was_lost_or_cut_off_is_named(tmp_path, spoil):
    checkpoint = write_checkpoint(tmp_path, 8)
    spoil(checkpoint.path / "critic" / "optim_states.pt")
    with pytest.raises(CheckpointError, match=r"critic/optim_states\.pt (is missing|has .* bytes)"):
        checkpoint.require_whole()


def test_garbage_is_removed_and_nothing_else(tmp_path):
    kept = write_checkpoint(tmp_path, 8)
    (tmp_path / "global_step_9").mkdir()  # not ours, for ours have their marker
    for name in (".global_step_10.partial", ".global_step_2.removed", ".global_step_8.resharded", ".other.partial"):
        shutil.copytree(kept.path, tmp_path / name)
    assert len(remove_garbage(tmp_path)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.partial", "global_step_8", "global_step_9"]
    assert remove_garbage(tmp_path / "missing") == []


KILLED = """
import shutil, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from support.checkpoints import holds, make_checkpoint, make_shards, write_checkpoint
from support.killed import in_child, kill_at_every_stage, limit_file_size
from trainer.learner.checkpoint import CheckpointError, list_checkpoints, remove, remove_garbage, write

root = Path(sys.argv[1])
write_checkpoint(root, 1)
pristine = root.with_name("pristine")
shutil.copytree(root, pristine)
checkpoint, shards = make_checkpoint(root, 2), make_shards(2)

def save_and_retain():
    write(shards, checkpoint)
    remove(root / "global_step_1")

seen = set()
for stage in kill_at_every_stage(save_and_retain, root, sizes=(1, 700, 15000)):
    found = list_checkpoints(root)
    assert found, f"no checkpoint is left after {stage}"
    for each in found:
        assert holds(each, each.step), f"{stage}: step {each.step} holds something else"
    left = remove_garbage(root)
    visible = sorted(path.name for path in root.iterdir())
    assert visible == [f"global_step_{each.step}" for each in found], f"{stage}: {visible}"
    seen.add((found[-1].step, len(found), bool(left)))
    write_checkpoint(root, 3)
    assert list_checkpoints(root)[-1].step == 3
    shutil.rmtree(root)
    shutil.copytree(pristine, root)
    print(stage)
# before and after the rename, with the old one still there, while that is removed, and in the end
assert seen == {(1, 1, False), (1, 1, True), (2, 2, False), (2, 1, True), (2, 1, False)}, seen

def refused_by_the_kernel(size):
    limit_file_size(size)
    try:
        write(shards, checkpoint)
    except CheckpointError as error:
        assert "_states.pt: File too large; " in str(error), error
        return
    raise AssertionError("written all the same")

for size in (0, 15000):
    in_child(lambda: refused_by_the_kernel(size))
    assert [path.name for path in root.iterdir()] == ["global_step_1"], list(root.iterdir())
    assert holds(list_checkpoints(root)[-1], 1)
"""


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={"PYTHONPATH": f"{TESTS}:{TESTS.parent}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_killed_or_refused_at_every_stage_of_a_save_and_of_a_removal(tmp_path):
    done = run(KILLED, tmp_path / "checkpoints")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) > 20


def test_a_full_disk_is_a_clear_error_and_leaves_the_older_ones(tmp_path, monkeypatch):
    older = write_checkpoint(tmp_path, 1)

    def full(state, file):
        file.write(b"some of it")
        try:
            raise OSError(28, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")  # what torch makes of it

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match=r"step 2 .*: No space left on device; .* MiB are free") as error:
        write(make_shards(2), make_checkpoint(tmp_path, 2))
    assert "make room, or lower schedule.keep_checkpoints. The checkpoints before it are" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"] and holds(older, 1)


TWO_RANKS = """
import sys
from datetime import timedelta
from pathlib import Path
import torch.distributed as dist
from support.checkpoints import make_checkpoint
from support.killed import limit_file_size
from trainer.learner.checkpoint import CheckpointError, list_checkpoints, write
import torch

rank, folder, root = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
store = dist.FileStore(str(folder / "store"), 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
mine = lambda step: {f"rank_{rank}_states.pt": {"weights": torch.full((5000,), float(step))}}
write(mine(1), make_checkpoint(root, 1))
(found,) = list_checkpoints(root)
assert found.ranks == 2 and set(found.files) == {"rank_0_states.pt", "rank_1_states.pt"}
if rank == 1:
    limit_file_size(15000)
try:
    write(mine(2), make_checkpoint(root, 2))
except CheckpointError as error:
    print(error)
dist.barrier()
assert [path.name for path in root.iterdir()] == ["global_step_1"]
dist.destroy_process_group()
"""


def test_all_ranks_learn_of_the_one_that_cannot_write(tmp_path):
    environment = {"PYTHONPATH": f"{TESTS}:{TESTS.parent}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_RANKS, str(rank), str(tmp_path), str(tmp_path / "checkpoints")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in ranks:
        said, failed = process.communicate(timeout=120)
        assert process.returncode == 0, said + failed
        assert "step 2 cannot be written: rank 1: rank_1_states.pt: File too large" in said


def test_a_folder_that_ranks_do_not_share_has_no_marker(tmp_path, monkeypatch):
    real = module._write_files
    monkeypatch.setattr(module, "_write_files", lambda folder, states: real(folder, states) | {"rank_1.pt": 10})
    with pytest.raises(CheckpointError, match=r"rank_1\.pt is missing"):
        write(make_shards(1), make_checkpoint(tmp_path, 1))
    assert list_checkpoints(tmp_path) == [] and not list(tmp_path.iterdir())


def test_what_is_removed_is_gone(tmp_path):
    write_checkpoint(tmp_path, 1)
    remove(write_checkpoint(tmp_path, 2).path)
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]
