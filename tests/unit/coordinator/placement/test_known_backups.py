"""`stelae.coordinator.placement.known_backups`: who is in the register, who is told, who is
forgotten."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.tables import draft_create
from stelae.coordinator.liveness.liveness import Liveness, Run
from stelae.coordinator.placement import known_backups
from stelae.coordinator.placement.assignment import Load
from stelae.coordinator.placement.known_backups import (
    ToldServers,
    draft_forget,
    draft_register,
    find_gone,
    never_heard,
    not_heard_backups,
    offers,
    silent_backups,
)
from stelae.core.errors import InvalidArgument, Overloaded
from stelae.core.ids import Address, ClientId, RequestId
from stelae.core.messages.catalog import CreateTable
from stelae.core.messages.servers import Heartbeat, TabletProgress, TabletReport
from stelae.core.records.records import (
    BackupRecord,
    ServerInfo,
    ServerKind,
    ServerMark,
    TabletState,
)
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from tests.unit.coordinator.groups.group_world import SCHEMA, SETTINGS, server

FORGET_S = 30.0


def backup(name: str, *media: str, node: str = "") -> ServerInfo:
    """``b~2`` is called b, and has another UUID than ``b``."""
    made = server(name, node)
    return msgspec.structs.replace(made, kind=ServerKind.BACKUP, media=media or ("disk",))


class Leader:
    """A catalog, and a master that leads from 0 s on."""

    def __init__(self, catalog: Catalog | None = None, now: float = 0.0) -> None:
        self.catalog = catalog or Catalog()
        self.liveness = Liveness(SETTINGS)
        self.liveness.lead(now)

    def put(self, batch: CatalogBatch | None) -> None:
        assert batch is not None
        self.catalog.apply(1, 1, batch.encode())

    def hear(self, info: ServerInfo, now: float, **more: Any) -> bool:
        """Its heartbeat; whether that was written down."""
        self.liveness.heartbeat(Heartbeat(info, now, **more), now)
        batch = draft_register(self.catalog, info, 1000.0 + now)
        if batch is not None:
            self.put(batch)
        return batch is not None

    def known(self) -> list[str]:
        return [*self.catalog.backups.known]

    def forget(self, now: float) -> bool:
        batch = draft_forget(self.catalog, self.liveness, now, gone_after_s=FORGET_S)
        if batch is not None:
            self.put(batch)
        return batch is not None

    def mark(self, name: str, generation: int = 1, **more: Any) -> None:
        mark = ServerMark(backup(name).uuid, name, generation=generation, **more)
        self.put(CatalogBatch(marks=(mark,)))

    def table(self, *media: str) -> None:
        """With one tablet, at the server s."""
        request = RequestId(ClientId("c"), 1, 1)
        order = CreateTable(request, "t", SCHEMA, Partitioning(), segments(*media))
        self.put(draft_create(self.catalog, order, [Load(server("s"))], random.Random(1)))
        (tablet,) = self.catalog.tablets.values()
        running = msgspec.structs.replace(tablet, state=TabletState.RUNNING, generation=2)
        self.put(CatalogBatch(tablets=(running,)))

    def says(self, now: float, **more: Any) -> None:
        """What the tablet's owner reports of it."""
        (tablet,) = self.catalog.tablets.values()
        self.liveness.heartbeat(Heartbeat(server("s"), now), now)
        seen = self.liveness.find(Run(tablet.owner, tablet.owner_incarnation))
        assert seen is not None
        report = TabletReport(tablet.tablet_id, tablet.term, TabletProgress.SERVING)
        seen.reports[tablet.tablet_id] = msgspec.structs.replace(report, **more)


def test_a_backup_is_written_down_once_and_again_if_what_lasts_has_changed() -> None:
    """Not for another start, another address, or another boot of its machine."""
    leader = Leader()
    info = backup("b", node="host/boot/1")
    assert leader.hear(info, 1.0)
    restarted = msgspec.structs.replace(
        info,
        incarnation=2,
        address=Address("elsewhere:1"),
        process=ProcessIdentity("host/another boot/2", 77, 5.0),
    )
    assert not leader.hear(restarted, 2.0)
    assert leader.hear(msgspec.structs.replace(restarted, incarnation=3, media=("ram",)), 3.0)
    (record,) = leader.catalog.backups.known.values()
    assert record == BackupRecord(info.uuid, "b", "host", ("ram",), 1001.0)


def test_the_register_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is in it stays; another one is not told to anybody."""
    monkeypatch.setattr(known_backups, "MAX_KNOWN", 1)
    leader = Leader()
    assert leader.hear(backup("b"), 1.0)
    assert not leader.hear(backup("b"), 2.0)
    with pytest.raises(Overloaded):
        leader.hear(backup("c"), 3.0)


def test_it_is_in_snapshots_and_older_ones_have_none() -> None:
    """Of another version's snapshot all else is read, and the register fills as backups report."""
    leader = Leader()
    leader.hear(backup("b"), 1.0)
    data = leader.catalog.snapshot()
    other = Catalog()
    other.restore(data)
    assert other.backups.known == leader.catalog.backups.known
    state = msgspec.msgpack.decode(data)
    state[0], state[9] = 10, state[9][:2]
    other.restore(msgspec.msgpack.encode(state))
    assert not other.backups.known
    assert Leader(other, 5.0).hear(backup("b"), 6.0)


def test_entries_of_before_change_nothing_of_it() -> None:
    """A batch without the last field is decoded, as it is in logs."""
    leader = Leader()
    leader.hear(backup("b"), 1.0)
    batch = msgspec.msgpack.decode(CatalogBatch().encode())
    leader.catalog.apply(2, 1, msgspec.msgpack.encode(batch[:-1]))
    assert leader.known() == ["b"]


