"""vLLM's own NCCL engines, both ends, with our proof around them; only the wire is not a GPU's.

A broadcast is a queue here, and streams of the GPU are none. What packs, unpacks, calls and checks is vLLM's own code,
and ours in between. On GPUs: tests/gpu.
"""

import contextlib
import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainer.serving.buckets import TensorRecord, WeightSyncError, digest, manifest
from trainer.serving.config import ServingConfig
from trainer.serving.transports import TRANSPORTS

DEADLINE = 60


class Wire:
    """A communicator of two ranks."""

    def __init__(self) -> None:
        self._queue: queue.Queue[torch.Tensor] = queue.Queue()
        self.sending = False
        self.broadcasts = 0
        self.tamper = False

    def end(self, sending: bool) -> Any:
        def broadcast(tensor: torch.Tensor, src: int, stream: Any = None) -> None:
            if sending:
                self.broadcasts += 1
                sent = tensor.clone()
                if self.tamper and self.broadcasts == 2:
                    sent[3] ^= 1
                self._queue.put(sent)
            else:
                tensor.copy_(self._queue.get(timeout=DEADLINE))

        return SimpleNamespace(broadcast=broadcast, destroy=lambda: None)

    def is_idle(self) -> bool:
        return self._queue.empty()


class Model(nn.Module):
    """What an engine serves: plain layers, loaded by name."""

    packed_modules_mapping: dict[str, list[str]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 300, bias=False)
        self.third = nn.Linear(8, 300, bias=False)

    def load_weights(self, weights: Any) -> None:
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            parameter = parameters[name]
            loader = getattr(parameter, "weight_loader", lambda param, loaded: param.data.copy_(loaded))
            loader(parameter, tensor)


class Source:
    """The learner's weights."""

    def __init__(self, model: nn.Module) -> None:
        self.tensors = {name: p.detach() for name, p in model.named_parameters()}

    @property
    def largest_bytes(self) -> int:
        return max(t.nbytes for t in self.tensors.values())

    def metadata(self) -> list[Any]:
        return [SimpleNamespace(name=n, dtype=t.dtype, shape=tuple(t.shape)) for n, t in self.tensors.items()]

    def __iter__(self) -> Any:
        return iter(self.tensors.items())


