"""The learner's end of a sync: order, verification, and collectives that are read to their end."""

from contextlib import closing
from threading import Event

import pytest
import torch
from support.buckets import read_bucket

from trainer.serving import sender
from trainer.serving.buckets import SharedBuffer, WeightSyncError, fingerprint, manifest

TENSORS = [(f"layer.{i}.weight", torch.full((8, 4), float(i))) for i in range(6)]
LARGEST = 8 * 4 * 4


class Target:
    """A replica that keeps what it gets. `fails_at` names the call that raises."""

    def __init__(self, fails_at=None, answer=None):
        self.calls, self.tensors, self.records = [], {}, []
        self.fails_at, self.answer = fails_at, answer

    def start_sync(self):
        self._call("start")

    def receive_bucket(self, bucket):
        self._call("bucket")

        def read():
            for record, tensor in read_bucket(bucket["path"], bucket["size"], bucket["records"]):
                self.tensors[record.name] = tensor
                self.records.append(record)

        return read

    def finish_sync(self, version, sent):
        self._call(f"finish {version}")
        self.sent = sent
        return [fingerprint(self.records)] if self.answer is None else self.answer

    def _call(self, name):
        self.calls.append(name)
        if name.split()[0] == self.fails_at:
            raise ConnectionError(f"lost at {name}")


def send_weights(tensors, target, version, size):
    with closing(SharedBuffer(size)) as buffer:
        return sender.send_weights(tensors, target, version, buffer)


def stream(read):
    for name, tensor in TENSORS:
        read.append(name)
        yield name, tensor


def test_every_tensor_arrives_between_start_and_finish():
    target, read = Target(), []
    sent = send_weights(stream(read), target, 7, 2 * LARGEST)
    assert target.calls == ["start", *["bucket"] * 6, "finish 7"]
    assert list(target.tensors) == [name for name, _ in TENSORS]
    assert all(torch.equal(target.tensors[name], tensor) for name, tensor in TENSORS)
    assert sent == fingerprint(target.records)
    assert target.sent == manifest(target.records)


def test_replicas_are_asked_to_read_the_next_portion_while_they_read_one():
    """An engine that is told of it only afterwards stands still for milliseconds each time."""
    asked = [Event() for _ in TENSORS]

    class Slow(Target):
        def receive_bucket(self, bucket):
            read = super().receive_bucket(bucket)
            number = self.calls.count("bucket")
            asked[number - 1].set()

            def wait():
                assert asked[min(number, len(asked) - 1)].wait(10), "nothing more was asked for"
                read()

            return wait

    target = Slow()
    send_weights(iter(TENSORS), target, 7, 2 * LARGEST)
    assert list(target.tensors) == [name for name, _ in TENSORS]


@pytest.mark.parametrize("fails_at", ["start", "bucket", "finish"])
def test_after_a_failure_the_collective_is_still_read_to_its_end(fails_at):
    """The other ranks are gathering along; a rank that stops reading would leave them waiting."""
    read = []
    with pytest.raises(ConnectionError, match=f"lost at {fails_at}"):
        send_weights(stream(read), Target(fails_at), 7, LARGEST)
    assert read == [name for name, _ in TENSORS]


def test_another_fingerprint_raises():
    with pytest.raises(WeightSyncError, match=r"version 7: replicas hold \['f00'\], the learner sent"):
        send_weights(iter(TENSORS), Target(answer=["f00"]), 7, LARGEST)


def test_one_wrong_replica_among_right_ones_raises():
    right = send_weights(iter(TENSORS), Target(), 7, LARGEST)
    with pytest.raises(WeightSyncError):
        send_weights(iter(TENSORS), Target(answer=[right, "f00"]), 7, LARGEST)
    assert send_weights(iter(TENSORS), Target(answer=[right, right]), 7, LARGEST) == right
