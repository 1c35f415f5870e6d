"""The verdict on the first step: each check by a step that passes it, and by steps that trip it, by message."""

import json

import pytest
from support.diagnosed import NAME, TRIALS, facts_of, write_run, write_trials
from support.journals import make_run

from flows.diagnosis.config import DiagnosisConfig
from flows.diagnosis.first_step import CHECKS, judge_step, worst
from flows.diagnosis.verdict import FirstStepError, is_first_to_judge, judge_first_step
from flows.preflight.findings import Level
from tasks.journal import Journal, step_label
from tasks.progress import watching
from trainer.fidelity.judge import MEAN_DIFF, PEARSON

LABEL = step_label(1)
W, F, K = Level.WARN, Level.FATAL, Level.OK
INFRA = {"outcome": "infra_error", "error": "SandboxError: pull of image repo/x:1 failed", "status": None, "turns": 0,
         "response_length": 0}  # fmt: skip


def judged(root, changes={}, rows=None, config={}, **trials):  # noqa: B006
    journal = write_run(root, steps=1, changes=changes, config=config)
    if rows != []:
        write_trials(journal, LABEL, rows or [{}] * TRIALS, **trials)
    return judge_step(facts_of(root))


def test_a_good_first_step_passes_each_check(tmp_path):
    found = judged(tmp_path, {"actor/routing_replay/coverage": 1.0})
    assert {item.finding.level for item in found} == {K}, [i.finding.message for i in found if i.finding.level != K]
    assert {item.finding.check for item in found} == set(CHECKS)
    assert worst(found) is K
    assert not any(item.causes or item.stops for item in found)


# check, metrics, trials, level, words of the message, words of the first cause
TRIPPED = [
    ("trials", {}, [INFRA] * 2 + [{}] * 14, W, "2 of 16: were lost to infrastructure", "images cannot be had"),
    ("trials", {}, [INFRA] * 8 + [{}] * 8, F, "8 of 16: were lost", "images cannot be had"),
    ("trials", {"batch/rollouts": 0.0, "trajectory_filter/reason/nothing_sampled": 16.0}, None, F,
     "of 16 trials nothing was left to train on", "the policy never came to speak"),
    ("trials", {"batch/rollouts": 0.0, "trajectory_filter/reason/nothing_sampled": 16.0},
     [{"outcome": "agent_timeout", "response_length": 0, "turns": 0, "status": "failed"}] * 16, F,
     "of 16 trials nothing was left to train on", "agents ran out of time before the engine's first answer"),
    ("trials", {"batch/rollouts": 0.0, "training/filter_groups/evicted_samples": 4.0}, None, F,
     "of 16 trials nothing was left to train on", "groups whose rewards are all equal are left out"),
    ("turns", {"num_turns/mean": 1.0}, None, F, "ended after its first answer, of 50 that cc allows",
     "tool calls are not understood"),
    ("turns", {"num_turns/mean": None}, None, W, "no trial had a turn", None),
    ("lengths", {}, [{"turns": 2, "response_length": 200}] * 16, F, "16 of 16 trials are cut",
     "the engine does not end answers where the chat template does"),
    ("lengths", {}, [{"outcome": "overlong"}] * 16, F, "16 of 16 trials are cut", "the engine does not end answers"),
    ("lengths", {}, [{"turns": 2, "response_length": 200}] * 12 + [{}] * 4, W, "12 of 16 trials are cut", "is low"),
    ("reward", {"critic/score/mean": 0.0, "critic/score/max": 0.0},
     [{"status": "failed", "reason": "1 of 3 tests failed"}] * 16, F, "no reward in all of 16 rollouts",
     "the tasks are too hard for this policy, or their tests cannot pass"),
    ("reward", {"critic/score/mean": 0.0, "critic/score/max": 0.0},
     [{"status": "broken", "reason": "ImportError: no module numpy"}] * 16, F, "more often the environment",
     "patches leave code that cannot be imported or tested"),
    ("reward", {"critic/score/mean": 0.0, "critic/score/max": 0.0},
     [{"status": "failed", "outcome": "agent_timeout"}] * 12 + [{"status": "failed"}] * 4, F, "no reward",
     "the tasks are too hard"),
    ("reward", {"critic/score/mean": 0.0, "critic/score/max": 0.0},
     [{"status": "failed", "response_length": 0, "turns": 0}] * 16, F, "no reward", "the policy is never asked"),
    ("reward", {"critic/score/mean": 1.0, "critic/score/min": 1.0}, None, F, "the whole reward in all of 16",
     "the tasks are too easy"),
    ("reward", {"critic/score/mean": None}, None, W, "no trial was scored", None),
    ("reward", {"batch/groups_with_signal": 0.0}, None, W, "of 4 groups carry a signal", "the tasks are too hard"),
    ("reward", {"batch/groups_with_signal": 0.0, "batch/solve_none": 0.0, "batch/solve_all": 4.0}, None, W,
     "of 4 groups carry a signal", "the tasks are too easy"),
    ("agreement", {PEARSON: 0.75}, None, F, "is 0.7500: is below fidelity.threshold 0.99", "not known yet"),
    ("agreement", {PEARSON: None, MEAN_DIFF: 0.5}, None, F, "is nan: is below", "not known yet"),
    ("agreement", {PEARSON: None, MEAN_DIFF: None}, None, W, "no token was compared", None),
    ("replay", {"actor/routing_replay/coverage": 0.24}, None, W, "not every token's experts are replayed",
     "did not report its choice"),
    ("rate", {"actor/lr": 0.0}, None, F, "with it no step changes a weight", "the schedule gives 0"),
    ("rate", {"actor/lr": 1e-3}, None, W, "is more than learner.lr 1e-06", "another schedule"),
    ("rate", {"actor/lr": None}, None, W, "the update tells no rate", None),
    ("gradient", {"actor/grad_norm": None}, None, W, "no update was made", None),
    ("gradient", {"actor/grad_norm": None, "actor/skipped_steps": 1.0}, None, F, "is not finite", "numbers overflow"),
    ("gradient", {"actor/grad_norm": float("nan")}, None, F, "is not finite", "numbers overflow"),
    ("gradient", {"actor/grad_norm": 0.0}, None, F, "nothing was learned", "the weights have no gradient"),
    ("gradient", {"actor/grad_norm": 0.0, "batch/groups_with_signal": 0.0}, None, F, "nothing was learned",
     "no group carries a signal"),
    ("gradient", {"actor/grad_norm": 20.0}, None, W, "is 20 times learner.grad_clip 1", "the loss is a sum"),
    ("gradient", {"actor/grad_norm": 5000.0}, None, F, "is 5000 times learner.grad_clip 1", "the loss is a sum"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "changes", "rows", "level", "words", "cause"), TRIPPED)
