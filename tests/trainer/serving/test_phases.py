"""The order in which a replica may sleep, wake, be synced and serve."""

import pytest

from trainer.serving.errors import PhaseError, ReplicaError
from trainer.serving.phases import Memory, ReplicaPhase


def done(move):
    with move:
        pass


ACTIONS = {
    "sleep": lambda phase: phase.sleep(),
    "wake_weights": lambda phase: done(phase.wake_weights()),
    "wake_cache": lambda phase: done(phase.wake_cache()),
    "start_sync": lambda phase: phase.start_sync(),
    "finish_sync": lambda phase: phase.finish_sync(5),
    "serve": lambda phase: phase.require_serving(),
}


def after(*actions):
    phase = ReplicaPhase(4)
    for action in actions:
        ACTIONS[action](phase)
    return phase


ALLOWED = {
    (): {"sleep", "start_sync", "serve"},
    ("start_sync",): {"start_sync", "finish_sync"},
    ("start_sync", "finish_sync"): {"sleep", "start_sync", "serve"},
    ("sleep",): {"wake_weights"},
    ("sleep", "wake_weights"): {"wake_cache", "start_sync"},
    ("sleep", "wake_weights", "start_sync"): {"start_sync", "finish_sync"},
    ("sleep", "wake_weights", "start_sync", "finish_sync"): {"wake_cache", "start_sync"},
    ("sleep", "wake_weights", "start_sync", "finish_sync", "wake_cache"): {"sleep", "start_sync", "serve"},
}
"""What may be done, by what has been done."""


@pytest.mark.parametrize("history", ALLOWED, ids=lambda history: "-".join(history) or "start")
@pytest.mark.parametrize("action", ACTIONS)
def test_only_what_is_in_order_is_allowed(history, action):
    phase = after(*history)
    if action in ALLOWED[history]:
        ACTIONS[action](phase)
        return
    before = ReplicaPhase(**vars(phase))
    with pytest.raises(PhaseError):
        ACTIONS[action](phase)
    assert phase == before, "what is refused changes nothing"


def test_a_full_turn_ends_where_it_began_with_the_new_version():
    phase = after("sleep", "wake_weights", "start_sync", "finish_sync", "wake_cache")
    assert phase == ReplicaPhase(5, Memory.AWAKE)


def test_without_a_sync_the_version_is_what_it_was():
    assert after("sleep", "wake_weights", "wake_cache") == ReplicaPhase(4)


def test_from_the_start_of_a_sync_there_is_no_version():
    phase = after("start_sync")
    assert phase.version is None
    assert phase.start_sync() is True, "the first one was never finished"


@pytest.mark.parametrize(("history", "move"), [(("sleep",), "wake_weights"), (("sleep", "wake_weights"), "wake_cache")])
def test_where_there_was_no_room_nothing_is_awake(history, move):
    phase = after(*history)
    before = phase.memory
    with pytest.raises(MemoryError), getattr(phase, move)():
        raise MemoryError
    assert phase.memory is before
    ACTIONS[move](phase)


def test_running_requests_keep_a_replica_awake():
    phase = ReplicaPhase(4, requests=2)
    with pytest.raises(PhaseError, match="2 requests running; end them first"):
        phase.sleep()


@pytest.mark.parametrize(
    ("history", "action", "message"),
    [
        (("sleep",), "serve", "the replica is asleep; wake it before sampling"),
        (("sleep", "wake_weights"), "serve", "awake, but for its KV cache; wake it before sampling"),
        (("start_sync",), "serve", "sync again before sampling"),
        (("sleep",), "start_sync", "wake its weights first"),
        (("sleep",), "wake_cache", "its weights come first"),
        (("start_sync",), "sleep", "finish or repeat the sync first"),
        (("sleep", "wake_weights", "start_sync"), "wake_cache", "the learner is still there"),
    ],
)
def test_a_refusal_names_the_mend(history, action, message):
    with pytest.raises(ReplicaError, match=message):
        ACTIONS[action](after(*history))


def test_adapters_do_not_make_a_mixture_of_whole_weights_good():
    phase = after("start_sync")
    with pytest.raises(PhaseError, match="a sync of whole weights did not complete; repeat that first"):
        phase.start_sync(whole=False)
    assert phase.version is None
    phase.start_sync()
    phase.finish_sync(6)
    phase.start_sync(whole=False)
    assert phase.start_sync(whole=False) is True, "adapters that failed are mended by adapters"
    phase.finish_sync(7)
    assert phase == ReplicaPhase(7)
