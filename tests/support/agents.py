"""Agents that talk to a capture in every way that real ones do, and a ledger of what they were shown and told.

The ledger is the specification, spelled out as plainly as possible: a request builds on the longest captured
conversation that it begins with. What the capture does is compared with it after every request.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.proxy.capture import Capture, Request
from harness.proxy.codec import ChatCodec, CodecError
from trainer.rollout import NO_VERSION, Generation, Outcome

TOOLS = [
    {
        "name": name,
        "description": f"to {name}",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for name in ("read", "write", "run")
]
TOOL_LISTS: list[list[dict[str, Any]]] = [[], TOOLS[:2], TOOLS, TOOLS[2:]]


class WitnessTokenizer:
    """A tokenizer that keeps the texts it was asked to encode."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.encoded: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **options: Any) -> Any:
        self.encoded.append(text)
        return self._tokenizer.encode(text, **options)


@dataclass(eq=False)
class Told:
    """An answer as it was sampled: what was shown for it, and the keys of the conversation that it ends."""

    serial: int
    keys: tuple[Any, ...]
    tools: int
    prompt: list[int]
    generation: Generation
    is_tip: bool = True
    """No later turn has extended its segment."""

    @property
    def captured(self) -> list[int]:
        return [*self.prompt, *self.generation.token_ids]


@dataclass
class Entry:
    """A message in an agent's history. `key` stands for what it says; an agent may spell it differently."""

    message: dict[str, Any]
    key: Any


@dataclass
class Agent:
    """One conversation of an agent, as the agent holds it."""

    tools: int
    history: list[Entry]
    spare: list[Entry] = field(default_factory=list)
    """The answer to a request that is sent once more."""

    @property
    def owed(self) -> list[dict[str, Any]]:
        """Calls of the newest answer, whose results come next."""
        last = self.history[-1].message if self.history else {}
        return list(last.get("tool_calls", [])) if last.get("role") == "assistant" else []


@dataclass
class World:
    """All agents of a session in front of its capture."""

    tokenizer: WitnessTokenizer
    codec: ChatCodec
    with_tools: bool = True
    agents: list[Agent] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        self.capture = Capture(self.codec)

    def ask(self, agent: Agent, answer: "Answer") -> Entry | None:
        """Send the agent's history; the answer as an entry of it, or None if the template refuses the history."""
        keys = tuple(entry.key for entry in agent.history)
        known = max((t for t in self.told if t.keys == keys[: len(t.keys)]), key=lambda t: len(t.keys), default=None)
        # with other tools the head is rendered anew, and all that was sampled is kept
        found = known if known is not None and known.tools == agent.tools else None
        new = [entry.message for entry in agent.history[len(known.keys) if known else 0 :]]
        segments = len(self.capture.segments)
        self.tokenizer.encoded.clear()
        request = Request([dict(m) for m in (e.message for e in agent.history)], TOOL_LISTS[agent.tools])
        try:
            turn = self.capture.begin_turn(request)
        except CodecError:
            # Some templates refuse what was never theirs: calls in parallel, answers that another model gave.
            assert any(message["role"] == "assistant" for message in new), f"refused although {new} is all that is new"
            self.refused += 1
            return None
        prompt = list(turn.prompt)
        self._check_prompt(prompt, found, known, new)
        serial = len(self.told)
        generation, message = answer.speak(self, serial, TOOL_LISTS[agent.tools])
        self.capture.end_turn(turn, generation, dict(message))
        assert len(self.capture.segments) == segments + (found is None or not found.is_tip)
        if found is not None:
            found.is_tip = False
        key = ("assistant", serial)
        self.told.append(Told(serial, (*keys, key), agent.tools, prompt, generation))
        return Entry(message, key)

    def _check_prompt(
        self, prompt: list[int], found: Told | None, known: Told | None, new: Sequence[dict[str, Any]]
    ) -> None:
        if found is not None:
            assert prompt[: len(found.captured)] == found.captured, "the prompt does not begin with what was captured"
        if known is None:
            return
        at = 0
        for told in self._on_the_way_to(known):
            ids = list(told.generation.token_ids)
            at = _find(prompt, ids, at)
            assert at >= 0, f"answer {told.serial} is not in the prompt as it was sampled"
            at += len(ids)
            assert not any(mark(told.serial) in text for text in self.tokenizer.encoded), "an answer was encoded again"
        shown = self.tokenizer.decode(prompt[at:])
        for message in new:
            if message["role"] == "user":
                assert message["content"].strip() in shown, "what the user said is not in the prompt"

    def _on_the_way_to(self, last: Told) -> list[Told]:
        return [told for told in self.told if told.keys == last.keys[: len(told.keys)]]

    def check(self) -> None:
        """The masked-in ids of all segments are the sampled ones, each once, with what they were sampled with."""
        rollouts = self.capture.rollouts(
            "all", session_id="s", task_id="t", group_id="g", step=1, outcome=Outcome.COMPLETED
        )
        found = []
        for segment, rollout in zip(self.capture.segments, rollouts, strict=True):
            trained = [i for i, m in enumerate(rollout.loss_mask) if m]
            assert trained == [i for turn in segment.turns for i in range(turn.answer_start, turn.answer_end)]
            assert all(
                math.isnan(rollout.logprobs[i]) and rollout.weight_versions[i] == NO_VERSION
                for i in range(len(rollout.token_ids))
                if not rollout.loss_mask[i]
            )
            for turn in segment.turns:
                answer = slice(turn.answer_start, turn.answer_end)
                found.append(
                    (
                        list(rollout.token_ids[: turn.answer_start]),
                        list(rollout.token_ids[answer]),
                        list(rollout.logprobs[answer]),
                        list(rollout.weight_versions[answer]),
                    )
                )
        sampled = [
            (t.prompt, list(t.generation.token_ids), list(t.generation.logprobs), list(t.generation.weight_versions))
            for t in self.told
        ]
        assert sorted(found) == sorted(sampled)


