"""The choice of a transport, what ranks keep between syncs, and replicas as vLLM's trainer engines see them.

The trainer engine here makes vLLM's calls in vLLM's order; vLLM's own are driven in tests/integration and tests/gpu.
"""

import pickle
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from pydantic import ValidationError
from support.buckets import read_bucket

from trainer.learner.config import LearnerConfig
from trainer.serving import transports
from trainer.serving.buckets import TensorRecord, WeightSyncError, digest, manifest
from trainer.serving.colocated import check_colocation
from trainer.serving.config import ServingConfig
from trainer.serving.transports import TRANSPORTS, Noted, SyncClient, WeightSender, transport_of

TENSORS = [(f"layer.{i}.weight", torch.full((4, 2), float(i))) for i in range(5)]


@pytest.mark.parametrize(
    ("settings", "gpus", "transport"),
    [
        ({}, False, "shared_memory"),
        ({}, True, "nccl"),
        ({"colocated": True}, True, "cuda_ipc"),
        ({"transport": "shared_memory"}, True, "shared_memory"),
    ],
)
def test_auto_is_what_the_devices_call_for(settings, gpus, transport):
    assert transport_of(ServingConfig(**settings), gpus) == transport


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transport": "nccl", "colocated": True}, "cannot connect a learner and a replica on one GPU"),
        ({"transport": "cuda_ipc"}, "set colocated: true"),
        ({"colocated": True, "tensor_parallel": 2}, "set it to 1 and raise replicas"),
    ],
)
def test_combinations_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        ServingConfig(**settings)


@pytest.mark.parametrize(
    ("serving", "learner", "message"),
    [
        ({}, {}, r"learner\.gpus_per_rank is 0: vLLM gives no memory back on CPUs; set serving\.colocated: false"),
        ({"replicas": 3}, {"gpus_per_rank": 1, "ranks": 2}, r"serving\.replicas is 3 and learner\.ranks 2"),
        ({}, {"gpus_per_rank": 1, "zero_stage": 2}, r"learner\.zero_stage is 2; set it to 3"),
    ],
)
def test_replicas_on_the_learners_gpus_need_a_learner_that_leaves_them(serving, learner, message):
    with pytest.raises(ValueError, match=message):
        check_colocation(ServingConfig(colocated=True, **serving), LearnerConfig(**learner))
    check_colocation(ServingConfig(**serving), LearnerConfig(**learner))


class Source:
    largest_bytes = 32

    def __init__(self, tensors=TENSORS):
        self.tensors, self.read = tensors, []

    def metadata(self):
        return [SimpleNamespace(name=name, dtype=t.dtype, shape=tuple(t.shape)) for name, t in self.tensors]

    def __iter__(self):
        for name, tensor in self.tensors:
            self.read.append(name)
            yield name, tensor.clone()


def test_what_is_noted_is_what_went_by():
    noted = Noted(Source())
    for _ in range(2):
        assert [name for name, _ in noted] == [name for name, _ in TENSORS]
    assert noted.manifest() == manifest(TensorRecord.of(name, tensor) for name, tensor in TENSORS)


def test_a_stream_that_was_left_is_read_to_its_end():
    source = Source()
    noted = Noted(source)
    stream = iter(noted)
    next(stream)
    noted.drain()
    assert source.read == [name for name, _ in TENSORS]


class Replicas:
    def __init__(self, count=1, refuses=None):
        self.count, self.infos, self.calls, self.received, self.answer = count, [], [], {}, None
        self.refuses = refuses

    def __len__(self):
        return self.count

    def init_transfer(self, infos):
        if self.refuses == "init":
            raise ConnectionRefusedError("no such device")
        self.infos.append(list(infos))

    def start_sync(self):
        if self.refuses == "start":
            raise ConnectionRefusedError("asleep")
        self.calls.append("start")

    def receive_bucket(self, bucket):
        self.calls.append("update")
        return lambda: self.received.update(bucket)

    def finish_sync(self, version, sent):
        self.calls.append(f"finish {version}")
        self.sent = sent
        return [self.answer or digest(manifest(TensorRecord.of(n, t) for n, t in self.received.items()))] * self.count


