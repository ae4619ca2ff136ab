"""Safekeepers and timelines in the catalog, and what the leader master does about them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.coordinator.catalog import Applied, Catalog, CatalogBatch, Conflict
from stelae.coordinator.decide import Learn, Open, decide
from stelae.coordinator.liveness import Liveness
from stelae.coordinator.migration_steps import (
    Abort,
    Create,
    FinishPending,
    MoveTo,
    Remove,
    Request,
    Verdict,
)
from stelae.coordinator.pacing import Pacing
from stelae.coordinator.timeline_catalog import (
    TimelineCatalog,
)
from stelae.coordinator.timeline_duties import (
    Duty,
    creations,
    decides,
    is_void,
    left_to_do,
    replacements,
    statuses_now,
    supersedes,
    timeline_tablet,
)
from stelae.coordinator.timeline_placement import (
    draft_notified,
    draft_register,
    draft_status,
    first_timelines,
    fleet_of,
    source_of,
)
from stelae.core.configurations import MigrationOrder, StoredRecord, TimelineId, TimelineRecord
from stelae.core.durability import segments, wal
from stelae.core.errors import InvalidArgument, NotEnoughServers, StaleRequest, TabletNotFound
from stelae.core.ids import Address, ClientId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages import Heartbeat, TabletProgress, TabletReport
from stelae.core.partition import Partitioning
from stelae.core.records import (
    ServerInfo,
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema import TableSchema
from stelae.core.settings import Settings
from stelae.core.timeline_messages import SetSafekeeperStatus
from stelae.core.timelines import SafekeeperId, SafekeeperStatus, TimelineConfiguration

SETTINGS = Settings(heartbeat_s=0.2, lease_s=1.5, dead_after_s=2.0)
SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
A = TimelineId(TableId("T"), TabletId("a"))
SILENCE_S = SETTINGS.dead_after_s


def ids(*numbers: int) -> tuple[SafekeeperId, ...]:
    return tuple(SafekeeperId(number) for number in numbers)


def configuration(generation: int, *members: int) -> TimelineConfiguration:
    return TimelineConfiguration(generation, ids(*members))


def info(name: str, *, kind: ServerKind = ServerKind.SAFEKEEPER, **changes: object) -> ServerInfo:
    found = ServerInfo(
        kind, name, ServerUuid(f"u-{name}"), 1, Address(f"{name}:1"), ProcessIdentity(name, 1, 0)
    )
    return msgspec.structs.replace(found, **changes)


def stored(record: TimelineRecord, revision: int, nonce: str = "n") -> StoredRecord:
    return StoredRecord(revision, record, 0.0, "w", nonce)


def say(
    sequence: int,
    status: SafekeeperStatus,
    *,
    client: str = "one",
    since: int = 0,
    number: int = 2,
) -> SetSafekeeperStatus:
    """An order of an operator's, who waits for no answer of orders below ``since``."""
    request = RequestId(ClientId(client), sequence, since)
    return SetSafekeeperStatus(request, SafekeeperId(number), status)


