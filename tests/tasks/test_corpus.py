"""What a warm start learns from: accepted tokens as they are, nothing twice, nothing that scores are measured on."""

import dataclasses
import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.corpora import tiny_codec, write_spoken_trial
from support.rollouts import make_rollout
from support.tasks import write_task

from harness.pool.index import TaskPointer, write_index
from harness.verifier.verdict import Status
from tasks.corpus import CorpusError, Trajectory, choose, read_accepted, trial_folders
from tasks.draw import as_groups, groups_table
from tasks.gather_corpus import LABEL, TRAIN, VALIDATION, _gather
from tasks.heldout import HeldOut, HeldOutError
from tasks.journal import JournalError, write_json
from tasks.trial_files import load_trial
from trainer.rollout import ROLLOUT_SCHEMA

MANY = {"longest": 100, "per_task": 9, "validation_share": 0.0, "seed": 0, "clusters": {}}


def trajectory(session: str, task: str = "fix-add", token: int = 4) -> Trajectory:
    rollout = make_rollout(session, prompt=(1, 2, 3), turns=((token, 5),), task_id=task)
    return Trajectory(session, task, task, (rollout,))


async def test_only_trials_with_a_passing_verdict_are_learnt_from(tmp_path):
    for name, status in (
        ("a-passed", Status.PASSED), ("b-failed", Status.FAILED), ("c-tampered", Status.TAMPERED),
        ("d-infra", Status.INFRA_ERROR), ("e-ungraded", None),
    ):  # fmt: skip
        await write_spoken_trial(tmp_path / "run" / "trials" / "step_000001" / name, status=status)
    await write_spoken_trial(tmp_path / "run" / "trials" / "eval_step_000001" / "f-evaluated")
    folders = trial_folders(tmp_path / "run")
    assert "f-evaluated" not in {folder.name for folder in folders}, "an evaluation's tasks are held out"
    left_out = Counter()
    (accepted,) = read_accepted(folders, tiny_codec(), HeldOut(), left_out)
    assert accepted.session_id == "a-passed" and left_out == {"not_passed": 2, "not_graded": 2}
    (stored,) = load_trial(folders[0]).rollouts()
    assert accepted.rollouts[0].token_ids == stored.token_ids, "ids are those of the trial, never encoded again"
    with pytest.raises(CorpusError, match="trials of an evaluation"):
        trial_folders(tmp_path / "run" / "trials" / "eval_step_000001")
    with pytest.raises(CorpusError, match="trials of an evaluation"):
        trial_folders(tmp_path / "run" / "trials" / "eval_step_000001" / "f-evaluated")
    with pytest.raises(CorpusError, match="holds no trial"):
        trial_folders(write_task(tmp_path / "empty"))


async def test_a_mask_that_the_trajectory_contradicts_is_refused(tmp_path):
    folder = await write_spoken_trial(tmp_path / "s", answers=("so", "and so"))
    (rollout,) = load_trial(folder).rollouts()
    last = len(rollout.token_ids) - 1
    moved = dataclasses.replace(
        rollout, loss_mask=[*rollout.loss_mask[:last], 0], logprobs=[*rollout.logprobs[:last], float("nan")],
        weight_versions=[*rollout.weight_versions[:last], -1],
    )  # fmt: skip
    pq.write_table(pa.Table.from_pylist([moved.to_row()], schema=ROLLOUT_SCHEMA), folder / "rollout.parquet")
    with pytest.raises(JournalError, match="differ in segment 0 on which tokens were sampled"):
        list(read_accepted([folder], tiny_codec(), HeldOut(), Counter()))


async def test_tokens_of_another_tokenizer_are_refused(tmp_path):
    folder = await write_spoken_trial(tmp_path / "s", codec=tiny_codec(merges=[("s", "o"), ("t", "h")]))
    with pytest.raises(CorpusError, match="another model's"):
        list(read_accepted([folder], tiny_codec(), HeldOut(), Counter()))


def test_nothing_twice_and_of_a_task_at_most_so_many_whatever_the_order():
    trials = [trajectory(f"s{i}", token=i % 3) for i in range(9)] + [
        trajectory("s0", token=0),
        trajectory("t", "other"),
    ]
    left_out = Counter()
    corpus = choose(trials, left_out, **MANY | {"per_task": 2})
    assert sorted(Counter(t.task_id for t in corpus.train).items()) == [("fix-add", 2), ("other", 1)]
    assert len({t.spoken for t in corpus.train if t.task_id == "fix-add"}) == 2
    assert left_out == {"repeated": 7, "more_of_a_task": 1}
    again = choose(trials[::-1], Counter(), **MANY | {"per_task": 2})
    assert [t.session_id for t in again.train] == [t.session_id for t in corpus.train]
    assert choose([trajectory("s")], Counter(), **MANY | {"longest": 5}).train
    with pytest.raises(CorpusError, match=r"no accepted trajectory to learn from .*too_long 1"):
        choose([trajectory("s")], Counter(), **MANY | {"longest": 4})


