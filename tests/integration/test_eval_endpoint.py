"""`testgrad eval --endpoint`: a policy that somebody else serves, in real sandboxes; killed, and gone on with."""

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.endpoint import MODEL, FakeServer, fake_server, said
from support.integration import command, environment, testgrad
from support.tasks import FIXED, write_task

from harness.pool.index import TaskPointer, write_index

PROBE = "def add(a, b): return a + b. The function returns the sum of two numbers."


@pytest.fixture
def index(tmp_path: Path) -> Path:
    path = tmp_path / "pool" / "index.parquet"
    write_index([TaskPointer(name, write_task(path.parent / name)) for name in ("one", "two")], path)
    return path


class Served:
    """The server in a thread of its own. It solves one trial, and holds all others back until it is let go."""

    def __init__(self) -> None:
        self.server: FakeServer | None = None
        self.let_go = threading.Event()
        self.trials = 0
        self._up, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def answer(self, body: dict[str, Any]) -> Any:
        if "explain it in one sentence" in body["messages"][-1]["content"]:
            return said(PROBE)
        self.trials += 1
        if self.trials > 1 and not self.let_go.is_set():
            return 503, {"error": {"message": "wait"}}
        return said(f"```python\n{FIXED}```")

    async def _serve(self) -> None:
        async with fake_server(self.answer, window=32768, retry_after="3600") as self.server:
            self._up.set()
            while not self._stop.is_set():
                await asyncio.sleep(0.05)

    def __enter__(self) -> "Served":
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


@pytest.mark.skipif(
    "TESTGRAD_ALL_EVALUATION" not in os.environ, reason="takes a minute or two; TESTGRAD_ALL_EVALUATION=1 runs it"
)
def test_an_endpoint_is_scored_and_a_killed_evaluation_goes_on(index: Path, root: Path, served: Served) -> None:
    assert served.server is not None
    words = [
        "eval",
        "--endpoint",
        served.server.url,
        "--model",
        MODEL,
        "--index",
        str(index),
        "--attempts",
        "1",
        "--json",
    ]
    first = subprocess.Popen(
        command(*words, root=root), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 500
    while not (done := list(root.glob("scores/*/trials/*/*/verdict.json"))):
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    (kept,) = done
    before = kept.stat().st_mtime_ns

    served.let_go.set()
    asked = len(served.server.asked)
    second = testgrad(*words, root=root)
    assert second.returncode == 0, second.stderr
    record = json.loads(second.stdout)
    assert (record["tasks"], record["scored"], record["pass_at"]["1"]["value"]) == (2, 2, 1.0)
    assert record["pass_at"]["1"]["coverage"] == 1.0 and kept.stat().st_mtime_ns == before
    assert len(served.server.asked) - asked == 2, "the plain question, and the trial that was missing"
    trials = sorted(root.glob("scores/*/trials/*/*"))
    assert len(trials) == 2 and not list(root.glob("scores/*/trials/*/*/rollout.parquet")), (
        "there are no tokens to keep"
    )
    counters = json.loads((trials[0] / "trial.json").read_text())["counters"]
    assert counters["tokens_unknown"] == 1 and counters["endpoint_completion_tokens"] == 5
