"""`stelae.recovery.spark_warmth`: an idle session stays warm, and one at work is left alone."""

from __future__ import annotations

import pytest

from stelae.recovery.spark_warmth import WARM_JOBS, KeptWarm


class Session:
    """Counts its empty jobs; its executors are replaced by hand."""

    def __init__(self) -> None:
        self.executors = frozenset({"node:1", "node:2"})
        self.jobs = 0
        self.fails = False
        self.kept = KeptWarm(lambda: self.executors, self.run_empty)

    def run_empty(self) -> None:
        if self.fails:
            raise RuntimeError("no executor is left")
        self.jobs += 1


def test_an_idle_session_gets_one_empty_job_at_a_time() -> None:
    """As long as its executors are those that were warmed up."""
    session = Session()
    assert [session.kept.beat() for _ in range(3)] == [1, 1, 1]
    assert session.jobs == 3


def test_an_executor_in_the_place_of_a_lost_one_is_warmed_up_as_at_the_start() -> None:
    """Once; also if the first try failed."""
    session = Session()
    session.executors = frozenset({"node:1", "node:3"})
    session.fails = True
    with pytest.raises(RuntimeError):
        session.kept.beat()
    session.fails = False
    assert [session.kept.beat() for _ in range(2)] == [WARM_JOBS, 1]


def test_a_session_at_work_gets_no_empty_job() -> None:
    """Not one; and what is left of a warm-up waits for the end of the order."""
    session = Session()
    with session.kept.order(), session.kept.order():
        assert session.kept.beat() == 0
    session.executors = frozenset({"node:4"})
    with session.kept.order():
        assert session.kept.beat() == 0
    assert session.kept.beat() == WARM_JOBS
