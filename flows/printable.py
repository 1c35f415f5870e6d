"""Texts that others have written, made fit for a terminal: trials, engines and errors say what they like."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.segment import Segment


def printable(text: str) -> str:
    """`text` on one line, with a mark in the place of each character that could command a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def printable_lines(text: str) -> str:
    """The same for a text whose lines are kept."""
    return "\n".join(printable(line) for line in text.splitlines())


@contextmanager
def only_printable(console: Console) -> Iterator[None]:
    """What is printed inside the block commands nothing, whatever texts it holds; styles stay."""
    console.push_render_hook(_Hook())
    try:
        yield
    finally:
        console.pop_render_hook()


class _Hook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(renderable) for renderable in renderables]


class _Printable:
    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inner, options):
            lines = segment.text.split("\n")
            yield segment if segment.control else Segment("\n".join(map(printable, lines)), segment.style)
