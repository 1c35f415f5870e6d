"""The proxy's view of one trial."""

import asyncio
import secrets
from dataclasses import dataclass, field

from harness.proxy.capture import Capture
from harness.proxy.doorway import Doorway
from trainer.rollout import Generation, Sampling


@dataclass(repr=False)
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
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    closed: bool = False
    overlong: bool = False
    """A request left no room for an answer in the window."""
    infra_failure: str | None = None
    """What broke on the serving side; the trial is then an infra_error."""
    requests: int = 0
    rejected: int = 0
    """Requests refused with a 4xx."""
    overrides: int = 0
    """Requests whose temperature or top_p differed from the session's, which won."""
    cancelled: int = 0
    """Generations stopped because the client hung up or the session was closed."""
    generate_seconds: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from a request's body to its answer: a client's retry must not sample into the same segment meanwhile."""
    generation: asyncio.Task[Generation] | None = None
    """The generation in flight."""
    doorway: Doorway | None = None
    """The Unix socket by which a sandbox reaches this session."""

    @property
    def base_url(self) -> str:
        """Base URL for an OpenAI client; ends in /v1."""
        return f"{self.origin}/s/{self.secret}/v1"

    def __repr__(self) -> str:
        return f"Session({self.session_id!r}, turns={self.capture.num_turns}, closed={self.closed})"

    def counters(self) -> dict[str, int]:
        """What the session counted, by name."""
        return {
            "requests": self.requests,
            "rejected": self.rejected,
            "overrides": self.overrides,
            "cancelled": self.cancelled,
            "segments": len(self.capture.segments),
            "turns": self.capture.num_turns,
        }
