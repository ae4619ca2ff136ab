"""`stelae.coordinator.status.events`: what people are told happened, from the log and from
liveness."""

from __future__ import annotations

import msgspec

from stelae.coordinator.catalog.backups import BackupChanges
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch, Conflict
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.status.events import KEPT, Chronicle, EventLog, ServerEvents
from stelae.core.config.settings import Settings
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.losses import LossRecord, TabletLoss
from stelae.core.records.records import (
    BackupRecord,
    Rebalancing,
    ServerInfo,
    ServerKind,
    ServerMark,
    TableState,
    TabletState,
)
from stelae.core.records.tokens import AccessToken, AccessTokens, Role
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.durability import replicas, segments
from tests.unit.coordinator.catalog.test_catalog import create, table, tablet


class Told:
    """A chronicle over an empty catalog; `apply` says what was told of an entry, oldest first."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events = EventLog(lambda: self.now)
        self.catalog = Catalog()
        self.chronicle = Chronicle(self.catalog, self.events)
        self.index = 0

    def apply(self, batch: CatalogBatch) -> list[str]:
        before = len(self.texts())
        self.index += 1
        self.outcome = self.chronicle.apply(self.index, 1, batch.encode())
        return self.texts()[before:]

    def texts(self) -> list[str]:
        return [each["text"] for each in reversed(self.events.describe(self.now, 1000.0))]


def test_a_table_is_created_altered_renamed_and_deleted() -> None:
    """One line for each; its own tablets' creation and end are not told again."""
    told = Told()
    assert told.apply(create()) == ["table t created with 2 tablets, segments('disk')"]
    runs = tablet("T0", "T", state=TabletState.RUNNING, generation=2)
    assert told.apply(CatalogBatch(tablets=(runs,))) == []
    changed = table("T", "u", generation=2, becoming=replicas(3), change=1)
    words = ["table t renamed to u", "table u becomes replicas(3)"]
    assert told.apply(CatalogBatch((changed,))) == words
    done = table("T", "u", generation=3, durability=replicas(3))
    assert told.apply(CatalogBatch((done,))) == ["table u is replicas(3) now"]
    gone = [
        tablet("T0", "T", state=TabletState.DELETED, generation=3),
        tablet("T1", "T", state=TabletState.DELETED, number=1, generation=2),
    ]
    deleted = table("T", "u", state=TableState.DELETED, generation=4)
    assert told.apply(CatalogBatch((deleted,), tuple(gone))) == ["table u deleted"]


def test_tablets_that_share_a_fate_are_one_line() -> None:
    """However many they are."""
    told = Told()
    told.apply(create())
    lost = [
        tablet(f"T{n}", "T", state=TabletState.RECOVERING, number=n, generation=2) for n in (0, 1)
    ]
    assert told.apply(CatalogBatch(tablets=tuple(lost))) == ["table t: 2 tablets to be recovered"]
    back = tablet("T0", "T", state=TabletState.RUNNING, generation=3)
    assert told.apply(CatalogBatch(tablets=(back,))) == ["table t: 1 tablet served"]


def test_what_changed_nothing_is_no_event() -> None:
    """A conflict, and a request that was carried out before."""
    told = Told()
    told.apply(create())
    assert told.apply(create()) == []
    stale = CatalogBatch((table("U", "t"),))
    assert told.apply(stale) == []
    assert isinstance(told.outcome, Conflict)
    assert told.catalog.find("t") is not None


def test_wishes_of_operators_and_tokens_are_told() -> None:
    """Whoever may read sees it: of a token neither its name nor its hash."""
    told = Told()
    mark = ServerMark(ServerUuid("s1"), "tserver-1", retiring=True)
    assert told.apply(CatalogBatch(marks=(mark,))) == ["tserver-1 is to be retired"]
    away = msgspec.structs.replace(mark, retiring=False, maintenance=True, generation=2)
    words = ["tserver-1 is not to be retired", "tserver-1 is in maintenance"]
    assert told.apply(CatalogBatch(marks=(away,))) == words
    off = Rebalancing(0.0)
    assert told.apply(CatalogBatch(rebalancing=off)) == ["rebalancing switched off"]
    token = AccessToken("ci", Role.WRITE, "secret-hash", 0.0, "ada")
    made = AccessTokens((token,))
    assert told.apply(CatalogBatch(access=made)) == ["an access token was created"]
    assert told.apply(CatalogBatch(access=AccessTokens(generation=2))) == [
        "an access token was revoked"
    ]
    shown = str(told.events.describe(told.now, 0.0))
    assert "secret-hash" not in shown
    assert "'ci" not in shown
    assert " ci " not in shown


