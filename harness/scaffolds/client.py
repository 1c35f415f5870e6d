"""A small chat-completions client for scaffolds that run on the host."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

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
    """Asks the policy through a session's URL, as any OpenAI client does. To be entered before it is asked."""

    def __init__(self, session: Session) -> None:
        self._url = f"{session.base_url}/chat/completions"
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        # How long an answer may take is the agent timeout's business. Thousands of these live at once: no cookies.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=None)
        self._http = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

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
            async with self._http.post(self._url, json=body) as response:
                text = await response.text(encoding="utf-8", errors="replace")
        except (aiohttp.ClientError, ConnectionError) as error:
            # some of aiohttp's errors carry the URL, and with it the session's secret
            told = re.sub(r"/s/[^/\s]+/", "/s/***/", str(error))
            raise ProxyUnreachable(f"no answer from the proxy: {type(error).__name__}: {told}") from None
        if response.status != 200:
            code, message = _read_error(text)
            if code == "context_length_exceeded" or response.status == 413:
                raise ConversationTooLong(message)
            raise ProxyUnreachable(f"the proxy answered {response.status} ({code}): {message}")
        choice = json.loads(text)["choices"][0]
        return Answer(text=choice["message"]["content"] or "", cut=choice["finish_reason"] == "length")


def _read_error(text: str) -> tuple[str, str]:
    try:
        error = json.loads(text)["error"]
        return str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "no error object", text[:200]
