"""A small OpenAI-compatible server: it answers from a script, and keeps what it was asked."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "served"


@dataclass
class FakeServer:
    """`answers` are bodies, (status, body), or functions of the request's body; the last one is given again."""

    answers: list[Any]
    key: str | None = None
    window: int | None = None
    owner: str = "somebody"
    retry_after: str = "0"
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            told = f"wrong key: {request.headers.get('Authorization')}"
            return web.json_response({"error": {"message": told}}, status=401)
        entry = {"id": MODEL, "owned_by": self.owner} | ({"max_model_len": self.window} if self.window else {})
        return web.json_response({"data": [entry]})

    async def answer(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        entry = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append(body)
        entry = entry(body) if isinstance(entry, Callable) else entry  # type: ignore[arg-type]
        status, told = entry if isinstance(entry, tuple) else (200, entry)
        return web.json_response(told, status=status, headers={"Retry-After": self.retry_after})


def said(text: str | None = None, calls: list[tuple[str, str]] | None = None, **changes: Any) -> dict[str, Any]:
    """A chat completion; `calls` are names and arguments, each with the same id, as careless servers have it."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": "call_0", "type": "function", "function": {"name": name, "arguments": given}}
            for name, given in calls
        ]
    choice = {"message": message, "finish_reason": "tool_calls" if calls else "stop"} | changes
    return {"choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 5}}


@asynccontextmanager
async def fake_server(*answers: Any, **options: Any) -> AsyncIterator[FakeServer]:
    """The server on a loopback port."""
    server = FakeServer(list(answers), **options)
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    for route in ("/v1/chat/completions", "/v1/completions"):
        app.router.add_post(route, server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        server.url = f"http://{host}:{port}/v1"
        yield server
    finally:
        await runner.cleanup()
