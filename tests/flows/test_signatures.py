"""Each signature by two runs: a healthy one, which shows none, and one that shows just that, with its values."""

import os
import time

import pytest
from support.diagnosed import NAME, facts_of, write_evaluation, write_groups, write_run, write_trials
from support.reported import put

from flows.diagnosis.signatures import SIGNATURES, find_signatures, signature
from flows.diagnosis.signs import process as process_signs
from flows.diagnosis.state import state_of
from flows.preflight.findings import Level
from tasks.journal import step_label
from tasks.lease import lease
from trainer.fidelity.judge import PEARSON

ESS = "rollout_corr/rollout_is_eff_sample_size"


def found(root, name=NAME):
    facts = facts_of(root, name)
    return {found.name: found for found in find_signatures(facts, state_of(facts))}


def last(count, **values):
    """Values of the last `count` of 12 steps."""
    return lambda step: values if step > 12 - count else {}


def metric(name, value, count=3):
    return lambda step: {name: value} if step > 12 - count else {}


def test_a_healthy_run_shows_none(tmp_path):
    journal = write_run(tmp_path, steps=12)
    write_evaluation(journal, 10)
    assert found(tmp_path) == {}


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_young_run_shows_none(tmp_path, steps):
    write_run(tmp_path, steps=steps)
    assert found(tmp_path) == {}


# signature, metrics that show it, level, words of the claim, words of the first cause, metrics of the evidence
SHOWN = [
    ("misaligned", metric(PEARSON, 0.75, 1), Level.FATAL, "Pearson 0.7500 at step 12, below 0.99", "not known yet",
     {PEARSON}),
    ("frozen-model", metric("actor/lr", 0.0), Level.FATAL, "the weights do not move", "the learning rate is 0",
     {"actor/lr"}),
    ("starvation", metric(ESS, 0.06), Level.WARN, "the gradient starves", "importance weights leave few", {ESS}),
    ("starvation", metric("batch/groups_with_signal", 0.0), Level.WARN, "starves", "the tasks are too hard",
     {"batch/groups_with_signal ratio"}),
    ("starvation", lambda s: {"batch/groups_with_signal": 0.0, "batch/solve_all": 4.0, "batch/solve_none": 0.0},
     Level.WARN, "starves", "the tasks are too easy", {"batch/groups_with_signal ratio"}),
    ("starvation", metric("actor/grad_norm", 0.03), Level.WARN, "starves", "fallen far below its own history",
     {"actor/grad_norm"}),
    ("flat-zero", lambda s: {"critic/score/mean": 0.0}, Level.FATAL, "no reward in any of 192 rollouts of 12 steps",
     "not known", {"critic/score/mean"}),
    ("env-avalanche", metric("outcome/infra_error", 20.0, 1), Level.FATAL, "56% of the trials of step 12", "not known",
     {"infra_share"}),
    ("env-avalanche", metric("verdict/infra_error", 8.0, 1), Level.FATAL, "50% of the trials of step 12", "not known",
     {"infra_share"}),
    ("no-tool-collapse", metric("num_turns/mean", 1.1), Level.FATAL, "trials end after 1.1 turns, where they had 8",
     "learned to answer instead of acting", {"num_turns/mean"}),
    ("entropy-collapse", metric("actor/entropy", 0.01), Level.WARN, "entropy fell from 0.5 to 0.01", "nearly certain",
     {"actor/entropy"}),
    ("slowdown", lambda s: {"timing_s/step": 180.0, "timing_s/gen": 150.0, "response_length/mean": 900.0} if s > 9 else
     {}, Level.WARN, "steps take 180 s, where they took 100 s", "trials sample more tokens",
     {"timing_s/step", "timing_s/gen", "response_length/mean"}),
    ("slowdown", lambda s: {"timing_s/step": 180.0, "timing_s/update_actor": 100.0,
                            "timing_per_token_ms/update_actor": 9.0} if s > 9 else
     {"timing_per_token_ms/update_actor": 2.0}, Level.WARN, "steps take 180 s", "a token takes longer to learn from",
     {"timing_s/update_actor"}),
    ("dropped-batch", lambda s: {"trajectory_filter/invalid_ratio": 0.3, "trajectory_filter/reason/overlong": 5.0},
     Level.WARN, "30% of the trials are left out", "conversations fill", {"trajectory_filter/invalid_ratio"}),
    ("dropped-batch", lambda s: {"trajectory_filter/invalid_ratio": 0.8, "trajectory_filter/reason/nothing_sampled": 9},
     Level.FATAL, "80% of the trials are left out", "the policy never came to speak", set()),
    ("timeouts", lambda s: {"outcome/agent_timeout": 8.0, "timing_s/agent_loop/generate/mean": 45.0}, Level.WARN,
     "33% of the trials run out of time", "the engine is the bottleneck", {"agent_timeout share"}),
    ("timeouts", lambda s: {"outcome/agent_timeout": 8.0}, Level.WARN, "run out of time",
     "the time is too short for these tasks", {"agent_timeout share"}),
    ("truncation", lambda s: {"response_length/clip_ratio": 0.5}, Level.WARN, "50% of the trials fill the window",
     "the window is too small", {"response_length/clip_ratio"}),
    ("truncation", lambda s: {"response_length/clip_ratio": 0.5, "response_length/mean": 100.0 * s}, Level.WARN,
     "50% of the trials fill", "answers grow from step to step", {"response_length/clip_ratio"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "level", "claim", "cause", "evidence"), SHOWN)
def test_a_signature_is_claimed_with_its_values(tmp_path, name, changes, level, claim, cause, evidence):
    write_run(tmp_path, changes=changes)
    shown = found(tmp_path)
    assert name in shown
    sign = shown[name]
    assert sign.level is level and claim in sign.claim
    assert cause in sign.causes[0].cause and sign.causes[0].mend
    for metric_ in evidence:
        assert sign.evidence[metric_], f"{metric_} is claimed without values"
    assert {metric_ for metric_, series in sign.evidence.items() if series} >= evidence


# values that come near and show nothing: too few steps in a row, or not far enough from the run's own
NEAR = [
    ("misaligned", metric(PEARSON, 0.991)),
    ("misaligned", lambda s: {PEARSON: 0.75} if s == 11 else {}),
    ("frozen-model", metric("actor/lr", 0.0, 2)),
    ("starvation", metric(ESS, 0.06, 2)),
    ("starvation", metric("actor/grad_norm", 0.1)),
    ("starvation", metric("batch/groups_with_signal", 0.0, 2)),
    ("flat-zero", lambda s: {"critic/score/mean": 0.0 if s > 1 else 0.1}),
    ("env-avalanche", metric("outcome/infra_error", 2.0, 1)),
    ("env-avalanche", lambda s: {"outcome/infra_error": 20.0} if s < 12 else {}),
    ("no-tool-collapse", metric("num_turns/mean", 1.1, 1)),
    ("no-tool-collapse", lambda s: {"num_turns/mean": 1.0}),
    ("entropy-collapse", metric("actor/entropy", 0.1)),
    ("slowdown", metric("timing_s/step", 180.0, 2)),
    ("slowdown", metric("timing_s/step", 120.0)),
    ("dropped-batch", metric("trajectory_filter/invalid_ratio", 0.3, 2)),
    ("timeouts", metric("outcome/agent_timeout", 8.0, 2)),
    ("truncation", metric("response_length/clip_ratio", 0.5, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), NEAR)
def test_what_comes_near_is_not_claimed(tmp_path, name, changes):
    write_run(tmp_path, changes=changes)
    assert name not in found(tmp_path)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "x"])
