"""Profiles: from a journal whose engine's speed is known, and from stated figures."""

import json
import os

import pytest
import simpy
from support.reported import NAME, add_trial, make_journal, put

from flows.plan.measure import measure
from flows.plan.profile import PlanError
from flows.plan.shared_server import SharedServer
from flows.plan.stated import Stated, profile_of, read_stated
from tasks.journal import Journal, step_label

TOKEN, CROWD, TURN = 0.05, 0.004, 0.3


def journal_of_a_known_engine(root, steps=4):
    """Steps of 24 trials of several lengths that begin one after the other, served as the engine would."""
    journal = Journal(root / NAME)
    put(journal.root / "config.json", {"config": {"serving": {"replicas": 1}, "learner": {"nodes": 2, "ranks": 2}}})
    for step in range(1, steps + 1):
        label, began = step_label(step), 1000.0 * step
        lengths = [20 + 13 * ((5 * i + step) % 24) for i in range(24)]
        for i, seconds in enumerate(generated(lengths)[0]):
            timings = {"sandbox_start": 0.5 * i, "agent": seconds + 1.0, "generate": seconds, "patch": 0.25}
            changes = {
                "group_id": f"{label}/task-{i % 6}",
                "started_at": began,
                "turns": 1,
                "response_length": lengths[i],
            }
            attempt = 2 if i == 0 else 1
            add_trial(journal, label, f"s{step}-{i}", "failed", timings=timings, attempt=attempt, **changes)
        last = max(0.5 * i + seconds + 1.0 + 0.25 + 0.5 for i, seconds in enumerate(generated(lengths)[0]))
        tokens = 100.0 * step + sum(lengths)
        metrics = {
            "actor/update_tokens": tokens,
            "timing_s/update_actor": 3.0 + 0.02 * tokens,
            "timing_s/update_weights": 0.5 * step,
            "timing_s/step": last + 3.0 + 0.02 * tokens + 0.5 * step + 7.0,
        }
        put(journal.stage_dir(label) / "record.json", {"step": step, "metrics": metrics})
    return journal


def generated(lengths):
    """Seconds that the engine took for each, and in which it was busy."""
    env = simpy.Environment()
    server = SharedServer(env, lambda n: 1 / (TOKEN + CROWD * n))
    seconds = {}

    def trial(i, tokens):
        yield env.timeout(0.5 * i + TURN)
        asked = env.now - TURN
        yield server.work(tokens)
        seconds[i] = env.now - asked

    for i, tokens in enumerate(lengths):
        env.process(trial(i, tokens))
    env.run()
    server.settle()
    return [seconds[i] for i in range(len(lengths))], server.busy_seconds


def test_a_journal_tells_how_fast_the_engine_was_however_busy(tmp_path):
    journal_of_a_known_engine(tmp_path)
    found = measure(tmp_path, NAME)
    assert found.engine.token == pytest.approx(TOKEN, rel=0.1)
    assert found.engine.crowd == pytest.approx(CROWD, rel=0.1)
    # alone and in a crowd of twenty
    for crowd in (1, 20):
        speed = found.engine.token + found.engine.crowd * crowd
        assert speed == pytest.approx(TOKEN + CROWD * crowd, rel=0.05)


def test_a_journal_tells_update_sync_overhead_and_failures(tmp_path):
    journal_of_a_known_engine(tmp_path)
    found = measure(tmp_path, NAME)
    assert found.source == f"run {NAME}, steps 2 to 4"
    assert (found.update_base, found.update_token) == pytest.approx((3.0, 0.02))
    assert found.update_spread == pytest.approx((1.0,) * 3)
    assert found.sync == (1.0, 1.5, 2.0)
    assert found.overhead == pytest.approx((7.0,) * 3)
    assert found.train_nodes == 2
    assert found.infra_failures == pytest.approx(3 / 75)
    assert len(found.groups) == 6 * 3 and all(len(group) == 4 for group in found.groups)
    assert [trial.tools for group in found.groups for trial in group] == pytest.approx([1.0] * 72)