def test_a_check_is_tripped(tmp_path, check, changes, rows, level, words, cause):
    found = [item for item in judged(tmp_path, changes, rows) if item.finding.check == check]
    (item,) = [item for item in found if item.finding.level is level and words in item.finding.message]
    assert item.finding.mend
    assert (cause is None) == (not item.causes)
    if cause is not None:
        assert cause in item.causes[0].cause and item.causes[0].evidence and item.causes[0].mend


@pytest.mark.parametrize(
    ("tools", "unreadable", "level", "words", "cause"),
    [
        (1, 0, K, "in 128 answers of 16 trials, by hermes", None),
        (0, 0, F, "none in 128 answers of 16 trials", "does not know that it has tools"),
        (0, 1, F, "none in 128 answers", "the parser hermes does not fit"),
    ],
)
def test_tool_calls(tmp_path, tools, unreadable, level, words, cause):
    found = judged(tmp_path, tools=tools, unreadable=unreadable)
    (item,) = [item for item in found if item.finding.field == "tool calls"]
    assert item.finding.level is level and words in item.finding.message
    assert cause is None or cause in item.causes[0].cause


def test_an_agent_without_tools_is_not_asked_for_calls(tmp_path):
    config = {"scaffold": {"name": "edit", "max_turns": 1}}
    found = judged(tmp_path, {"num_turns/mean": 1.0}, config=config, tools=0)
    assert {item.finding.level for item in found} == {K}
    assert not [item for item in found if item.finding.field == "tool calls"]


def test_a_correlation_that_cannot_exist_is_well_where_probabilities_agree(tmp_path):
    found = judged(tmp_path, {PEARSON: float("nan"), MEAN_DIFF: 1e-4})
    assert [item.finding.level for item in found if item.finding.check == "agreement"] == [K]


EMPTY = {"batch/rollouts": 0.0, "critic/score/mean": None, "actor/grad_norm": None, PEARSON: None, MEAN_DIFF: None,
         "num_turns/mean": None}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "rows", "stops"),
    [
        ({}, None, []),
        (EMPTY, [INFRA] * 16, ["trials"]),
        (EMPTY, [INFRA] * 8 + [{"status": "failed"}] * 8, ["trials"]),
        (EMPTY, [INFRA] * 3 + [{"status": "failed"}] * 13, []),
        ({}, [INFRA] * 15 + [{}], []),
        ({"actor/lr": 0.0}, None, ["rate"]),
        ({PEARSON: 0.5}, None, []),
        ({"actor/grad_norm": float("nan")}, None, []),
        ({"critic/score/mean": 0.0, "critic/score/max": 0.0}, None, []),
    ],
)
def test_only_facts_that_leave_nothing_to_go_on_with_stop(tmp_path, changes, rows, stops):
    assert [item.finding.check for item in judged(tmp_path, changes, rows) if item.stops] == stops


