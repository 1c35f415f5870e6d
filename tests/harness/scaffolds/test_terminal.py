"""The terminal in a real sandbox, and what hostile code in it can do to the host's end."""

import asyncio
import json
import tempfile
from pathlib import Path

import pytest

from harness.sandbox.base import WORKSPACE, SandboxConfig, SandboxUnavailable, create_sandbox, require_isolation
from harness.scaffolds import terminal as terminal_module
from harness.scaffolds.terminal import Mark, NoTerminal, TerminalGone, clean, open_terminal


@pytest.fixture
async def sandbox():
    try:
        require_isolation(SandboxConfig())
    except SandboxUnavailable as error:
        pytest.skip(f"no isolation here: {error}")
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        async with create_sandbox(SandboxConfig(root=Path(root))) as sandbox:
            yield sandbox


@pytest.fixture
async def terminal(sandbox):
    async with open_terminal(sandbox, timeout=60) as terminal:
        yield terminal


async def seen(terminal, mark, text):
    """What was shown since `mark`, once it holds `text`."""
    for _ in range(100):
        shown = await terminal.shown_since(mark)
        if text in shown:
            return shown
        await asyncio.sleep(0.05)
    raise AssertionError(f"{text!r} never appeared, but {shown!r}")


async def test_the_shell_lives_on_between_calls(terminal, sandbox):
    mark = await terminal.mark()
    await terminal.type("cd /tmp; NAME=abc\n")
    await terminal.type('echo "in $PWD, $NAME; $((40 + 2))"\n')
    await seen(terminal, mark, "in /tmp, abc; 42")
    await terminal.type("cd /workspace; (sleep 0.2; echo late > file) &\n")
    for _ in range(100):
        if (await sandbox.exec(["cat", "file"], timeout=10)).stdout == b"late\n":
            return
        await asyncio.sleep(0.05)
    raise AssertionError("what was left running has ended")


async def test_keys_are_pressed_and_text_is_typed_as_it_is(terminal):
    mark = await terminal.mark()
    await terminal.type('echo "re""ady"; cat\n')
    await seen(terminal, mark, "ready")  # said by echo: until then the terminal may be the shell's, which does not echo
    await terminal.type("Enter C-c ; häß -l 日本;\n")
    shown = await seen(terminal, mark, "日本;\nEnter C-c ; häß -l 日本;")
    await terminal.press("C-c")
    await seen(terminal, mark, "^C")
    assert shown.count("häß") == 2  # typed, and said by cat


async def test_a_shell_that_is_slow_to_start_is_waited_for(sandbox):
    await sandbox.write_file(".bashrc", b"sleep 1\n")
    async with open_terminal(sandbox, timeout=60, env={"HOME": WORKSPACE}) as terminal:
        await terminal.type('echo "e"nd\n')
        shown = await seen(terminal, Mark(0), "\nend")
    assert shown.count('echo "e"nd') == 1


async def test_a_shell_that_prompts_for_nothing_is_typed_to(sandbox, monkeypatch):
    monkeypatch.setattr(terminal_module, "_PROMPT_LOOKS", 10)
    await sandbox.write_file(".bashrc", b"PS1=\n")
    async with open_terminal(sandbox, timeout=60, env={"HOME": WORKSPACE}) as terminal:
        await terminal.type('echo "e"nd\n')
        await seen(terminal, Mark(0), "\nend")


async def test_a_shell_that_ends_at_once_makes_no_terminal(sandbox):
    await sandbox.write_file(".bashrc", b"exit 3\n")
    with pytest.raises(NoTerminal, match="as its shell started"):
        async with open_terminal(sandbox, timeout=60, env={"HOME": WORKSPACE}):
            pass


async def test_only_what_is_new_is_shown_and_at_most_so_many_lines(terminal):
    await terminal.type("echo before\n")
    await asyncio.sleep(0.3)
    mark = await terminal.mark()
    await terminal.type("seq 3000; echo the-$((1 + 1))nd\n")
    shown = await seen(terminal, mark, "the-2nd")
    assert "before" not in shown
    lines = shown.split("\n")
    assert len(lines) <= terminal_module.MAX_LINES and "2500" in lines and "1" not in lines


