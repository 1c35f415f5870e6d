"""Finds the captured conversation that a request continues, in time that does not grow with the number of segments."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.proxy.conversation import ChatMessage, Tool
from harness.proxy.segment import Segment


def tools_digest(tools: Sequence[Tool]) -> str:
    """Tells one list of tools from another; "" for none."""
    if not tools:
        return ""
    return hashlib.blake2b(json.dumps(tools, sort_keys=True).encode(), digest_size=16).hexdigest()


Key = tuple[str, ...]
"""What a message is recognised by. Texts as they are: comparing them is cheaper than any digest."""


def message_keys(message: ChatMessage) -> tuple[Key, ...]:
    """What a message is recognised by; two messages are the same if they share one of these.

    Clients trim text before they send it back, drop the thinking, rename tools and print arguments anew. None of that
    makes an answer another one: it is identified by the ids of its calls, else by its text and calls.
    """
    role, text = message["role"], message["content"].strip()
    if role != "assistant":
        return ((role, text),)
    text = text.rpartition("</think>")[2].lstrip()
    calls = message.get("tool_calls")
    if not calls:
        return ((role, text),)
    spelled = [part for call in calls for part in (call["name"], _canonical(call["arguments"]))]
    return ("calls", *(call["id"] for call in calls)), ("called", text, *spelled)


@dataclass(frozen=True)
class Boundary:
    """The end of a captured turn: `turn` of `segment`, after the first `known` messages of the request."""

    segment: Segment
    turn: int
    known: int
    node: "Node"

    @property
    def extendable(self) -> bool:
        """Whether the segment ends here."""
        return self.turn == len(self.segment.turns) - 1


@dataclass(eq=False)
class Node:
    """The conversations that begin with the messages on the way from the root to here."""

    children: dict[Key, "Node"] = field(default_factory=dict)
    ends: list[tuple[Segment, int]] = field(default_factory=list)
    """The captured turns whose answer is the last of those messages."""
    answered: bool = False
    """Whether a request of exactly these messages was answered."""

    def child(self, keys: Sequence[Key]) -> "Node | None":
        """The node one message on."""
        for key in keys:
            if (after := self.children.get(key)) is not None:
                return after
        return None

    def grow(self, keys: Sequence[Sequence[Key]]) -> "Node":
        """The node at the end of further messages, made where it is missing."""
        node = self
        for each in keys:
            # The first key alone: of answers with the same text but other calls, each has a place of its own.
            after = node.children.get(each[0])
            if after is None:
                after = Node()
                node.children |= {key: after for key in each}
            node = after
        return node

    def add_answer(self, keys: Sequence[Key], segment: Segment) -> None:
        """Note that the newest turn of `segment` answered the messages up to here."""
        self.answered = True
        self.grow([keys]).ends.append((segment, len(segment.turns) - 1))


def find(root: Node, keys: Sequence[Sequence[Key]]) -> tuple[Boundary | None, bool]:
    """The last captured turn on the way of a request's messages, and whether the whole request was answered before.

    Where several turns end in the same text, one whose segment goes no further comes first, then the newest.
    """
    node, last, answered = root, None, False
    for known, each in enumerate(keys, start=1):
        after = node.child(each)
        if after is None:
            break
        node = after
        if node.ends:
            last = node, known
    else:
        answered = node.answered
    if last is None:
        return None, answered
    ends = [Boundary(segment, turn, last[1], last[0]) for segment, turn in reversed(last[0].ends)]
    return next((end for end in ends if end.extendable), ends[0]), answered


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
