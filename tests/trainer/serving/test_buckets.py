"""Weights in shared memory: what is read is what was written, or an error."""

from concurrent.futures import Future

import pytest
import torch
from support.buckets import read_bucket

from trainer.serving.buckets import (
    ALIGNMENT,
    SharedBuffer,
    SharedReader,
    TensorRecord,
    WeightSyncError,
    fill_buckets,
    fingerprint,
    record_fields,
)

TENSORS = [
    ("a.weight", torch.arange(40, dtype=torch.float32).view(5, 8)),
    ("b.weight", torch.arange(33, dtype=torch.bfloat16)),
    ("c.scale", torch.tensor(2.5)),
    ("d.weight", torch.arange(64, dtype=torch.float32).view(8, 8).T),
    ("e.ids", torch.arange(7)),
]


@pytest.fixture
def buffer():
    shared = SharedBuffer(256)
    yield shared
    shared.close()


def done():
    future = Future()
    future.set_result(None)
    return future


def transfer(tensors, buffer):
    """Every portion, as a replica receives it that copies at once."""
    portions = []

    def send(records):
        portions.append(list(read_bucket(buffer.path, buffer.size, record_fields(records))))
        return done()

    fill_buckets(tensors, buffer, send)
    return portions


def test_round_trip_keeps_names_types_shapes_and_values(buffer):
    portions = transfer(TENSORS, buffer)
    found = {record.name: tensor for portion in portions for record, tensor in portion}
    assert len(portions) > 1, "the test needs a buffer that is reused"
    assert list(found) == [name for name, _ in TENSORS]
    for name, tensor in TENSORS:
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_lent_tensors_may_change_once_the_next_is_asked_for(buffer):
    """As gathered weights do: their memory is taken back."""

    def lent():
        for name, tensor in TENSORS:
            mine = tensor.clone()
            yield name, mine
            mine.zero_()

    found = {record.name: tensor for portion in transfer(lent(), buffer) for record, tensor in portion}
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS)


def test_tensors_are_aligned_and_those_of_a_portion_do_not_overlap(buffer):
    for portion in transfer(TENSORS, buffer):
        end = 0
        for record, _ in portion:
            assert record.offset % ALIGNMENT == 0 and record.offset >= end
            end = record.offset + record.nbytes
        assert end <= buffer.size


def test_nothing_is_overwritten_before_its_reader_is_done(buffer):
    """Readers that look as late as they are allowed to find what was sent."""
    tensors = [(f"t{i}", torch.full((16,), float(i))) for i in range(40)]
    waiting, found = [], {}

    class Late(Future):
        def result(self, timeout=None):
            if not self.done():
                for record, tensor in read_bucket(buffer.path, buffer.size, record_fields(self.records)):
                    found[record.name] = tensor
                self.set_result(None)
            return super().result(timeout)

    def send(records):
        waiting.append(Late())
        waiting[-1].records = records
        return waiting[-1]

    fill_buckets(tensors, buffer, send)
    assert all(late.done() for late in waiting)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {n: t.tolist() for n, t in tensors}


def test_the_next_portion_is_written_while_the_last_is_read(buffer):
    """Two halves: a reader that never ends stops the writer only when it needs the memory again."""
    asked = []

    def stream():
        for i in range(40):
            asked.append(i)
            yield f"t{i}", torch.zeros(16)

    class Blocked(Exception):
        pass

    class Never(Future):
        def result(self, timeout=None):
            raise Blocked

    with pytest.raises(Blocked):
        fill_buckets(stream(), buffer, lambda records: Never())
    assert len(asked) == 5, "four tensors of 64 bytes fill the buffer"


def test_what_a_reader_raises_is_raised(buffer):
    failed = Future()
    failed.set_exception(ConnectionError("lost"))
    with pytest.raises(ConnectionError, match="lost"):
        fill_buckets(TENSORS[:1], buffer, lambda records: failed)


def test_a_tensor_that_comes_again_under_another_name_is_written_once(buffer):
    tied = torch.ones(60)
    (portion,) = transfer([("embed", tied), ("lm_head", tied)], buffer)
    (first, _), (second, there) = portion
    assert (first.name, second.name) == ("embed", "lm_head")
    assert (first.offset, first.checksum) == (second.offset, second.checksum)
    assert torch.equal(there, tied)


def test_a_changed_byte_is_noticed(buffer):
    records = []
    fill_buckets(TENSORS[:1], buffer, lambda portion: records.extend(portion) or done())
    buffer.place(records[0].offset + 17, torch.tensor([0x55], dtype=torch.uint8))
    with pytest.raises(WeightSyncError, match=r"a\.weight: received bytes have another checksum"):
        list(read_bucket(buffer.path, buffer.size, record_fields(records)))


def test_a_reader_cannot_change_what_others_read(buffer):
    records = []
    fill_buckets(TENSORS[:1], buffer, lambda portion: records.extend(portion) or done())
    SharedReader(buffer.path, buffer.size).read(records[0]).zero_()
    assert torch.equal(SharedReader(buffer.path, buffer.size).read(records[0]), TENSORS[0][1])


def test_a_tensor_larger_than_the_buffer_is_refused(buffer):
    with pytest.raises(WeightSyncError, match=r"big has 260 bytes, the sync buffer 256; raise serving.bucket_mib"):
        transfer([("big", torch.zeros(65))], buffer)


def test_a_tensor_of_exactly_the_buffers_size_fits(buffer):
    ((_, tensor),) = transfer([("just", torch.ones(64))], buffer)[0]
    assert tensor.sum() == 64


def test_fingerprint_is_of_the_set_of_tensors(buffer):
    records = [TensorRecord.of(name, tensor) for name, tensor in TENSORS]
    placed = [record for portion in transfer(TENSORS[::-1], buffer) for record, _ in portion]
    assert fingerprint(records) == fingerprint(placed) == fingerprint(records[::-1])


@pytest.mark.parametrize(
    "other",
    [
        ("a.bias", torch.ones(2, 2)),
        ("a.weight", torch.ones(4)),
        ("a.weight", torch.ones(2, 2, dtype=torch.int32)),
        ("a.weight", torch.tensor([[1, 1], [1, 1 + 1e-6]])),
    ],
    ids=["name", "shape", "type", "value"],
)
def test_fingerprint_tells_tensors_apart(other):
    assert fingerprint([TensorRecord.of("a.weight", torch.ones(2, 2))]) != fingerprint([TensorRecord.of(*other)])


def test_memory_is_gone_with_the_buffer():
    shared = SharedBuffer(64)
    path = shared.path
    shared.close()
    with pytest.raises(WeightSyncError, match="its process ended in the middle of a sync"):
        SharedReader(path, 64)
