"""What a flow run does that a worker cancels: it tidies up, wherever the signal meets it."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from prefect.exceptions import TerminationSignal
from prefect.utilities.engine import capture_sigterm

from flows.deployed.ending import heeding_termination


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def _terminate_in_a_task() -> None:
    await asyncio.sleep(0.01)
    _terminate()


async def _flow(begin: Callable[[asyncio.AbstractEventLoop], object], told: list[str]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)  # tells of the exception that is lost, and nothing else comes of it
    with heeding_termination():
        other = begin(loop)
        try:
            await asyncio.sleep(20)
            told.append("nothing")
        finally:
            await asyncio.sleep(0.05)  # as it takes to stop a sandbox
            told.append("tidied up")
            del other


@pytest.fixture
def survives() -> Iterator[None]:
    """Prefect passes a signal on that no worker has announced: it would end the tests."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("survives")
@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(lambda loop: loop.call_soon(_terminate), id="in a callback"),
        pytest.param(lambda loop: loop.create_task(_terminate_in_a_task()), id="in another task"),
        pytest.param(lambda loop: threading.Timer(0.2, _terminate).start(), id="while it waits"),
    ],
)
def test_a_signal_ends_the_flow_once(begin: Callable[[asyncio.AbstractEventLoop], object]) -> None:
    told: list[str] = []
    with pytest.raises((asyncio.CancelledError, TerminationSignal)), capture_sigterm():
        asyncio.run(_flow(begin, told))
    assert told == ["tidied up"]
