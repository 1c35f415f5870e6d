"""A real browser opens reports: figures are drawn, nothing is complained of, nothing of a trial's is run."""

import json
import re
from html import unescape

import pytest
from support.browser import load, need_browser
from support.reported import HOSTILE, MARK, NAME, PAYLOAD, add_trial, make_journal

from flows.report.publish import write_comparison, write_report
from tasks.journal import write_json


@pytest.fixture(autouse=True)
def _browser():
    need_browser()


def root_element(html):
    return re.search(r"<html[^>]*>", html).group()


def test_the_browser_here_would_notice(tmp_path):
    """What the other tests look for does appear where a page is not safe."""
    page = tmp_path / "bad.html"
    page.write_text(f"<p>x</p><script>{PAYLOAD}; console.error('ouch')</script>")
    loaded = load(page.as_uri(), tmp_path / "profile")
    assert f"data-{MARK}" in root_element(loaded.html)
    assert "ouch" in "".join(loaded.console)


def test_a_report_with_hostile_texts_draws_its_figures_and_runs_nothing_else(tmp_path):
    journal = make_journal(tmp_path)
    for i, text in enumerate(HOSTILE):
        changes = {"task_id": text, "error": text, "reason": text, "said": text, "log": text}
        add_trial(journal, "step_000002", f"hostile-{i}", "tampered", **changes)
    stored = json.loads((journal.root / "config.json").read_text())
    stored["config"]["data"] = {HOSTILE[0]: HOSTILE[1]}
    write_json(journal.root / "config.json", stored)
    path = write_report(tmp_path, NAME)

    loaded = load(f"{path.as_uri()}#trial-1", tmp_path / "profile")
    assert loaded.console == []
    assert 'data-drawn="yes"' in root_element(loaded.html) and f"data-{MARK}" not in root_element(loaded.html)
    body = re.sub(r"<script.*?</script>", "", loaded.html, flags=re.DOTALL)
    figures = re.findall(r'class="figure[^"]*" id="figure-([a-z-]+)"', body)
    assert {"score", "entropy", "stages", "outcomes", "verdicts", "signal", "correct", "grid", "validation"} <= set(
        figures
    )
    assert body.count('class="main-svg"') >= len(figures)
    assert re.search(r'<details id="trial-1"[^>]* open=""', body), "a link to a trial opens it"
    assert not re.search(r"<(iframe|object|embed|base|link)\b", body)
    links = re.findall(r'<a\b[^>]*href="([^"]*)"', body)
    assert links and [link for link in links if not link.startswith(("#", "trials/"))] == [], "a name became a link"
    drawn = "".join(unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", body))
    assert f"<script>{PAYLOAD}</script>" in drawn, "task names are to be read as they are"


def test_a_comparison_draws_its_figures(tmp_path):
    make_journal(tmp_path)
    make_journal(tmp_path, name="project/<b>other")
    path = write_comparison(tmp_path, NAME, "project/<b>other", tmp_path / "compare.html")
    loaded = load(path.as_uri(), tmp_path / "profile")
    assert loaded.console == []
    assert 'data-drawn="yes"' in root_element(loaded.html)
    assert "these trials support no difference" in loaded.html


def test_a_report_on_nothing_opens(tmp_path):
    (tmp_path / NAME).mkdir(parents=True)
    loaded = load(write_report(tmp_path, NAME).as_uri(), tmp_path / "profile")
    assert loaded.console == []
    assert 'data-drawn="none"' in root_element(loaded.html) and "no step has been recorded yet" in loaded.html
