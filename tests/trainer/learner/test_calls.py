"""A call to all ranks ends when one fails, and tells of the one to blame."""

import asyncio

import pytest
from ray.exceptions import ActorDiedError

from trainer.learner.calls import RankFailure, answers


async def returns(value):
    return value


async def raises(error, after=0.0):
    await asyncio.sleep(after)
    raise error


async def hangs():
    await asyncio.Event().wait()


async def test_answers_come_in_the_order_of_ranks():
    assert await answers([returns(i) for i in range(3)], "state") == [0, 1, 2]


async def test_a_rank_that_raises_ends_the_call_though_others_hang():
    with pytest.raises(RankFailure, match=r"rank 1 of 3 failed in update: OSError: disk full; ranks \[0, 2\]") as e:
        await asyncio.wait_for(answers([hangs(), raises(OSError("disk full")), hangs()], "update", grace=0.05), 5)
    assert e.value.group_is_lost and e.value.stuck == [0, 2]
    assert isinstance(e.value.cause, OSError)


@pytest.mark.parametrize("lost", ["[enforce] gloo/transport: Connection closed by peer", "NCCL watchdog timeout"])
async def test_peers_that_lost_the_rank_are_not_to_blame(lost):
    """Though they are the first to say something."""
    calls = [raises(RuntimeError(lost)), raises(ValueError("bad batch"), after=0.05)]
    with pytest.raises(RankFailure, match="rank 1 of 2 failed in update: ValueError: bad batch"):
        await answers(calls, "update", grace=5)
    calls = [raises(RuntimeError(lost)), raises(ActorDiedError(), after=0.05)]
    with pytest.raises(RankFailure, match="rank 1 of 2 died in update") as e:
        await answers(calls, "update", grace=5)
    assert e.value.dead == [1] and e.value.group_is_lost


async def test_what_fails_everywhere_leaves_the_group_as_it_is():
    with pytest.raises(RankFailure, match="rank 0 of 2 failed in update: ValueError: asked for update 3") as e:
        await answers([raises(ValueError("asked for update 3")) for _ in range(2)], "update")
    assert not e.value.group_is_lost


async def test_a_remote_traceback_is_kept_below_what_it_says():
    remote = RuntimeError("\x1b[36mray::LearnerRank.update()\x1b[39m\n  File x.py, line 3\nValueError: bad batch")
    remote.cause = ValueError("bad batch")
    with pytest.raises(RankFailure) as e:
        await answers([raises(remote)], "update")
    first, *rest = str(e.value).splitlines()
    assert first == "the learner failed in update: ValueError: bad batch"
    assert rest == ["ray::LearnerRank.update()", "  File x.py, line 3", "ValueError: bad batch"]
