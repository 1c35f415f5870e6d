"""Requests to an OpenAI-compatible API: tried again when that can help, and errors that say whose they are."""

import asyncio
import json
import random
import re
from typing import Any

import httpx

from harness.endpoint.config import EndpointConfig
from harness.proxy.answering import WindowExceeded

_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_FIRST_PAUSE_SEC, _LONGEST_PAUSE_SEC = 1.0, 60.0
_TOO_LONG = re.compile(
    r"context[ _-]?(length|window)|maximum.{0,20}(context|tokens)|too many tokens|prompt is too long|max_model_len",
    re.IGNORECASE,
)
_SHOWN_CHARS = 300
_SHORTEST_KEY = 6
"""Characters below which a key is none, but a word such as `EMPTY`."""


class EndpointError(RuntimeError):
    """The endpoint could not answer, also after several tries; nothing an agent did can cause it."""


class EndpointRefused(ValueError):
    """The endpoint does not take our requests at all: a wrong key, model, address, or field. Trying again is vain."""


class EndpointClient:
    """JSON over HTTP. Use as an async context manager."""

    def __init__(self, config: EndpointConfig) -> None:
        self._config = config
        self._key = config.key or ""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        # a proxy of the environment cannot reach a server on this machine
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(config.request_sec, connect=30.0),
            limits=httpx.Limits(max_connections=None),
            trust_env=not config.is_local,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> Any:
        """See `post`."""
        return await self._request("GET", path, None)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The decoded answer.

        Raises:
            WindowExceeded: the prompt is too long.
            EndpointRefused: 401, 403, 404 and other refusals of a request.
            EndpointError: no answer, or none that is JSON.
        """
        # ASCII, since texts may hold halves of characters, which UTF-8 cannot carry
        return await self._request("POST", path, json.dumps(body).encode("ascii"))

    async def _request(self, method: str, path: str, body: bytes | None) -> Any:
        problem, busy = "", None
        for failures in range(self._config.attempts):
            if failures:
                await asyncio.sleep(self._pause(failures, busy))
            try:
                response = await self._http.request(method, self._config.url + path, content=body)
            except httpx.HTTPError as error:
                problem, busy = f"{type(error).__name__}: {error}", None
                continue
            if response.status_code not in _AGAIN:
                return self._read(path, response)
            problem, busy = self._told(response), response
        tries = f"{self._config.attempts} tries"
        raise EndpointError(f"{self._config.url}{path} gave no answer in {tries}: {problem}")

    def _read(self, path: str, response: httpx.Response) -> Any:
        where = f"{self._config.url}{path}"
        if response.status_code in (400, 413, 422) and _TOO_LONG.search(response.text):
            raise WindowExceeded(self._told(response))
        if response.status_code in (401, 403):
            raise EndpointRefused(
                f"{where} refuses the key ({self._told(response)}); set {self._config.key_variable} in the environment"
            )
        if response.status_code == 404:
            raise EndpointRefused(
                f"{where} knows no model {self._config.model!r}, or no such path ({self._told(response)}); "
                "correct the address (it ends in /v1) or the name"
            )
        if response.status_code >= 300:
            raise EndpointRefused(f"{where} refuses the request: {self._told(response)}")
        try:
            return response.json()
        except ValueError as error:
            raise EndpointError(
                f"{where} answered with no JSON: {self._without_key(response.text)[:_SHOWN_CHARS]!r}"
            ) from error

    def _pause(self, failures: int, response: httpx.Response | None) -> float:
        """What the server asks for, else twice as long each time, with jitter: trials must not come all at once."""
        asked = response.headers.get("retry-after", "") if response is not None else ""
        if asked.replace(".", "", 1).isdigit():
            return min(float(asked), _LONGEST_PAUSE_SEC)
        return min(_FIRST_PAUSE_SEC * 2.0 ** (failures - 1), _LONGEST_PAUSE_SEC) * random.uniform(0.5, 1.5)

    def _told(self, response: httpx.Response) -> str:
        """Status, and the server's own words."""
        try:
            error = response.json().get("error", {})
            text = error.get("message", "") if isinstance(error, dict) else str(error)
        except (ValueError, AttributeError):
            text = ""
        return f"{response.status_code} {self._without_key(str(text or response.text))[:_SHOWN_CHARS]}".strip()

    def _without_key(self, text: str) -> str:
        """Servers exist that repeat the key which they refuse; what they say ends in logs and trials."""
        return text.replace(self._key, "***") if len(self._key) >= _SHORTEST_KEY else text
