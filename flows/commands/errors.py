"""Bad input ends a command with its message and status 2, not with a traceback; faults of the code keep theirs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

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
        console.print(f"[bold red]error[/bold red] {escape(str(cause))}", highlight=False, soft_wrap=True)
        sys.exit(2)


def _interrupts() -> tuple[type[BaseException], ...]:
    """Ctrl-C, and what Prefect makes of SIGTERM while a flow runs."""
    exceptions = sys.modules.get("prefect.exceptions")
    return (KeyboardInterrupt,) if exceptions is None else (KeyboardInterrupt, exceptions.TerminationSignal)