async def test_a_program_that_takes_the_whole_screen_is_shown_as_it_stands(terminal):
    mark = await terminal.mark()
    await terminal.type("printf '\\033[?1049h\\033[2J\\033[Hwhole %s' screen\n")
    shown = await seen(terminal, mark, "whole screen")
    assert "printf" not in shown


async def test_the_runtime_does_not_reach_the_shell(sandbox):
    async with open_terminal(sandbox, timeout=60, env={"LD_LIBRARY_PATH": "/nowhere"}) as terminal:
        mark = await terminal.mark()
        await terminal.type('echo "path=${LD_LIBRARY_PATH-none}"\n')
        await seen(terminal, mark, "path=none")


async def test_who_ends_the_terminal_is_told_so(terminal):
    with pytest.raises(TerminalGone, match="tmux"):
        await terminal.type(f"tmux -S {terminal_module._SOCKET} kill-server\n")
        for _ in range(100):
            await terminal.mark()
            await asyncio.sleep(0.05)


async def test_who_kills_the_keeper_is_told_so(terminal):
    with pytest.raises(TerminalGone):
        await terminal.type("kill -9 $(grep -l keeper.py /proc/[0-9]*/cmdline | cut -d/ -f3)\n")
        for _ in range(100):
            await terminal.mark()
            await asyncio.sleep(0.05)


async def test_a_sandbox_without_tmux_names_the_mend(sandbox):
    with pytest.raises(NoTerminal, match="scaffolds install terminus"):
        async with open_terminal(sandbox, timeout=60, tmux="/opt/none/tmux"):
            pass


async def test_strangers_at_the_socket_are_not_the_keeper(terminal):
    mark = await terminal.mark()
    knock = "import socket; s = socket.create_connection(('127.0.0.1', 8377)); print(s.recv(99))"
    await terminal.type(f'python3 -c "{knock}"\n')
    await seen(terminal, mark, "this is no proxy")
    await terminal.mark()  # and the keeper still answers


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"[1, 2]\n",
        b'{"code": "0", "out": "x"}\n',
        b'{"code": 0}\n',
        b"[" * 100_000 + b"\n",
        b"x" * (terminal_module._MAX_LINE + 2),
        b"\xff\xfe\n",
        b"",
    ],
    ids=range(8),
)
async def test_a_forged_keeper_ends_the_terminal_and_nothing_else(line, monkeypatch):
    monkeypatch.setattr(terminal_module, "_GRACE_SECONDS", 0.01)
    reader = asyncio.StreamReader(limit=terminal_module._MAX_LINE)
    reader.feed_data(line)
    reader.feed_eof()
    command = asyncio.create_task(asyncio.sleep(60))
    try:
        with pytest.raises(TerminalGone):
            await terminal_module._Keeper((reader, _Deaf()), command).run(["tmux"])
    finally:
        command.cancel()


@pytest.mark.parametrize(
    "position", ["", "1 2", "a b c", "1 2 3 4", "-1 2 0", "1 2 ²", f"1 {'9' * 5000} 0"], ids=range(7)
)
async def test_a_forged_cursor_is_not_believed(position):
    reader = asyncio.StreamReader()
    reader.feed_data(json.dumps({"code": 0, "out": position}).encode() + b"\n")
    terminal = terminal_module.Terminal(terminal_module._Keeper((reader, _Deaf()), asyncio.Future()), "tmux")
    with pytest.raises(TerminalGone, match="cursor"):
        await terminal.mark()


def test_what_is_shown_has_no_control_characters():
    assert clean("a\x1b[31mb\x00\x07\r\n\tc\ud800\u202e日") == "a\ufffd[31mb\ufffd\ufffd\ufffd\n\tc\ufffd\ufffd日"


class _Deaf:
    def write(self, data):
        pass

    async def drain(self):
        pass