def test_others_are_told_of_a_backup_once_it_is_in_the_register() -> None:
    """So nothing is on one that the next leader does not know."""
    leader = Leader()
    told = ToldServers(leader.catalog, leader.liveness)
    for info in (server("s"), backup("b"), backup("c")):
        leader.liveness.heartbeat(Heartbeat(info, 1.0), 1.0)

    def names() -> list[str]:
        return [each.name for each in told.look(1.0)[0]]

    assert names() == ["s"]
    first = told.look(1.0)
    assert told.look(1.0)[0] is first[0]
    assert leader.hear(backup("c"), 1.0)
    assert names() == ["s", "c"]
    assert leader.hear(backup("b"), 1.0)
    assert names() == ["s", "b", "c"]
    assert told.look(1.0)[1] == leader.liveness.roster(1.0).version != first[1]


def test_who_did_not_say_what_it_holds_is_named_with_the_reason() -> None:
    """Known, and never heard by this leader; or silent; or live and without an answer."""
    former = Leader()
    for name in ("a", "b", "c", "d"):
        former.hear(backup(name, node=f"host-{name}/1/2"), 1.0)
    leader = Leader(former.catalog, 100.0)
    for name, now in (("b", 101.0), ("c", 150.0), ("d", 150.0)):
        leader.hear(backup(name, node=f"host-{name}/1/2"), now)
    silent = silent_backups(leader.catalog, leader.liveness, [backup("d").uuid], 151.0)
    assert [each.words for each in silent] == [
        "a on machine host-a (a) has not reported since this leader master began",
        "b on machine host-b (b) has been silent for 50 s",
        "c on machine host-c (c) is live, and did not answer",
    ]
    assert [each.name for each in never_heard(leader.catalog, leader.liveness)] == ["a"]
    leader.hear(backup("a~2", "ram"), 152.0)
    assert sorted(offers(leader.catalog, leader.liveness, 153.0)) == [*[("disk",)] * 3, ("ram",)]


def test_who_has_to_be_looked_for_is_known_once_all_had_the_time_to_be_heard() -> None:
    """Not one that is to be retired, and not one whose name another disk has by now."""
    former = Leader()
    for name in ("a", "b", "c", "d"):
        former.hear(backup(name), 1.0)
    leader = Leader(former.catalog, 100.0)
    leader.mark("c", retiring=True)
    leader.hear(backup("d~2"), 101.0)

    def looked_for(now: float) -> list[str]:
        return [each.uuid for each in not_heard_backups(leader.catalog, leader.liveness, now)]

    assert looked_for(101.0) == []
    leader.hear(backup("d~2"), 103.0)
    assert looked_for(103.0) == ["a", "b"]
    leader.hear(backup("b"), 104.0)
    assert looked_for(200.0) == ["a", "d"], "who was heard is not looked for: it is dead"


def test_who_is_gone_is_named_clearly() -> None:
    """By name or UUID; not one that lives, and not one of two with the same name."""
    leader = Leader()
    for name in ("a", "b~1", "b~2", "c"):
        leader.hear(backup(name), 1.0)
    leader.hear(backup("c"), 99.0)
    silent = silent_backups(leader.catalog, leader.liveness, [backup("c").uuid], 99.0)

    def gone(*names: str) -> list[str]:
        return [each.uuid for each in find_gone(leader.catalog, silent, names)]

    assert gone("a", "b~2", "a") == ["a", "b~2"]
    assert gone("nobody") == []
    with pytest.raises(InvalidArgument, match="c is not gone: it is live"):
        gone("c")
    with pytest.raises(InvalidArgument, match="2 backups are called 'b': say which: b~1, b~2"):
        gone("b")


def test_a_drained_backup_is_forgotten_once_it_is_ended() -> None:
    """By its own last word, under the mark as it is now; heard again, it is registered again."""
    leader = Leader()
    leader.hear(backup("b"), 1.0)
    leader.mark("b", retiring=True)
    leader.hear(backup("b"), 2.0, closed_for=1)
    assert not leader.forget(2.0)
    leader.mark("b", generation=2, retiring=True)
    assert not leader.forget(10.0)
    leader.hear(backup("b"), 11.0, closed_for=2)
    assert leader.forget(20.0)
    assert leader.hear(backup("b"), 21.0, closed_for=2)


@pytest.mark.parametrize("why", ["retired", "replaced"])
def test_one_that_is_away_is_forgotten_if_somebody_wants_it_and_nothing_is_missed(why: str) -> None:
    """Not at once; not while some segment lacks a replica, or nobody says whether; and never if it
    is just away."""
    leader = Leader()
    leader.hear(backup("b"), 1.0)
    leader.table("disk")
    leader.says(40.0)
    assert not leader.forget(40.0), "it is just away"
    if why == "retired":
        leader.mark("b", retiring=True)
    else:
        leader.hear(backup("b~2"), 39.5)
    leader.says(40.0, under_replicated=1)
    assert not leader.forget(40.0)
    leader.says(40.0, term=7)
    assert not leader.forget(40.0)
    leader.says(40.0)
    assert not Leader(leader.catalog, 20.0).forget(40.0), "another leader has not heard anything"
    assert leader.forget(40.0)
    assert "b" not in leader.known()


def test_one_that_was_silent_for_a_moment_is_not_forgotten() -> None:
    """It may have what its owner does not miss yet."""
    leader = Leader()
    leader.hear(backup("b"), 20.0)
    leader.mark("b", retiring=True)
    assert not leader.forget(40.0)
    assert leader.forget(51.0)
