"""A terminal in a sandbox that stays there over many calls: tmux, worked from the host.

A sandbox kills all that a command started when the command ends. So one long command, the keeper, holds the terminal.
It reaches the host through a socket of its own, by the way that agents inside reach the proxy, and tells there what
tmux shows. Whatever arrives by that way is hostile: it is bounded, taken as text, and believed in nothing.
"""

import asyncio
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.proxy.doorway import Doorway
from harness.sandbox.base import WORKSPACE, ExecResult, Sandbox
from harness.scaffolds import terminal_keeper
from harness.scaffolds.inside import AgentNotStarted

COLUMNS, ROWS = 160, 40
MAX_LINES = 1000
"""Lines that are read back at most, the newest ones."""

_KEEPER = "/opt/testgrad-terminal"
_SOCKET = "/tmp/testgrad-tmux"
_HISTORY = 50_000
_START_SECONDS = 60.0
_CALL_SECONDS = 20.0
_PROMPT_LOOKS, _PROMPT_LOOK_SECONDS = 200, 0.05
_GRACE_SECONDS = 2.0
_MAX_LINE = 8 * terminal_keeper.MAX_OUTPUT  # a byte may need six characters in JSON
_BYTES_AT_ONCE = 2000
_LOOKS = 5
"""At a screen on which ever more is shown; the last is taken as it is."""
_POSITION = ("display-message", "-p", "#{history_size} #{cursor_y} #{alternate_on}")


class TerminalGone(Exception):
    """The terminal has ended, or does not answer: what runs in it can bring that about."""


class NoTerminal(AgentNotStarted):
    """No terminal could be made, before the policy was asked anything; the message names the mend."""


@dataclass(frozen=True)
class Mark:
    """A place in all that the terminal has shown: the line of the cursor, counted from the first."""

    line: int


class Terminal:
    """One shell in one tmux window. Made by `open_terminal`."""

    def __init__(self, keeper: "_Keeper", tmux: str) -> None:
        self._keeper = keeper
        self._tmux = [tmux, "-S", _SOCKET, "-f", "/dev/null"]

    async def start(self) -> None:
        """Open the window, and wait until its shell reads.

        Raises:
            NoTerminal: there is no tmux, or it cannot start.
        """
        options = {"history-limit": str(_HISTORY), "default-terminal": "screen", "status": "off", "escape-time": "0"}
        words = ["start-server", ";", "set-environment", "-gr", "LD_LIBRARY_PATH"]
        for name, value in options.items():
            words += [";", "set-option", "-g", name, value]
        words += [";", "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", WORKSPACE, "bash"]
        try:
            code, out = await self._keeper.run([*self._tmux, *words])
        except TerminalGone as error:
            raise NoTerminal(f"the terminal could not be started: {error}") from error
        if code == terminal_keeper.NOT_FOUND:
            raise NoTerminal(
                f"the sandbox has no tmux ({out.strip()[:200]}); prepare one by "
                "`testgrad scaffolds install terminus`, or put tmux into the image"
            )
        if code != 0:
            raise NoTerminal(f"tmux cannot start in the sandbox: {out.strip()[-300:]}")
        await self._prompted()

    async def _prompted(self) -> None:
        # What is typed before the shell reads is echoed twice: what the policy sees would hang on the machine's load.
        # A shell that prompts for nothing, as an image's files may have it, is typed to all the same.
        try:
            for _ in range(_PROMPT_LOOKS):
                if await self.shown_since(Mark(0)):
                    return
                await asyncio.sleep(_PROMPT_LOOK_SECONDS)
        except TerminalGone as error:
            raise NoTerminal(f"the terminal ended as its shell started: {error}") from error

    async def type(self, text: str) -> None:
        """Type `text`; a line's end is the Enter key.

        Raises:
            TerminalGone: there is no terminal any more.
        """
        # As numbers, since tmux would read an ending semicolon or the name of a key as its own.
        codes = [f"{byte:02x}" for byte in text.replace("\r\n", "\n").replace("\n", "\r").encode()]
        for start in range(0, len(codes), _BYTES_AT_ONCE):
            await self._do("send-keys", "-H", *codes[start : start + _BYTES_AT_ONCE])

    async def press(self, key: str) -> None:
        """Press one key, given by tmux's name such as `C-c` or `Enter`.

        Raises:
            TerminalGone: there is no terminal any more.
        """
        await self._do("send-keys", "--", key)

    async def mark(self) -> Mark:
        """Where the cursor is now.

        Raises:
            TerminalGone: there is no terminal any more.
        """
        history, row, _ = await self._position()
        return Mark(history + row)

    async def shown_since(self, mark: Mark) -> str:
        """What has been shown from the line of `mark` on, as far as it is still known; else the screen.

        At most `MAX_LINES` lines, without control characters.

        Raises:
            TerminalGone: there is no terminal any more.
        """
        position = await self._position()
        lines: list[str] = []
        for _ in range(_LOOKS):
            history, row, full_screen = position
            first = mark.line - history  # as tmux counts: 0 is the screen's first line, those before it are negative
            if full_screen or history + row < mark.line or history >= _HISTORY:
                first = 0
            # in one call, or lines that are shown between two would move what is looked at
            out = await self._do("capture-pane", "-p", "-S", str(first), ";", *_POSITION)
            *lines, last = out.removesuffix("\n").split("\n")
            before, position = position, _position_in(last)
            if position[0] == before[0]:
                break
        return clean("\n".join(lines[-MAX_LINES:])).rstrip()

    async def _position(self) -> tuple[int, int, bool]:
        return _position_in(await self._do(*_POSITION))

    async def _do(self, *words: str) -> str:
        code, out = await self._keeper.run([*self._tmux, *words])
        if code != 0:
            raise TerminalGone(f"tmux: exit code {code}: {clean(out).strip()[-300:]}")
        return out


