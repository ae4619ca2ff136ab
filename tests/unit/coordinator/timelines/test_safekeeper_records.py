"""Safekeepers and timelines as the catalog keeps them: ids, states, records, pages."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.coordinator.catalog.catalog import Applied, Catalog, CatalogBatch, Conflict
from stelae.coordinator.catalog.timelines import (
    TimelineCatalog,
)
from stelae.coordinator.timelines.placement import (
    draft_register,
    draft_status,
)
from stelae.core.errors import InvalidArgument, StaleRequest
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.configurations import TimelineId, TimelineRecord
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus
from tests.unit.coordinator.timelines.timeline_world import (
    A,
    DrivenLeader,
    configuration,
    ids,
    info,
    say,
    stored,
)

# ---- the registry -------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_an_id_is_given_once_and_stays(beats: list[tuple[int, bool]]) -> None:
    """Whoever heartbeats, in whatever order, with a new disk or the old one: no id ever changes
    hands; and every master that applies the same entries has the same registry."""
    catalog, other = Catalog(), Catalog()
    disks = dict.fromkeys(range(6), 0)
    given_to: dict[SafekeeperId, ServerUuid] = {}
    for number, is_new_disk in beats:
        disks[number] += is_new_disk
        server = info(f"k{number}", uuid=ServerUuid(f"{number}-{disks[number]}"))
        batch = draft_register(catalog, server)
        if batch is not None:
            assert isinstance(catalog.apply(1, 1, batch.encode()), Applied)
            other.apply(1, 1, batch.encode())
        found = catalog.timelines.id_of(server.uuid)
        assert found is not None
        assert given_to.setdefault(found, server.uuid) == server.uuid
        assert draft_register(catalog, server) is None
    assert other.timelines.state() == catalog.timelines.state()
    again = Catalog()
    again.restore(catalog.snapshot())
    assert again.timelines.state() == catalog.timelines.state()


def test_two_leaders_cannot_give_one_id_twice() -> None:
    """Both drafted from the same catalog: the entry that comes second changes nothing."""
    here = DrivenLeader(count=0)
    one, other = (draft_register(here.catalog, info(name)) for name in ("k1", "k2"))
    assert isinstance(here.put(one), Applied)
    assert isinstance(here.put(other), Conflict)
    assert isinstance(here.put(draft_register(here.catalog, info("k2"))), Applied)
    twice = msgspec.structs.replace(
        here.catalog.timelines.safekeepers[SafekeeperId(1)], safekeeper_id=SafekeeperId(9)
    )
    assert isinstance(here.put(CatalogBatch(safekeepers=(twice,))), Conflict)


def test_late_copies_of_an_order_do_not_undo_what_was_said_of_a_safekeeper_since() -> None:
    """Of one that changed something, of one that changed nothing, as it was said already, and of
    one that its client has given up; the last word may be another client's."""
    here, offline, active = DrivenLeader(), SafekeeperStatus.OFFLINE, SafekeeperStatus.ACTIVE
    first, same, lost = say(1, offline), say(1, offline, client="another"), say(2, offline)
    raced = draft_status(here.catalog, first)
    for order in (first, same):
        assert isinstance(here.put(draft_status(here.catalog, order)), Applied)
    assert here.status_of(2) is offline
    assert isinstance(here.put(draft_status(here.catalog, say(3, active, since=3))), Applied)
    assert isinstance(here.put(raced), Conflict), "drafted before, replicated after"
    assert draft_status(here.catalog, same) is None
    for order in (first, lost):
        with pytest.raises(StaleRequest):
            draft_status(here.catalog, order)
    assert here.status_of(2) is active


def test_who_is_not_heard_counts_as_offline_and_who_lost_its_disk_as_gone() -> None:
    """By liveness; what operators have said of the others stands."""
    here = DrivenLeader()
    here.put(draft_status(here.catalog, say(1, SafekeeperStatus.OFFLINE)))
    with pytest.raises(InvalidArgument, match="no safekeeper 77"):
        draft_status(here.catalog, say(2, SafekeeperStatus.ACTIVE, number=77))
    here.now += 10.0
    here.beat("k1")
    here.beat("k4", uuid=ServerUuid("another disk"))
    found = [status.value for status in here.fleet().values()]
    assert found == ["active", "offline", "offline", "decommissioned", "active"]
    here.beat("k4")  # the old process still runs somewhere
    assert here.fleet()[SafekeeperId(4)] is SafekeeperStatus.DECOMMISSIONED


