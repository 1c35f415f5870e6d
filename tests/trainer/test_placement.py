"""The environment of actors that compute."""

import os

from trainer.placement import cpu_threads, engine_environment


def test_threads_are_those_this_process_may_use():
    assert cpu_threads() == len(os.sched_getaffinity(0))


def test_threads_wait_without_spinning():
    environment = engine_environment(3)
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"


def test_nothing_calls_home():
    environment = engine_environment(1)
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"