def _position_in(text: str) -> tuple[int, int, bool]:
    words = text.split()
    if len(words) != 3 or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise TerminalGone("tmux does not say where its cursor is")
    return int(words[0]), int(words[1]), words[2] == "1"


@asynccontextmanager
async def open_terminal(
    sandbox: Sandbox, *, timeout: float, tmux: str = "tmux", env: Mapping[str, str] | None = None
) -> AsyncIterator[Terminal]:
    """A shell in the workspace of `sandbox`, for at most `timeout` seconds; to be opened before the first command.

    `tmux` is the program, `env` what it needs to start (the shell does not get its LD_LIBRARY_PATH).

    Raises:
        NoTerminal: it cannot be had here; the message names the mend.
        SandboxError: the sandbox broke, or cannot be reached.
    """
    token = secrets.token_hex(16)
    link = _Link(token)
    doorway = Doorway(link.protocol)
    command: asyncio.Task[ExecResult] | None = None
    try:
        await sandbox.mount_read_only(_KEEPER, {"keeper.py": Path(terminal_keeper.__file__).read_bytes()})
        origin = urlsplit(await sandbox.connect_proxy(doorway.path))
        argv = [sandbox.python, "-I", "-S", "-B", f"{_KEEPER}/keeper.py", str(origin.port)]
        running = sandbox.exec(argv, timeout=timeout, env=env, stdin=f"{token}\n".encode())
        command = asyncio.create_task(running)
        terminal = Terminal(_Keeper(await _connected(link, command), command), tmux)
        await terminal.start()
        yield terminal
    finally:
        link.close()
        try:
            if command is not None:
                command.cancel()
                await asyncio.wait({command})
        finally:
            await asyncio.shield(doorway.close())  # goes on even if cancelled once more


def clean(text: str) -> str:
    """`text` without what is no character to show: control characters, and halves of surrogate pairs."""
    return "".join(char if char in "\n\t" or char.isprintable() else "\ufffd" for char in text)


class _Link:
    """The host's end: takes the first connection that knows the token, and drops all others."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._writers: set[asyncio.StreamWriter] = set()
        self.streams: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        self.streams = asyncio.get_running_loop().create_future()

    def protocol(self) -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=_MAX_LINE)
        return asyncio.StreamReaderProtocol(reader, self._greet)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        said = b""
        # The keeper is the first to come. Who comes later is not even heard: what each may say would add up here.
        if not self.streams.done():
            try:
                said = await asyncio.wait_for(reader.readline(), _START_SECONDS)
            except (OSError, ValueError, TimeoutError):
                pass
        if hmac.compare_digest(said.strip(), self._token) and not self.streams.done():
            self.streams.set_result((reader, writer))
            return
        writer.write(b"this is no proxy\n")
        writer.close()
        self._writers.discard(writer)

    def close(self) -> None:
        self.streams.cancel()
        for writer in self._writers:
            writer.transport.abort()


@dataclass(frozen=True)
class _Keeper:
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    command: "asyncio.Task[ExecResult]"

    async def run(self, argv: Sequence[str]) -> tuple[int, str]:
        """Exit code and output of `argv`, as the keeper tells.

        Raises:
            TerminalGone: it tells nothing, or nonsense.
            SandboxError: the sandbox broke.
        """
        reader, writer = self.streams
        request = {"argv": list(argv), "timeout": _CALL_SECONDS}
        try:
            async with asyncio.timeout(2 * _CALL_SECONDS):
                writer.write(json.dumps(request).encode() + b"\n")
                await writer.drain()
                answer = _read(await reader.readline())
        except (OSError, ValueError, RecursionError) as error:  # TimeoutError is an OSError
            reason = f"{type(error).__name__}: {error}"
        else:
            if answer is not None:
                return answer
            reason = "its connection ended"
        await asyncio.wait({self.command}, timeout=_GRACE_SECONDS)
        if self.command.done():
            reason = _ended(self.command.result())
        raise TerminalGone(reason)


def _read(line: bytes) -> tuple[int, str] | None:
    if not line:
        return None
    match json.loads(line):
        case {"code": int(code), "out": str(out)}:
            return code, out
    raise ValueError("the keeper's answer is no code with an output")


async def _connected(
    link: _Link, command: "asyncio.Task[ExecResult]"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    either: set[asyncio.Future[Any]] = {link.streams, command}
    await asyncio.wait(either, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    if link.streams.done():
        return link.streams.result()
    if command.done():
        raise NoTerminal(f"the terminal's keeper does not run: {_ended(command.result())}")
    raise NoTerminal(f"the terminal's keeper did not report within {_START_SECONDS:.0f} s; is the host overloaded?")


def _ended(result: ExecResult) -> str:
    if result.over_limit:
        return f"the limit {result.over_limit} was passed"
    if result.timed_out:
        return "its time was over"
    return f"exit code {result.exit_code}: {clean(result.stderr.decode(errors='replace')).strip()[-300:]}"
