"""Processor sharing, against what can be computed by hand."""

import pytest
import simpy

from flows.plan.shared_server import SharedServer


def served(*jobs, rate=lambda n: 1 / n, meanwhile=None):
    """When each job (arrival, amount) ended, and the server; `meanwhile` acts on it at given times."""
    env = simpy.Environment()
    server, ends = SharedServer(env, rate), {}

    def job(number, arrival, amount):
        yield env.timeout(arrival)
        yield server.work(amount)
        ends[number] = env.now

    def act(at, action):
        yield env.timeout(at)
        action(server)

    for number, (arrival, amount) in enumerate(jobs):
        env.process(job(number, arrival, amount))
    for at, action in meanwhile or ():
        env.process(act(at, action))
    env.run()
    server.settle()
    return [ends[number] for number in sorted(ends)], server


def test_jobs_share_a_server_and_the_last_has_it_alone():
    ends, server = served((0, 10), (0, 20))
    assert ends == pytest.approx([20, 30])
    assert server.busy_seconds == pytest.approx(30)


def test_a_job_that_comes_later_slows_the_first_from_then_on():
    ends, _ = served((0, 10), (6, 2))
    assert ends == pytest.approx([12, 10])


def test_equal_jobs_end_together():
    ends, _ = served(*[(0, 0.1)] * 7, rate=lambda n: 1 / (0.3 + 0.01 * n))
    assert ends == pytest.approx([0.1 * 0.37] * 7)


def test_a_pause_keeps_jobs_where_they_are_and_is_no_busy_time():
    pause = [(4, lambda server: server.pause(True)), (9, lambda server: server.pause(False))]
    ends, server = served((0, 10), meanwhile=pause)
    assert ends == pytest.approx([15])
    assert server.busy_seconds == pytest.approx(10)


def test_a_job_that_comes_in_a_pause_waits_for_its_end():
    ends, _ = served(
        (1, 3), meanwhile=[(0, lambda server: server.pause(True)), (5, lambda server: server.pause(False))]
    )
    assert ends == pytest.approx([8])


def test_a_slower_server_takes_as_many_times_longer_from_then_on():
    ends, _ = served((0, 10), meanwhile=[(5, lambda server: server.slow_down(3.0))])
    assert ends == pytest.approx([5 + 5 * 3])


def test_jobs_that_fail_are_told_and_leave_the_server_to_the_next():
    env = simpy.Environment()
    server, seen = SharedServer(env, lambda n: 1 / n), []

    def loses():
        with pytest.raises(OSError, match="gone"):
            yield server.work(10)
        seen.append(env.now)
        yield server.work(1)
        seen.append(env.now)

    def breaks():
        yield env.timeout(4)
        server.fail_all(OSError("gone"))

    env.process(loses())
    env.process(breaks())
    env.run()
    assert seen == [4, 5]
