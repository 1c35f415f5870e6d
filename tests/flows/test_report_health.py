"""A report says what the diagnosis found: state, first step, signatures; and what they quote is text."""

import os

from support.diagnosed import NAME, write_run
from support.reported import HOSTILE, MARK, put

from flows.report.health import read_health
from flows.report.page import render_report
from flows.report.reader import read_run
from tasks.journal import step_label
from tasks.lease import lease

VERDICT = {
    "verdict": "WARN",
    "findings": [
        {"level": "OK", "check": "rate", "field": "actor/lr", "value": "1e-06", "why": "of learner.lr 1e-06"},
        {
            "level": "WARN",
            "check": "reward",
            "field": "groups",
            "value": "1",
            "why": "few",
            "causes": [{"cause": "too hard", "evidence": "3 of 4", "mend": "take easier ones"}],
        },
    ],
}


def page(root):
    return render_report(read_run(root, NAME))


def test_a_healthy_run_that_was_never_judged(tmp_path):
    write_run(tmp_path)
    text = page(tmp_path)
    assert "No signature of a run that is ill was found." in text and "The first step was not judged." in text
    assert "<b>stopped, step 13, not begun</b>" in text


def test_state_verdict_and_signatures(tmp_path):
    with lease(tmp_path / NAME, "train"):  # the run moves if it was written since
        journal = write_run(tmp_path, changes=lambda step: {"response_length/clip_ratio": 0.5})
        put(journal.stage_dir(step_label(1)) / "first_step.json", VERDICT)
        health = read_health(read_run(tmp_path, NAME))
        text = page(tmp_path)
    assert health.state.startswith("running, step 13") and f"process {os.getpid()} works on it" in health.why
    assert [(line.level, line.name) for line in health.first_step] == [("OK", "rate"), ("WARN", "reward")]
    assert health.first_step[1].text == "groups is 1: few"
    assert health.first_step[1].more == ["likely 1: too hard (3 of 4); take easier ones"]
    (sign,) = health.signatures
    assert sign.name == "truncation" and "0.5 at step 12" in sign.more[0] and sign.more[-1].startswith("likely 1: ")
    for words in (
        "50% of the trials fill the window",
        "likely 1: too hard (3 of 4); take easier ones",
        'id="first-step"',
    ):
        assert words in text


def test_what_a_verdict_quotes_is_text(tmp_path):
    journal = write_run(tmp_path)
    findings = [{"level": h, "check": h, "field": h, "value": h, "why": h, "causes": [{"cause": h}]} for h in HOSTILE]
    put(journal.stage_dir(step_label(1)) / "first_step.json", {"findings": [*findings, 1, None], "verdict": HOSTILE[0]})
    text = page(tmp_path)
    assert f"<script>document.documentElement.dataset.{MARK}" not in text
    assert "<img src=x" not in text and "<svg onload" not in text
    put(journal.stage_dir(step_label(1)) / "first_step.json", {"findings": {"a": 1}})
    assert 'id="first-step"' not in page(tmp_path)
