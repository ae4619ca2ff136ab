"""Segments of which every replica is gone: the tablet says which and waits, and comes back by
itself, or without them once an operator has said so. Stories on whole clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.client.database import AsyncDatabase
from stelae.client.masters import MastersClient
from stelae.client.table import AsyncTable
from stelae.core.durability import segments
from stelae.core.errors import InvalidArgument, RetryLater, StelaeError
from stelae.core.ids import ClientId, RequestId, ServerUuid
from stelae.core.losses import ACCEPT_LOSS, VERSIONS_SKIPPED, AcceptLoss, LossReport
from stelae.core.records import TabletRecord, TabletState
from stelae.recovery import plan
from stelae.simulation import World
from stelae.simulation.cluster import SimCluster
from stelae.simulation.node import SimulationFailure
from stelae.simulation.options import Options, Servers
from tests.simulation.wal_cluster import SCHEMA, text

ROWS = 40
CALL_S = 20.0


class Here:
    """A cluster with one table of one tablet, on two disks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = SimCluster(world, segment_bytes=2000)
        self.database: AsyncDatabase
        self.table: AsyncTable
        self.versions: dict[int, int] = {}

    async def start(self) -> None:
        await self.cluster.start()
        self.database = self.cluster.database("client")
        await self.until(self.cluster.leader, "a leader")
        self.table = await self.database.create_table(
            "t", SCHEMA, key="id", durability=segments("disk", "disk"), timeout=60.0
        )
        await self.write(range(ROWS))
        await self.until(lambda: self.cluster.is_whole(1, 2), "full strength")

    async def write(self, keys: Sequence[int]) -> None:
        for key in keys:
            row = {"id": key, "text": text(key)}
            self.versions[key] = int((await self.table.upsert(row, timeout=CALL_S))[0])

    async def until(self, condition: Callable[[], object], what: str, limit_s: float = 60) -> None:
        await self.world.wait_until(lambda: bool(condition()), limit_s, what)

    @property
    def master(self) -> Any:
        name = self.cluster.leader()
        assert name is not None, "no master leads"
        return self.world.server(name)

    @property
    def tablet(self) -> TabletRecord:
        (found,) = [t for t in self.master.catalog.tablets.values() if not t.state.is_gone]
        assert isinstance(found, TabletRecord)
        return found

    @property
    def owner(self) -> str:
        return self.name_of(self.tablet.owner)

    def name_of(self, uuid: ServerUuid) -> str:
        for name in [*self.cluster.tservers, *self.cluster.backups]:
            server = self.world.server(name)
            if server is not None and server.info.uuid == uuid:
                return name
        raise AssertionError(f"nobody is {uuid}")

    def holders(self) -> list[list[str]]:
        """Of each segment, oldest first, the names of its backups."""
        (held,) = self.world.server(self.owner).holders().values()
        return [[self.name_of(uuid) for uuid in uuids] for uuids in held]

    def problem(self) -> str:
        """What the tablet's owner says is wrong."""
        server = self.world.server(self.owner)
        return "".join(report.problem for report in server.reports())

    def held(self, backup: str) -> list[int]:
        server = self.world.server(backup)
        return [] if server is None else server._holdings.segments(self.tablet.tablet_id)

    async def lose(self, backups: Sequence[str], *, for_good: bool = False) -> None:
        """These backups and the owner die at once; the owner comes back, they do not yet."""
        owner = self.owner
        for name in backups:
            self.world.crash(name, lose_disk=for_good, restart=False)
        self.world.crash(owner)
        await self.until(
            lambda: self.cluster.leader() and self.tablet.state is TabletState.RECOVERING,
            "a recovery",
        )
        await asyncio.sleep(5.0)
        assert self.tablet.state is TabletState.RECOVERING, "what is missing cannot be there"

    async def bring_back(self, *backups: str) -> None:
        for name in backups:
            self.world.restart(name)
            await self.world.wait_ready(name)

    async def until_served(self) -> None:
        await self.until(
            lambda: self.cluster.leader() and self.cluster.is_whole(1, 2), "it serves, whole"
        )

    async def rows(self) -> dict[int, int]:
        """Key and version of each row that is there; its text is right."""
        try:
            found = await self.table.scan(with_versions=True, timeout=CALL_S)
        except RetryLater:  # a server that is gone was asked, and nobody said so in time
            found = await self.table.scan(with_versions=True, timeout=CALL_S)
        for row in found.to_pylist():
            assert row["text"] == text(row["id"])
        return {row["id"]: row["_version"] for row in found.to_pylist()}

    async def accept(self, report: LossReport | None = None) -> LossReport:
        report = report or await self.database.losses()
        await self.database.accept_loss(report, by="Ada")
        return report


def tell(story: Callable[[Here], Awaitable[None]], seed: int = 1, backups: int = 5) -> World:
    options = Options(servers=Servers(tservers=3, backups=backups), keep_unsynced_rate=0.0)
    world = World(seed, options)
    here = Here(world)

    async def run() -> None:
        await here.start()
        await story(here)

    world.run(run(), limit_s=900.0)
    return world


