"""The page: one file that loads nothing, in which texts of trials stay texts; where it goes, and the commands."""

import base64
import hashlib
import json
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
import typer
from support.journals import make_result, make_run, write_trial
from support.reported import HOSTILE, MARK, NAME, add_trial, make_journal
from typer.testing import CliRunner

from flows.commands.report import compare, report
from flows.report import publish
from flows.report.conversation import read_conversation, shorten
from flows.report.page import plotly_js, render_report, settings
from flows.report.publish import publish_report, write_report
from flows.report.reader import read_run
from flows.report.run_data import TrialRow
from tasks.journal import write_json, write_text
from tasks.trial_table import write_trial_table


class Page(HTMLParser):
    """Elements with their attributes, texts of scripts by their attributes, and the text that a reader sees."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.scripts, self.seen, self._script = [], [], "", None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._script = dict(attrs) if tag == "script" else None

    def handle_endtag(self, tag):
        self._script = None

    def handle_data(self, data):
        if self._script is None:
            self.seen += data
        else:
            self.scripts.append((self._script, data))

    def attribute(self, name):
        return [attrs[name] for _, attrs in self.elements if name in attrs]


@pytest.fixture(autouse=True)
def short_plotly(monkeypatch):
    """Five megabytes of JavaScript are not what is tested here."""
    monkeypatch.setattr("flows.report.page.plotly_js", lambda: "var Plotly = {};")


def page_of(root, name=NAME):
    return Page(render_report(read_run(root, name)))


@pytest.fixture
def hostile(tmp_path):
    """A run in which everything that a trial, a pool or damage can bring is hostile."""
    journal = make_journal(tmp_path, steps=2)
    for i, text in enumerate(HOSTILE):
        changes = {"task_id": text, "error": text, "reason": text, "said": text, "diff": text, "log": text}
        changes["diff"] = text.encode("utf-8", "replace").decode()
        add_trial(journal, "step_000001", f"hostile-{i}", "tampered", outcome="completed", scaffold=text, **changes)
        add_trial(journal, "step_000001", f"odd-{i}", "failed", outcome=text, timings={"agent": 1e3})
    add_trial(journal, "step_000002", "renamed", "tampered", session_id=HOSTILE[1])
    stored = json.loads((journal.root / "config.json").read_text())
    stored["versions"][HOSTILE[0]] = HOSTILE[1]
    stored["config"]["data"] = {HOSTILE[2]: HOSTILE[3]}
    write_json(journal.root / "config.json", stored)
    record = {"metrics": {HOSTILE[1]: 1.0, "critic/score/mean": 0.5}}
    write_json(journal.stage_dir("step_000002") / "record.json", record)
    log = journal.logs / "experiment.log"
    write_text(log, log.read_text() + f"warning 1 of step 2: {HOSTILE[1]}\n")
    (journal.trials_dir("step_000001") / "<script>alert(1)<" / "x").mkdir(parents=True)
    (journal.trials_dir("step_000001") / "<script>alert(1)<" / "trial.json").write_text("[")
    return tmp_path


def test_the_page_runs_two_scripts_and_loads_nothing(hostile):
    page = page_of(hostile)
    scripts = [text for attrs, text in page.scripts if attrs.get("type") != "application/json"]
    assert len(scripts) == 2 and all(
        not attrs for tag, attrs in page.elements if tag == "script" and "type" not in attrs
    )
    (policy,) = [attrs["content"] for tag, attrs in page.elements if tag == "meta" and "http-equiv" in attrs]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    assert policy.startswith(
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:;"
    )
    assert "form-action 'none'; base-uri 'none'" in policy
    assert not page.attribute("src")
    assert all(link.startswith(("#", "trials/step_00000")) for link in page.attribute("href"))


def test_texts_of_trials_are_shown_and_make_no_element(hostile):
    page = page_of(hostile)
    assert not {tag for tag, _ in page.elements} & {"img", "svg", "iframe", "b-", "object", "form", "base", "link"}
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    for text in HOSTILE[:7]:
        assert text.split("\n")[0] in page.seen
    assert "<script>alert(1)<" in page.seen and "{{ 7*7 }}" in page.seen


def test_data_of_figures_is_json_in_which_nothing_is_markup(hostile):
    specs = [text for attrs, text in page_of(hostile).scripts if attrs.get("type") == "application/json"]
    assert len(specs) >= 10
    for text in specs:
        assert not set(text) & set("<>&")
        spec = json.loads(text)
        assert set(spec) == {"data", "layout"}
        assert MARK not in text or "&lt;" in json.dumps(spec)


def test_every_figure_has_its_data_and_every_link_its_target(tmp_path):
    make_journal(tmp_path)
    page = page_of(tmp_path)
    ids = page.attribute("id")
    assert len(ids) == len(set(ids))
    assert set(page.attribute("data-spec")) <= set(ids)
    assert {link[1:] for link in page.attribute("href") if link.startswith("#")} <= set(ids)
    files = [link for link in page.attribute("href") if not link.startswith("#")]
    assert files and all((tmp_path / NAME / link).is_file() for link in files)
    assert {"training", "time", "trials", "tasks", "held-out", "look", "config", "versions", "settings"} <= set(ids)


def test_what_is_missing_is_on_the_page(tmp_path):
    journal = make_journal(tmp_path)
    (journal.root / "config.json").unlink()
    page = page_of(tmp_path)
    assert "What is missing" in page.seen and "config.json is not there" in page.seen
    assert "No step recorded: KL" in page.seen


@pytest.mark.parametrize("gone", ["config.json", "steps", "evals", "trials", "logs"])
def test_a_report_comes_whatever_is_gone(tmp_path, gone):
    journal = make_journal(tmp_path)
    (journal.root / gone).rename(tmp_path / "moved")
    assert "What is missing" in page_of(tmp_path).seen or gone == "evals"


def test_a_report_on_an_empty_journal(tmp_path):
    (tmp_path / NAME).mkdir(parents=True)
    page = page_of(tmp_path)
    assert "no step has been recorded yet" in page.seen and "There has been no validation" in page.seen


def test_secrets_are_not_shown():
    config = {"a": {"api_key": "hush", "max_tokens": 96, "token": None}, "hub_token": "x", "PASSWORD": "y", "list": []}
    assert settings(config) == [
        ("a.api_key", "redacted"), ("a.max_tokens", "96"), ("a.token", "null"), ("hub_token", "redacted"),
        ("PASSWORD", "redacted"), ("list", "[]"),
    ]  # fmt: skip


def test_gain_of_validation_is_told_only_as_far_as_it_goes(tmp_path):
    make_journal(tmp_path)
    assert "from step 0 to step 3: +1.000 (95 % +1.000 to +1.000, paired by cluster)" in page_of(tmp_path).seen
    path = tmp_path / NAME / "evals" / "step_000003" / "record.json"
    record = json.loads(path.read_text())
    record["clusters"] = {name: [0.0] for name in record["clusters"]} | {"c0": [1.0]}
    write_json(path, record)
    assert "these trials support no difference" in page_of(tmp_path).seen


def test_a_conversation_is_read_from_segments(tmp_path):
    journal = make_journal(tmp_path, steps=1)
    turn = {
        "messages": [{"role": "user", "content": "hello"}],
        "answer": {
            "role": "assistant",
            "content": "",
            "reasoning": "hm",
            "tool_calls": [{"name": "ls", "arguments": "{}"}],
        },
        "sampled_ids": [1, 2, 3],
        "generate_seconds": 1.25,
    }
    segments = [{"index": i, "trained": i == 1, "turns": [turn]} for i in range(2)]
    folder = journal.trials_dir("step_000001") / "a-1-0"
    write_json(folder / "trajectory.json", {"segments": segments, "messages": [], "events": []})
    row = next(trial for trial in read_run(tmp_path, NAME).slowest if trial.session_id == "a-1-0")
    shown = read_conversation(journal.root, row, "x")
    assert [(m.role, m.text) for m in shown.messages[:3]] == [
        ("segment", "0: not trained"), ("user", "hello"), ("assistant", "hm\nls {}")
    ]  # fmt: skip
    assert shown.messages[2].note == "turn 1, 3 tokens, 1.2 s"
    assert shown.link == "trials/step_000001/a-1-0/trajectory.json" and not shown.problem
    assert dict(shown.stages)["the agent without the model"] == 3.0


def test_a_conversation_as_the_project_writes_it(tmp_path):
    run = make_run(tmp_path)
    write_trial(run, "step_000001", make_result("sound", turns=((4, 5), (6,)), more_segments=(((8,),),)))
    (row,) = read_run(tmp_path, NAME).slowest
    shown = read_conversation(run.journal.root, row, "x")
    assert shown.problem == "" and shown.diff == "+fixed\n"
    roles = [message.role for message in shown.messages]
    assert roles.count("segment") == 2 and roles.count("assistant") == 3
    assert "2 tokens" in next(message.note for message in shown.messages if message.role == "assistant")


def test_a_long_conversation_is_cut(tmp_path):
    journal = make_journal(tmp_path, steps=1)
    messages = [{"role": "tool", "content": "y" * 50_000}] * 50
    folder = journal.trials_dir("step_000001") / "a-1-0"
    write_json(folder / "trajectory.json", {"segments": [], "messages": messages})
    row = next(trial for trial in read_run(tmp_path, NAME).slowest if trial.session_id == "a-1-0")
    shown = read_conversation(journal.root, row, "x")
    assert sum(len(m.text) for m in shown.messages) < 31_000
    assert shown.messages[-1].text == "47 more messages are in trajectory.json"


@pytest.mark.parametrize("session", ["../a-1-0", "..", "a/../../../x", ".hidden", "", "x" * 300])
def test_a_session_id_is_no_path(tmp_path, session):
    journal = make_journal(tmp_path, steps=1)
    shown = read_conversation(journal.root, TrialRow("step_000001", 1.0, {"session_id": session}), "x")
    assert shown.problem.startswith("its session id is not one") and not shown.messages and shown.link is None


def test_a_trajectory_that_is_a_link_is_not_read(tmp_path):
    journal = make_journal(tmp_path, steps=1)
    path = journal.trials_dir("step_000001") / "a-1-0" / "trajectory.json"
    path.rename(tmp_path / "secret.json")
    path.symlink_to(tmp_path / "secret.json")
    shown = read_conversation(journal.root, TrialRow("step_000001", 1.0, {"session_id": "a-1-0"}), "x")
    assert "cannot be read" in shown.problem and not shown.messages


def test_shorten():
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefgh", 4) == "ab\n[… 4 characters left out …]\ngh"


def test_the_report_is_written_into_the_journal_with_plotly_inside(tmp_path, monkeypatch):
    monkeypatch.setattr("flows.report.page.plotly_js", plotly_js)
    journal = make_journal(tmp_path)
    write_trial_table(journal, "step_000001")
    path = write_report(tmp_path, NAME)
    assert path == journal.root / "report.html"
    assert 4e6 < path.stat().st_size < 8e6


async def test_a_run_publishes_its_report(tmp_path, monkeypatch):
    make_journal(tmp_path)
    logged = []
    tracker = SimpleNamespace(open=lambda run: SimpleNamespace(log_artifact=logged.append))
    monkeypatch.setattr(publish, "Tracker", tracker)
    path = await publish_report(make_run(tmp_path))
    assert path is not None and logged == [path]


async def test_a_report_that_fails_costs_no_run(tmp_path, monkeypatch):
    notes = []
    monkeypatch.setattr(publish, "emit", notes.append)
    assert await publish_report(make_run(tmp_path)) is None
    assert "no report was written (ReportError: no run" in notes[0].text


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.delenv("TESTGRAD_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flows.commands.report.prepare", lambda root: None)
    app = typer.Typer()
    app.command()(report)
    app.command()(compare)

    def run(*arguments):
        return CliRunner().invoke(app, [*map(str, arguments), "--root", str(tmp_path)], env={"COLUMNS": "200"})

    return run


def test_report_says_where_it_is(tmp_path, invoke):
    make_journal(tmp_path)
    assert str(tmp_path / NAME / "report.html") in invoke("report", NAME).output
    assert invoke("report", NAME, "-o", tmp_path / "x.html").exit_code == 0 and (tmp_path / "x.html").is_file()


def test_a_run_that_is_not_there_ends_with_status_2(invoke, tmp_path):
    result = invoke("report", "project/no")
    assert result.exit_code == 2 and not (tmp_path / "project").exists()


def test_compare_prints_what_the_page_says(tmp_path, invoke):
    make_journal(tmp_path)
    make_journal(tmp_path, name="project/other")
    result = invoke("compare", NAME, "project/other")
    assert result.exit_code == 0 and (tmp_path / "compare.html").is_file()
    assert "held-out after step 3: +0.000 (95 % +0.000 to +0.000), these trials support no difference" in result.output
