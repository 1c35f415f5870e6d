"""The proxy's view of one trial."""

import asyncio
import secrets
from dataclasses import dataclass, field

from harness.proxy.budget import ByteBudget
from harness.proxy.capture import Capture, OpenTurn
from harness.proxy.doorway import Doorway
from trainer.rollout import Generation, Sampling

MAX_CONCURRENT = 8
"""Requests of one session that are worked on at a time; further ones wait. Sub-agents ask side by side."""

MAX_WINDOWS = 64
"""Windows full of tokens that a session's segments hold at most, all together. A fork begins with a copy of what it
shares, and whoever is inside can fork as often as it is answered."""

_CHARS_PER_TOKEN = 8
"""Text that is held at most for each of those tokens. It is bounded by itself, since templates leave some of it out."""


@dataclass(repr=False, eq=False)
class Session:
    """A URL that carries a secret, the captured tokens, and counters of what the agent did.

    Whoever knows `base_url` can spend the policy's time and add to the trial's tokens: it goes to the agent of this
    trial and nowhere else, and never into a log.
    """

    session_id: str
    sampling: Sampling
    capture: Capture
    origin: str
    """Scheme, host and port where the agent finds the proxy: on the host, or as `Sandbox.connect_proxy` tells."""
    bodies: ByteBudget
    """Lent to requests from before their body is read until they are answered."""
    window: int
    """The policy's context length in tokens, which agents are told so that they compact in time."""
    max_turns: int | None = None
    """Answers after which requests are refused; None for no limit."""
    no_tool_limit: int = 0
    """Answers in a row without a tool call, of a conversation that offers tools, after which requests are refused;
    0 for no limit."""
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    closed: bool = False
    overlong: bool = False
    """The newest request of the main conversation left no room for an answer in the window."""
    overflows: int = 0
    """Requests of any conversation that left none."""
    turns_exhausted: bool = False
    """A request was refused because `max_turns` answers were given, or since the session holds as much as it may."""
    no_tool_end: bool = False
    """`no_tool_limit` was reached."""
    proxy_failed: bool = False
    """The proxy itself failed over a request; unlike the policy's failures, an agent may be able to cause that."""
    infra_failure: str | None = None
    """What broke on the serving side; the trial is then an infra_error."""
    requests: int = 0
    rejected: int = 0
    """Requests refused with a 4xx."""
    overrides: int = 0
    """Requests whose temperature or top_p differed from the session's, which won."""
    cancelled: int = 0
    """Generations stopped because the client hung up or the session was closed."""
    revoked_requests: int = 0
    """Requests that came, or were still under way, after the session was closed."""
    generate_seconds: float = 0.0
    """Time in the policy, summed over requests."""
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT))
    generations: set[asyncio.Task[Generation]] = field(default_factory=set)
    """The generations in flight."""
    doorway: Doorway | None = None
    """The Unix socket by which a sandbox reaches this session."""

    @property
    def anthropic_base_url(self) -> str:
        """Base URL for an Anthropic client, which adds /v1 itself."""
        return f"{self.origin}/s/{self.secret}"

    @property
    def base_url(self) -> str:
        """Base URL for an OpenAI client; ends in /v1."""
        return f"{self.anthropic_base_url}/v1"

    def __repr__(self) -> str:
        return f"Session({self.session_id!r}, turns={self.capture.num_turns}, closed={self.closed})"

    def is_full_with(self, turn: OpenTurn) -> bool:
        """Whether the session would hold more than it may with the prompt of a rendered turn."""
        tokens, capture = MAX_WINDOWS * self.window, self.capture
        return (
            capture.held_tokens + turn.new_tokens > tokens
            or capture.held_chars + turn.new_chars > _CHARS_PER_TOKEN * tokens
        )

    def counters(self) -> dict[str, int]:
        """What the session counted, by name."""
        counts = self.capture.counts
        return {
            "requests": self.requests,
            "rejected": self.rejected,
            "overrides": self.overrides,
            "cancelled": self.cancelled,
            "revoked_requests": self.revoked_requests,
            "overflows": self.overflows,
            "turns": self.capture.num_turns,
            "segments": len(self.capture.segments),
            "divergences": counts["divergences"],
            "reused_prefixes": counts["reused_prefixes"],
            "reused_tokens": counts["reused_tokens"],
            "tools_changed": counts["tools_changed"],
            "duplicate_requests": counts["duplicate_requests"],
            "unreadable_tool_calls": counts["unreadable_tool_calls"],
            "no_tool_end": int(self.no_tool_end),
        }