class Worker:
    """The replica's calls on its engine, in a process of their own otherwise."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __len__(self) -> int:
        return 1

    def init_transfer(self, infos: list[dict[str, Any]]) -> None:
        self.info = infos[0]
        self.engine.init_transfer_engine(self.engine.parse_init_info(infos[0]))

    def start_sync(self) -> None:
        self.engine.start_weight_update()

    def receive_bucket(self, bucket: dict[str, Any]) -> Callable[[], object]:
        # not update_weights, which only waits for the GPU in addition
        return lambda: self.engine.receive_weights(self.engine.parse_update_info(bucket))

    def finish_sync(self, version: int, sent: dict[str, str]) -> list[str]:
        self.engine.finish_weight_update()
        return [self.engine.verified_fingerprint(sent)]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Any:
    from vllm.distributed.weight_transfer import nccl_engine, packed_tensor
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    from trainer.serving import transports
    from trainer.serving.gpu_engines import VerifiedNccl

    wire, stream = Wire(), SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(packed_tensor, "_get_streams", lambda device, count: (stream,) * count)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(nccl_engine, "worker_init_process_group", lambda info, parallel: wire.end(sending=False))
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: wire.end(sending=True))
    monkeypatch.setattr(transports, "_own_address", lambda: "127.0.0.1")
    served = Model()
    record_metadata_for_reloading(served)
    engine = VerifiedNccl(
        SimpleNamespace(backend="testgrad_nccl"),
        SimpleNamespace(
            parallel_config=SimpleNamespace(tensor_parallel_size=1), model_config=SimpleNamespace(dtype=torch.float32)
        ),
        torch.device("cpu"),
        served,
    )
    link = TRANSPORTS["nccl"](0, ServingConfig(bucket_mib=1))
    # the largest tensor is then what is packed at least: the last layer comes in a portion of its own
    link.bucket_bytes = 0
    return SimpleNamespace(wire=wire, served=served, worker=Worker(engine), link=link)


def test_weights_arrive_and_are_confirmed_over_one_connection(ends: Any) -> None:
    for version in (1, 2):
        trained = Model()
        confirmed = ends.link.send(Source(trained), ends.worker, version)
        for (name, mine), (_, theirs) in zip(trained.named_parameters(), ends.served.named_parameters(), strict=True):
            assert torch.equal(mine, theirs), name
        assert confirmed == digest(manifest(TensorRecord.of(n, p) for n, p in trained.named_parameters()))
    assert ends.wire.broadcasts == 4
    assert (ends.worker.info["rank_offset"], ends.worker.info["world_size"]) == (1, 2)
    ends.link.close()


def test_a_bit_that_changes_on_the_wire_is_named(ends: Any) -> None:
    ends.wire.tamper = True
    with pytest.raises(WeightSyncError, match=r"third\.weight: the learner sent .*, the replica received"):
        ends.link.send(Source(Model()), ends.worker, 1)
    ends.wire.tamper = False
    ends.link.send(Source(Model()), ends.worker, 2)


@pytest.mark.parametrize("fails_at", ["first.weight", "third.weight"])
def test_an_engine_that_fails_takes_the_rest_of_the_transfer(
    ends: Any, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """Else the learner would wait in the next broadcast, for good, and nobody would know why."""
    load = ends.served.load_weights

    def fail(weights: Any) -> None:
        load(weights)
        if any(name == fails_at for name, _ in weights):
            raise MemoryError("no room to load into")

    with monkeypatch.context() as patch:
        patch.setattr(ends.served, "load_weights", fail, raising=False)
        with pytest.raises(MemoryError, match="no room to load into"):
            ends.link.send(Source(Model()), ends.worker, 1)
    assert ends.wire.broadcasts == 2 and ends.wire.is_idle()
    trained = Model()
    ends.link.send(Source(trained), ends.worker, 2)
    for (name, mine), (_, theirs) in zip(trained.named_parameters(), ends.served.named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def test_a_tensor_that_is_left_out_is_named(ends: Any) -> None:
    source = Source(Model())
    del source.tensors["first.bias"]
    with pytest.raises(WeightSyncError, match=r"missing \['first\.bias'\]"):
        ends.link.send(source, ends.worker, 1)


def test_every_engine_of_vllms_that_we_use_is_ours_with_proof() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    from trainer.serving import extension
    from trainer.serving.verified import Verified

    bases = {"testgrad_ipc": IPCWeightTransferEngine, "testgrad_nccl": NCCLWeightTransferEngine}
    for transport in TRANSPORTS.values():
        engine = WeightTransferEngineFactory._registry[transport.backend]()
        assert transport.backend in extension.ENGINES and issubclass(engine, Verified)
        assert issubclass(engine, bases.get(transport.backend, object))


def test_handles_of_gpu_memory_pass_between_vllms_processes() -> None:
    """Which serialise plain values only, and handles are not."""
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from trainer.serving.gpu_engines import VerifiedIpc
    from trainer.serving.transports import SyncClient

    handles = {"GPU-0": (torch.Tensor, torch.Size([3]), torch.UntypedStorage, torch.uint8, b"handle")}
    update = {"names": ["a"], "dtype_names": ["uint8"], "shapes": [[3]], "ipc_handles": handles, "tensor_sizes": [3]}
    with pytest.raises(TypeError, match="not serializable"):
        MsgpackEncoder().encode(update)
    sent: list[Any] = []
    replicas = SimpleNamespace(receive_bucket=lambda bucket: lambda: sent.append(bucket))
    SyncClient(replicas, 1).update_weights(update)  # type: ignore[arg-type]
    received = MsgpackDecoder().decode(MsgpackEncoder().encode(sent[0]))
    engine = VerifiedIpc.__new__(VerifiedIpc)
    assert engine.parse_update_info(received).ipc_handles == handles
