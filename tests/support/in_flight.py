"""Generations that syncs freeze again and again, and what every one of their tokens should have been sampled with."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby

import torch
from transformers import DynamicCache

from trainer.rollout import Generation, Sampling
from trainer.serving.pool import ReplicaPool

Weights = dict[str, torch.Tensor]


def copy_of(policy: torch.nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in policy.state_dict().items()}


async def sampled_across_syncs(
    pool: ReplicaPool,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    sync: Callable[[], Awaitable[None]],
    syncs: int,
    begun_in_time: bool = False,
) -> list[tuple[Sequence[int], Generation]]:
    """Sample `tokens` tokens to each prompt, over and over until so many syncs are done; with the prompts.

    With `begun_in_time`, without answers to requests that came before a sync and were read after it.
    Now and then a request is cancelled while a sync is under way: engines have died of that.
    """
    finished: list[tuple[Sequence[int], Generation]] = []
    over = asyncio.Event()

    async def ask(prompt: Sequence[int], name: str) -> None:
        while not over.is_set():
            # so long, however the policy changes: its end is forbidden
            sampling = Sampling(max_tokens=tokens, min_tokens=tokens)
            came = await pool.versions()
            answer = await pool.generate(prompt, sampling, name)
            if not begun_in_time or came == [answer.weight_versions[0]]:
                finished.append((prompt, answer))

    async with asyncio.TaskGroup() as asking:
        for i, prompt in enumerate(prompts):
            asking.create_task(ask(prompt, f"session-{i}"))
        for number in range(syncs):
            given_up = asyncio.create_task(pool.generate(prompts[0], Sampling(max_tokens=tokens), "given-up"))
            await asyncio.sleep(0.1)
            changed = asyncio.create_task(sync())
            if number % 4 == 0:
                await asyncio.sleep(0.02)
                given_up.cancel()
            await changed
            given_up.cancel()
            await asyncio.gather(given_up, return_exceptions=True)
        over.set()
    return finished


def differences(
    policy: torch.nn.Module, weights: dict[int, Weights], prompt: Sequence[int], generation: Generation
) -> torch.Tensor:
    """|log-prob told - log-prob under the weights of the token's version, in its whole context|, [tokens].

    Leaves other weights in `policy`.
    """
    ids = torch.tensor([[*prompt, *generation.token_ids]])
    versions = torch.tensor(generation.weight_versions)
    expected = torch.empty(len(versions))
    for version in sorted(set(generation.weight_versions)):
        policy.load_state_dict(weights[version])
        with torch.no_grad():
            logits = policy(ids).logits[0, len(prompt) - 1 : -1]
        expected = torch.where(versions == version, _logprobs(policy, logits, ids[0, len(prompt) :]), expected)
    return (expected - torch.tensor(generation.logprobs)).abs()


def differences_on_kept_kv(
    policy: torch.nn.Module, weights: dict[int, Weights], prompt: Sequence[int], generation: Generation
) -> torch.Tensor:
    """The same, where keys and values stay as the weights computed them under which their tokens were read."""
    ids = torch.tensor([[*prompt, *generation.token_ids]])
    cache, expected, read = DynamicCache(config=policy.config), [], 0
    for version, tokens in groupby(generation.weight_versions):
        policy.load_state_dict(weights[version])
        # a token is sampled by the weights that read the one before it
        count = len(list(tokens))
        end = max(read, len(prompt) - 1) + count
        with torch.no_grad():
            logits = policy(ids[:, read:end], past_key_values=cache).logits[0, -count:]
        expected.append(_logprobs(policy, logits, ids[0, end + 1 - count : end + 1]))
        read = end
    return (torch.cat(expected) - torch.tensor(generation.logprobs)).abs()


def _logprobs(policy: torch.nn.Module, logits: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
    logits[:, policy.config.eos_token_id] = -torch.inf  # as min_tokens has it
    return logits.log_softmax(-1).gather(-1, sampled[:, None])[:, 0]