def test_each_replica_has_its_own_place_in_the_group():
    replicas = Replicas(3)
    SyncClient(replicas, ranks_per_replica=2).init_weight_transfer_engine({"rank_offset": 1, "world_size": 7})
    assert [info["rank_offset"] for info in replicas.infos[0]] == [1, 3, 5]
    assert {info["world_size"] for info in replicas.infos[0]} == {7}
    SyncClient(replicas, 1).init_weight_transfer_engine({"packed": True})
    assert replicas.infos[1] == [{"packed": True}] * 3


def test_handles_of_gpu_memory_travel_as_bytes():
    """Between vLLM's processes only plain values do."""
    handles = {"GPU-0": (torch.Tensor, torch.Size([3]), torch.uint8, b"handle")}
    replicas, update = Replicas(), {"names": ["a"], "ipc_handles": handles}
    SyncClient(replicas, 1).update_weights(update)
    assert replicas.received["names"] == ["a"] and pickle.loads(replicas.received["ipc_handles"]) == handles
    assert update["ipc_handles"] is handles


class TrainerEngine:
    """As vLLM's: connects when it is made, streams a source, drives the replicas through the client."""

    made: list["TrainerEngine"] = []

    def __init__(self, info, client, source):
        self.info, self.client, self.source, self.open = info, client, source, True
        with suppress(ConnectionRefusedError):  # it asks in a thread, and waits for who would come
            client.init_weight_transfer_engine({"packed": True})
        if client.refusal is not None:
            raise TimeoutError("after 300 s not all have come")
        TrainerEngine.made.append(self)

    def send_weights(self):
        self.client.start_weight_update()
        received = {}
        for name, tensor in self.source:
            received[name] = tensor
            if name == "broken":
                raise ConnectionError("lost")
        self.client.update_weights(received)
        self.client.finish_weight_update()

    def shutdown(self):
        self.open = False


@pytest.fixture
def engines(monkeypatch):
    factory = ModuleType("vllm.distributed.weight_transfer.factory")
    factory.WeightTransferTrainerFactory = SimpleNamespace(
        trainer_init=lambda info, client, source: TrainerEngine(info, client, source)
    )
    monkeypatch.setitem(sys.modules, factory.__name__, factory)
    ipc = ModuleType("vllm.distributed.weight_transfer.ipc_engine")
    ipc.IPCTrainerInitInfo = SimpleNamespace
    monkeypatch.setitem(sys.modules, ipc.__name__, ipc)
    TrainerEngine.made = []
    return TrainerEngine.made


def transport():
    return TRANSPORTS["cuda_ipc"](0, ServingConfig(colocated=True, bucket_mib=1))


def nccl(monkeypatch):
    engine = ModuleType("vllm.distributed.weight_transfer.nccl_engine")
    engine.NCCLTrainerInitInfo = SimpleNamespace
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    monkeypatch.setattr(transports, "_own_address", lambda: "127.0.0.1")
    return TRANSPORTS["nccl"](0, ServingConfig(bucket_mib=1))


def test_a_sync_by_vllms_engine_ends_with_our_version_and_manifest(engines):
    replicas, link = Replicas(), transport()
    confirmed = link.send(Source(), replicas, 5)
    assert replicas.calls == ["start", "update", "finish 5"]
    assert replicas.sent == manifest(TensorRecord.of(name, tensor) for name, tensor in TENSORS)
    assert confirmed == digest(replicas.sent)
    assert engines[0].info.packed_buffer_size_bytes == 2**19, "half a bucket is packed while the other half is gathered"


def test_a_connection_lasts_over_syncs_and_the_next_one_sends_the_new_weights(engines):
    replicas, link = Replicas(), transport()
    first = link.send(Source(), replicas, 1)
    second = link.send(Source([(name, tensor + 1) for name, tensor in TENSORS]), replicas, 2)
    assert len(engines) == 1 and len(replicas.infos) == 1
    assert first != second == digest(replicas.sent)


