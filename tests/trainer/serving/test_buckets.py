"""Weights in shared memory: what is read is what was written, or an error."""

import pytest
import torch

from trainer.serving.buckets import (
    ALIGNMENT,
    SharedBuffer,
    TensorRecord,
    WeightSyncError,
    fill_buckets,
    fingerprint,
    read_bucket,
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


def received(buffer, bucket):
    return list(read_bucket(buffer.path, buffer.size, record_fields(bucket)))


def test_round_trip_keeps_names_types_shapes_and_values(buffer):
    found, buckets = {}, 0
    for bucket in fill_buckets(TENSORS, buffer):
        buckets += 1
        found |= {record.name: tensor for record, tensor in received(buffer, bucket)}
    assert buckets > 1, "the test needs a buffer that is reused"
    assert list(found) == [name for name, _ in TENSORS]
    for name, tensor in TENSORS:
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_tensors_outlive_the_reuse_of_the_buffer(buffer):
    earlier = []
    for bucket in fill_buckets(TENSORS, buffer):
        earlier += [tensor for _, tensor in received(buffer, bucket)]
    for have, (_, want) in zip(earlier, TENSORS, strict=True):
        assert torch.equal(have, want)


def test_tensors_are_aligned_and_do_not_overlap(buffer):
    for bucket in fill_buckets(TENSORS, buffer):
        end = 0
        for record in bucket:
            assert record.offset % ALIGNMENT == 0 and record.offset >= end
            end = record.offset + record.nbytes
        assert end <= buffer.size


def test_a_changed_byte_is_noticed(buffer):
    (bucket,) = fill_buckets(TENSORS[:1], buffer)
    buffer.write(bucket[0].offset + 17, memoryview(b"\x55"))
    with pytest.raises(WeightSyncError, match=r"a\.weight: received bytes have another checksum"):
        received(buffer, bucket)


def test_a_tensor_larger_than_the_buffer_is_refused(buffer):
    with pytest.raises(WeightSyncError, match=r"big has 260 bytes, the sync buffer 256; raise serving.bucket_mib"):
        list(fill_buckets([("big", torch.zeros(65))], buffer))


def test_a_tensor_of_exactly_the_buffers_size_fits(buffer):
    (bucket,) = fill_buckets([("just", torch.ones(64))], buffer)
    assert received(buffer, bucket)[0][1].sum() == 64


def test_fingerprint_is_of_the_set_of_tensors(buffer):
    records = [TensorRecord.of(name, tensor) for name, tensor in TENSORS]
    placed = [record for bucket in fill_buckets(TENSORS[::-1], buffer) for record in bucket]
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
    with pytest.raises(OSError):
        list(read_bucket(path, 64, []))
