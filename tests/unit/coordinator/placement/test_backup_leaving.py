"""How far backups are from having nothing left, by what a leader master knows of them."""

from __future__ import annotations

import random

import msgspec
import pytest

from stelae.coordinator.catalog.backups import BackupChanges
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.operator_orders import draft_mark, find_tserver, progress_of
from stelae.coordinator.ddl.tables import draft_create
from stelae.coordinator.liveness.liveness import Liveness
from stelae.coordinator.placement.assignment import Load
from stelae.coordinator.placement.known_backups import draft_register
from stelae.coordinator.placement.leaving_backups import draft_needed, is_drained, needed_uuids
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument
from stelae.core.ids import ClientId, RequestId, ServerUuid
from stelae.core.messages.backup_loads import MediumLoad
from stelae.core.messages.catalog import CreateTable
from stelae.core.messages.operators import MarkServer, ServerProgress
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.records import ServerInfo, ServerKind, ServerMark
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from tests.unit.coordinator.groups.group_world import SCHEMA, server

B = ServerUuid("b")
REQUEST = RequestId(ClientId("creator"), 1, 0)
SETTINGS = Settings(heartbeat_s=0.2, lease_s=1.5, dead_after_s=2.0)
BACKUP = msgspec.structs.replace(server("b"), kind=ServerKind.BACKUP, media=("disk",))
OTHER = msgspec.structs.replace(server("c"), kind=ServerKind.BACKUP, media=("disk",))


def leader(now: float) -> Liveness:
    """Of a master that has just begun to lead."""
    made = Liveness(SETTINGS)
    made.lead(now)
    return made


def marked(catalog: Catalog, liveness: Liveness, now: float) -> None:
    order = MarkServer(RequestId(ClientId("x"), 1, 1), "b", retiring=True)
    batch = draft_mark(catalog, liveness, order, now)
    assert batch is not None
    catalog.apply(1, 1, batch.encode())


def with_table(catalog: Catalog, *media: str) -> None:
    order = CreateTable(REQUEST, "t", SCHEMA, Partitioning(), segments(*media))
    batch = draft_create(catalog, order, [Load(server("s"))], random.Random(1))
    catalog.apply(1, 1, batch.encode())


def test_only_a_backup_that_lives_and_says_so_has_nothing_left() -> None:
    """A new leader knows from the mark that it is a backup, and not what it has; nor of one that
    is away, though no owner has said yet that anything is missed. Once the register has it no more
    nobody counts on it, whether this leader has heard it or not."""
    catalog, liveness = Catalog(), leader(0.0)
    for each in (BACKUP, OTHER):
        liveness.heartbeat(Heartbeat(each, 0.0, replicas=3), 1.0)
        registered = draft_register(catalog, each, 1000.0)
        assert registered is not None
        catalog.apply(1, 1, registered.encode())
    marked(catalog, liveness, 1.0)

    def shown(by: Liveness, now: float) -> ServerProgress:
        return progress_of(catalog, by, "b", now)

    assert catalog.marks[BACKUP.uuid].kind is ServerKind.BACKUP
    assert (shown(liveness, 1.0).is_live, shown(liveness, 1.0).segments) == (True, 3)
    after = leader(2.0)
    for now in (2.0, 60.0):
        assert (shown(after, now).is_live, shown(after, now).segments) == (False, 1)
        assert "not heard it" in shown(after, now).problem
    after.heartbeat(Heartbeat(BACKUP, 0.0, closed_for=1), 61.0)
    assert (shown(after, 61.0).is_live, shown(after, 61.0).segments) == (True, 0)
    assert (shown(after, 90.0).is_live, shown(after, 90.0).segments) == (False, 1)
    assert "is away; nothing lacks replicas without it" in shown(after, 90.0).problem
    struck_off = CatalogBatch(backups=BackupChanges((), (B,)))
    catalog.apply(1, 1, struck_off.encode())
    for by in (after, leader(90.0)):
        assert (shown(by, 90.0).is_live, shown(by, 90.0).segments) == (False, 0)
        assert not shown(by, 90.0).problem
    with pytest.raises(InvalidArgument):
        find_tserver(catalog, after, "b", 61.0)


def test_a_mark_says_that_its_backup_is_needed_while_the_others_are_too_few() -> None:
    """Each time under a new generation, so that what was said to be drained is so no more; a mark
    that is taken back says so no more."""
    catalog, liveness = Catalog(), leader(0.0)
    with_table(catalog, "disk")
    liveness.heartbeat(Heartbeat(BACKUP, 0.0), 1.0)
    liveness.heartbeat(Heartbeat(OTHER, 0.0), 1.0)
    assert draft_needed(catalog, liveness, 1.0) is None, "none is to be retired"
    marked(catalog, liveness, 1.0)
    assert draft_needed(catalog, liveness, 1.0) is None, "the other one is enough"

    def drafted(now: float) -> ServerMark:
        liveness.heartbeat(Heartbeat(BACKUP, 0.0, closed_for=catalog.marks[B].generation), now)
        batch = draft_needed(catalog, liveness, now)
        assert batch is not None
        catalog.apply(1, 1, batch.encode())
        assert draft_needed(catalog, liveness, now) is None, "once is enough"
        assert not is_drained(catalog.marks[B], liveness.newest(B))
        return catalog.marks[B]

    needed = drafted(60.0)
    liveness.heartbeat(Heartbeat(BACKUP, 0.0, closed_for=needed.generation), 60.0)
    assert not is_drained(needed, liveness.newest(B)), "whatever one of before says"
    assert (needed.retiring, needed.needed, needed.generation) == (True, True, 2)
    assert needed_uuids(catalog) == (B,)
    assert "needs 1" in progress_of(catalog, liveness, "b", 60.0).problem
    liveness.heartbeat(Heartbeat(OTHER, 0.0), 61.0)
    empty = drafted(61.0)
    assert (empty.retiring, empty.needed, empty.generation) == (True, False, 3)
    assert needed_uuids(catalog) == ()
    drafted(90.0)
    given_back = MarkServer(RequestId(ClientId("x"), 2, 2), "b", retiring=False)
    back = draft_mark(catalog, liveness, given_back, 90.0)
    assert back is not None
    assert not back.marks[0].needed


