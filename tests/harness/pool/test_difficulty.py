"""Pass rates, bands and the histogram; infrastructure is never the task's fault."""

import pytest

from harness.pool.difficulty import Band, PassCount, TrialEnd, count_passes, histogram, label, select, with_rates
from harness.pool.index import PoolError, TaskPointer


def ends(task, *rewards):
    return [TrialEnd(task, "completed", "passed" if r else "failed", float(r)) for r in rewards]


def rows(tmp_path, *names):
    return [TaskPointer(name, tmp_path / name) for name in names]


def test_trials_that_died_of_infrastructure_do_not_count():
    trials = [
        *ends("a", 1, 0, 0),
        TrialEnd("a", "infra_error", None, None),
        TrialEnd("a", "completed", "infra_error", 0.0),
        TrialEnd("a", "infra_error", "failed", 0.0),
        TrialEnd("a", "completed", None, None),
        TrialEnd("b", "infra_error", None, None),
    ]
    counts = count_passes(trials)
    assert counts["a"] == PassCount(trials=3, passes=1, infra=3, ungraded=1)
    assert counts["a"].rate == pytest.approx(1 / 3)
    assert counts["b"].rate is None


@pytest.mark.parametrize("outcome", ["completed", "max_turns", "overlong", "agent_timeout"])
@pytest.mark.parametrize("status", ["failed", "broken", "tampered"])
def test_what_the_policy_causes_counts_as_failed(outcome, status):
    assert count_passes([TrialEnd("a", outcome, status, 0.0)])["a"].rate == 0.0


def test_a_part_of_a_reward_is_no_pass():
    assert count_passes([TrialEnd("a", "completed", "passed", 0.5)])["a"].passes == 0


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("(0, 1)", [0.01, 0.99], [0, 1]),
        ("[0,1]", [0, 0.5, 1], []),
        ("(0, 0.5]", [0.25, 0.5], [0, 0.51]),
        (" [ 0.25 , 0.75 ) ", [0.25], [0.75, 0.2]),
        ("0<rate<1", [0.01, 0.99], [0, 1]),
        ("0 < pass_rate <= 0.5", [0.01, 0.5], [0, 0.51]),
        ("0.1:0.9", [0.1, 0.9], [0.09, 0.91]),
    ],
)
def test_bands(text, inside, outside):
    band = Band.parse(text)
    assert all(rate in band for rate in inside)
    assert not any(rate in band for rate in outside)


@pytest.mark.parametrize(
    "text",
    ["", "0-1", "(0.5, 0.2)", "(0, 2)", "(0 1)", "(., 1)", "(0, 1", "0:", "0.9:0.1", "0 < x < 1", "rate < 1"],
)
def test_what_is_no_band_is_refused(text):
    with pytest.raises(PoolError, match="no interval of pass rates"):
        Band.parse(text)


@pytest.mark.parametrize("text", ["(0, 1)", "[0.25, 0.75]", "(0, 0.5]"])
def test_a_band_says_what_it_is(text):
    assert str(Band.parse(text)) == text and Band.parse(str(Band.parse(text))) == Band.parse(text)


def test_tasks_that_always_or_never_pass_are_left_out(tmp_path):
    counts = count_passes([*ends("never", 0, 0), *ends("some", 1, 0), *ends("always", 1, 1), *ends("few", 1)])
    counts |= count_passes([TrialEnd("dead", "infra_error", None, None)])
    chosen = select(rows(tmp_path, "never", "some", "always", "few", "dead", "unknown"), counts, min_trials=2)
    assert [row.instance_id for row in chosen.kept] == ["some"]
    assert [row.instance_id for row in chosen.outside] == ["never", "always"]
    assert [row.instance_id for row in chosen.unmeasured] == ["few", "dead", "unknown"]
    assert chosen.kept[0].extra == {"pass_rate": 0.5, "trials": 2, "infra_trials": 0, "band": "medium"}
    with pytest.raises(PoolError, match="min_trials"):
        select([], counts, min_trials=0)


def test_rates_are_written_beside_what_is_known(tmp_path):
    row = TaskPointer("a", tmp_path, extra={"difficulty": "author says easy", "pass_rate": 1.0})
    (measured,) = with_rates([row], count_passes(ends("a", 0, 0, 0, 1)))
    assert measured.extra["difficulty"] == "author says easy"
    assert (measured.extra["pass_rate"], measured.extra["band"]) == (0.25, "hard")
    (dead,) = with_rates([TaskPointer("a", tmp_path)], {"a": PassCount(infra=2)})
    assert dead.extra == {"trials": 0, "infra_trials": 2}


def test_labels_cover_every_rate():
    assert [label(rate) for rate in (0, 0.25, 0.26, 0.74, 0.75, 0.99, 1)] == [
        "unsolved",
        "hard",
        "medium",
        "medium",
        "easy",
        "easy",
        "solved",
    ]


def test_the_ends_of_the_histogram_stand_apart():
    assert histogram([0, 0, 0.01, 0.25, 0.26, 0.99, 1], bins=4) == [
        ("0", 2),
        ("0–0.25", 2),
        ("0.25–0.5", 1),
        ("0.5–0.75", 0),
        ("0.75–1", 1),
        ("1", 1),
    ]
    assert sum(count for _, count in histogram([i / 8 for i in range(9)])) == 9
    assert [count for _, count in histogram([i / 8 for i in range(9)])] == [1, 1, 1, 1, 1, 1, 1, 1, 0, 1]
    with pytest.raises(PoolError, match="bins"):
        histogram([], bins=0)
