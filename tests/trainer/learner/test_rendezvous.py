"""Ranks meet on a port that nobody can have taken, and say who did not come."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainer.learner import rendezvous
from trainer.learner.errors import RendezvousError
from trainer.learner.rendezvous import meet, open_store, reach_store


def test_all_ranks_meet():
    store = open_store("127.0.0.1", 3)

    def come(rank):
        return meet(reach_store("127.0.0.1", store.port, 3) if rank else store, rank, 3)

    with ThreadPoolExecutor() as threads:
        assert list(threads.map(come, range(3))) == [None] * 3


def test_two_groups_on_a_machine_do_not_collide():
    one, other = open_store("127.0.0.1", 1), open_store("127.0.0.1", 1)
    assert one.port != other.port


def test_who_does_not_come_is_named():
    store = open_store("127.0.0.1", 3)
    store.set("here/1", "yes")
    with pytest.raises(RendezvousError, match=r"rank 0 waited 0.1 s in vain for ranks \[2\]"):
        meet(store, 0, 3, seconds=0.1)


def test_nobody_at_the_port(monkeypatch):
    monkeypatch.setattr(rendezvous, "_SECONDS", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RendezvousError, match=f"rank 0 does not answer at 127.0.0.1:{port}"):
        reach_store("127.0.0.1", port, 2)
