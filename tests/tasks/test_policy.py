"""What Prefect is told about a stage."""

from types import SimpleNamespace

import pytest
from support.journals import make_run

from tasks.policy import _key, staged, worth_retrying
from tasks.update_policy import update_policy
from trainer.learner.calls import RankFailure


def key(run, label="step_000001", name="assemble_batch"):
    return _key(SimpleNamespace(task=SimpleNamespace(name=name)), {"run": run, "label": label, "temperature": 1.0})


def test_a_stage_has_one_key(tmp_path):
    assert (
        key(make_run(tmp_path)) == key(make_run(tmp_path)) == "project/experiment-0123abcd/step_000001/assemble_batch"
    )


@pytest.mark.parametrize(
    "other",
    [
        lambda root: key(make_run(root, project="other")),
        lambda root: key(make_run(root, experiment="other")),
        lambda root: key(make_run(root, nonce="ffff0000")),
        lambda root: key(make_run(root), label="step_000002"),
        lambda root: key(make_run(root), label="eval_step_000001"),
        lambda root: key(make_run(root), name="update_policy"),
    ],
)
def test_anything_else_has_another(tmp_path, other):
    """A journal that was deleted and made anew has another nonce: its results are not those of before."""
    assert other(tmp_path) != key(make_run(tmp_path))


def test_stages_are_cached_and_their_results_kept():
    options = staged("assemble_batch", timeout=600)
    assert options["name"] == "assemble_batch"
    assert options["cache_policy"].cache_key_fn is _key
    assert options["persist_result"] is True
    assert options["retry_condition_fn"] is worth_retrying
    assert (options["retries"], options["timeout_seconds"]) == (2, 600)


def state_of(error):
    async def aresult():
        if error:
            raise error

    return SimpleNamespace(aresult=aresult)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ValueError("bad config"), False),
        (KeyError("column"), False),
        (AssertionError("lost a token"), False),
        (RuntimeError("engine died"), True),
        (ConnectionError("server away"), True),
        (TimeoutError(), True),
        (RankFailure("a replica is away", [], [], ConnectionError()), True),
        (RankFailure("rank 1 died", [], [1], RuntimeError()), False),
        (RankFailure("rank 1 waits", [1], [], RuntimeError()), False),
        (None, False),
    ],
)
async def test_what_another_try_cannot_mend_is_not_tried_again(error, again):
    assert await worth_retrying(None, None, state_of(error)) is again


def test_an_update_is_not_tried_again():
    """It may have changed the weights by half: another try would say only that."""
    assert update_policy.retries == 0