class Here:
    """A leader's catalog and liveness, driven by hand."""

    def __init__(self, count: int = 4) -> None:
        self.catalog = Catalog()
        self.liveness = Liveness(SETTINGS)
        self.now = 100.0
        self.liveness.lead(self.now)
        table = TableRecord(
            TableId("T"), "t", SCHEMA, Partitioning(), wal(3, ["disk"]), TableState.RUNNING
        )
        tablet = TabletRecord(
            TabletId("a"),
            TableId("T"),
            0,
            TabletState.CREATING,
            1,
            ServerUuid("u-s1"),
            1,
            timeline=configuration(1, 1, 2, 3),
        )
        self.put(CatalogBatch((table,), (tablet,)))
        for number in range(1, count + 1):
            self.beat(f"k{number}")

    def put(self, batch: CatalogBatch | None) -> object:
        assert batch is not None
        return self.catalog.apply(1, 1, batch.encode())

    def beat(self, name: str, *reports: TabletReport, **changes: object) -> None:
        """A heartbeat; a safekeeper is registered by it, and takes its id up."""
        kind = ServerKind.SAFEKEEPER if name.startswith("k") else ServerKind.TSERVER
        server = info(name, kind=kind, **changes)
        if kind is ServerKind.SAFEKEEPER:
            batch = draft_register(self.catalog, server)
            if batch is not None:
                self.put(batch)
            number = self.catalog.timelines.id_of(server.uuid)
            server = msgspec.structs.replace(server, safekeeper_id=number)
        self.liveness.heartbeat(Heartbeat(server, self.now, tuple(reports)), self.now)

    def status_of(self, number: int) -> SafekeeperStatus:
        """What operators said of it last."""
        return self.catalog.timelines.safekeepers[SafekeeperId(number)].status

    @property
    def tablet(self) -> TabletRecord:
        return self.catalog.tablets[TabletId("a")]

    def set_tablet(self, **changes: object) -> None:
        generation = self.tablet.generation + 1
        changed = msgspec.structs.replace(self.tablet, generation=generation, **changes)
        self.put(CatalogBatch(tablets=(changed,)))

    def fleet(self) -> dict[SafekeeperId, SafekeeperStatus]:
        fleet = fleet_of(self.catalog, self.liveness, self.now)
        return dict(statuses_now(fleet, self.now, SILENCE_S))

    def replacements(
        self,
        records: Sequence[TimelineRecord],
        grace_s: float = 30,
        under_way: Request | None = None,
    ) -> list[Duty]:
        fleet = fleet_of(self.catalog, self.liveness, self.now)
        running = {} if under_way is None else {record.timeline: under_way for record in records}
        return replacements(
            records, fleet, running, self.now, silence_s=SILENCE_S, grace_s=grace_s, limit=8
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
    here = Here(count=0)
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
    here, offline, active = Here(), SafekeeperStatus.OFFLINE, SafekeeperStatus.ACTIVE
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
    here = Here()
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


def test_a_safekeeper_that_has_not_taken_its_id_up_gets_nothing() -> None:
    """It refuses everything until it has: it counts as not heard."""
    here = Here(count=3)
    here.put(draft_register(here.catalog, info("k4")))
    here.liveness.heartbeat(Heartbeat(info("k4"), here.now), here.now)
    assert here.fleet()[SafekeeperId(4)] is SafekeeperStatus.OFFLINE


# ---- configurations -----------------------------------------------------------------------------


def test_of_two_writes_after_one_record_one_counts() -> None:
    """The compare-and-set is where the entry is applied, on every master alike."""
    here = Here()
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
    here = Here()
    fields = msgspec.msgpack.decode(here.catalog.snapshot())
    fields[0] = 3
    older = Catalog()
    older.restore(msgspec.msgpack.encode(fields[:7]))
    assert older.tablets[TabletId("a")] == here.tablet
    assert not older.timelines.safekeepers


# ---- placement ----------------------------------------------------------------------------------


def test_new_timelines_are_spread_evenly() -> None:
    """Each on as many safekeepers as its table says; those with the fewest first."""
    here = Here(count=5)
    fleet = fleet_of(here.catalog, here.liveness, here.now)

    def choose(count: int, tablets: int) -> tuple[TimelineConfiguration, ...]:
        return first_timelines(
            here.catalog,
            fleet,
            wal(count, ["disk"]),
            tablets,
            what="a table",
            now=here.now,
            silence_s=SILENCE_S,
        )

    chosen = choose(3, 4)
    load = {number: 0 for number in range(1, 6)} | {1: 1, 2: 1, 3: 1}
    for each in chosen:
        assert (each.generation, each.new_sk_set, len(set(each.sk_set))) == (1, None, 3)
        for member in each.sk_set:
            load[member] += 1
    assert set(load.values()) == {3}
    with pytest.raises(NotEnoughServers, match="a table needs 7 live safekeepers, there are 5"):
        choose(7, 1)
    assert (
        first_timelines(
            here.catalog, {}, segments("disk"), 4, what="", now=here.now, silence_s=SILENCE_S
        )
        == ()
    )


def test_an_owner_is_told_where_its_timeline_lies() -> None:
    """The members of whom anything was heard, each with its server and address."""
    here = Here(count=2)
    source = source_of(here.catalog, here.liveness, here.tablet)
    assert source is not None
    assert source.configuration == configuration(1, 1, 2, 3)
    assert [(p.safekeeper_id, p.uuid, p.address) for p in source.safekeepers] == [
        (1, "u-k1", "k1:1"),
        (2, "u-k2", "k2:1"),
    ]
    plain = msgspec.structs.replace(here.tablet, timeline=None)
    assert source_of(here.catalog, here.liveness, plain) is None


def test_the_catalog_is_told_what_is_newer_and_nothing_of_what_is_gone() -> None:
    """Told twice, or late, nothing changes."""
    here = Here()
    record = TimelineRecord(A, configuration(1, 1, 2, 3)).joint_with(ids(2, 3, 4))
    here.put(draft_notified(here.catalog, record))
    assert here.tablet.timeline == record.configuration
    assert draft_notified(here.catalog, record) is None
    here.put(draft_notified(here.catalog, record.switched()))
    assert draft_notified(here.catalog, record) is None
    assert here.tablet.timeline == configuration(3, 2, 3, 4)
    here.set_tablet(state=TabletState.DELETED)
    later = record.switched().joint_with(ids(1, 2, 3))
    assert draft_notified(here.catalog, later) is None


# ---- duties -------------------------------------------------------------------------------------


def test_what_is_created_and_what_is_removed_follows_from_the_tablet() -> None:
    """CREATING: its timeline is wanted; gone: its timeline is to go; RUNNING: neither."""
    here = Here()
    statuses = here.fleet()
    record = TimelineRecord(A, configuration(1, 1, 2, 3), 1, 1)
    assert [duty.request for duty in creations(here.catalog)] == [Create(ids(1, 2, 3))]
    assert left_to_do(here.catalog, [record], statuses) == []
    here.set_tablet(state=TabletState.RUNNING)
    assert creations(here.catalog) == []
    here.set_tablet(state=TabletState.DELETED)
    assert [d.request for d in left_to_do(here.catalog, [record], statuses)] == [Remove()]
    removed = record.removed()
    assert [d.request for d in left_to_do(here.catalog, [removed], statuses)] == [FinishPending()]
    done = msgspec.structs.replace(removed, departed=(), notified_generation=removed.generation)
    assert left_to_do(here.catalog, [done], statuses) == []
    with pytest.raises(InvalidArgument, match="deleted"):
        timeline_tablet(here.catalog, TabletId("a"))
    with pytest.raises(TabletNotFound):
        timeline_tablet(here.catalog, TabletId("never was"))


def test_what_waits_for_a_safekeeper_that_is_away_is_left_until_it_is_back() -> None:
    """Nobody drives in vain; as soon as it is heard, it is finished."""
    here = Here()
    record = TimelineRecord(A, configuration(3, 2, 3, 4), 3, 3, departed=ids(1))
    here.now += 10.0
    for name in ("k2", "k3", "k4"):
        here.beat(name)
    assert left_to_do(here.catalog, [record], here.fleet()) == []
    here.beat("k1")
    assert [d.request for d in left_to_do(here.catalog, [record], here.fleet())] == [
        FinishPending()
    ]


def test_a_lost_member_gives_way_after_the_grace_time_and_one_without_disk_at_once() -> None:
    """Silence alone waits: it may be restarted. Its successor of that name shows that its disk is
    gone."""
    here = Here()
    record = TimelineRecord(A, configuration(1, 1, 2, 3), 1, 1)
    here.now += 10.0
    for name in ("k2", "k3", "k4"):
        here.beat(name)
    assert here.replacements([record]) == []
    here.now += 30.0
    for name in ("k2", "k3", "k4"):
        here.beat(name)
    assert [d.request for d in here.replacements([record])] == [MoveTo(ids(4, 2, 3))]
    again = Here()
    again.now += 10.0
    for name in ("k2", "k3", "k4"):
        again.beat(name)
    again.beat("k1", uuid=ServerUuid("another disk"))
    assert [d.request for d in again.replacements([record])] == [MoveTo(ids(4, 2, 3))]


def test_what_merely_finishes_keeps_no_replacement_waiting() -> None:
    """The lost member has never been told of the last change, so that is never finished; any other
    request is waited for."""
    here = Here()
    record = TimelineRecord(A, configuration(3, 1, 2, 3), 3, 1)
    here.now += 40.0
    for name in ("k2", "k3", "k4"):
        here.beat(name)
    assert left_to_do(here.catalog, [record], here.fleet()) != []
    move = MoveTo(ids(4, 2, 3))
    found = here.replacements([record], under_way=FinishPending())
    assert [duty.request for duty in found] == [move]
    for other in (move, MoveTo(ids(1, 2, 4)), Abort(), Remove()):
        assert here.replacements([record], under_way=other) == []


def test_a_change_whose_new_members_are_lost_is_taken_back() -> None:
    """Only then, only after the grace time, and only if the old ones can go on."""
    record = TimelineRecord(A, configuration(1, 1, 2, 3)).joint_with(ids(3, 4, 5))

    def after(silence_s: float, *heard: int) -> list[Request]:
        here = Here(count=5)
        here.now += silence_s
        for number in heard:
            here.beat(f"k{number}")
        return [duty.request for duty in here.replacements([record])]

    assert after(40.0, 1, 2, 3) == [Abort()]
    assert after(10.0, 1, 2, 3) == []
    assert after(40.0, 1, 2, 3, 4) == []
    assert after(40.0, 3) == []
    here = Here(count=5)
    for number in (4, 5):
        here.put(draft_status(here.catalog, say(number, SafekeeperStatus.OFFLINE, number=number)))
    here.now += 40.0
    for number in (1, 2, 3):
        here.beat(f"k{number}")
    assert here.replacements([record]) == [], "they are expected back"


def test_an_abort_or_a_removal_ends_what_runs() -> None:
    """And a move ends what only finishes; nothing else ends anything."""
    move, other = MoveTo(ids(1, 2, 3)), MoveTo(ids(2, 3, 4))
    assert supersedes(Abort(), move)
    assert supersedes(Remove(), Abort())
    assert supersedes(move, FinishPending())
    for new, old in (
        (other, move),
        (FinishPending(), move),
        (Abort(), Remove()),
        (move, Remove()),
        (Remove(), Remove()),
        (move, Abort()),
        (move, Create(ids(1, 2, 3))),
    ):
        assert not supersedes(new, old), (new, old)


def order(sequence: int, desired: tuple[SafekeeperId, ...] | None) -> MigrationOrder:
    return MigrationOrder(A, desired, RequestId(ClientId("one"), sequence, 0))


def test_the_catalog_keeps_the_last_order_until_that_very_one_is_decided() -> None:
    """Also through a snapshot; what is said of an earlier order does not touch a later one."""
    here = Here()
    move, back = order(1, ids(2, 3, 4)), order(2, None)
    here.put(CatalogBatch(orders=(move,), request=move.request))
    assert here.catalog.timelines.orders == {A: move}
    here.put(CatalogBatch(orders=(back,), request=back.request))
    here.put(CatalogBatch(orders=(move,), request=move.request))  # a copy that comes late
    here.put(CatalogBatch(decided=(move,)))
    again = Catalog()
    again.restore(here.catalog.snapshot())
    for catalog in (here.catalog, again):
        assert catalog.timelines.orders == {A: back}
        catalog.apply(1, 1, CatalogBatch(decided=(back,)).encode())
        assert catalog.timelines.orders == {}


def test_an_order_is_void_once_its_tablet_is_gone() -> None:
    """However that came: then nobody moves its log."""
    here, move = Here(), order(1, ids(2, 3, 4))
    assert not is_void(here.catalog, move)
    here.set_tablet(state=TabletState.DELETED)
    assert is_void(here.catalog, move)
    stranger = MigrationOrder(TimelineId(TableId("T"), TabletId("x")), None, move.request)
    assert is_void(here.catalog, stranger)


@pytest.mark.parametrize("verdict", Verdict)
def test_what_decides_an_order_is_its_own_end_or_that_it_was_taken_back(verdict: Verdict) -> None:
    """Not a run that gave up, nor what somebody else wanted of the timeline."""
    move, back = order(1, ids(2, 3, 4)), order(2, None)
    gave_up = verdict in (Verdict.WAITING, Verdict.OVERTAKEN)
    assert decides(MoveTo(ids(2, 3, 4)), verdict, move) is not gave_up
    assert decides(Abort(), verdict, back) is not gave_up
    assert decides(Abort(), verdict, move) is (verdict is Verdict.ABORTED)
    for other in (MoveTo(ids(1, 2, 4)), FinishPending(), Create(ids(2, 3, 4))):
        assert not decides(other, verdict, move)
        assert not decides(other, verdict, back)


def test_an_owner_is_told_of_a_newer_configuration_until_it_says_that_it_knows() -> None:
    """Level-triggered, by the generation in its report."""
    here = Here()

    def decided() -> list[object]:
        actions = decide(here.catalog, here.liveness, Pacing(), here.now, missing_after_s=2.0)
        return [type(action) for action in actions]

    def report(generation: int) -> TabletReport:
        return TabletReport(
            TabletId("a"), 1, TabletProgress.SERVING, timeline_generation=generation
        )

    here.beat("s1")
    assert decided() == [Open]
    here.set_tablet(state=TabletState.RUNNING)
    here.beat("s1", report(1))
    assert decided() == []
    here.set_tablet(timeline=configuration(3, 2, 3, 4))
    assert decided() == [Learn]
    here.beat("s1", report(3))
    assert decided() == []


def test_choices_do_not_depend_on_the_order_of_heartbeats() -> None:
    """The same servers give the same members."""
    chosen = set()
    for seed in range(5):
        here = Here(count=5)
        names = [f"k{number}" for number in range(1, 6)]
        random.Random(seed).shuffle(names)
        for name in names:
            here.beat(name)
        fleet = fleet_of(here.catalog, here.liveness, here.now)
        chosen.add(
            first_timelines(
                here.catalog,
                fleet,
                wal(3, ["disk"]),
                3,
                what="",
                now=here.now,
                silence_s=SILENCE_S,
            )
        )
    assert len(chosen) == 1
