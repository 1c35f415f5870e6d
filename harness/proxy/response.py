"""Answers in exactly the shape that OpenAI clients expect, built with OpenAI's own types.

Those take about a second to import; the server imports this module when it starts, never while it serves.
"""

import time
import uuid
from typing import Any

from openai.types import CompletionUsage, Model
from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionTokenLogprob
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs

from harness.proxy.codec import ChatCodec
from trainer.rollout import Generation

MODEL_ID = "policy"


def completion(
    generation: Generation, text: str, prompt_tokens: int, *, codec: ChatCodec, with_logprobs: bool
) -> dict[str, Any]:
    """A `chat.completion` object for one finished generation."""
    sampled = len(generation.token_ids)
    answer = ChatCompletion(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        object="chat.completion",
        created=int(time.time()),
        model=MODEL_ID,
        choices=[
            Choice(
                index=0,
                finish_reason="length" if generation.finish_reason == "length" else "stop",
                message=ChatCompletionMessage(role="assistant", content=text),
                logprobs=_logprobs(generation, codec) if with_logprobs else None,
            )
        ],
        usage=CompletionUsage(
            prompt_tokens=prompt_tokens, completion_tokens=sampled, total_tokens=prompt_tokens + sampled
        ),
    )
    return answer.model_dump(mode="json", exclude_unset=True)


def models() -> dict[str, Any]:
    """The list of models: the policy alone."""
    policy = Model(id=MODEL_ID, object="model", created=0, owned_by="testgrad")
    return {"object": "list", "data": [policy.model_dump(mode="json")]}


def _logprobs(generation: Generation, codec: ChatCodec) -> ChoiceLogprobs:
    content = []
    for token_id, logprob in zip(generation.token_ids, generation.logprobs, strict=True):
        token = codec.decode([token_id])
        content.append(
            ChatCompletionTokenLogprob(
                token=token, bytes=list(token.encode("utf-8", "replace")), logprob=logprob, top_logprobs=[]
            )
        )
    return ChoiceLogprobs(content=content)