def test_values_that_are_missing_claim_nothing(tmp_path, value):
    names = list(write_and_list(tmp_path, {}))
    write_run(tmp_path, changes=dict.fromkeys(names, value))
    facts = facts_of(tmp_path)
    shown = {sign.name for sign in find_signatures(facts, state_of(facts))}
    assert shown == set() and facts.notes == []


def write_and_list(root, changes):
    from support.diagnosed import healthy

    write_run(root, changes=changes)
    return healthy(1)


def test_the_same_weights_after_three_updates_are_frozen(tmp_path):
    journal = write_run(tmp_path, changes=lambda s: {"batch/groups_with_signal": 0.0 if s > 9 else 3.0})
    for step in (10, 11, 12):
        put(journal.stage_dir(step_label(step)) / "update.json", {"fingerprint": "f" * 64})
    sign = found(tmp_path)["frozen-model"]
    assert "the weights after steps 10 to 12 have one fingerprint, ffffffffffff" in sign.facts
    assert sign.causes[0].cause == "no group carries a signal"
    put(journal.stage_dir(step_label(11)) / "update.json", {"fingerprint": "e" * 64})
    assert "frozen-model" not in found(tmp_path)


def test_updates_that_do_not_reach_the_weights_and_updates_that_are_skipped(tmp_path):
    journal = write_run(tmp_path)
    for step in (10, 11, 12):
        put(journal.stage_dir(step_label(step)) / "update.json", {"fingerprint": "f" * 64})
    assert found(tmp_path)["frozen-model"].causes[0].cause == "updates do not reach the weights"
    write_run(tmp_path, changes={"actor/skipped_steps": 1.0, "actor/grad_norm": None})
    for step in (10, 11, 12):
        put(journal.stage_dir(step_label(step)) / "update.json", {"fingerprint": "f" * 64})
    assert "gradients are not finite" in found(tmp_path)["frozen-model"].causes[0].cause


def test_a_misaligned_run_tells_the_causes_that_its_tokens_showed(tmp_path):
    journal = write_run(tmp_path, changes=metric(PEARSON, 0.75, 2))
    causes = [{"cause": "routing", "evidence": "24% are replayed", "mend": "replay them", "strength": 1.0}]
    put(journal.stage_dir(step_label(12)) / "fidelity.json", {"missed": [], "causes": causes})
    (cause,) = found(tmp_path)["misaligned"].causes
    assert cause.text == "routing (24% are replayed); replay them"


