"""Subflows that are called for some labels only, and that a retry must tell apart all the same."""

import copy
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from prefect import Flow

P = ParamSpec("P")
R = TypeVar("R")


def for_label(subflow: "Flow[P, Coroutine[Any, Any, R]]", label: str) -> "Flow[P, Coroutine[Any, Any, R]]":
    """The subflow of one step or evaluation.

    Prefect knows a subflow by its function's name and code, and by how many of these its parent has called before. A
    retry that leaves out finished ones calls the next as the first, and would be handed that one's result. So each
    gets a function with a name of its own.
    """
    body: Callable[P, Coroutine[Any, Any, R]] = subflow.fn

    @functools.wraps(body)
    async def one(*args: P.args, **kwargs: P.kwargs) -> R:
        return await body(*args, **kwargs)

    one.__qualname__ = f"{body.__name__}_{label}"
    labelled = copy.copy(subflow)
    labelled.fn = one
    return labelled
