"""What a report's figures show, and that Plotly takes them."""

import base64
from collections import Counter

import numpy as np
import plotly.graph_objects as go
import pytest
from support.reported import HOSTILE, NAME, make_journal

from flows.report import figures
from flows.report.reader import read_run
from flows.report.run_data import GroupResult, RunData, StageTrials

DRAWN = (
    figures.stage_times, figures.trial_times, figures.outcomes, figures.verdicts, figures.signal,
    figures.correct_of_n, figures.task_grid, lambda run: figures.validation([run]),
)  # fmt: skip


def stage(step, groups, outcomes=None):
    counts = Counter(outcomes or {"completed": sum(group.scored for group in groups)})
    return StageTrials(f"step_{step:06d}", step, False, counts, Counter(), groups, {})


def a_run(root, *trials, **metrics):
    steps = range(1, 1 + max([len(trials), *map(len, metrics.values())]))
    values = {name.replace("__", "/"): np.array(numbers, dtype=float) for name, numbers in metrics.items()}
    return RunData(NAME, root, steps=list(steps), trials=trials, metrics=values)


def grid_of(figure):
    packed = figure.data[0]["z"]
    shape = [int(n) for n in packed["shape"].split(",")]
    return np.frombuffer(base64.b64decode(packed["bdata"]), "<f4").reshape(shape)


def test_plotly_takes_every_figure(tmp_path):
    make_journal(tmp_path)
    run = read_run(tmp_path, NAME)
    curves, empty = figures.curves([run])
    drawn = [*curves, *(draw(run) for draw in DRAWN)]
    assert {"score", "entropy", "lr"} <= {figure.key for figure in curves} and "KL" in empty
    for figure in drawn:
        go.Figure(data=list(figure.data), layout=figure.layout)
    assert len({figure.key for figure in drawn}) == len(drawn)


def test_there_is_no_figure_of_nothing(tmp_path):
    run = RunData(NAME, tmp_path)
    assert [draw(run) for draw in DRAWN] == [None] * len(DRAWN)
    assert figures.curves([run])[0] == []


def test_a_gap_in_a_curve_stays_one(tmp_path):
    run = a_run(tmp_path, actor__entropy=[0.5, np.nan, 0.25], actor__grad_norm=[np.nan, np.inf, np.nan])
    (figure,), empty = figures.curves([run])
    assert figure.data[0]["y"] == [0.5, None, 0.25]
    assert "Gradient norm" in empty


def test_a_constant_curve_has_an_axis_that_shows_it(tmp_path):
    (figure,), _ = figures.curves([a_run(tmp_path, actor__lr=[1e-6, 1e-6])])
    assert figure.layout["yaxis"]["range"] == [0, 2e-6]


def test_a_long_score_is_smoothed_over_the_steps_before(tmp_path):
    run = a_run(tmp_path, critic__score__mean=[*[0.0] * 20, *[1.0] * 20])
    (figure,), _ = figures.curves([run])
    smooth = figure.data[-1]["y"]
    assert (smooth[19], smooth[20], smooth[29], smooth[30]) == (0.0, 0.1, 1.0, 1.0)


def test_a_step_is_split_into_stages_that_add_up(tmp_path):
    make_journal(tmp_path)
    bars = {bar["name"]: bar["y"][0] for bar in figures.stage_times(read_run(tmp_path, NAME)).data}
    assert bars == {"trials": 40.0, "update": 9.0, "sync": 1.0, "grading's rest, batch, records": 10.0}


def test_the_model_is_not_counted_in_the_agent_too(tmp_path):
    make_journal(tmp_path)
    bars = {bar["name"]: bar["y"][0] for bar in figures.trial_times(read_run(tmp_path, NAME)).data}
    assert bars["the model's answers"] == 7.0 and bars["the agent without the model"] == 3.0
    assert sum(bars.values()) == 13.5


