"""Which conversations of a session belong together: the agent's own, those of its sub-agents, and its helpers'."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.proxy.conversation import ChatMessage

PREFIX_CHARS = 256
"""System prompts that share so much are the same agent's; what follows (a date, the state of the tree) may change."""


@dataclass
class _Thread:
    prefix: str
    offers_tools: bool = False


class Threads:
    """Tells threads apart by the beginning of the system prompt.

    The main thread is the one that first offered tools, or the first one as long as none does. Others are "sub:<n>";
    those that offer no tools although the main one does, such as an agent's helper that makes up a title, "hidden:<n>".
    """

    def __init__(self) -> None:
        self._threads: list[_Thread] = []
        self._first_with_tools: int | None = None

    def find(self, messages: Sequence[ChatMessage]) -> int | None:
        """Number of the thread that a request belongs to; None for one that was not noted yet."""
        prefix = _prefix(messages)
        return next((i for i, thread in enumerate(self._threads) if thread.prefix == prefix), None)

    def note(self, messages: Sequence[ChatMessage], offers_tools: bool) -> int:
        """Number of the thread that an answered request belongs to."""
        number = self.find(messages)
        if number is None:
            number = len(self._threads)
            self._threads.append(_Thread(_prefix(messages)))
        self._threads[number].offers_tools |= offers_tools
        if offers_tools and self._first_with_tools is None:
            self._first_with_tools = number
        return number

    def is_main(self, messages: Sequence[ChatMessage], offers_tools: bool) -> bool:
        """Whether a request, be it the first of its thread, belongs to the main one."""
        if self._first_with_tools is None and offers_tools:
            return True
        number = self.find(messages)
        return number == (self._first_with_tools or 0) if self._threads else True

    def label(self, number: int) -> str:
        """Name of a thread."""
        main = self._first_with_tools or 0
        if number == main:
            return "main"
        hidden = self._threads[main].offers_tools and not self._threads[number].offers_tools
        position = number if number > main else number + 1
        return f"{'hidden' if hidden else 'sub'}:{position}"


def _prefix(messages: Sequence[ChatMessage]) -> str:
    first = messages[0]
    return first["content"][:PREFIX_CHARS] if first["role"] == "system" else ""
