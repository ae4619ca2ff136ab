"""The pages of recoveries: when all tablets of a dead server had come to each phase."""

from __future__ import annotations

from stelae.coordinator.recoveries import PHASES, Recoveries
from stelae.core.ids import TabletId

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