def test_safekeepers_that_change_their_disks_are_both_there() -> None:
    """In whichever order they are heard: between the two heartbeats both records have one name, and
    the disk that had it first is not lost. A copy on it would stay for ever, as nothing has to be
    removed from a safekeeper that is gone for good."""
    for first, second in ((1, 2), (2, 1)):
        here = DrivenLeader()
        here.beat(f"k{second}", uuid=ServerUuid(f"u-k{first}"))
        assert set(here.fleet().values()) == {SafekeeperStatus.ACTIVE}
        here.beat(f"k{first}", uuid=ServerUuid(f"u-k{second}"))
        assert set(here.fleet().values()) == {SafekeeperStatus.ACTIVE}
        # Either disk may be lost later: it is the one that had that name last.
        here.beat("k1", uuid=ServerUuid("another disk"))
        gone = [n for n, status in here.fleet().items() if status.value == "decommissioned"]
        assert gone == list(ids(2))


def test_a_disk_that_is_heard_under_another_name_is_not_lost() -> None:
    """A new disk had been registered under its former name before it was heard."""
    here = DrivenLeader()
    here.beat("k1", uuid=ServerUuid("another disk"))
    assert here.fleet()[SafekeeperId(1)] is SafekeeperStatus.DECOMMISSIONED
    here.beat("k2", uuid=ServerUuid("u-k1"))
    assert here.fleet()[SafekeeperId(1)] is SafekeeperStatus.ACTIVE


def test_a_lost_disk_stays_lost_when_its_successor_is_lost_too() -> None:
    """Also where that one had another name by then."""
    here = DrivenLeader()
    here.beat("k1", uuid=ServerUuid("second"))
    here.beat("k9", uuid=ServerUuid("second"))
    here.beat("k9", uuid=ServerUuid("third"))
    here.now += 10.0
    assert here.fleet()[SafekeeperId(1)] is SafekeeperStatus.OFFLINE, "no successor is heard"
    here.beat("k9", uuid=ServerUuid("third"))
    gone = [n for n, status in here.fleet().items() if status.value == "decommissioned"]
    assert gone == list(ids(1, 5))


def test_a_safekeeper_that_has_not_taken_its_id_up_gets_nothing() -> None:
    """It refuses everything until it has: it counts as not heard."""
    here = DrivenLeader(count=3)
    here.put(draft_register(here.catalog, info("k4")))
    here.liveness.heartbeat(Heartbeat(info("k4"), here.now), here.now)
    assert here.fleet()[SafekeeperId(4)] is SafekeeperStatus.OFFLINE


# ---- configurations -----------------------------------------------------------------------------


def test_of_two_writes_after_one_record_one_counts() -> None:
    """The compare-and-set is where the entry is applied, on every master alike."""
    here = DrivenLeader()
    first = TimelineRecord(A, configuration(1, 1, 2, 3))
    assert isinstance(here.put(CatalogBatch(timelines=(stored(first, 1),))), Applied)
    one, other = (stored(first.joint_with(ids(*to)), 2) for to in ((2, 3, 4), (1, 3, 4)))
    assert isinstance(here.put(CatalogBatch(timelines=(one,))), Applied)
    assert isinstance(here.put(CatalogBatch(timelines=(other,))), Conflict)
    assert here.catalog.timelines.current(A) == one
    skipped = stored(first.joint_with(ids(1, 2, 4)).switched(), 3)
    assert isinstance(here.put(CatalogBatch(timelines=(skipped,))), Conflict), "no step leads there"


@given(
    st.lists(st.tuples(st.sampled_from("TUV"), st.integers(0, 30)), unique=True, max_size=40),
    st.integers(1, 7),
    st.sampled_from(["", "T", "U", "W"]),
)
def test_pages_list_each_timeline_once_in_order(
    keys: list[tuple[str, int]], limit: int, table: str
) -> None:
    """As a sorted list would, whatever the size of a page."""
    timelines = TimelineCatalog()
    all_ids = [TimelineId(TableId(t), TabletId(f"{n:02}")) for t, n in keys]
    for timeline in all_ids:
        record = TimelineRecord(timeline, configuration(1, 1, 2, 3))
        timelines.commit((), (stored(record, 1),))
    wanted = sorted((i for i in all_ids if table in ("", i.table_id)), key=lambda i: i.key)
    found: list[TimelineId] = []
    after = None
    while page := timelines.page(TableId(table) if table else None, after, limit):
        assert len(page) <= limit
        found += [row.record.timeline for row in page]
        after = found[-1]
    assert found == wanted


def test_catalogs_of_before_timelines_are_read() -> None:
    """Their snapshots have no such part."""
    here = DrivenLeader()
    fields = msgspec.msgpack.decode(here.catalog.snapshot())
    fields[0] = 3
    older = Catalog()
    older.restore(msgspec.msgpack.encode(fields[:7]))
    assert older.tablets[TabletId("a")] == here.tablet
    assert not older.timelines.safekeepers
