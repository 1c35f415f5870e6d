"""A small chat-completions client for scaffolds that run on the host."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from harness.proxy.session import Session


class ProxyUnreachable(RuntimeError):
    """The proxy did not answer, or not as a working proxy does: infrastructure."""


class ConversationTooLong(Exception):
    """The conversation leaves no room for an answer in the policy's window."""


@dataclass(frozen=True)
class Answer:
    """One answer of the policy. `cut` tells that its length limit ended it."""

    text: str
    cut: bool


class ChatClient:
    """Asks the policy through a session's URL, as any OpenAI client does."""

    def __init__(self, session: Session) -> None:
        # No proxies from the environment, no certificates to load: the other end is on the loopback interface. How
        # long an answer may take is the agent timeout's business.
        self._http = httpx.AsyncClient(base_url=session.base_url, trust_env=False, verify=False, timeout=None)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def complete(
        self, messages: Sequence[dict[str, str]], *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Answer:
        """The policy's answer to `messages`.

        Raises:
            ConversationTooLong: no room is left in the window.
            ProxyUnreachable: anything else that is not an answer.
        """
        body: dict[str, Any] = {"model": "policy", "messages": list(messages)}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        if stop:
            body["stop"] = list(stop)
        try:
            response = await self._http.post("/chat/completions", json=body)
        except httpx.TransportError as error:
            raise ProxyUnreachable(f"no answer from the proxy: {type(error).__name__}: {error}") from error
        if response.status_code != 200:
            code, message = _read_error(response)
            if code == "context_length_exceeded" or response.status_code == 413:
                raise ConversationTooLong(message)
            # Not raise_for_status: its message would carry the URL, and with it the session's secret.
            raise ProxyUnreachable(f"the proxy answered {response.status_code} ({code}): {message}")
        choice = response.json()["choices"][0]
        return Answer(text=choice["message"]["content"] or "", cut=choice["finish_reason"] == "length")


def _read_error(response: httpx.Response) -> tuple[str, str]:
    try:
        error = response.json()["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "no error object", response.text[:200]


def _hide_secret(record: logging.LogRecord) -> bool:
    record.msg = re.sub(r"/s/[^/\s]+/", "/s/***/", record.getMessage())
    record.args = ()
    return True


# httpx logs the URL of each request.
logging.getLogger("httpx").addFilter(_hide_secret)
