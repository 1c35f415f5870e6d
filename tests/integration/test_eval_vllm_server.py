"""`testgrad eval --endpoint` of the built-in policy behind vLLM's OpenAI-compatible server, in chat and in token ids.

It boots an engine and takes minutes: `TESTGRAD_ALL_EVALUATION=1` runs it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest
from support.integration import environment, leftover_files, leftover_processes, testgrad
from support.served import until

from trainer.model import ModelConfig, resolve_model
from trainer.placement import engine_environment

pytestmark = [
    pytest.mark.skipif("TESTGRAD_ALL_EVALUATION" not in os.environ, reason="TESTGRAD_ALL_EVALUATION=1 runs it"),
    pytest.mark.timeout(2400),
]

NAME = "smollm2"
WINDOW = 2048
TASKS = 3


@pytest.fixture(scope="module")
def policy(root: Path) -> Path:
    """A model that passes the probe: it answers a plain question."""
    return resolve_model(ModelConfig(), root)


@pytest.fixture(scope="module")
def address(policy: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of vLLM's server; at the end nothing of it is left."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    served = ["--model", str(policy), "--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)]
    limits = ["--dtype", "bfloat16", "--max-model-len", str(WINDOW), "--max-num-seqs", "8", "--enforce-eager"]
    log, own = root / "vllm-server.log", tmp_path_factory.mktemp("vllm")
    with log.open("wb") as said:
        server = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *served, *limits],
            # it leaves sockets behind in its temporary folder, which is not ours to judge
            env=environment() | engine_environment(2) | {"VLLM_CPU_KVCACHE_SPACE": "1", "TMPDIR": str(own)},
            stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
        )  # fmt: skip

    def answers() -> bool:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    try:
        until("an answer of vLLM's server", answers)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(60)
        finally:
            os.killpg(server.pid, signal.SIGKILL) if server.poll() is None else None
    assert not leftover_processes() and not leftover_files()


def score(root: Path, *asked: str) -> list[Path]:
    """Score what is served on a few tasks. Returns the folders of the trials, all of which count."""
    limits = ["--attempts", "2", "--max-tasks", str(TASKS), "--set", "rollout.max_tokens_per_turn=80"]
    scored = testgrad("eval", *asked, *limits, "--json", root=root)
    assert scored.returncode == 0, scored.stderr
    record = json.loads(scored.stdout)
    assert (record["tasks"], record["scored"], record["launched"]) == (TASKS, 2 * TASKS, 2 * TASKS)
    trials = [path.parent for path in Path(record["record"]).parents[2].glob("trials/*/*/trial.json")]
    assert len(trials) == 2 * TASKS
    return trials


def test_a_server_is_asked_in_chat(address: str, root: Path) -> None:
    for trial in score(root, "--endpoint", address, "--model", NAME):
        counters = json.loads((trial / "trial.json").read_text())["counters"]
        assert counters["tokens_unknown"] == 1 and 0 < counters["endpoint_completion_tokens"] <= 80
        assert not (trial / "rollout.parquet").exists(), "there are no tokens to keep"


def test_a_server_is_asked_in_token_ids(address: str, policy: Path, root: Path) -> None:
    for trial in score(root, "--endpoint", address, "--model", NAME, "--tokenizer", str(policy)):
        (rollout,) = pq.read_table(trial / "rollout.parquet").to_pylist()
        sampled = [number for number, is_sampled in enumerate(rollout["loss_mask"]) if is_sampled]
        assert 0 < len(sampled) <= 80 and sampled[0] == rollout["prompt_length"]
        assert all(rollout["logprobs"][number] <= 0 for number in sampled)
