"""Numbers under verl's names."""

import math
from types import SimpleNamespace

from trainer.metrics import distribution, machine_cpu_seconds, step_line, throughput


def test_distribution():
    assert distribution("x", [1.0, 2.0, 6.0]) == {"x/mean": 3.0, "x/max": 6.0, "x/min": 1.0}


def test_no_values_give_no_numbers():
    assert distribution("x", []) == {}


def test_step_line_is_sorted_and_writes_whole_numbers_short():
    line = step_line(3, {"b/two": 0.5, "a/one": 2.0, "c": math.nan})
    assert line == "step:3 - a/one:2 - b/two:0.5 - c:nan"


def test_step_line_keeps_all_digits():
    value = 0.1 + 0.2
    assert float(step_line(1, {"x": value}).rpartition(":")[2]) == value


def test_throughput_is_by_token():
    metrics = {
        "perf/total_num_tokens": 1000.0, "batch/rollouts": 10.0, "response_length/mean": 20.0,
        "timing_s/step": 10.0, "timing_s/gen": 4.0, "timing_s/update_actor": 5.0,
    }  # fmt: skip
    assert throughput(metrics, devices=2) == {
        "perf/time_per_step": 10.0, "perf/throughput": 50.0,
        "timing_per_token_ms/gen": 20.0, "timing_per_token_ms/update_actor": 5.0,
    }  # fmt: skip


def test_stages_of_the_learner_that_took_place_are_counted_by_token():
    metrics = {
        "perf/total_num_tokens": 1000.0, "batch/rollouts": 10.0, "response_length/mean": 20.0, "timing_s/step": 10.0,
        "timing_s/gen": 4.0, "timing_s/update_actor": 5.0, "timing_s/update_critic": 2.0, "timing_s/score": 1.0,
    }  # fmt: skip
    found = throughput(metrics, devices=1)
    assert found["timing_per_token_ms/update_critic"] == 2.0 and found["timing_per_token_ms/score"] == 1.0


def test_an_empty_batch_has_no_throughput():
    assert throughput({"timing_s/step": 10.0, "perf/total_num_tokens": 0.0}, devices=1) == {}


def test_what_a_machine_computed_leaves_out_the_time_in_which_it_did_not(monkeypatch):
    times = SimpleNamespace(user=8.0, nice=4.0, system=2.0, irq=1.0, idle=1000.0, iowait=500.0, steal=30.0, guest=3.0)
    counted = type("Times", (tuple,), vars(times))(vars(times).values())
    monkeypatch.setattr("psutil.cpu_times", lambda: counted)
    assert machine_cpu_seconds() == 15.0