def test_who_places_replicas_is_told_anew_when_a_backup_is_needed() -> None:
    """What it is told has a version by its content."""
    loads = leader(0.0).backup_loads
    views = [loads.view((), (B,), needed) for needed in ((), (B,), ())]
    assert [view.needed for view in views] == [(), (B,), ()]
    assert views[0].version == views[2].version != views[1].version


def test_a_full_backup_is_not_enough_and_one_with_its_reserve_left_ends_no_need() -> None:
    """Owners choose none that is full, so it is as good as away; and who is needed stays so until
    there is more than a reserve, or it would come and go with each segment."""
    catalog, liveness = Catalog(), leader(0.0)
    with_table(catalog, "disk")

    def heard(free_segments: int, *, is_low: bool = False) -> CatalogBatch | None:
        load = MediumLoad("disk", free_segments, is_low=is_low)
        liveness.heartbeat(Heartbeat(BACKUP, 0.0), 1.0)
        liveness.heartbeat(Heartbeat(OTHER, 0.0, media=(load,)), 1.0)
        batch = draft_needed(catalog, liveness, 1.0)
        if batch is not None:
            catalog.apply(1, 1, batch.encode())
        return batch

    heard(0)
    with pytest.raises(InvalidArgument, match=r"needs 1 .* with room"):
        marked(catalog, liveness, 1.0)
    heard(1, is_low=True)
    marked(catalog, liveness, 1.0)
    assert heard(1, is_low=True) is None, "a reserve is room"
    assert heard(0) is not None
    assert catalog.marks[B].needed
    assert "with room" in progress_of(catalog, liveness, "b", 1.0).problem
    assert heard(1, is_low=True) is None, "not yet"
    assert heard(64) is not None
    assert not catalog.marks[B].needed


def test_a_shunned_backup_does_not_replace_one_that_is_to_go() -> None:
    """Owners choose the retiring one before it, so the retiring one takes what comes."""
    catalog, liveness = Catalog(), leader(0.0)
    with_table(catalog, "disk")

    def heard(*avoids: ServerUuid) -> CatalogBatch | None:
        liveness.heartbeat(Heartbeat(server("s"), 0.0, avoids=avoids), 1.0)
        batch = draft_needed(catalog, liveness, 1.0)
        if batch is not None:
            catalog.apply(1, 1, batch.encode())
        return batch

    for each in (BACKUP, OTHER):
        liveness.heartbeat(Heartbeat(each, 0.0), 1.0)
    heard(OTHER.uuid)
    with pytest.raises(InvalidArgument, match=r"needs 1 .* with room that answer tservers"):
        marked(catalog, liveness, 1.0)
    heard()
    marked(catalog, liveness, 1.0)
    assert heard(OTHER.uuid) is not None
    assert needed_uuids(catalog) == (B,)
    assert heard() is not None
    assert needed_uuids(catalog) == ()


def test_only_a_backup_that_would_help_is_needed() -> None:
    """Not one without the medium that is lacking, and none that is away; one that makes room for
    another replica by taking its place helps."""
    catalog, liveness = Catalog(), leader(0.0)
    with_table(catalog, "disk", "ram")
    b, c, d, e = (
        msgspec.structs.replace(BACKUP, uuid=ServerUuid(uuid), name=uuid, media=media)
        for uuid, media in {"b": ("disk",), "c": ("ssd",), "d": ("ram",), "e": ("disk",)}.items()
    )
    both = msgspec.structs.replace(OTHER, uuid=ServerUuid("f"), name="f", media=("disk", "ram"))
    marks = [
        ServerMark(each.uuid, each.name, retiring=True, kind=ServerKind.BACKUP)
        for each in (b, c, d, e)
    ]
    catalog.apply(1, 1, CatalogBatch(marks=tuple(marks)).encode())

    def drafted(*live: ServerInfo, now: float) -> set[str]:
        for each in live:
            liveness.heartbeat(Heartbeat(each, 0.0), now)
        batch = draft_needed(catalog, liveness, now)
        return set() if batch is None else {mark.name for mark in batch.marks}

    disk, ram = (msgspec.structs.replace(both, media=(medium,)) for medium in ("disk", "ram"))
    assert drafted(b, c, e, ram, now=1.0) == {"b", "e"}
    assert drafted(b, c, d, disk, now=60.0) == {"d"}, "e is away"
    assert drafted(b, c, d, both, now=120.0) == {"b", "d"}
    assert drafted(both, now=180.0) == set(), "they are away"


def test_a_server_that_was_marked_before_its_kind_was_kept_is_waited_for() -> None:
    """And a tserver until it had the time to be heard."""
    catalog, liveness = Catalog(), leader(0.0)
    for uuid, kind in (("old", None), ("t", ServerKind.TSERVER)):
        mark = ServerMark(ServerUuid(uuid), uuid, retiring=True, kind=kind)
        catalog.apply(1, 1, CatalogBatch(marks=(mark,)).encode())
        assert progress_of(catalog, liveness, uuid, 1.0).segments == 1
    assert progress_of(catalog, liveness, "old", 60.0).segments == 1
    assert progress_of(catalog, liveness, "t", 60.0).segments == 0, "it is dead"
