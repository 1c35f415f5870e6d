"""One operation in a container, over the exec stream: what is said to the program inside, and what it answers.

Messages of the stream begin with a byte that names their channel: 0 stdin, 1 stdout, 2 stderr, 3 how it ended. Stdin
cannot be closed, so everything is told with its length; see `pod_main`.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from harness.sandbox.base import SandboxError
from harness.sandbox.carried import program
from harness.sandbox.kubernetes_api import KubeApi
from harness.sandbox.pod_main import BOOT

PROGRAM = program("pod_main", "pod_commands", "pod_files", "pod_processes", "pod_relay", "tree")

_STDIN, _STDOUT, _STDERR, _END = range(4)
_CHUNK = 32 << 10  # bytes of a message: what every proxy on the way takes
_MAX_STDERR = 4096
_MAX_HEADER = 64 << 20


class NoAnswer(SandboxError):
    """The program inside did not answer. `exit_code` is its own, None if not even that is known: the stream broke."""

    def __init__(self, message: str, exit_code: int | None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Answer:
    """The answer's object, and the bytes that follow it."""

    told: Mapping[str, Any]
    content: bytes


def argv_of(python: str) -> list[str]:
    """The command that takes `PROGRAM` and a job by stdin."""
    return [python, "-I", "-S", "-B", "-X", "utf8", "-c", BOOT, str(len(PROGRAM.encode()))]


def packet(job: Mapping[str, Any]) -> bytes:
    """The program and the job, as the command of `argv_of` reads them."""
    text = json.dumps(job).encode()
    return PROGRAM.encode() + len(text).to_bytes(8, "big") + text


async def ask(
    api: KubeApi, pod: str, container: str, job: Mapping[str, Any], contents: Iterable[bytes] = (), max_content: int = 0
) -> Answer:
    """Have the program do `job` in a container. `contents` follow the job, at most `max_content` bytes the answer.

    Raises:
        NoAnswer: the program was killed, or the stream broke; the operation may have happened.
        ApiError: the stream could not be opened; nothing has happened.
    """
    async with api.exec_stream(pod, container, argv_of(api.kube.python)) as socket:
        sending = asyncio.create_task(_send(socket, [packet(job), *contents]))
        try:
            return await _receive(socket, max_content)
        finally:
            sending.cancel()
            await asyncio.wait([sending])


async def _send(socket: aiohttp.ClientWebSocketResponse, contents: Iterable[bytes]) -> None:
    try:
        for content in contents:
            for start in range(0, len(content), _CHUNK):
                await socket.send_bytes(bytes([_STDIN]) + content[start : start + _CHUNK])
    except (aiohttp.ClientError, OSError):
        return  # the receiving side sees it too, and knows whether an answer came first


async def _receive(socket: aiohttp.ClientWebSocketResponse, max_content: int) -> Answer:
    out, err = bytearray(), bytearray()
    end = "the stream ended without a word"
    code: int | None = None
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == _STDOUT:
            out += data
            if len(out) > _MAX_HEADER + max_content:
                raise NoAnswer(f"the answer has more than {len(out)} bytes", None)
        elif channel == _STDERR:
            err += data[: _MAX_STDERR - len(err)]
        elif channel == _END:
            code, end = parse_end(data)
            break
    answer = _parse(bytes(out), max_content)
    if answer is not None:
        return answer
    text = err.decode(errors="replace").strip()[-300:]
    raise NoAnswer(f"no answer from the pod: {end}{': ' + text if text else ''}", code)


def parse_end(data: bytes) -> tuple[int | None, str]:
    """(exit code, words) of the status that ends a stream; no exit code if the command could not be run or watched."""
    try:
        status = json.loads(data)
        if status.get("status") == "Success":
            return 0, "exit code 0"
        if status.get("reason") == "NonZeroExitCode":
            causes = status["details"]["causes"]
            code = next(int(cause["message"]) for cause in causes if cause["reason"] == "ExitCode")
            return code, f"exit code {code}"
        return None, str(status.get("message") or status)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None, f"the stream ended with {data[:200]!r}"


def _parse(out: bytes, max_content: int) -> Answer | None:
    """The answer, None if it is not complete."""
    size = int.from_bytes(out[:8], "big")
    if len(out) < 8 or len(out) < 8 + size:
        return None
    try:
        told = json.loads(out[8 : 8 + size])
    except ValueError:
        return None
    content = out[8 + size :]
    expected = _content_bytes(told)
    return Answer(told, content) if len(content) == expected <= max_content else None


def _content_bytes(told: Mapping[str, Any]) -> int:
    """How many bytes follow an answer, by what it tells itself."""
    if "files" in told:
        return sum(size for _, size, _, follows in told["files"] if follows)
    return int(told.get("out", 0)) + int(told.get("err", 0)) + int(told.get("size", 0))