def test_outcomes_that_are_unknown_are_one_part(tmp_path):
    run = a_run(tmp_path, stage(1, [], {"completed": 3, HOSTILE[0]: 1, "other": 1}))
    assert {bar["name"]: bar["y"] for bar in figures.outcomes(run).data} == {"completed": [3.0], "unknown": [2.0]}


def test_groups_without_a_signal(tmp_path):
    groups = [GroupResult("a", 0, 4), GroupResult("b", 4, 4), GroupResult("c", 1, 4), GroupResult("d", 0, 0)]
    figure = figures.signal(a_run(tmp_path, stage(1, groups), stage(2, groups[2:])))
    assert [bar["y"] for bar in figure.data] == [[0.333333, 0.0], [0.333333, 1.0], [0.333333, 0.0]]
    assert figure.note == "Without a signal: 33% of the groups on average, 0% in step 2."


def test_correct_of_n_compares_halves_of_the_run(tmp_path):
    early = [GroupResult("a", 0, 4), GroupResult("b", 1, 4), GroupResult("c", 2, 3)]
    late = [GroupResult("a", 4, 4), GroupResult("b", 4, 4)]
    figure = figures.correct_of_n(a_run(tmp_path, stage(1, early), stage(2, late)))
    assert [bar["y"] for bar in figure.data] == [[0.5, 0.5, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
    assert figure.title == "Correct of 4" and figure.note.startswith("1 groups")


def test_the_grid_has_a_row_for_each_task_and_a_hole_where_it_was_not_tried(tmp_path):
    run = a_run(
        tmp_path,
        stage(1, [GroupResult("hard", 0, 4), GroupResult("easy", 3, 4)]),
        stage(2, [GroupResult("easy", 4, 4), GroupResult("lost", 0, 0)]),
    )
    figure = figures.task_grid(run)
    assert figure.data[0]["y"] == ["hard", "easy"]
    np.testing.assert_array_equal(grid_of(figure), [[0, np.nan], [0.75, 1]])


def test_the_grid_keeps_the_tasks_tried_most_often(tmp_path):
    rare = [GroupResult(f"rare-{i}", 0, 4) for i in range(figures.MAX_GRID_TASKS)]
    often = [GroupResult("often", 1, 4)]
    figure = figures.task_grid(a_run(tmp_path, stage(1, rare + often), stage(2, often)))
    assert len(figure.data[0]["y"]) == figures.MAX_GRID_TASKS and "often" in figure.data[0]["y"]
    assert f"{figures.MAX_GRID_TASKS} of {figures.MAX_GRID_TASKS + 1} tasks" in figure.note


def test_tasks_whose_names_are_cut_to_the_same_text_keep_their_rows(tmp_path):
    groups = [GroupResult("x" * 200 + end, 0, 4) for end in "abc"]
    names = figures.task_grid(a_run(tmp_path, stage(1, groups))).data[0]["y"]
    assert len(set(names)) == 3


def test_the_interval_of_a_validation_is_drawn(tmp_path):
    journal = make_journal(tmp_path)
    record = journal.root / "evals" / "step_000003" / "record.json"
    text = record.read_text().replace('"c0": [\n   1.0,\n   1.0,\n   1.0,\n   1.0\n  ]', '"c0": [0.0]')
    record.write_text(text)
    run = read_run(tmp_path, NAME)
    last = run.evaluations[-1]
    assert last.mean == 0.875 and last.low < 0.875 < last.high
    (line,) = figures.validation([run]).data
    assert line["y"] == [0.0, 0.875]
    assert line["error_y"]["arrayminus"][1] == pytest.approx(0.875 - last.low)


@pytest.mark.parametrize("text", HOSTILE)
def test_labels_are_text(text):
    shown = figures.label(text)
    assert not set(shown) & set("<>\x00\x1b\u202e\udc80")
    assert len(figures.label(text * 100)) < 1000


def test_a_label_is_what_it_was_once_plotly_has_read_it():
    assert figures.label("a<b>c & d") == "a&lt;b&gt;c &amp; d"
    assert figures.label("x" * 100) == "x" * 79 + "…"
