"""Two runs side by side: what is claimed, and what is not."""

from html.parser import HTMLParser

import pytest
from support.reported import HOSTILE, NAME, add_evaluation, add_trial, make_journal

from flows.report.compare import differences, paired_scores, render_comparison, summary, task_pairs
from flows.report.reader import read_run

OTHER = "project/other"


@pytest.fixture
def runs(tmp_path):
    journals = make_journal(tmp_path), make_journal(tmp_path, name=OTHER)

    def read():
        return read_run(tmp_path, NAME), read_run(tmp_path, OTHER)

    return *journals, read


def test_a_difference_that_all_clusters_show_is_claimed(runs):
    _, second, read = runs
    add_evaluation(second, 3, {f"c{i}": [0.0, 0.5] for i in range(8)})
    before, after = paired_scores(*read())
    assert (before.steps, before.better, before.verdict) == ((0, 0), None, "these trials support no difference")
    assert (after.gain, after.clusters, after.better) == (-0.75, 8, NAME)


def test_a_difference_that_one_cluster_shows_is_not(runs):
    _, second, read = runs
    add_evaluation(second, 3, {f"c{i}": [0.0 if i == 0 else 1.0] for i in range(8)})
    last = paired_scores(*read())[-1]
    assert last.gain == -0.125 and last.high == 0.0 and last.better is None


def test_last_validations_are_compared_though_their_steps_differ(runs):
    _, second, read = runs
    add_evaluation(second, 9, {"c1": [1.0], "new": [0.0]})
    last = paired_scores(*read())[-1]
    assert (last.steps, last.clusters, last.gain) == ((3, 9), 1, 0.0)


def test_validations_without_a_task_in_common_are_not_compared(runs, tmp_path):
    _, second, read = runs
    for step in (0, 3):
        add_evaluation(second, step, {"other": [1.0]})
    assert paired_scores(*read()) == []
    assert "nothing can be said on which is better" in render_comparison(*read())


def test_tasks_of_both_runs_by_how_much_they_differ(runs):
    _, second, read = runs
    for i in range(12):
        add_trial(second, "step_000001", f"extra-{i}", "passed", task_id="b")
    add_trial(second, "step_000001", "only", "passed", task_id="c")
    pairs = task_pairs(*read())
    assert [(p.task_id, p.first, p.second) for p in pairs] == [("b", (0, 12), (12, 24)), ("a", (6, 12), (6, 12))]


def test_summary_and_settings(runs, tmp_path):
    first, second = runs[2]()
    rows = {name: (a, b) for name, a, b in summary(first, second)}
    assert rows["score, mean of the last 10 steps"] == ("0.2", "0.2") and rows["tampered"] == ("3", "3")
    assert rows["tokens a second and device"] == ("–", "–")
    assert differences({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == [("b", "2", "3"), ("c", "–", "4")]


def test_the_page_escapes_and_tells_what_is_missing(runs, monkeypatch):
    monkeypatch.setattr("flows.report.page.plotly_js", lambda: "var Plotly = {};")
    first, second, read = runs
    for journal in (first, second):
        add_trial(journal, "step_000001", "h", "failed", task_id=HOSTILE[1])
    (second.root / "config.json").unlink()
    html = render_comparison(*read())
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append((tag, dict(attrs)))
    parser.feed(html)
    assert [attrs for tag, attrs in tags if tag == "script" and "type" not in attrs] == [{}, {}]
    assert "What is missing of project/other" in html and "config.json is not there" in html
