"""Whose the engines on a cluster are: for each run's name its folder, kept by the cluster itself.

Engines outlive the flow that started them. By the folder, whoever finds them later sees whether their run still lives.
"""

import json
from dataclasses import asdict, dataclass

_SPACE = b"testgrad"
_PREFIX = "owner/"


@dataclass(frozen=True)
class Owner:
    """A run, by the nonce of its journal, and its folder, as the host sees it on which its flow ran."""

    folder: str
    host: str
    nonce: str


def note_owner(run_name: str, owner: Owner) -> None:
    """From now on the engines of this name are `owner`'s."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(_key(run_name), json.dumps(asdict(owner)).encode(), overwrite=True, namespace=_SPACE)


def owner_of(run_name: str) -> Owner | None:
    """Whose the engines of this name are or were."""
    from ray.experimental.internal_kv import _internal_kv_get

    stored = _internal_kv_get(_key(run_name), namespace=_SPACE)
    return None if stored is None else Owner(**json.loads(stored))


def forget_owner(run_name: str) -> None:
    """The engines of this name are gone."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(_key(run_name), namespace=_SPACE)


def owned_runs() -> list[str]:
    """Names of the runs that have, or had, engines on this cluster."""
    from ray.experimental.internal_kv import _internal_kv_list

    return sorted(key.decode().removeprefix(_PREFIX) for key in _internal_kv_list(_PREFIX.encode(), namespace=_SPACE))


def _key(run_name: str) -> bytes:
    return f"{_PREFIX}{run_name}".encode()
