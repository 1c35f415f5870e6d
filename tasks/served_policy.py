"""Who answers a round's trials: the run's replicas, or an endpoint that somebody else serves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from harness.endpoint import Endpoint, EndpointConfig, open_endpoint
from harness.proxy.codec import ChatCodec
from harness.proxy.tool_calls import ToolReader
from harness.trial import TrialResult
from tasks.run import RunRef
from trainer.serving.config import ServingConfig
from trainer.serving.pool import ReplicaPool


@dataclass(frozen=True)
class Served:
    """The policy of a round's trials, with what turns messages into its tokens and back."""

    policy: ReplicaPool | Endpoint
    codec: ChatCodec
    tools: ToolReader
    window: int


@asynccontextmanager
async def served_policy(
    run: RunRef, model: Path, serving: ServingConfig, endpoint: EndpointConfig | None
) -> AsyncIterator[Served]:
    """The run's replicas, or the endpoint."""
    parsers = serving.tool_call_parser, serving.reasoning_parser
    if endpoint is None:
        policy = await ReplicaPool.attach_serving(run.name, serving.admission)
        codec, tools = await asyncio.to_thread(_voices, model, *parsers)
        yield Served(policy, codec, tools, serving.window)
        return
    async with open_endpoint(endpoint, *parsers) as opened:
        yield Served(opened, opened.codec, opened.tools, opened.window)


def as_told(result: TrialResult, endpoint: Endpoint) -> None:
    """Of a trial behind an endpoint, add what the endpoint counted, and take away the records that are no tokens."""
    if (usage := endpoint.usage.pop(result.spec.session_id, None)) is not None:
        result.counters |= usage.counters()
    if not endpoint.has_tokens:
        result.rollouts = []
        result.counters["tokens_unknown"] = 1


@lru_cache(maxsize=4)
def _voices(model: Path, tool_call_parser: str | None, reasoning_parser: str | None) -> tuple[ChatCodec, ToolReader]:
    """What turns messages into the model's tokens and back, and what reads tool calls out of them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return ChatCodec(tokenizer), ToolReader(tokenizer, tool_call_parser, reasoning_parser)
