"""Which runs that have crashed go on by themselves."""

import uuid
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import AwaitingRetry, Cancelled, Crashed

from flows.deployed import restart as module
from flows.deployed.restart import restart
from tasks.lease import lease


@pytest.fixture
def retried(monkeypatch, tmp_path):
    """A function that has a flow run restarted, and returns what is said and the state it was given."""

    @asynccontextmanager
    async def on_worker(name):
        yield tmp_path

    monkeypatch.setattr(module, "on_worker", on_worker)

    async def of(state=None, starts=1, answer=None, **advanced):
        given = []

        class Client:
            async def __aenter__(self):
                return self

            async def __aexit__(self, *error):
                return None

            async def read_flow_run(self, run):
                form = {"experiment": "one", "project": "p", "advanced": advanced}
                return FlowRun(
                    id=run, name="train-p-one", flow_id=uuid.uuid4(), state=state or Crashed(), run_count=starts,
                    parameters={"run": form},
                )  # fmt: skip

            async def set_flow_run_state(self, run, state):
                given.append(state)
                return SimpleNamespace(state=answer or state, details="no worker")

        monkeypatch.setattr(module, "get_client", Client)
        return await restart.fn(uuid.uuid4()), given

    return of


async def test_a_run_that_has_crashed_is_retried(retried):
    said, (state,) = await retried()
    assert said == "train-p-one goes on, start 2 of at most 3"
    assert state.is_scheduled() and state.name == AwaitingRetry().name


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"state": Cancelled()}, "it is Cancelled"),
        ({"starts": 3}, "it was started 3 times, and advanced.restarts allows 3"),
        ({"restarts": 0}, "it was started 1 times, and advanced.restarts allows 1"),
    ],
)
async def test_others_are_left_as_they_are(retried, options, reason):
    said, given = await retried(**options)
    assert said == f"train-p-one is left as it is: {reason}" and given == []


async def test_a_run_on_which_a_process_works_is_left_to_it(retried, tmp_path):
    with lease(tmp_path / "p" / "one", "train"):
        said, given = await retried()
    assert "(train, since" in said and said.endswith("works on it") and given == []
    assert (await retried())[1]


async def test_a_server_that_refuses_is_heard(retried):
    with pytest.raises(RuntimeError, match="train-p-one cannot be retried: no worker"):
        await retried(answer=Crashed())
