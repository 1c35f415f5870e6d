"""When the watch of a command looks, and what it lets pass."""

import os
import time
from collections import Counter

import pytest

from harness.sandbox import bwrap_watch
from harness.sandbox.base import SandboxConfig
from harness.sandbox.bwrap_watch import watch


async def test_what_was_full_before_is_let_alone_for_a_moment(tmp_path):
    (tmp_path / "big").write_bytes(bytes(2 << 20))
    begun = time.monotonic()
    passed = await watch(SandboxConfig(workspace_bytes=1 << 20), os.getpid(), tmp_path)
    assert passed == "workspace_bytes"
    assert time.monotonic() - begun >= bwrap_watch._PERIOD, "a short command could not have removed anything"


@pytest.mark.parametrize(("near", "far"), [("memory_left", "workspace_left"), ("workspace_left", "memory_left")])
async def test_what_is_near_its_limit_is_looked_at_more_often(tmp_path, monkeypatch, near, far):
    looks = Counter()

    def nearly_full(config, init, workspace):
        looks[near] += 1
        return ("", 1 << 20) if looks[near] < 8 else ("full", 0)

    def empty(config, init, workspace):
        looks[far] += 1
        return "", 1 << 40

    monkeypatch.setattr(bwrap_watch, "_SHARE", 0)  # however slow this machine is
    monkeypatch.setattr(bwrap_watch, near, nearly_full)
    monkeypatch.setattr(bwrap_watch, far, empty)
    assert await watch(SandboxConfig(), 1, tmp_path) == "full"
    assert looks[near] == 8 > looks[far]
