"""The end of a flow run that is cancelled: whatever its process is at, its flow is told and tidies up."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heeding_termination() -> Iterator[None]:
    """Cancel the asyncio task that runs the block when the process is sent SIGTERM, as a worker does.

    Prefect raises an exception from its signal handler, wherever the program is at that moment. In a callback of the
    loop, or in some other task, that exception ends there; the flow would go on until it is killed half a minute later,
    and leave what it has started. The wakeup descriptor hears of the signal whatever becomes of the exception.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are not this thread's business
        return
    flow = asyncio.current_task()
    assert flow is not None, "a flow is a coroutine, and runs in a task"
    loop = asyncio.get_running_loop()
    heard, told = socket.socketpair()
    for end in (heard, told):
        end.setblocking(False)

    def hear() -> None:
        # once: another would interrupt the tidying up
        if signal.SIGTERM in heard.recv(4096) and not flow.cancelling():
            flow.cancel()

    previous = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    loop.add_reader(heard, hear)
    try:
        yield
    finally:
        loop.remove_reader(heard)
        signal.set_wakeup_fd(previous)
        heard.close()
        told.close()