@dataclass(frozen=True)
class Answer:
    """What the policy says next: `text`, perhaps thoughts and calls of tools, and `noise`, ids that are no text."""

    text: str = "ok"
    thinks: bool = False
    calls: int = 0
    spelled: bool = False
    noise: tuple[int, ...] = ()
    end: str = "eos"
    version: int = 0

    def speak(self, world: World, serial: int, tools: Sequence[dict[str, Any]]) -> tuple[Generation, dict[str, Any]]:
        """The answer as it is sampled, and as the client is told it. Every answer holds a mark of its own."""
        tokenizer = world.tokenizer
        text = f"{self.text} {mark(serial)}"
        thoughts = f"<think>\nhm {mark(serial)}\n</think>\n\n" if self.thinks else ""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thoughts:
            message["reasoning"] = f"hm {mark(serial)}"
        said = thoughts + text
        if self.calls and tools:
            message["content"] = text if self.calls % 2 else ""
            said = thoughts + message["content"]
            calls = []
            for i in range(self.calls):
                name, arguments = tools[i % len(tools)]["name"], {"path": f"{mark(serial)}{i}", "n": i}
                calls.append({"id": f"call_{serial:04d}{i:020d}", "name": name, "arguments": json.dumps(arguments)})
                said += f"\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
            message["tool_calls"] = calls
        ids = list(world.tokenizer._tokenizer.encode(said, add_special_tokens=False))
        if self.spelled:  # the same text in other tokens than the tokenizer would choose
            ids = [i for c in said.encode() for i in tokenizer.encode(bytes([c]).decode("latin-1"))[:1]]
        ids += [i for i in self.noise if i < 256]
        if self.end == "eos":
            ids.append(tokenizer.eos_token_id)
        n = len(ids)
        logprobs = [-(1 + i + 100 * serial) / 65536 for i in range(n)]  # exact in float32, and each one's own
        return Generation(ids, logprobs, [self.version] * n, "length" if self.end == "length" else "stop"), message


def mark(serial: int) -> str:
    """What tells an answer's text from all others."""
    return f"@{serial}@"


def _find(ids: list[int], part: list[int], start: int) -> int:
    return next((i for i in range(start, len(ids) - len(part) + 1) if ids[i : i + len(part)] == part), -1)


def tool_result(call: dict[str, Any], text: str) -> Entry:
    """What a tool returned."""
    message = {"role": "tool", "content": text, "tool_call_id": call["id"], "name": call["name"]}
    return Entry(message, ("tool", call["id"], text.strip()))


def user(text: str) -> Entry:
    """What the user said."""
    return Entry({"role": "user", "content": text}, ("user", text.strip()))


def system(text: str) -> Entry:
    """What the agent is told to be."""
    return Entry({"role": "system", "content": text}, ("system", text.strip()))


def respelled(entry: Entry, how: int) -> Entry:
    """The same message as another client would send it back: trimmed, without thoughts, with arguments printed anew."""
    message = dict(entry.message)
    if message["role"] == "assistant":
        if how & 1:
            message.pop("reasoning", None)
        if how & 2 and "tool_calls" in message:
            message["tool_calls"] = [
                call
                | {"arguments": json.dumps(json.loads(call["arguments"]), indent=1, sort_keys=True), "name": "Renamed"}
                for call in message["tool_calls"]
            ]
        if how & 4:
            message["content"] = f"\n {message['content'].strip()}  "
    elif how & 4:
        message["content"] = f"{message['content'].strip()}\n"
    return Entry(message, entry.key)
