"""The pages of recoveries: when all tablets of a dead server had come to each phase."""

from __future__ import annotations

from stelae.coordinator.status.recoveries import PHASES, Recoveries
from stelae.core.ids import TabletId
from stelae.core.messages.servers import TabletProgress, TabletReport

ONE, OTHER = TabletId("1" * 32), TabletId("2" * 32)


def begun() -> Recoveries:
    recoveries = Recoveries()
    page = recoveries.begin("t1", "killed", now=10.0, wall=0.0, silent_s=0.0)
    for tablet_id in (ONE, OTHER):
        recoveries.add(page, tablet_id, "table")
    return recoveries


def phases(recoveries: Recoveries) -> dict[str, float]:
    found = recoveries.describe()[0]["phases_s"]
    assert isinstance(found, dict)
    return found


def test_a_phase_is_reached_when_the_last_tablet_has_reached_it() -> None:
    """Times count from the detection; what some tablet has not reached is not shown."""
    recoveries = begun()
    recoveries.reached([ONE], "raised", 11.0)
    assert phases(recoveries) == {}
    recoveries.reached([OTHER], "raised", 12.0)
    recoveries.reached([ONE], "fenced", 13.0)
    assert phases(recoveries) == {"raised": 2.0}


def test_a_new_attempt_passes_all_phases_again() -> None:
    """What the former one had reached is not shown as if this one had."""
    recoveries = begun()
    for at, phase in enumerate(PHASES[:-1]):
        recoveries.reached([ONE, OTHER], phase, 11.0 + at)
    recoveries.reached([OTHER], "raised", 20.0, began=19.0)
    assert phases(recoveries) == {"raised": 10.0}


def test_what_is_noted_late_takes_nothing_back_that_has_followed_from_it() -> None:
    """A term is raised once the catalog says so; those who wait for that may hear of it first."""
    recoveries = begun()
    recoveries.reached([ONE], "fenced", 5.0)
    recoveries.reached([ONE, OTHER], "fenced", 11.5)
    recoveries.reached([ONE, OTHER], "planned", 11.6)
    recoveries.reached([ONE, OTHER], "raised", 11.7, began=11.0)
    found = phases(recoveries)
    assert list(found) == ["raised", "fenced", "planned"]
    assert list(found.values()) == sorted(found.values())


def test_a_tablet_that_runs_was_opened_even_if_that_is_heard_later() -> None:
    """The report of the new owner may come before its answer to the order."""
    recoveries = begun()
    for at, phase in enumerate(("raised", "fenced", "planned", "opened")):
        recoveries.reached([ONE], phase, 11.0 + at)
        if phase != "opened":
            recoveries.reached([OTHER], phase, 11.0 + at)
    recoveries.reached([OTHER], "running", 15.0)
    recoveries.reached([OTHER], "opened", 16.0)
    recoveries.reached([ONE], "running", 17.0)
    found = phases(recoveries)
    assert list(found) == list(PHASES)
    assert found["opened"] == 5.0
    assert found["running"] == 7.0


def report(remote_bytes: int, *, loaded_s: float = 0.0, term: int = 3) -> TabletReport:
    return TabletReport(
        ONE,
        term,
        TabletProgress.SERVING,
        remote_bytes=remote_bytes,
        remote_bytes_at_first=400,
        loaded_s=loaded_s,
    )


def test_a_recovery_says_how_many_of_its_rows_are_in_memory_and_when_all_were() -> None:
    """By what owners say of the tablets in the term that it has brought about, and in no other."""
    recoveries = Recoveries()
    page = recoveries.begin("t1", "killed", now=10.0, wall=0.0, silent_s=0.0)
    recoveries.add(page, ONE, "table")
    recoveries.note(ONE, report=report(400))
    recoveries.reached([ONE], "running", 11.0)
    (shown,) = recoveries.describe()
    assert (shown["state"], shown["loaded"], shown["loaded_s"]) == ("done", 0.0, None)
    (shown,) = recoveries.describe(lambda _: report(100))
    assert (shown["loaded"], shown["loaded_s"]) == (0.75, None)
    (shown,) = recoveries.describe(lambda _: report(0, loaded_s=9.0, term=4))
    assert (shown["loaded"], shown["loaded_s"]) == (0.75, None)
    recoveries = Recoveries()
    page = recoveries.begin("t1", "killed", now=10.0, wall=0.0, silent_s=0.0)
    recoveries.add(page, ONE, "table")
    recoveries.note(ONE, report=report(400))
    recoveries.reached([ONE], "running", 11.0)
    (shown,) = recoveries.describe(lambda _: report(0, loaded_s=2.5))
    assert (shown["loaded"], shown["loaded_s"]) == (1.0, 3.5)
    (shown,) = recoveries.describe(lambda _: None)
    assert shown["loaded_s"] == 3.5
