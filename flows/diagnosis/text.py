"""Texts for a terminal: what trials, engines and errors say may hold secrets, and characters that command terminals."""

from flows.configuration.redaction import Redactor
from flows.printable import printable


class Shown:
    """Makes texts fit to be shown: without secrets, on one line, every character printable."""

    def __init__(self) -> None:
        self._redactor = Redactor()

    def __call__(self, text: str) -> str:
        return printable(self._redactor.text(text))

    def lines(self, text: str) -> str:
        """The same for a text whose lines are kept."""
        return "\n".join(self(line) for line in text.splitlines())