def test_a_replica_that_holds_something_else_is_not_believed(engines):
    replicas = Replicas()
    replicas.answer = "f00"
    with pytest.raises(WeightSyncError, match=r"version 5: replicas hold \['f00'\]"):
        transport().send(Source(), replicas, 5)


BROKEN = [*TENSORS[:2], ("broken", torch.zeros(1)), *TENSORS[2:]]


def test_after_a_failure_the_source_is_read_to_its_end(engines, monkeypatch):
    source = Source(BROKEN)
    with pytest.raises(ConnectionError):
        nccl(monkeypatch).send(source, Replicas(), 5)
    assert source.read == [name for name, _ in BROKEN]


@pytest.mark.parametrize(("refuses", "message"), [("start", "asleep"), ("init", "no such device")])
def test_replicas_that_refuse_before_the_first_tensor_leave_no_rank_waiting(engines, monkeypatch, refuses, message):
    """The others gather already; and what is told is why, not that vLLM has waited in vain."""
    source = Source()
    with pytest.raises(ConnectionRefusedError, match=message):
        nccl(monkeypatch).send(source, Replicas(refuses=refuses), 5)
    assert source.read == [name for name, _ in TENSORS]


def test_where_ranks_wait_for_each_other_between_portions_none_reads_on(engines):
    """It would wait for them in turn, and never tell what went wrong."""
    source = Source(BROKEN)
    with pytest.raises(ConnectionError):
        transport().send(source, Replicas(), 5)
    assert source.read[-1] == "broken"


def test_a_rank_connects_anew_after_a_failure_or_for_other_replicas(monkeypatch):
    made = []

    class Link(TRANSPORTS["shared_memory"]):
        def __init__(self, rank, config):
            super().__init__(rank, config)
            self.closed = False
            made.append(self)

        def send(self, source, replicas, version):
            if version == 13:
                raise ConnectionError("lost")
            return f"{version}"

        def close(self):
            self.closed = True

    monkeypatch.setitem(TRANSPORTS, "shared_memory", Link)
    sender, config = WeightSender(0), ServingConfig()
    assert [sender.send(Source(), ["a"], version, config, gpus=False) for version in (1, 2)] == ["1", "2"]
    assert len(made) == 1
    with pytest.raises(ConnectionError):
        sender.send(Source(), ["a"], 13, config, gpus=False)
    assert made[0].closed
    sender.send(Source(), ["a"], 3, config, gpus=False)
    sender.send(Source(), ["b"], 4, config, gpus=False)
    assert [link.closed for link in made] == [True, True, False]


def test_ranks_that_do_not_send_read_along():
    source = Source()
    assert WeightSender(1).send(source, ["a"], 1, ServingConfig(), gpus=False) is None
    assert source.read == [name for name, _ in TENSORS]


class Readers(Replicas):
    """Replicas on this machine, which read what lies in the ring."""

    def __init__(self):
        super().__init__()
        self.rings = []

    def receive_bucket(self, bucket):
        self.rings.append((bucket["path"], bucket["size"]))
        records = read_bucket(bucket["path"], bucket["size"], bucket["records"])
        return lambda: self.received.update({record.name: tensor for record, tensor in records})


def test_the_ring_is_kept_between_syncs_until_a_tensor_does_not_fit():
    replicas, link = Readers(), TRANSPORTS["shared_memory"](0, ServingConfig(bucket_mib=1))
    for version in (1, 2):
        assert link.send(Source(), replicas, version) == digest(replicas.sent)
    large = Source([("large", torch.ones(2**19))])
    large.largest_bytes = 2**21
    replicas.received.clear()
    assert link.send(large, replicas, 3) == digest(replicas.sent)
    assert [size for _, size in dict.fromkeys(replicas.rings)] == [2**20, 2**21]
    path, _ = replicas.rings[-1]
    link.close()
    assert not Path(path).exists()
