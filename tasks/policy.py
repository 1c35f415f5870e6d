"""How Prefect treats our tasks: cached by run, round and task; infrastructure is retried, bad input is not."""

from typing import Any

from prefect.cache_policies import CacheKeyFnPolicy
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.tasks import exponential_backoff

from trainer.learner.calls import RankFailure

RETRIES = 2

PERMANENT = (ValueError, TypeError, KeyError, AssertionError)
"""What another try cannot mend: bad configuration, data that breaks an invariant, faults of the code."""


def _key(context: TaskRunContext, parameters: dict[str, Any]) -> str | None:
    run, label = parameters["run"], parameters["label"]
    return f"{run.project}/{run.experiment}-{run.nonce}/{label}/{context.task.name}"


async def worth_retrying(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Whether a Prefect task that failed so may succeed on another try."""
    try:
        await state.aresult()
    except PERMANENT:
        return False
    except RankFailure as failure:
        # nobody is left to ask, and the answer would hide why
        return not failure.group_is_lost
    except Exception:
        return True
    return False


def staged(name: str, timeout: float | None = None, retries: int = RETRIES) -> dict[str, Any]:
    """Options of a Prefect task that is one stage of a round; its parameters begin with `run` and `label`.

    A finished stage is not called again by a retry or a later flow run of the same run. What is *true* the journal
    says: each stage finds its own finished work there when it is called all the same.
    """
    return {
        "name": name,
        "task_run_name": f"{name} {{label}}",
        "cache_policy": CacheKeyFnPolicy(cache_key_fn=_key),
        "persist_result": True,
        "result_serializer": "json",
        "retries": retries,
        "retry_delay_seconds": exponential_backoff(2),
        "retry_jitter_factor": 0.3,
        "retry_condition_fn": worth_retrying,
        "timeout_seconds": timeout,
    }
