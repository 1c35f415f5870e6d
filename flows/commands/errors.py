"""Bad input ends a command with its message and status 2, not with a traceback; faults of the code keep theirs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape

from flows.printable import printable_lines

_OURS = ("flows", "tasks", "harness", "trainer", "deployments")


@contextmanager
def clear_errors(stopped: str = "stopped") -> Iterator[None]:
    """Around a command. `stopped` is told after Ctrl-C or a plain kill.

    With TESTGRAD_DEBUG set, every error keeps its traceback.
    """
    try:
        yield
    except _interrupts():
        Console().print(f"\n[bold]{stopped}[/bold]", highlight=False)
        sys.exit(130)
    except Exception as error:
        # an error raised inside an actor arrives wrapped
        cause = getattr(error, "cause", None) or error
        raised_here = type(cause).__module__.partition(".")[0] in _OURS
        if os.environ.get("TESTGRAD_DEBUG") or not raised_here:
            raise
        console = Console(stderr=True)
        console.print(
            f"[bold red]error[/bold red] {escape(printable_lines(str(cause)))}", highlight=False, soft_wrap=True
        )
        sys.exit(2)


def checked(model: Any, **values: Any) -> Any:
    """The pydantic model of these values.

    Raises:
        ConfigError: the first thing that is wrong with them, in a line.
    """
    from pydantic import ValidationError

    from flows.config import ConfigError

    try:
        return model(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        # what a validator of ours refuses it names itself, unless it is an address with a password
        got = "" if problem["type"] == "value_error" else f" (got {problem['input']!r})"
        raise ConfigError(f"{where}: {problem['msg'].removeprefix('Value error, ')}{got}") from None


def _interrupts() -> tuple[type[BaseException], ...]:
    """Ctrl-C, and what Prefect makes of SIGTERM while a flow runs."""
    exceptions = sys.modules.get("prefect.exceptions")
    return (KeyboardInterrupt,) if exceptions is None else (KeyboardInterrupt, exceptions.TerminationSignal)