def test_who_accepted_a_loss_is_not_told() -> None:
    """Only that it was: who may read sees no names of people."""
    told = Told()
    loss = TabletLoss(TabletId("a" * 32), TableId("T"), "t", 0, 1, (), True, True, 0, 0)
    batch = CatalogBatch(losses=(LossRecord(1, loss, 0.0, "Ada"),))
    assert told.apply(batch) == ["a loss of rows was accepted"]


def test_entries_from_before_this_master_began_have_no_time() -> None:
    """The log does not say when that was. Others are told by the wall clock of who asks."""
    told = Told()
    told.chronicle.old_until = 1
    told.apply(create())
    told.now += 5.0
    told.apply(create("u", "U", 2))
    told.now += 7.0
    times = [each["time"] for each in told.events.describe(told.now, 1000.0)]
    assert times == [993.0, None]


def test_the_list_is_bounded_and_snapshots_do_not_have_it() -> None:
    """Numbers go on, so that a reader knows each event by its own."""
    told = Told()
    for n in range(KEPT + 20):
        told.apply(CatalogBatch((table(f"T{n}", f"t{n}"),)))
    shown = told.events.describe(told.now, 0.0)
    assert [each["id"] for each in shown] == list(range(KEPT + 20, 20, -1))
    assert told.chronicle.snapshot() == told.catalog.snapshot()
    other = Told()
    other.chronicle.restore(told.catalog.snapshot())
    assert other.texts() == []
    assert other.catalog.find("t3") is not None
    assert other.catalog.tables[TableId("T3")].durability == segments("disk")


def test_servers_that_come_and_go_are_told_by_the_leader() -> None:
    """Those that a new leader knows already are no news."""
    liveness, now = Liveness(Settings()), 100.0
    events = EventLog(lambda: now)
    watch = ServerEvents(events, Catalog(), liveness)

    def beat(name: str, incarnation: int = 1) -> None:
        process = ProcessIdentity("n", 1, 0)
        info = ServerInfo(
            ServerKind.BACKUP, name, ServerUuid(name), incarnation, Address(f"{name}:1"), process
        )
        liveness.heartbeat(Heartbeat(info, now, ()), now)

    def look() -> list[str]:
        before = len(events.describe(0.0, 0.0))
        watch.look(now)
        shown = events.describe(0.0, 0.0)
        return [each["text"] for each in shown[: len(shown) - before]]

    beat("s1")
    assert look() == []
    beat("s2")
    assert look() == ["s2 is live"]
    assert look() == []
    now += 100.0
    beat("s2")
    assert look() == ["s1 was found dead"]
    beat("s1", 2)
    assert look() == ["s1 was started anew"]


def test_known_backups_that_are_not_heard_are_told_once() -> None:
    """When all have had the time to be heard by the leader master, and a few by their names; one
    that is heard after all is told as any other."""
    catalog, liveness = Catalog(), Liveness(Settings(dead_after_s=3.0))
    known = [BackupRecord(ServerUuid(f"u{n}"), f"b{n}", "m", ("disk",), 0.0) for n in range(5)]
    catalog.apply(1, 1, CatalogBatch(backups=BackupChanges(tuple(known))).encode())
    events = EventLog(lambda: 0.0)
    watch = ServerEvents(events, catalog, liveness)
    liveness.lead(100.0)

    def told(now: float) -> list[str]:
        before = len(events.describe(0.0, 0.0))
        watch.look(now)
        shown = events.describe(0.0, 0.0)
        return [each["text"] for each in shown[: len(shown) - before]][::-1]

    def beat(number: int, now: float) -> None:
        name, process = f"b{number}", ProcessIdentity("n", 1, 0)
        info = ServerInfo(
            ServerKind.BACKUP, name, ServerUuid(f"u{number}"), 1, Address(f"{name}:1"), process
        )
        liveness.heartbeat(Heartbeat(info, now, ()), now)

    beat(0, 101.0)
    assert told(101.0) == []
    beat(0, 103.5)
    assert told(103.5) == [
        *[f"b{n} on machine m is a known backup, and was not heard" for n in (1, 2, 3)],
        "1 more of the known backups were not heard",
    ]
    beat(1, 104.0)
    assert told(104.0) == ["b1 is live"]