def test_coverage_of_the_replayed_experts_is_evidence(tmp_path):
    write_run(tmp_path, changes={PEARSON: 0.75, "actor/routing_replay/coverage": 0.24})
    assert found(tmp_path)["misaligned"].evidence["actor/routing_replay/coverage"][-1] == (12, 0.24)


def test_an_avalanche_under_way_is_seen_before_the_step_ends(tmp_path):
    journal = write_run(tmp_path)
    label = step_label(13)
    write_groups(journal, label)
    broken = {"outcome": "infra_error", "error": "SandboxError: pull of image repo/x:1 failed", "status": None}
    write_trials(journal, label, [broken] * 6 + [{}] * 2)
    sign = found(tmp_path)["env-avalanche"]
    assert "step_000013, under way: 6 of 8 trials that ended were lost to it" in sign.claim
    assert sign.causes[0].cause == "images cannot be had"
    assert "6 of 6 say: SandboxError: pull of image repo/x:1 failed" in sign.causes[0].evidence


def test_causes_are_ranked_by_their_texts_and_numbers_in_them_do_not_count(tmp_path):
    journal = write_run(tmp_path, changes=metric("outcome/infra_error", 8.0, 1))
    texts = ["did not start within 120 s", "did not start within 121 s", "No space left on device"]
    rows = [{"outcome": "infra_error", "error": text, "status": None} for text in texts for _ in range(2)]
    write_trials(journal, step_label(12), [*rows, {"status": "infra_error", "reason": "grader: out of memory"}])
    causes = found(tmp_path)["env-avalanche"].causes
    assert [cause.cause for cause in causes] == [
        "the machine is overloaded, or what it waits for is down", "a disk is full", "memory runs out",
    ]  # fmt: skip
    assert causes[0].evidence.startswith("4 of 7 say: did not start within 12")


def test_unreadable_tool_calls_are_named_first(tmp_path):
    write_run(
        tmp_path, changes=lambda s: {"num_turns/mean": 1.0, "rollout/unreadable_tool_calls": 9.0} if s > 9 else {}
    )
    assert "tool calls cannot be read any more" in found(tmp_path)["no-tool-collapse"].causes[0].cause


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"mean_reward": 0.0}, "validation scores 0, training does not"),
        ({"scored": 0, "mean_reward": None, "left_out": {"infra_error": 64}}, "validation could score nothing"),
    ],
)
def test_validation_that_measures_infrastructure(tmp_path, changes, claim):
    journal = write_run(tmp_path)
    write_evaluation(journal, 12, **changes)
    sign = found(tmp_path)["val-fake-zero"]
    assert sign.claim == claim and "testgrad regrade" in sign.causes[-1].mend


@pytest.mark.parametrize("changes", [{"mean_reward": 0.02}, {"mean_reward": 0.0, "scored": 8}, {"launched": 0}])
def test_validation_that_may_be_true(tmp_path, changes):
    journal = write_run(tmp_path)
    write_evaluation(journal, 12, **changes)
    assert "val-fake-zero" not in found(tmp_path)


def age(journal, seconds):
    """Everything of the run was written so long ago; its lease too."""
    then = time.time() - seconds
    for path in journal.root.rglob("*"):
        os.utime(path, (then, then))


def test_a_process_that_lives_and_writes_nothing_is_a_deadlock(tmp_path, monkeypatch):
    journal = write_run(tmp_path)
    write_groups(journal, step_label(13))
    monkeypatch.setattr(process_signs, "_SAMPLE", 0.05)
    monkeypatch.setattr(process_signs, "cpu_seconds", lambda pids: 7.0)
    with lease(journal.root, "train"):
        assert "deadlock" not in found(tmp_path)
        age(journal, 1700)
        assert "deadlock" not in found(tmp_path)
        age(journal, 2400)
        sign = found(tmp_path)["deadlock"]
        assert sign.claim == "alive, and silent for 40 min" and "0% of a core" in sign.facts[-1]
        assert f"py-spy dump --pid {os.getpid()}" in sign.causes[0].mend
        used = iter([7.0, 7.1])
        monkeypatch.setattr(process_signs, "cpu_seconds", lambda pids: next(used))
        assert "its processes compute" in found(tmp_path)["deadlock"].causes[0].evidence
        write_run(tmp_path, changes={"timing_s/update_actor": 1500.0})
        age(journal, 2400)
        assert "deadlock" not in found(tmp_path), "an update of this run takes 25 minutes"
    age(journal, 24000)
    assert "deadlock" not in found(tmp_path), "nothing lives"


def test_a_signature_that_breaks_claims_nothing_and_is_told(tmp_path, monkeypatch):
    def breaks(facts, state):
        raise RuntimeError("oops")

    write_run(tmp_path)
    found(tmp_path)
    monkeypatch.setitem(SIGNATURES, "slowdown", breaks)
    facts = facts_of(tmp_path)
    assert find_signatures(facts, state_of(facts)) == []
    assert "slowdown could not be looked for (RuntimeError: oops)" in facts.notes[-1]
    with pytest.raises(ValueError, match="signature 'slowdown' is registered already"):
        signature("slowdown")(breaks)


def test_every_signature_says_what_it_is():
    assert all(function.__doc__ for function in SIGNATURES.values())