def test_processors_that_trials_took_are_a_part_of_the_machine_while_they_ran(tmp_path, monkeypatch):
    monkeypatch.setattr("flows.plan.measure.cpu_threads", lambda: 4)
    journal = journal_of_a_known_engine(tmp_path)
    assert measure(tmp_path, NAME).trial_share == 0, "nobody measured it"
    for step in range(1, 5):
        record = journal.stage_dir(step_label(step)) / "record.json"
        stored = json.loads(record.read_text())
        metrics = stored["metrics"]
        trials = metrics["timing_s/step"] - metrics["timing_s/update_actor"] - metrics["timing_s/update_weights"] - 7.0
        metrics["perf/cpu_seconds/flow"] = 2.0 * trials
        put(record, stored)
    assert measure(tmp_path, NAME).trial_share == pytest.approx(0.5)
    # servers and Ray's processes took another core; engines and learner, on all four, are not of it
    for step in range(1, 5):
        record = journal.stage_dir(step_label(step)) / "record.json"
        stored = json.loads(record.read_text())
        metrics = stored["metrics"]
        trials = metrics["perf/cpu_seconds/flow"] / 2
        _, engine = generated([20 + 13 * ((5 * i + step) % 24) for i in range(24)])
        metrics["perf/cpu_seconds/machine"] = 3.0 * trials + 4 * metrics["timing_s/update_actor"] + 4 * engine
        put(record, stored)
    assert measure(tmp_path, NAME).trial_share == pytest.approx(0.75, abs=0.05)


def test_what_lies_between_two_steps_belongs_to_them_but_not_a_rare_evaluation(tmp_path):
    journal = journal_of_a_known_engine(tmp_path)
    alone = measure(tmp_path, NAME).overhead
    ended = 1e9
    for step, gap in ((1, 0.0), (2, 0.5), (3, 0.5), (4, 90.0)):
        record = journal.stage_dir(step_label(step)) / "record.json"
        ended += json.loads(record.read_text())["metrics"]["timing_s/step"] + gap
        os.utime(record, (ended, ended))
    assert measure(tmp_path, NAME, skip=0).overhead[1:] == pytest.approx([seconds + 0.5 for seconds in alone])


def test_trials_that_were_sampled_ahead_are_in_no_steps_time(tmp_path):
    journal = journal_of_a_known_engine(tmp_path)
    config = json.loads((journal.root / "config.json").read_text())
    config["config"]["mode"] = "async"
    put(journal.root / "config.json", config)
    for step in range(1, 5):
        record = journal.stage_dir(step_label(step)) / "record.json"
        stored = json.loads(record.read_text())
        parts = stored["metrics"]["timing_s/update_actor"] + stored["metrics"]["timing_s/update_weights"]
        stored["metrics"] |= {"timing_s/gen": 3.0, "timing_s/score": 4.0, "timing_s/step": 3.0 + 4.0 + parts + 2.0}
        put(record, stored)
    found = measure(tmp_path, NAME)
    assert found.overhead == pytest.approx((2.0,) * 3)
    assert found.update_base == pytest.approx(3.0 + 4.0), "its updates hold their scores"


def test_trials_that_infrastructure_broke_tell_nothing_of_the_work(tmp_path):
    journal = journal_of_a_known_engine(tmp_path)
    add_trial(journal, step_label(2), "broken", None, outcome="infra_error", turns=0, response_length=0, timings={})
    found = measure(tmp_path, NAME)
    assert sum(map(len, found.groups)) == 3 * 24
    assert found.infra_failures == pytest.approx(4 / 76)


def test_a_run_that_tells_too_little_is_refused_with_the_mend(tmp_path):
    with pytest.raises(PlanError, match="--from nobody/none: there is no such run"):
        measure(tmp_path, "nobody/none")
    make_journal(tmp_path, steps=1)
    with pytest.raises(PlanError, match="no step after the first 1; let it run on"):
        measure(tmp_path, NAME)


def test_stated_figures_have_their_median_and_their_tail():
    stated = Stated(turns=10, tokens=1000, tail=8.0, tool_seconds=30, tokens_per_s=50, most_tokens_per_s=2000,
                    update_tokens_per_s=5000, prompt_share=1.5)  # fmt: skip
    found = profile_of(stated, "a file")
    (trials,) = found.groups
    tokens = sorted(trial.tokens for trial in trials)
    assert tokens[len(tokens) // 2] == pytest.approx(1000, rel=0.02)
    assert tokens[round(0.99 * len(tokens))] == pytest.approx(8000, rel=0.1)
    assert trials[-1].tools / 30 == pytest.approx(trials[-1].tokens / 1000, rel=0.01)
    assert 1 / (found.engine.token + found.engine.crowd) == pytest.approx(50)
    assert found.engine.most_tokens_per_s == pytest.approx(2000)
    assert found.batch_tokens == 2.5 and found.update_token == pytest.approx(1 / 5000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens: 5\n", "tokens_per_s: Field required"),
        ("tokens: 5\ntokens_per_s: 9\nmost_tokens_per_s: 3\nupdate_tokens_per_s: 1\n", "raise that"),
        ("tokens: [", "not YAML"),
        ("speed: 1\n", "figures are turns, tokens"),
    ],
)
def test_figures_that_cannot_be_are_refused(tmp_path, text, message):
    path = tmp_path / "figures.yaml"
    path.write_text(text)
    with pytest.raises(PlanError, match=message):
        read_stated(path)
