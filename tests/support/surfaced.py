"""The surfaces alone behind a server on a loopback port, with answers that a test gives."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from harness.proxy.conversation import ToolCall
from harness.proxy.surfaces.base import Answer, Call, RequestError
from harness.proxy.surfaces.registry import SURFACES
from trainer.rollout import Generation


class Codes:
    """A decoder whose ids are code points."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


def answer(
    text: str = "",
    *,
    reasoning: str = "",
    calls: Sequence[tuple[str, str, str]] = (),
    finish: str | None = None,
    stop_string: str | None = None,
) -> Answer:
    """An answer of three sampled tokens to a prompt of 10, 4 of them cached; `calls` are (id, name, arguments)."""
    tokens = [111, 107, 33]
    return Answer(
        text=text,
        reasoning=reasoning,
        tool_calls=tuple(ToolCall(id=i, name=name, arguments=arguments) for i, name, arguments in calls),
        finish=finish or ("tool_calls" if calls else "stop"),  # type: ignore[arg-type]
        stop_string=stop_string,
        prompt_tokens=10,
        cached_tokens=4,
        generation=Generation(tokens, [-0.5, -0.25, -0.125], [0, 0, 0], "stop"),
    )


@dataclass
class Surfaced:
    """A running server. It answers each request with the next of `answers`, and keeps the calls that it read."""

    origin: str = ""
    answers: list[Answer | RequestError] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        surface = SURFACES[request.path]
        body = json.loads(await request.read())
        self.bodies.append(body)
        try:
            call = surface.parse(body, query=request.query)
        except RequestError as error:
            return web.json_response(
                surface.error(error.status, str(error), error.code, error.param), status=error.status
            )
        self.calls.append(call)
        answer = self.answers.pop(0)
        if not call.stream:
            assert isinstance(answer, Answer)
            return web.json_response(surface.complete(call, answer, Codes()))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(surface.keep_alive)
        if isinstance(answer, RequestError):
            await response.write(surface.error_event(answer.status, str(answer), answer.code, answer.param))
        else:
            for frame in surface.events(call, answer, Codes()):
                await response.write(frame)
        return response


@asynccontextmanager
async def surfaced(*answers: Answer | RequestError) -> AsyncIterator[Surfaced]:
    """A server that gives these answers, one after the other."""
    server = Surfaced(answers=list(answers))
    app = web.Application()
    for route in SURFACES:
        app.router.add_post(route, server.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        server.origin = f"http://{host}:{port}"
        yield server
    finally:
        await runner.cleanup()