def test_a_step_without_trials_or_record(tmp_path):
    (first, *_) = judged(tmp_path, rows=[])
    assert first.finding.level is W and "no trial of the step is in the journal" in first.finding.message
    Journal(tmp_path / NAME).stage_dir(LABEL).joinpath("record.json").write_text("{")
    assert judge_step(facts_of(tmp_path)) == []
    assert worst([]) is W


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose first step can be judged; what it tells, and what it enters in Prefect."""
    entered, said = [], []

    async def enter(**artifact):
        entered.append(artifact)

    monkeypatch.setattr("prefect.artifacts.acreate_table_artifact", enter)
    ref = make_run(tmp_path)
    with watching(lambda event: said.append(event.text)):
        yield ref, said, entered


async def test_the_verdict_is_told_kept_and_entered(run, tmp_path, monkeypatch):
    ref, said, entered = run
    monkeypatch.setenv("HUB_TOKEN", "hush-hush")
    rows = [INFRA | {"error": "pull with hush-hush failed"}] * 2 + [{}] * 14
    judged(tmp_path, rows=rows)
    await judge_first_step(ref, DiagnosisConfig())
    assert said[0] == "first step: WARN"
    assert said[1].startswith("! WARN  trials            trials is 2 of 16: were lost to infrastructure (14 completed,")
    assert said[2].startswith("    likely 1: images cannot be had (2 of 2 say: pull with *** failed); pull one by hand")
    assert any(line.startswith("✓ OK    rate              actor/lr is 1e-06") for line in said)
    kept = json.loads((ref.journal.stage_dir(LABEL) / "first_step.json").read_text())
    assert kept["verdict"] == "WARN" and kept["findings"][0]["causes"][0]["cause"] == "images cannot be had"
    (artifact,) = entered
    assert artifact["key"] == "first-step" and len(artifact["table"]) == len(kept["findings"])
    assert "hush-hush" not in json.dumps([kept, artifact, said])


async def test_a_senseless_run_is_stopped_unless_its_configuration_says_otherwise(run, tmp_path):
    ref, said, _ = run
    judged(tmp_path, EMPTY, [INFRA] * 16)
    with pytest.raises(FirstStepError, match="leaves nothing to go on with:\n✗ FATAL trials ") as error:
        await judge_first_step(ref, DiagnosisConfig())
    for words in ("no rollout is left to train on", "likely 1: images cannot be had", "diagnosis.stop: false"):
        assert words in str(error.value)
    assert said[0] == "first step: FATAL"
    await judge_first_step(ref, DiagnosisConfig(stop=False))
    assert said.count("first step: FATAL") == 2


async def test_a_verdict_that_prefect_does_not_take_costs_no_run(run, tmp_path, monkeypatch):
    ref, said, _ = run

    async def refuse(**artifact):
        raise ConnectionError("no server")

    monkeypatch.setattr("prefect.artifacts.acreate_table_artifact", refuse)
    judged(tmp_path)
    await judge_first_step(ref, DiagnosisConfig())
    assert said[-1] == "the first step's verdict is not in Prefect (ConnectionError: no server)"


async def test_what_a_trial_wrote_is_text(run, tmp_path):
    ref, said, _ = run
    hostile = "\x1b[31m<script>\n✓ OK    trials   forged\u202e"
    judged(tmp_path, rows=[INFRA | {"error": hostile}] * 8 + [{}] * 8)
    await judge_first_step(ref, DiagnosisConfig())
    assert not [line for line in said if line.startswith("✓ OK    trials")]
    assert all("\x1b" not in line and "\n" not in line and "\u202e" not in line for line in said)


@pytest.mark.parametrize(
    ("done", "judged_steps"),
    [(0, [1]), (1, [1]), (2, []), (7, [])],
    ids=["a new run", "resumed after step 1", "resumed after step 2", "resumed later"],
)
def test_the_verdict_is_due_after_step_1_and_on_resume_where_it_was_the_last(done, judged_steps):
    assert [step for step in range(1, 5) if is_first_to_judge(step, done)] == judged_steps