def test_what_is_held_back_shares_no_cluster_with_what_is_learnt_from():
    trials = [trajectory(f"s{i}", f"task-{i}") for i in range(20)]
    clusters = {f"task-{i}": f"function-{i % 5}" for i in range(20)}
    corpus = choose(trials, Counter(), **MANY | {"validation_share": 0.3, "clusters": clusters})
    sides = [{clusters[t.task_id] for t in side} for side in (corpus.train, corpus.validation)]
    assert not sides[0] & sides[1] and len(corpus.validation) == 8 and len(corpus.train) == 12
    other = choose(trials, Counter(), **MANY | {"validation_share": 0.3, "clusters": clusters, "seed": 1})
    assert {t.task_id for t in other.validation} != {t.task_id for t in corpus.validation}
    one = choose([trajectory("s")], Counter(), **MANY | {"validation_share": 0.5})
    assert one.train and not one.validation, "something is always left to learn from"


async def test_held_out_tasks_are_refused_by_name_by_place_and_by_split(tmp_path):
    task = write_task(tmp_path / "pool" / "fix-add")
    index = tmp_path / "pool" / "heldout.parquet"
    write_index([TaskPointer("fix-add", task), TaskPointer("fix-other", tmp_path / "elsewhere" / "x")], index)
    for name, task_id, path in (("by-id", "fix-other", tmp_path / "y"), ("by-place", "renamed", task)):
        run = tmp_path / name
        await write_spoken_trial(run / "trials" / "step_000001" / "s", task_id=task_id, task_path=path)
        for held, sources in (([index], [run]), ([], [run, _run_scored_on(tmp_path / "scored" / name / "e", index)])):
            with pytest.raises(HeldOutError, match=f"1 of the tasks to learn from are held out: {task_id} .*{index}"):
                gather(tmp_path / "new", sources, held)
    known = HeldOut()
    known.look_at_rows([TaskPointer("a", task, extra={"split": "heldout"}), TaskPointer("b", task)], index)
    with pytest.raises(HeldOutError, match=r"held out: a .by the column split"):
        known.refuse()


async def test_a_collection_of_a_held_out_index_is_refused_though_nobody_named_that_index(tmp_path):
    task = write_task(tmp_path / "pool" / "fix-add")
    index = tmp_path / "pool" / "any-name.parquet"
    write_index([TaskPointer("fix-add", task, extra={"split": "heldout"})], index)
    collection = tmp_path / "collections" / "look"
    await write_spoken_trial(collection / "trials" / "collect" / "s", task_path=task)
    write_json(collection / "config.json", {"config": {"data": {"train": str(index), "heldout": str(index)}}})
    for source in (collection, collection / "trials" / "collect", collection / "trials" / "collect" / "s"):
        with pytest.raises(HeldOutError, match=f"held out: fix-add .by the column split of {index}"):
            gather(tmp_path / "new", [source], [])
    write_index([TaskPointer("fix-add", task, extra={"split": "train"})], index)
    assert gather(tmp_path / "new", [collection], [])["train"]["trajectories"] == 1


async def test_the_corpus_trains_sampled_tokens_only_and_keeps_variants_of_a_function_together(tmp_path):
    run = tmp_path / "run"
    tasks = [TaskPointer(f"t{i}", write_task(tmp_path / f"t{i}"), extra={"function": f"f{i % 2}"}) for i in range(4)]
    for pointer in tasks:
        folder = run / "trials" / "step_000001" / f"s-{pointer.instance_id}"
        await write_spoken_trial(folder, pointer.instance_id, ("so", f"and {pointer.instance_id}"), codec=tiny_codec())
    (run / "steps" / "step_000001").mkdir(parents=True)
    pq.write_table(groups_table(as_groups(tasks, "step_000001", 1)), run / "steps" / "step_000001" / "groups.parquet")
    told = gather(tmp_path / "new", [run], [], validation_share=0.4)
    train, held = (pq.read_table(tmp_path / "new" / name) for name in (TRAIN, VALIDATION))
    functions = [{int(task[1:]) % 2 for task in table.column("task_id").to_pylist()} for table in (train, held)]
    assert len(functions[0]) == len(functions[1]) == 1 and functions[0] != functions[1]
    for row in train.to_pylist():
        trained = [i for i, advantage in enumerate(row["advantages"]) if advantage == 1.0]
        assert trained == [i for i, mask in enumerate(row["loss_mask"]) if mask]
        assert len([a for a in row["advantages"] if a != a]) == len(row["loss_mask"]) - len(trained)
    assert told["train"]["trajectories"] == 2
    assert told["train"]["tokens"] == 2 * sum(len(tiny_codec().encode_answer(text)) for text in ("so", "and t0"))


def gather(folder, sources, heldout, validation_share=0.0):
    from support.journals import make_run

    run = make_run(folder.parent / "own")
    return _gather(run, folder, _Model.path(folder), sources, heldout, 4096, 4, validation_share, 0)


class _Model:
    """A folder with the tiny tokenizer."""

    @staticmethod
    def path(folder):
        from support.tiny import tiny_tokenizer

        place = folder.parent / "tokenizer"
        if not place.is_dir():
            tiny_tokenizer().save_pretrained(place)
        return place


def _run_scored_on(run, index):
    """A run without accepted trials of its own that is scored on `index`."""
    write_json(run / "config.json", {"config": {"data": {"train": "train.parquet", "heldout": str(index)}}})
    folder = run / "trials" / "step_000001" / "s"
    folder.mkdir(parents=True)
    trial = {"session_id": "s", "group_id": "g", "task_id": "any", "task_path": "/pool/any", "outcome": "completed"}
    (folder / "trial.json").write_text(json.dumps(trial | {"trained_segments": 0}))
    return run


def test_the_stage_has_a_folder_of_its_own():
    assert not LABEL.startswith(("step_", "eval_")), "a label of a step would be taken for one"
