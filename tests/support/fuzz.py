"""Requests for the proxy's fuzz test: good ones of every API, and all that may become of them on the way."""

import asyncio
import copy
import json
import random
from dataclasses import dataclass, field
from typing import Any

JUNK: list[Any] = [
    *(None, True, False, 0, -1, 1e308, float("nan"), float("inf"), 10**40, 0.5, "", "x", "\ud800", "\u0000", "é" * 300),
    *([], {}, [[]], [None], {"type": "text"}, {"type": "image_url", "image_url": {"url": "x"}}, [{"type": "tool_use"}]),
    *(
        "system",
        "assistant",
        "tool",
        "function",
        "input_image",
        {"role": "assistant"},
        [{"role": "user"}],
        "<|im_end|>",
    ),
    *("<|im_start|>system\n", "{{ 7*7 }}", "../../etc/passwd", {"$ref": "#"}, {"a": {"b": {"c": [{}]}}}),
]

_TOOL_NAMES = ("read", "write")
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


@dataclass
class Talker:
    """One conversation of a session by one API, grown by the answers it gets. `tag` marks all that it says."""

    surface: str
    tag: str
    rng: random.Random
    said: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    def body(self) -> dict[str, Any]:
        """A good request: the conversation so far and something new."""
        self.said += 1
        if self.said % 7 == 0:
            self.history.clear()
        text = f"{self.tag} says {self.said}"
        return {"chat": self._chat, "responses": self._responses, "messages": self._messages, "count": self._count}[
            self.surface
        ](text)

    def _chat(self, text: str) -> dict[str, Any]:
        messages = self.history or [{"role": "system", "content": f"you are {self.tag}"}]
        for call in messages[-1].get("tool_calls") or []:
            messages = [*messages, {"role": "tool", "tool_call_id": call["id"], "content": text}]
        if messages[-1]["role"] != "tool":
            content: Any = text if self.said % 2 else [{"type": "text", "text": text}]
            messages = [*messages, {"role": "user", "content": content}]
        self.history = messages
        functions = [{"name": name, "parameters": _SCHEMA} for name in _TOOL_NAMES]
        return {
            "model": "any",
            "messages": messages,
            "tools": [{"type": "function", "function": function} for function in functions],
            "stream": self.rng.random() < 0.3,
            "max_completion_tokens": 64,
            "temperature": 1.0,
        }

    def _responses(self, text: str) -> dict[str, Any]:
        items = list(self.history)
        owed = [item["call_id"] for item in items if item.get("type") == "function_call"]
        paid = {item["call_id"] for item in items if item.get("type") == "function_call_output"}
        results = [
            {"type": "function_call_output", "call_id": call, "output": text} for call in owed if call not in paid
        ]
        self.history = items + (
            results or [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]
        )
        return {
            "model": "any",
            "instructions": f"you are {self.tag}",
            "input": self.history,
            "tools": [{"type": "function", "name": n, "parameters": _SCHEMA, "strict": False} for n in _TOOL_NAMES],
            "stream": self.rng.random() < 0.3,
            "store": False,
        }

    def _messages(self, text: str) -> dict[str, Any]:
        calls = [
            block["id"]
            for block in (self.history[-1]["content"] if self.history else [])
            if isinstance(block, dict) and block.get("type") == "tool_use"
        ]
        content: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": call, "content": [{"type": "text", "text": text}]} for call in calls
        ] or [{"type": "text", "text": text}]
        self.history = [*self.history, {"role": "user", "content": content}]
        return {
            "model": "any",
            "max_tokens": 64,
            "system": [{"type": "text", "text": f"you are {self.tag}"}],
            "messages": self.history,
            "tools": [{"name": name, "input_schema": _SCHEMA} for name in _TOOL_NAMES],
            "stream": self.rng.random() < 0.3,
        }

    def _count(self, text: str) -> dict[str, Any]:
        return {"model": "any", "messages": [{"role": "user", "content": text}]}

    def heard(self, reply: dict[str, Any]) -> None:
        """Take the answer to the newest request into the conversation."""
        if self.surface == "chat":
            self.history = [*self.history, reply["choices"][0]["message"]]
        elif self.surface == "responses":
            self.history = [*self.history, *reply["output"]]
        elif self.surface == "messages":
            self.history = [*self.history, {"role": "assistant", "content": reply["content"]}]


ROUTES = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "count": "/v1/messages/count_tokens",
}


def mutated(body: Any, rng: random.Random) -> Any:
    """`body` with one or a few of its values lost, replaced, doubled or moved."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice([1, 1, 2, 4])):
        places = _places(body)
        if not places:
            return rng.choice(JUNK)
        parent, key = rng.choice(places)
        kind = rng.randrange(5)
        if kind == 0:
            del parent[key]
        elif kind == 1:
            parent[key] = copy.deepcopy(rng.choice(JUNK))
        elif kind == 2 and isinstance(parent, dict):
            parent[rng.choice(["n", "seed", "functions", "logit_bias", "type", "role", "nope", "stop", "input"])] = (
                copy.deepcopy(rng.choice(JUNK))
            )
        elif kind == 3 and isinstance(parent, list):
            parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(parent[key]))
        else:
            other, where = rng.choice(places)
            parent[key] = copy.deepcopy(other[where])
    return body


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        node = todo.pop()
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in items:
            found.append((node, key))
            todo.append(child)
    return found


def scrambled(data: bytes, rng: random.Random) -> bytes:
    """Bytes that are no JSON any more, or not as much of it as there was."""
    kind = rng.randrange(6)
    at = rng.randrange(1, max(len(data), 2))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + b"\xff" + bytes(rng.randrange(256) for _ in range(3)) + data[at:]
    if kind == 2:
        return rng.choice([b"[" * 20_000, b'{"a":' * 20_000, b'"' + b"\\u0000" * 50, b"nul", b"", b"\xff\xfe{}"])
    if kind == 3:
        return data + data
    if kind == 4:
        return data.replace(b'"', b"'")
    return bytes(rng.randrange(256) for _ in range(at))


@dataclass(frozen=True)
class Reply:
    """What came back: status 0 if nothing did."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


async def send(origin: str, raw: bytes, *, hang_up: float | None = None) -> Reply:
    """Send bytes as they are on a connection of their own and read until it ends; or leave after `hang_up` seconds."""
    host, port = origin.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(raw)
        if hang_up is not None:
            await asyncio.sleep(hang_up)
            return Reply(0, {}, b"")
        data = await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return Reply(0, {}, b"")  # a server may close on a request that is none
    finally:
        writer.close()
    return _parsed(data)


def http(method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    """A request in bytes; `headers` win over the ones that belong there."""
    fields = {"host": "proxy", "connection": "close", "content-type": "application/json"}
    fields |= {"content-length": str(len(body))} | (headers or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("utf-8", "surrogatepass") + body


def _parsed(data: bytes) -> Reply:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    if not first.startswith("HTTP/1."):
        return Reply(0, {}, data)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = _unchunked(body)
    return Reply(int(first.split()[1]), headers, body)


def _unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        whole, body = whole + rest[:length], rest[length + 2 :]
        if not length:
            break
    return whole
