"""Bugs planted into the storage of timelines: the crash tests would see each of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stelae.actors.safekeeper import reopening as timeline_reopening
from stelae.actors.safekeeper.timeline_store import eviction as timeline_eviction
from stelae.actors.safekeeper.timeline_store import pull as timeline_pull
from stelae.actors.safekeeper.timeline_store import store as timeline_store
from stelae.actors.safekeeper.timeline_store.log import TimelineLog
from stelae.actors.safekeeper.timeline_store.pull import TimelinePulls
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.core.errors import StelaeError
from stelae.core.records.timelines import AcceptorState
from stelae.storage.files import timeline_control
from stelae.storage.files.timeline_control import TimelineControl, log_cut, saved
from tests.unit.actors.safekeeper.timeline_store import test_timeline_crashes
from tests.unit.actors.safekeeper.timeline_store.test_timeline_crashes import lives_of
from tests.unit.actors.safekeeper.timeline_store.timeline_world import OPERATIONS

SEEDS_MAX = 150


async def only_said(log: TimelineLog, *what: Any) -> None:
    """A sync, or a truncation, that is not made."""


async def cut_first(self: Timeline, acceptor: AcceptorState | None, cut_from: int | None) -> None:
    """The files are cut before the control file says so."""
    async with self.changing(resident=cut_from is not None):
        after = self.control if acceptor is None else saved(self.control, acceptor)
        if cut_from is not None and cut_from <= self.flush_lsn:
            assert self.log is not None
            await self.log.drained()
            after = log_cut(after, cut_from)
            await self.log.cut(after.cut)
        await self.commit(after)


def compared_once(self: TimelinePulls, control: Any, snapshot: Any, configuration: Any) -> bool:
    """What came since the pull began is not looked at."""
    return control.tablet_id in self._attempts or IS_WANTED(self, control, snapshot, configuration)


def no_tombstone(before: TimelineControl, generation: int) -> TimelineControl:
    """What is remembered of a deletion is always of the first generation."""
    after = DELETED(before, generation)
    assert after.tombstone is not None
    return msgspec.structs.replace(
        after, tombstone=msgspec.structs.replace(after.tombstone, generation=1)
    )


def forgotten_term(before: TimelineControl, generation: int) -> TimelineControl:
    """A deleted timeline forgets its term."""
    after = DELETED(before, generation)
    assert after.tombstone is not None
    return msgspec.structs.replace(
        after, tombstone=msgspec.structs.replace(after.tombstone, term=0)
    )


def unnoted(before: TimelineControl, blobs: tuple[str, ...]) -> TimelineControl:
    """What is going to be offloaded is not noted before."""
    return OFFLOADING(before, ())


def believed(before: TimelineControl, found: TimelineControl, flush_lsn: int) -> TimelineControl:
    """What can be read after a failed sync is taken for durable."""
    return msgspec.structs.replace(found, number=found.number + 1)


BELIEVED = "what a failed sync left is believed"
DELETED = timeline_control.deleted
IS_WANTED = TimelinePulls._is_wanted
OFFLOADING = timeline_control.offloading
BUGS: dict[str, tuple[Any, str, Any]] = {
    "a sync is only said": (TimelineLog, "_sync", only_said),
    "a cut has no commit point": (Timeline, "_save", cut_first),
    "a pull compares only when it begins": (TimelinePulls, "_is_wanted", compared_once),
    "a pull overwrites a newer copy": (timeline_pull, "is_newer", lambda *_: True),
    "a tombstone forgets its generation": (timeline_store, "deleted", no_tombstone),
    "a tombstone forgets its term": (timeline_store, "deleted", forgotten_term),
    "blobs are not noted before they are written": (timeline_eviction, "offloading", unnoted),
    BELIEVED: (timeline_reopening, "reopened", believed),
    "a torn tail is not cut off": (TimelineLog, "_end_file", only_said),
}


def found_by(seeds: range) -> int | None:
    """The first seed whose lives fail."""
    for seed in seeds:
        try:
            lives_of(seed)
        except (AssertionError, StelaeError, OSError):
            return seed
    return None


@pytest.mark.parametrize("bug", BUGS, ids=list(BUGS))
def test_random_lives_find_a_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these would lose what was acknowledged, or bring back what was deleted."""
    # What says by itself that a sync was not made is left out: the loss is to be seen.
    left_out = ("sync_error",) if bug == BELIEVED else ("sync_error", "reopen")
    operations = tuple(name for name in OPERATIONS if name not in left_out)
    monkeypatch.setattr(test_timeline_crashes, "OPERATIONS", operations)
    owner, name, planted = BUGS[bug]
    monkeypatch.setattr(owner, name, planted)
    assert found_by(range(SEEDS_MAX)) is not None
