"""`testgrad plan`: its table, its JSON, its page, and what it refuses."""

import json

import pytest
import typer
import yaml
from typer.testing import CliRunner

from flows.commands.plan import plan
from flows.config import parse_config
from flows.plan.layout import Layout
from flows.plan.sweep import workload_of

FIGURES = {
    "turns": 2, "tokens": 200, "tail": 4, "tokens_per_s": 50, "most_tokens_per_s": 400, "update_tokens_per_s": 500,
    "sync_seconds": 1,
}  # fmt: skip
RUN = {
    "experiment": "planned",
    "rollout": {"tasks_per_step": 4, "attempts_per_task": 2, "concurrency": 8},
    "serving": {"replicas": 2},
    "learner": {"gpus_per_rank": 1},
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN))
    (tmp_path / "figures.yaml").write_text(yaml.safe_dump(FIGURES))
    app = typer.Typer()
    app.command()(plan)

    def run(*more, figures=True):
        known = ["--figures", str(tmp_path / "figures.yaml")] if figures else []
        arguments = [str(tmp_path / "run.yaml"), "--root", str(tmp_path), "--steps", "4", *known, *more]
        return CliRunner().invoke(app, arguments)

    return run


def test_the_table_names_the_best_of_each_mode_and_the_best_of_all(run):
    result = run("--nodes", "2", "--nodes", "3", "--price", "10")
    assert result.exit_code == 0, result.output
    for expected in ("sync", "one_step_off", "async", "2 shared", "fastest", "cheapest", "for 1,000 trials"):
        assert expected in result.output


def test_json_has_every_layout_within_the_budget(run):
    result = run("--nodes", "2", "--nodes", "3", "--nodes", "5", "--price", "10", "--budget", "39", "--json")
    told = json.loads(result.stdout)
    found = {(row["mode"], row["train_nodes"], row["rollout_nodes"], row["shared"]) for row in told["layouts"]}
    apart = {(mode, *split, False) for mode in ("sync", "one_step_off", "async") for split in ((1, 1), (1, 2), (2, 1))}
    assert found == apart | {("sync", 2, 2, True), ("sync", 3, 3, True)}
    assert told["fastest"]["trials_per_s"] == max(row["trials_per_s"] for row in told["layouts"])
    assert told["cheapest"]["cost"] == min(row["cost"] for row in told["layouts"])
    assert told["workload"]["replicas_per_node"] == 2


def test_the_page_draws_every_layout_and_loads_nothing(run, tmp_path):
    page = tmp_path / "plan.html"
    assert run("--nodes", "2", "--mode", "sync", "--mode", "async", "-o", str(page)).exit_code == 0
    text = page.read_text()
    for figure in ("step", "tokens", "idle-rollout", "idle-learner", "age"):
        assert f'id="figure-{figure}"' in text
    assert 'id="figure-cost"' not in text, "nothing costs anything without a price"
    assert "1 + 1" in text and "src=" not in text.partition("<script>")[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mode", "fast"], "known are sync, one_step_off, async"),
        (["--budget", "5"], "state the --price"),
        (["--budget", "5", "--price", "10"], "fewer than any of --nodes"),
        (["--from", "a/b"], "take one of the two"),
        (["--nodes", "1", "--mode", "async"], "ask for more nodes"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_line(run, options, message):
    result = run(*options)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_without_figures_the_run_of_that_name_is_asked_for(run):
    result = run(figures=False)
    assert result.exit_code == 2 and "testgrad/planned" in result.output


def test_trials_at_once_are_those_of_each_replica():
    workload = workload_of(parse_config(RUN, "test"))
    assert workload.concurrency == 4
    assert workload.replicas(Layout("sync", 1, 3)) == 6
