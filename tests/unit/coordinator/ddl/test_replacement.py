"""The fence of a server whose name another one takes over on another machine."""

from __future__ import annotations

import msgspec
import pytest

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.operator_orders import find_server
from stelae.coordinator.ddl.replacement import draft_replace, draft_successor
from stelae.coordinator.liveness.liveness import Liveness, Run
from stelae.coordinator.liveness.unheard import (
    NamedServer,
    describe_never_heard,
    never_heard_servers,
)
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument, RetryLater
from stelae.core.ids import Address, ClientId, OpId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages.operators import ReplaceServer
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.records import (
    BackupRecord,
    SafekeeperRecord,
    ServerInfo,
    ServerKind,
    ServerMark,
    TabletRecord,
    TabletState,
)
from stelae.core.records.replication import Configuration, Peer
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus
from stelae.core.runtime import ProcessIdentity

OLD, NEW = ServerUuid("old"), ServerUuid("new")
SETTINGS = Settings(heartbeat_s=0.2, lease_s=1.5, dead_after_s=2.0)


class World:
    """A leader master with its catalog."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.liveness = Liveness(SETTINGS)
        self.liveness.is_replaced = lambda uuid: self.catalog.mark(uuid).replaced
        self.now = 100.0
        self.index = 0
        self.liveness.lead(self.now)
        self.now += 10.0

    def beat(self, uuid: ServerUuid, kind: ServerKind = ServerKind.TSERVER) -> ServerInfo:
        process = ProcessIdentity("n", 1, 0)
        info = ServerInfo(kind, f"{kind.value}-1", uuid, 1, Address(f"{uuid}:1"), process)
        self.liveness.heartbeat(Heartbeat(info, self.now, ()), self.now)
        return info

    def put(self, batch: CatalogBatch | None) -> None:
        assert batch is not None
        for mark in batch.marks:
            self.catalog.marks[mark.uuid] = mark

    def replace(
        self, uuid: ServerUuid = OLD, sequence: int = 1, *, goes_on: bool = False
    ) -> CatalogBatch | None:
        order = ReplaceServer(RequestId(ClientId("c"), sequence, 0), uuid, goes_on)
        return draft_replace(self.catalog, self.liveness, order, self.now)

    def fenced(self) -> World:
        """After the server was heard, fell silent, and was fenced."""
        self.beat(OLD)
        self.now += 10.0
        self.put(self.replace())
        return self


def test_a_fenced_server_never_counts_as_live_again() -> None:
    """Whatever run of it is heard: it gets no lease, is on no list, and is given up."""
    world = World().fenced()
    mark = world.catalog.mark(OLD)
    assert (mark.name, mark.kind, mark.replaced) == ("tserver-1", ServerKind.TSERVER, True)
    world.beat(OLD)
    for run in (Run(OLD, 1), Run(OLD, 2)):
        assert world.liveness.is_given_up(run)
        assert not world.liveness.is_live(run, world.now)
        assert world.liveness.grant(run, world.now) == 0.0
    assert not world.liveness.live(ServerKind.TSERVER, world.now)


def test_a_replacement_by_hand_is_noted_until_it_is_whole() -> None:
    """Whoever gives it again goes on, and does not replace the new server as well."""
    world = World()
    world.beat(OLD)
    world.now += 10.0
    world.put(world.replace(goes_on=True))
    assert world.catalog.mark(OLD).replacing
    again = world.replace(goes_on=True)
    assert again is not None
    assert not again.marks
    world.put(world.replace())
    mark = world.catalog.mark(OLD)
    assert (mark.replaced, mark.replacing) == (True, False), "the fence stays"
    assert not World().fenced().catalog.mark(OLD).replacing, "by the watcher of machines"


def test_a_server_that_lives_is_not_fenced() -> None:
    """Ray may have lost a machine that the masters still hear."""
    world = World()
    world.beat(OLD)
    with pytest.raises(InvalidArgument, match="tserver-1 lives: only a server that is away"):
        world.replace()


def test_a_leader_that_has_just_begun_fences_nobody() -> None:
    """The server may live, and not have been heard yet."""
    world = World()
    world.beat(OLD)
    world.now += 10.0
    world.liveness.lead(world.now)
    with pytest.raises(RetryLater, match="has just begun to hear"):
        world.replace()


def test_a_server_in_maintenance_is_not_fenced() -> None:
    """It is expected back."""
    world = World()
    world.beat(OLD)
    world.now += 10.0
    world.put(CatalogBatch(marks=(ServerMark(OLD, "tserver-1", maintenance=True),)))
    with pytest.raises(InvalidArgument, match="in maintenance"):
        world.replace()


def test_nobody_knows_whom_to_fence() -> None:
    """A UUID that was never heard, and is in no register."""
    with pytest.raises(InvalidArgument, match="no server with the UUID old"):
        World().replace()


@pytest.mark.parametrize("kind", [ServerKind.BACKUP, ServerKind.SAFEKEEPER, ServerKind.TSERVER])
def test_a_server_that_only_the_catalog_names_is_fenced(kind: ServerKind) -> None:
    """Its disk is dead, and all masters were started anew since they heard it. Until then the
    status names it, once, and never one that was heard."""
    world, name = World(), f"{kind.value}-1"
    catalog = world.catalog
    match kind:
        case ServerKind.BACKUP:
            catalog.backups.known[OLD] = BackupRecord(OLD, name, "m", ("disk",), 1.0)
        case ServerKind.SAFEKEEPER:
            record = SafekeeperRecord(SafekeeperId(1), OLD, name, "m")
            catalog.timelines.safekeepers[record.safekeeper_id] = record
        case _:
            peers = (Peer(OLD, Address("a:1"), name=name), Peer(NEW, Address("b:1")))
            tablet = TabletRecord(
                *(TabletId("x"), TableId("t"), 0, TabletState.RUNNING, 1, ServerUuid(""), 0),
                configuration=Configuration(OpId(0, 0), peers),
            )
            catalog.live_tablets = lambda: iter([tablet])  # type: ignore[method-assign]
    assert never_heard_servers(catalog, world.liveness) == [NamedServer(kind, name, OLD)]
    world.put(world.replace())
    mark = catalog.mark(OLD)
    assert (mark.name, mark.kind, mark.replaced) == (name, kind, True)
    assert not mark.marked_only
    assert never_heard_servers(catalog, world.liveness) == []


def test_a_server_that_was_heard_is_not_among_those_that_the_catalog_alone_names() -> None:
    """A mark of an operator names a server too, and it is said that nothing else does."""
    world = World()
    world.put(CatalogBatch(marks=(ServerMark(OLD, "tserver-1", kind=ServerKind.TSERVER),)))
    found = never_heard_servers(world.catalog, world.liveness)
    assert [(each.uuid, each.is_marked_only) for each in found] == [(OLD, True)]
    (told,) = describe_never_heard(world.catalog, world.liveness)
    assert (told["marked_only"], told["maintenance"], told["retiring"]) == (True, False, False)
    world.beat(OLD)
    assert never_heard_servers(world.catalog, world.liveness) == []


@pytest.mark.parametrize("is_heard", [False, True])
def test_a_fence_says_whether_only_a_mark_named_the_server(*, is_heard: bool) -> None:
    """Whoever carries a replacement on cannot see that any more. R5."""
    world = World()
    world.put(CatalogBatch(marks=(ServerMark(OLD, "tserver-1", kind=ServerKind.TSERVER),)))
    if is_heard:
        world.beat(OLD)
    world.now += 10.0
    world.put(world.replace())
    assert world.catalog.mark(OLD).replaced
    assert world.catalog.mark(OLD).marked_only is not is_heard


def test_what_operators_said_of_a_server_that_was_never_heard_is_told() -> None:
    """By its mark, and of a safekeeper by the register: nobody replaces it then."""
    world = World()
    mark = ServerMark(OLD, "tserver-1", maintenance=True, retiring=True, kind=ServerKind.TSERVER)
    world.put(CatalogBatch(marks=(mark,)))
    status = SafekeeperStatus.DECOMMISSIONED
    record = SafekeeperRecord(SafekeeperId(1), NEW, "safekeeper-1", "m", status=status)
    world.catalog.timelines.safekeepers[record.safekeeper_id] = record
    found = describe_never_heard(world.catalog, world.liveness)
    told = [(each["id"], each["maintenance"], each["retiring"]) for each in found]
    assert told == [("safekeeper-1", False, True), ("tserver-1", True, True)]


def test_a_fence_may_be_asked_for_again() -> None:
    """It changes nothing then."""
    world = World().fenced()
    again = world.replace(sequence=2)
    assert again is not None
    assert not again.marks


def test_the_first_server_that_is_heard_under_the_name_is_the_successor() -> None:
    """It is noted once. Another kind, or the former server itself, is none."""
    world = World().fenced()
    assert draft_successor(world.catalog, world.beat(OLD)) is None
    other = msgspec.structs.replace(world.beat(NEW), name="tserver-2")
    assert draft_successor(world.catalog, other) is None
    backup = msgspec.structs.replace(world.beat(NEW), kind=ServerKind.BACKUP)
    assert draft_successor(world.catalog, backup) is None
    info = world.beat(NEW)
    world.put(draft_successor(world.catalog, info))
    assert world.catalog.mark(OLD).successor == NEW
    assert draft_successor(world.catalog, info) is None
    assert world.liveness.is_live(Run(NEW, 1), world.now)


def test_a_fenced_server_is_not_the_successor_of_the_next_one() -> None:
    """OLD was cut off while NEW took its name and was fenced: the name has no server yet."""
    world = World().fenced()
    world.put(draft_successor(world.catalog, world.beat(NEW)))
    world.now += 10.0
    world.put(world.replace(NEW, sequence=2))
    assert draft_successor(world.catalog, world.beat(OLD)) is None
    assert not world.catalog.mark(NEW).successor
    newest = ServerUuid("newest")
    world.put(draft_successor(world.catalog, world.beat(newest)))
    assert world.catalog.mark(NEW).successor == newest


def test_the_name_means_the_successor() -> None:
    """The former server is meant by its UUID alone, also while both are silent."""
    world = World().fenced()
    world.beat(NEW)
    world.now += 10.0
    found = find_server(world.catalog, world.liveness, "tserver-1", world.now)
    assert found.uuid == NEW
    assert find_server(world.catalog, world.liveness, OLD, world.now).uuid == OLD
