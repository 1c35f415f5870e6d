"""An endpoint as a policy: asked in chat, or in token ids where the server tells those."""

import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.endpoint.client import EndpointClient, EndpointError, EndpointRefused
from harness.endpoint.config import EndpointConfig
from harness.endpoint.wire import UNKNOWN_LOGPROB, WireCodec, WireReader, conversation_in, encode_answer
from harness.proxy.codec import ChatCodec
from harness.proxy.conversation import ToolCall
from harness.proxy.tool_calls import ToolReader
from trainer.rollout import Generation, Sampling

DEFAULT_WINDOW = 32768
_USUAL_ENDS = ("stop", "length", "tool_calls", "function_call")


@dataclass
class Usage:
    """Tokens by the endpoint's own count: of prompts, summed over requests, and of answers."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    requests: int = 0

    def counters(self) -> dict[str, int]:
        return {
            "endpoint_prompt_tokens": self.prompt_tokens,
            "endpoint_completion_tokens": self.completion_tokens,
            "endpoint_requests": self.requests,
        }


@dataclass
class Endpoint:
    """A policy (`trainer.rollout.Policy`) and what turns messages into its ids and back.

    `has_tokens`: whether its ids are the model's own. If not, nothing that comes of them can be trained on. `is_vllm`:
    whether it says of itself that it is vLLM's.
    """

    config: EndpointConfig
    client: EndpointClient
    codec: ChatCodec
    tools: ToolReader
    window: int
    has_tokens: bool
    is_vllm: bool = False
    usage: dict[str, Usage] = field(default_factory=lambda: defaultdict(Usage))

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        """See `trainer.rollout.Policy`."""
        if self.has_tokens:
            return await self._complete(prompt_ids, sampling, session_id)
        return await self._chat(prompt_ids, sampling, session_id)

    async def require_serving(self) -> None:
        """Raises EndpointError or EndpointRefused unless the endpoint answers a request."""
        prompt = self.codec.encode_prompt([{"role": "user", "content": "Say yes."}])
        await self.generate(prompt, Sampling(temperature=0.0, max_tokens=16), "probe")

    async def _chat(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        messages, tools = conversation_in(prompt_ids)
        body: dict[str, Any] = _sampling(sampling, self.is_vllm) | {
            "model": self.config.model,
            "messages": messages,
            self.config.limit_field: sampling.max_tokens,
        }
        if tools:
            body["tools"] = tools
        answer = await self.client.post("/chat/completions", body)
        choice = _choice(answer)
        self._count(answer, session_id)
        message = choice.get("message") or {}
        text, reasoning = (
            message.get("content") or "",
            message.get("reasoning_content") or message.get("reasoning") or "",
        )
        calls = [_call(call) for call in message.get("tool_calls") or ()]
        ids = encode_answer(str(text), str(reasoning), calls)
        return Generation(ids, [UNKNOWN_LOGPROB] * len(ids), [0] * len(ids), _finish(choice))

    async def _complete(self, prompt_ids: Sequence[int], sampling: Sampling, session_id: str) -> Generation:
        body = _sampling(sampling, is_vllm=True) | {
            "model": self.config.model,
            "prompt": list(prompt_ids),
            "max_tokens": sampling.max_tokens,
            "logprobs": 0,
            # vLLM's own: the ids as they were sampled, the stop string among them
            "return_token_ids": True,
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
        }
        answer = await self.client.post("/completions", body)
        choice = _choice(answer)
        self._count(answer, session_id)
        ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        if not ids or not logprobs or len(ids) != len(logprobs):
            raise EndpointRefused(
                f"{self.config.url}/completions does not tell the ids and log-probs of what it sampled; leave the "
                "tokenizer unset to ask it in chat, without them"
            )
        return Generation(ids, [min(value, 0.0) for value in logprobs], [0] * len(ids), _finish(choice))

    def _count(self, answer: Any, session_id: str) -> None:
        told, usage = answer.get("usage"), self.usage[session_id]
        told = told if isinstance(told, dict) else {}
        usage.prompt_tokens += int(told.get("prompt_tokens") or 0)
        usage.completion_tokens += int(told.get("completion_tokens") or 0)
        usage.requests += 1


@asynccontextmanager
async def open_endpoint(
    config: EndpointConfig, tool_call_parser: str | None = None, reasoning_parser: str | None = None
) -> AsyncIterator[Endpoint]:
    """The endpoint that `config` names, after it was asked which models it serves. Both parsers are for token ids only.

    Raises:
        EndpointRefused: wrong key, address, or a model that it does not list.
        EndpointError: it does not answer.
    """
    client = EndpointClient(config)
    try:
        window, is_vllm = await _listed(config, client)
        if config.tokenizer is None:
            yield Endpoint(config, client, WireCodec(), WireReader(), window, has_tokens=False, is_vllm=is_vllm)
        else:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(config.tokenizer.expanduser())
            reader = ToolReader(tokenizer, tool_call_parser, reasoning_parser)
            yield Endpoint(config, client, ChatCodec(tokenizer), reader, window, has_tokens=True)
    finally:
        await client.close()


async def _listed(config: EndpointConfig, client: EndpointClient) -> tuple[int, bool]:
    """The model's context length, and whether vLLM serves it. Not every server lists its models: one that has no list
    is believed.
    """
    try:
        listed = await client.get("/models")
    except EndpointRefused:
        if config.window is None:
            raise
        return config.window, False
    entries = listed.get("data") if isinstance(listed, dict) else None
    models = {str(entry.get("id")): entry for entry in entries or () if isinstance(entry, dict)}
    if models and config.model not in models:
        raise EndpointRefused(
            f"{config.url} serves no model {config.model!r}; it lists {', '.join(sorted(models)[:10])}"
        )
    entry = models.get(config.model, {})
    told = entry.get("max_model_len")
    return config.window or (int(told) if told else DEFAULT_WINDOW), entry.get("owned_by") == "vllm"


_PLAIN = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""What leaves the distribution as it is. vLLM takes what a request leaves out from the model's generation config."""


def _sampling(sampling: Sampling, is_vllm: bool) -> dict[str, Any]:
    """What both APIs call the same. A nucleus of 1 is told to vLLM alone: other servers take one of the two only."""
    body: dict[str, Any] = {"temperature": sampling.temperature}
    if sampling.top_p < 1 or is_vllm:
        body["top_p"] = sampling.top_p
    if is_vllm:
        body |= _PLAIN
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    return body


def _choice(answer: Any) -> dict[str, Any]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not choices or not isinstance(choices[0], dict):
        raise EndpointError(f"the endpoint answered without a choice: {str(answer)[:200]}")
    return choices[0]


def _call(call: dict[str, Any]) -> ToolCall:
    """A tool call under an id of our own: servers exist that name each answer's first call alike."""
    function = call.get("function") or {}
    given = function.get("arguments")
    arguments = given if isinstance(given, str) else "{}"
    return ToolCall(id=f"call_{secrets.token_hex(12)}", name=str(function.get("name") or ""), arguments=arguments)


def _finish(choice: dict[str, Any]) -> Literal["stop", "length"]:
    reason = choice.get("finish_reason")
    if reason not in _USUAL_ENDS:
        raise EndpointError(f"the endpoint ended an answer with finish_reason {reason!r}")
    return "length" if reason == "length" else "stop"