def spares_head(here: Here) -> list[str]:
    """Two backups that together hold some segment, and not the head."""
    *sealed, head = here.holders()
    for pair in sealed:
        if not set(pair) & set(head):
            return pair
    raise AssertionError("no such pair with this seed")


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_it_says_what_is_missing_and_comes_back_by_itself(seed: int) -> None:
    """With the end of the log lost or not: nothing is served short, and one backup is enough."""

    async def story(here: Here) -> None:
        before = await here.rows()
        pair = here.holders()[-1]
        await here.lose(pair)
        with pytest.raises(StelaeError):
            await here.table.get(1, timeout=3.0)
        problem = (await here.database.status())["tablets"][0]["problem"]
        assert "stays offline" in problem
        report = await here.database.losses()
        (loss,) = report.waiting
        assert set(pair) <= set(report.silent_backups)
        assert loss.is_end_lost
        await here.bring_back(pair[0])
        await here.until_served()
        assert await here.rows() == before
        assert not (await here.database.losses()).waiting

    tell(story, seed)


def test_a_lost_segment_is_told_with_what_it_held_and_given_up_by_name() -> None:
    """Just its rows are gone; it is on record who said so; what returns later changes nothing."""

    async def story(here: Here) -> None:
        before = await here.rows()
        pair = spares_head(here)
        held = {name: here.held(name) for name in pair}
        await here.lose(pair)
        report = await here.database.losses()
        (loss,) = report.waiting
        assert not loss.is_end_lost
        assert loss.is_digest_known
        lost = {each.segment_id: each for each in loss.segments}
        assert set(lost) == set(held[pair[0]]) & set(held[pair[1]])
        assert all(each.rows > 0 and each.size_bytes > 0 for each in lost.values())
        await here.accept(report)
        await here.until_served()
        rows = await here.rows()
        assert len(before) - len(rows) == sum(each.rows for each in lost.values())
        top = max(each.next_version for each in lost.values())
        assert all(before[key] < top for key in before if key not in rows)
        assert all(before[key] == version for key, version in rows.items())
        (record,) = (await here.database.losses()).accepted
        assert (record.number, record.accepted_by, record.loss) == (1, "Ada", loss)
        assert here.tablet.kept is None, "the recovery is over"

        await here.bring_back(*pair)
        await here.until(lambda: not any(set(here.held(n)) & set(lost) for n in pair), "freed")
        assert await here.rows() == rows
        gone = next(key for key in before if key not in rows)
        await here.write([gone])
        assert here.versions[gone] > max(before.values())
        here.world.crash(here.owner)
        await here.until_served()
        assert set(await here.rows()) == {*rows, gone}

    tell(story)


def test_what_has_decayed_everywhere_is_given_up_once_the_owner_is_started_again() -> None:
    """Until then the tablet serves all else, and says that those rows cannot be read. Another
    recovery finds that they are missing: the backups have seen it themselves."""

    async def story(here: Here) -> None:
        before = await here.rows()
        decayed, *_ = here.holders()
        segment = sorted(set(here.held(decayed[0])) & set(here.held(decayed[1])))[0]
        former, term = here.owner, here.tablet.term
        here.world.crash(former, restart=False)
        for name in decayed:
            server = here.world.server(name)
            replica = server._holdings.find(here.tablet.tablet_id, segment)
            pieces = server._media[replica.medium].layout.pieces(replica.frames, 200, 1)
            ((offset, _),) = pieces
            here.world.nodes[name].disk.corrupt(f"{replica.medium}/frames", offset)
        await here.until(
            lambda: here.tablet.term > term and here.tablet.state is TabletState.RUNNING, "served"
        )
        here.world.restart(former)
        await here.until(lambda: "readable replica" in here.problem(), "it says so")
        assert not (await here.database.losses()).waiting
        unread = 0
        for key in range(0, ROWS, 3):
            try:
                await here.table.get(key, timeout=2.0)
            except RetryLater:
                unread += 1
        assert 0 < unread < len(range(0, ROWS, 3))

        here.world.crash(here.owner)
        await here.until(lambda: here.tablet.state is TabletState.RECOVERING, "a recovery")
        await asyncio.sleep(5.0)
        report = await here.accept()
        (loss,) = report.waiting
        assert [each.segment_id for each in loss.segments] == [segment]
        await here.until_served()
        rows = await here.rows()
        assert len(before) - len(rows) == sum(each.rows for each in loss.segments)
        assert all(before[key] == version for key, version in rows.items())

    tell(story)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_without_the_end_of_the_log_versions_go_on_far_above(seed: int) -> None:
    """Nobody knows how many were given; and the old head that comes back is not read again."""

    async def story(here: Here) -> None:
        before = await here.rows()
        pair = here.holders()[-1]
        await here.lose(pair)
        await here.accept()
        await here.until_served()
        rows = await here.rows()
        assert all(before[key] == version for key, version in rows.items())
        await here.bring_back(*pair)
        await asyncio.sleep(5.0)
        assert await here.rows() == rows
        await here.write([ROWS])
        assert here.versions[ROWS] > VERSIONS_SKIPPED
        here.world.crash(here.owner)
        await asyncio.sleep(1.0)
        await here.until_served()
        assert await here.rows() == {**rows, ROWS: here.versions[ROWS]}

    tell(story, seed)


