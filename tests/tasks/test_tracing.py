"""Trials as MLflow traces: which ones, what they hold, and each once."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.captures import ask, busy_capture, user
from support.journals import make_result, make_run, make_verdict, write_trial

from harness.trajectory import encode, trajectory_of
from harness.verifier.verdict import Status
from tasks.draw import GREEDY
from tasks.trace_spans import trial_spans
from tasks.tracing import TracingConfig, choose, trace_trials
from tasks.tracking import Tracker
from tasks.trial_files import StoredTrial, store_verdict
from trainer.rollout import Outcome

LABEL = "step_000003"


def stored(session, group):
    return StoredTrial(None, make_result(session, group).to_json(), None)


TRIALS = [stored(f"{group}-{i}", f"{LABEL}/{group}") for group in "abcdefgh" for i in range(4)]


def chosen(config, trials=TRIALS):
    return [trial.session_id for trial in choose(trials, config)]


def test_whole_groups_are_traced():
    sessions = chosen(TracingConfig(max_per_step=10))
    assert len(sessions) == 8
    groups = {session[0] for session in sessions}
    assert len(groups) == 2 and sessions == [f"{group}-{i}" for group in dict.fromkeys(s[0] for s in sessions)
                                             for i in range(4)]  # fmt: skip
    assert chosen(TracingConfig(max_per_step=3)) == sessions[:3], "of one that does not fit, a part"
    assert chosen(TracingConfig(max_per_step=0)) == []
    assert len(chosen(TracingConfig(max_per_step=1000))) == len(TRIALS)


@given(st.permutations(TRIALS), st.integers(0, 40), st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_the_choice_depends_on_ids_alone(trials, most, fraction):
    config = TracingConfig(max_per_step=most, fraction=fraction)
    assert chosen(config, trials) == chosen(config)
    assert len(chosen(config)) <= most
    more = chosen(config.model_copy(update={"fraction": 1.0}))
    assert more[: len(chosen(config))] == chosen(config)


def test_a_greedy_trial_goes_with_its_group():
    greedy = [stored(f"{group}-greedy", f"{LABEL}/{group}{GREEDY}") for group in "abcdefgh"]
    sessions = chosen(TracingConfig(max_per_step=5), [*TRIALS, *greedy])
    assert len({session[0] for session in sessions}) == 1 and sum("greedy" in session for session in sessions) == 1


def test_spans_of_a_busy_session():
    told = trajectory_of(make_result("s", segments=busy_capture().segments))
    told = json.loads(encode(told))
    spans = trial_spans("tr-" + "0" * 32, told, {"reward": 1.0}, max_chars=10)
    root = spans[0]
    kinds = [(json.loads(span["attributes"]["mlflow.spanType"]), span["name"]) for span in spans]
    assert kinds == [
        ("AGENT", "trial"),
        ("CHAT_MODEL", "main turn 1"), ("TOOL", "bash"),
        ("CHAT_MODEL", "main turn 2"), ("TOOL", "task"), ("TOOL", "bash"),
        ("CHAT_MODEL", "main turn 3"),
        ("CHAT_MODEL", "hidden:1 turn 1"),
        ("CHAT_MODEL", "sub:2 turn 1"), ("CHAT_MODEL", "sub:2 turn 2"),
        ("CHAT_MODEL", "main turn 1"), ("CHAT_MODEL", "main turn 1"),
    ]  # fmt: skip
    assert all(span["parent_span_id"] == root["span_id"] for span in spans[1:])
    assert len({span["span_id"] for span in spans}) == len(spans)
    assert all(span["start_time_unix_nano"] < span["end_time_unix_nano"] for span in spans)
    told_of = [{key: json.loads(value) for key, value in span["attributes"].items()} for span in spans]
    assert told_of[2]["mlflow.spanInputs"] == {"arguments": '{"command" … 7 more characters'}
    assert told_of[2]["mlflow.spanOutputs"] == {"content": "solution.p … 1 more characters"}
    assert told_of[3]["mlflow.chat.tokenUsage"] == {"input_tokens": 8, "output_tokens": 2, "total_tokens": 10}
    assert told_of[3]["segment"] == 0 and told_of[3]["weight_versions"] == [[1, 2]]
    assert "sampled_ids" not in json.dumps(spans)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "root")
    run.root.mkdir()
    for i, status in enumerate((Status.PASSED, Status.FAILED)):
        capture = busy_capture()
        ask(capture, [user("half a character: \ud800, and none: \0")], (17,))
        result = make_result(f"s-{i}", f"{LABEL}/fix-add", segments=capture.segments)
        write_trial(run, LABEL, result, None)
        verdict = make_verdict(status, reason=f"it {status}" if i == 0 else "broken: \ud800\0")
        store_verdict(run.journal.trials_dir(LABEL) / f"s-{i}", verdict)
    write_trial(run, LABEL, make_result("s-lost", f"{LABEL}/fix-add", outcome=Outcome.INFRA_ERROR), None)
    return run


def test_traces_in_mlflow(run, tmp_path):
    """One test, since making MLflow's database takes seconds."""
    assert trace_trials(run, LABEL, 3, TracingConfig(max_per_step=2)) == 2
    assert trace_trials(run, LABEL, 3, TracingConfig(max_per_step=3)) == 1, "what is there is not written again"
    assert trace_trials(run, LABEL, 3, TracingConfig(max_per_step=3)) == 0
    assert trace_trials(run, LABEL, 4, TracingConfig(max_per_step=3, fraction=0)) == 0
    assert trace_trials(run, "step_000009", 9, TracingConfig()) == 0, "no trials"

    tracker = Tracker.open(run)
    client = tracker._client
    traces = {
        trace.info.client_request_id: trace
        for trace in client.search_traces(
            locations=[tracker.experiment_id], filter_string="tag.`testgrad.task` = 'fix-add'"
        )
    }
    assert set(traces) == {"s-0", "s-1", "s-lost"}
    trace = traces["s-0"]
    assert trace.info.tags["testgrad.step"] == "3" and trace.info.tags["testgrad.session"] == "s-0"
    assert (trace.info.tags["testgrad.outcome"], trace.info.tags["testgrad.group"]) == (
        "completed", f"{LABEL}/fix-add"
    )  # fmt: skip
    assert trace.info.trace_metadata["mlflow.sourceRun"] == tracker.run_id
    assert {name: str(traces[name].info.state) for name in traces} == {"s-0": "OK", "s-1": "OK", "s-lost": "ERROR"}
    (feedback,) = trace.info.assessments
    assert (feedback.name, feedback.value, feedback.rationale) == ("reward", 1.0, "it passed")
    assert (feedback.source.source_type, feedback.source.source_id) == ("CODE", "verifier")
    assert [a.value for a in traces["s-1"].info.assessments] == [0.0] and not traces["s-lost"].info.assessments
    spans = trace.data.spans
    assert len(spans) == 13 and spans[0].name == "trial"
    turn = next(span for span in spans if span.name == "main turn 1")
    assert turn.inputs["messages"][0] == {"role": "system", "content": "you mend code"}
    assert turn.outputs["messages"][0]["reasoning"] == "look first"
    assert trace.info.token_usage["output_tokens"] == 2 + 2 + 1 + 1 + 1 + 2 + 2 + 1 + 1
    assert traces["s-1"].info.assessments[0].rationale == "broken: ??"

    # interrupted between spans and tags, the same trace is written over
    before = len(spans)
    client.delete_trace_tag(trace.info.trace_id, "testgrad.run")
    assert trace_trials(run, LABEL, 3, TracingConfig(max_per_step=3)) == 1
    again = client.get_trace(trace.info.trace_id)
    assert len(again.data.spans) == before and len(again.info.assessments) == 1
    assert again.info.tags["testgrad.run"]
    assert not (tmp_path / "mlruns").exists()
