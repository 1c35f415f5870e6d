"""The synthetic journal of `python -m bench.report` is of the project's formats."""

import json

import numpy as np
from support.journals import make_result, make_verdict

from bench import report as bench
from flows.report.reader import read_run
from harness.verifier.verdict import Verdict


def test_its_trials_have_the_fields_of_real_ones():
    rng = np.random.default_rng(0)
    record, verdict = next(t for t in iter(lambda: bench.trial(rng, "step_000001/a", 1, 0.5), None) if t[1])
    assert set(record) == set(make_result("x").to_json())
    assert set(verdict) == set(json.loads(make_verdict().to_json()))
    Verdict.from_json(json.dumps(verdict))


def test_a_report_misses_nothing_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "TRIALS", 16)
    monkeypatch.setattr(bench, "HELD_OUT", 5)
    bench.write_run(tmp_path / bench.NAME, 25)
    run = read_run(tmp_path, bench.NAME)
    assert run.notes.lines == []
    assert [stage.ended for stage in run.training] == [16] * 25
    assert run.evaluations[0].scored == 20 and len(run.slowest) == 20