def test_everything_gone_for_good_leaves_an_empty_tablet() -> None:
    """All backups lost their disks: after the word for it the table can be written to."""

    async def story(here: Here) -> None:
        backups = list(here.cluster.backups)
        await here.lose(backups, for_good=True)
        await here.bring_back(*backups)
        report = await here.database.losses()
        (loss,) = report.waiting
        assert not loss.is_digest_known
        assert loss.kept_segments == 0
        await here.accept(report)
        await here.until_served()
        assert await here.rows() == {}
        await here.write([1])
        assert here.versions[1] > VERSIONS_SKIPPED

    tell(story)


def test_a_second_loss_on_the_way_is_told_and_accepted_in_its_turn() -> None:
    """What was to be kept is gone as well, before the tablet was handed over."""

    async def story(here: Here) -> None:
        pair = spares_head(here)
        owner = here.owner
        await here.lose(pair)
        for name in here.cluster.tservers:
            here.world.partition([name], here.cluster.backups)  # nobody can read them now
        report = await here.accept()
        rest = [name for name in here.cluster.backups if name not in pair]
        for name in rest:
            here.world.crash(name, lose_disk=True, restart=False)
        here.world.network.unblock_all()
        await here.bring_back(*rest)
        await here.until(lambda: here.tablet.kept is not None, "the loss stands in its record")
        await asyncio.sleep(3.0)
        second = await here.database.losses()
        assert second.fingerprint != report.fingerprint
        (loss,) = second.waiting
        assert loss.kept_segments == 0
        await here.accept(second)
        await here.until_served()
        assert await here.rows() == {}
        assert len((await here.database.losses()).accepted) == 2
        assert owner in here.cluster.tservers

    tell(story)


def test_nothing_is_given_up_that_is_not_lost_or_not_as_it_was_shown() -> None:
    """Refused: with nothing lost, with another report's word, of another tablet, by nobody."""

    async def story(here: Here) -> None:
        report = await here.database.losses()
        with pytest.raises(InvalidArgument, match="nothing is lost"):
            await here.accept(report)
        pair = here.holders()[-1]
        await here.lose(pair)
        with pytest.raises(InvalidArgument, match="look again"):
            await here.accept(report)
        report = await here.database.losses()
        with pytest.raises(InvalidArgument, match="nothing is lost of tablet"):
            await here.database.accept_loss(report, by="Ada", tablets=["other"])
        with pytest.raises(InvalidArgument, match="who accepts"):
            await here.database.accept_loss(report, by=" ")
        await here.bring_back(*pair)
        await here.until_served()
        with pytest.raises(InvalidArgument, match="nothing is lost"):
            await here.accept(report)
        assert not (await here.database.losses()).accepted

    tell(story)


def test_an_acceptance_is_carried_out_once() -> None:
    """A copy of the request that comes late gives the same answer, and changes nothing."""

    async def story(here: Here) -> None:
        await here.lose(here.holders()[-1])
        report = await here.database.losses()
        order = AcceptLoss(RequestId(ClientId("c"), 1, 1), report.fingerprint, "Ada")
        masters = MastersClient(here.database.runtime, list(here.cluster.addresses.values()))
        first = await masters.call(ACCEPT_LOSS, order, timeout_s=CALL_S)
        await here.until_served()
        again = await masters.call(ACCEPT_LOSS, order, timeout_s=CALL_S)
        assert first == again
        assert len(again.records) == 1
        assert len((await here.database.losses()).accepted) == 1

    tell(story)


def test_masters_that_change_in_the_midst_go_on_with_it() -> None:
    """The word is in the catalog: whoever leads next recovers what is kept."""

    async def story(here: Here) -> None:
        pair = spares_head(here)
        await here.lose(pair)
        report = await here.database.losses()
        lost = sum(each.rows for each in report.waiting[0].segments)
        before = len(here.versions)
        await here.accept(report)
        leader = here.cluster.leader()
        assert leader is not None
        here.world.crash(leader)
        await asyncio.sleep(1.0)
        await here.until_served()
        assert len(await here.rows()) == before - lost

    tell(story)


def test_a_plan_that_forgets_what_was_given_up_is_caught() -> None:
    """The stories see it: a stale replica that comes back in time would end the log."""

    def forgetful(tablet: Any, media: int, inventories: Any) -> Any:
        return real(msgspec.structs.replace(tablet, kept=None), media, inventories)

    real = plan.plan_recovery

    async def story(here: Here) -> None:
        pair = here.holders()[-1]
        await here.lose(pair)
        for name in here.cluster.tservers:
            here.world.partition([name], here.cluster.backups)
        await here.accept()
        await here.bring_back(*pair)
        here.world.network.unblock_all()
        await here.until_served()
        assert ROWS - 1 not in await here.rows(), "the old head was read again"

    tell(story)
    planted = patch("stelae.actors.recovery_rounds.plan_recovery", forgetful)
    with planted, pytest.raises(SimulationFailure, match="was read again"):
        tell(story)
