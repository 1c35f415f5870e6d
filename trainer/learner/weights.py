"""Whole tensors out of ZeRO-3 shards, a bucket at a time, under the names that a checkpoint of the model has."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from trainer.learner.layout import Recipe, checkpoint_layout


@dataclass(frozen=True)
class TensorMeta:
    """What is known of a tensor before it is gathered."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class WeightSource:
    """The weights of a DeepSpeed engine, or what `layout` makes of them, as replicas are sent them.

    Iteration is a collective: all ranks read it to its end. A tensor is lent, valid until the next is asked for, and
    lies on the engine's device; at most `bucket_bytes` of parameters are gathered at once, or one that is larger. A
    tied parameter is gathered once and comes under all its names, one after the other, as the same tensor.

    vLLM's trainer engines take it for a `WeightSource` of theirs.
    """

    def __init__(
        self, engine: Any, dtype: torch.dtype, bucket_bytes: int, layout: Sequence[Recipe] | None = None
    ) -> None:
        # remove_duplicate=False: an engine may keep its own packed copy of a tied tensor; it must be sent both names
        self._parameters = dict(engine.module.named_parameters(remove_duplicate=False))
        recipes = checkpoint_layout(engine.module, self._parameters) if layout is None else layout
        self._layout = list(_ties_together(recipes, self._parameters))
        self._dtype = dtype
        # what one rank holds in the memory that it computes in is not copied, unless DeepSpeed is asked for it alone
        self._bucket_bytes = sys.maxsize if _is_whole() else bucket_bytes

    def metadata(self) -> list[TensorMeta]:
        """Name, type and shape of all tensors in the order of iteration, without a collective."""
        return self._metadata

    @property
    def largest_bytes(self) -> int:
        """Size of the largest tensor."""
        return max(meta.nbytes for meta in self._metadata)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        import deepspeed

        for bucket in _buckets(self._layout, self._parameters, self._bucket_bytes):
            needed = [self._parameters[name] for recipe in bucket for name in recipe.sources]
            # by object: a tied parameter is there under several names
            with deepspeed.zero.GatheredParameters(list(dict.fromkeys(needed)), modifier_rank=None):
                yield from self._made(bucket)

    def _made(self, bucket: Iterable[Recipe]) -> Iterator[tuple[str, torch.Tensor]]:
        made = cast = None
        for recipe in bucket:
            with torch.no_grad():
                named = list(recipe.make([self._parameters[source] for source in recipe.sources]))
            for name, tensor in named:
                if tensor is not made or cast is None:
                    made, cast = tensor, tensor.detach().to(self._dtype)
                yield name, cast

    @cached_property
    def _metadata(self) -> list[TensorMeta]:
        def whole(name: str) -> torch.Tensor:
            return torch.empty(_shape(self._parameters[name]), device="meta")

        return [
            TensorMeta(name, self._dtype, tuple(tensor.shape))
            for recipe in self._layout
            for name, tensor in recipe.make([whole(source) for source in recipe.sources])
        ]


def full_tensors(
    engine: Any, dtype: torch.dtype, bucket_bytes: int, layout: Sequence[Recipe] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a `WeightSource` as a copy in host memory, to be kept. A collective, as that is."""
    for name, tensor in WeightSource(engine, dtype, bucket_bytes, layout):
        yield name, tensor.to("cpu", copy=True)


def _ties_together(recipes: Sequence[Recipe], parameters: dict[str, torch.nn.Parameter]) -> Iterator[Recipe]:
    """The recipes in their order, but those that need the very same parameters one after the other."""
    tied: dict[tuple[torch.nn.Parameter, ...], list[Recipe]] = {}
    for recipe in recipes:
        tied.setdefault(tuple(parameters[name] for name in recipe.sources), []).append(recipe)
    for group in tied.values():
        yield from group


def _buckets(
    layout: Iterable[Recipe], parameters: dict[str, torch.nn.Parameter], bucket_bytes: int
) -> Iterator[list[Recipe]]:
    bucket: list[Recipe] = []
    gathered: set[torch.nn.Parameter] = set()
    size = 0
    for recipe in layout:
        new = {parameters[name] for name in recipe.sources} - gathered
        nbytes = sum(_shape(parameter).numel() * parameter.element_size() for parameter in new)
        if bucket and nbytes and size + nbytes > bucket_bytes:
            yield bucket
            bucket, gathered, size = [], set(), 0
            new = {parameters[name] for name in recipe.sources}
            nbytes = sum(_shape(parameter).numel() * parameter.element_size() for parameter in new)
        bucket.append(recipe)
        gathered |= new
        size += nbytes
    if bucket:
        yield bucket


def _is_whole() -> bool:
    import torch.distributed as dist

    # on a GPU, parameters may have been left in host memory
    return dist.is_initialized() and dist.get_world_size() == 1 and not torch.cuda.is_available()


def _shape(parameter: torch.nn.Parameter) -> torch.Size:
    """Of the whole parameter: a rank holds a part of it, which says nothing of the shape."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))
