"""Orders about indexlets that come late, while a server gives one away: stories, and bugs that they
find.

The network keeps an order, and the masters go on without it. It names what it is about; so when it
arrives, and that is over, it is refused, and nothing has changed: the successors that were made
since take the place, and look-ups find exactly what a scan finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from stelae.core.errors import StelaeError
from stelae.core.messages.indexes import (
    CLOSE_INDEXLET,
    COPY_ENTRIES,
    HAND_OVER_INDEXLET,
    OPEN_INDEXLET,
    CloseIndexlet,
    HandOverIndexlet,
    HandOverStage,
    OpenIndexlet,
)
from stelae.core.schema.durability import segments
from stelae.core.schema.indexes import IndexletRecord
from stelae.simulation.world.world import SimulationFailure
from stelae.storage.indexes import indexlet as indexlet_storage
from tests.simulation.indexes.test_index_writes import IndexedTable, run
from tests.simulation.raft.planted_hand_overs import planted
from tests.simulation.tables.held_back import HeldBack, held_back

SOON_S = 30.0
LOOK_S = 0.001
ARRIVED_S = 0.02
"""By then what the network has let go is there, and has done what it can."""
ROWS = 9


class Leaving:
    """The only indexlet of a table, at a server that is to be retired."""

    def __init__(self, here: IndexedTable) -> None:
        self.here = here
        held = here.indexlet()
        self.server, self.indexlet = held.server, held.indexlet

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await self.here.world.wait_until(condition, SOON_S, what, LOOK_S)

    def successors(self) -> list[IndexletRecord]:
        """As the leader master knows them."""
        indexes = self.here.watch.catalog().indexes
        found: list[IndexletRecord] = indexes.successors_of(self.indexlet.indexlet_id)
        return found

    async def until_another(self, first: IndexletRecord) -> IndexletRecord:
        """The successor that is made once the first one is given up, as its server dies."""
        world = self.here.world
        servers = {name: world.server(name) for name in self.here.cluster.tservers}
        (name,) = [name for name, at in servers.items() if at.info.uuid == first.owner]
        world.crash(name, restart=False)
        await self.until(lambda: self.successors() not in ([], [first]), "another successor")
        (second,) = self.successors()
        return second

    def is_handed_to(self, successor: IndexletRecord, stage: HandOverStage) -> bool:
        report = self.indexlet.report()
        return (report.hand_over, report.successors) == (stage, (successor.indexlet_id,))

    def is_its_own_close(self, order: CloseIndexlet) -> bool:
        """It is to make way for somebody."""
        return order.indexlet_id == self.indexlet.indexlet_id and not order.drop

    async def until_replaced(self, successor: IndexletRecord) -> None:
        """Another one is found in its place; what it finds is what a scan finds, as everywhere."""
        here = self.here

        def is_replaced() -> bool:
            return [held.server for held in here.watch.indexlets()] not in ([], [self.server])

        await self.until(is_replaced, "another one in its place")
        await finds_what_a_scan_finds(here)
        await here.settled()
        found = here.indexlet().indexlet.indexlet_id
        is_filled_anew = found == self.indexlet.indexlet_id
        assert not is_filled_anew, "it was closed for nobody, and filled anew"
        assert found == successor.indexlet_id, "its successor was given up without need"


async def finds_what_a_scan_finds(here: IndexedTable) -> None:
    rows = (await here.table.scan(timeout=SOON_S)).to_pylist()
    found = await here.ids("a")
    lacking = {row["id"] for row in rows if row["value"] == "a"} - set(found)
    assert not lacking, f"look-ups miss rows {sorted(lacking)}"
    assert len(found) == len(rows), "all rows have that value"


async def begin(here: IndexedTable) -> None:
    await here.table.upsert([{"id": n, "value": "a", "n": n} for n in range(ROWS)])
    await here.settled()


async def leave(here: IndexedTable) -> Leaving:
    """Its server is retired: from now on the masters have it make way."""
    await begin(here)
    leaving = Leaving(here)
    operators = here.cluster.database("operators")
    await operators.retire_server(leaving.server, wait=False, timeout=SOON_S)
    return leaving


async def first_is_held(
    here: IndexedTable,
) -> tuple[Leaving, IndexletRecord, HeldBack[HandOverIndexlet]]:
    """The order to make way for the first successor is on its way for long."""
    with held_back(here.world, HAND_OVER_INDEXLET) as late:
        leaving = await leave(here)
        await leaving.until(lambda: bool(late.bodies), "an order")
    (first,) = leaving.successors()
    return leaving, first, late


async def overtaken(here: IndexedTable) -> None:
    """The next successor has everything when the order about the first one arrives; then a row is
    written, and only then the indexlet is closed."""
    leaving, first, late = await first_is_held(here)
    with held_back(here.world, CLOSE_INDEXLET, leaving.is_its_own_close) as closing:
        second = await leaving.until_another(first)
        await leaving.until(lambda: bool(closing.bodies), "an order to close")
        assert leaving.is_handed_to(second, HandOverStage.COMPLETE)
        late.let_go()
        await asyncio.sleep(ARRIVED_S)
        await here.table.upsert({"id": ROWS, "value": "a", "n": 1}, timeout=SOON_S)
    await leaving.until_replaced(second)


async def overtaken_in_the_midst(here: IndexedTable) -> None:
    """The next successor has everything but the last word when the order about the first one
    arrives; then rows are deleted, and nothing but their removal is forgotten at the source."""
    leaving, first, late = await first_is_held(here)
    with held_back(here.world, COPY_ENTRIES, lambda piece: piece.is_last) as copying:
        second = await leaving.until_another(first)
        await leaving.until(lambda: bool(copying.bodies), "the last piece")
    late.let_go()
    await asyncio.sleep(ARRIVED_S)
    await here.table.delete(list(range(1, ROWS)), timeout=SOON_S)
    await asyncio.sleep(1.0)
    copying.let_go()
    await leaving.until_replaced(second)


async def closed_late(here: IndexedTable) -> None:
    """The order to close comes when the successor for which it was given has died."""
    leaving = await leave(here)
    with held_back(here.world, CLOSE_INDEXLET, leaving.is_its_own_close) as late:
        await leaving.until(lambda: bool(late.bodies), "an order to close")
    (first,) = leaving.successors()
    with held_back(here.world, HAND_OVER_INDEXLET, lambda order: bool(order.successors)) as orders:
        second = await leaving.until_another(first)
        await leaving.until(lambda: bool(orders.bodies), "an order to make way")
        late.let_go()
        await asyncio.sleep(ARRIVED_S)
        await here.table.upsert({"id": ROWS, "value": "a", "n": 1}, timeout=SOON_S)
    orders.let_go()
    await leaving.until_replaced(second)


async def opened_late(here: IndexedTable) -> None:
    """The order to open comes to the next run of its server, at the same address, which has a lease
    and no indexlet: that is with another server. Tablets have not heard of it yet."""
    await begin(here)
    held, world = here.indexlet(), here.world
    record = here.watch.catalog().indexes.indexlets[held.indexlet.indexlet_id]
    world.nodes[held.server].fixed_port = True
    world.crash(held.server, restart=False)

    def is_elsewhere() -> bool:
        return [each.server for each in here.watch.indexlets()] not in ([], [held.server])

    await world.wait_until(is_elsewhere, SOON_S, "another owner", LOOK_S)
    world.restart(held.server)
    await world.wait_ready(held.server)
    lease = world.server(held.server)._lease
    await world.wait_until(lambda: lease.is_valid, SOON_S, "a lease", LOOK_S)
    order, refused = OpenIndexlet(record, held.indexlet.table), False
    try:
        await world.client("late").peers.call(
            world.address(held.server),
            OPEN_INDEXLET,
            order,
            timeout_s=1.0,
            destination=record.owner,
        )
    except StelaeError:
        refused = True
    rows = [{"id": ROWS + n, "value": "a", "n": 1} for n in range(3)]
    await here.table.upsert(rows, timeout=SOON_S)
    await finds_what_a_scan_finds(here)
    await here.settled()
    assert refused, "it was opened, and nothing came to it"


Story = Callable[[IndexedTable], Awaitable[None]]


def tell(story: Story) -> None:
    with patch.object(indexlet_storage, "TAIL_MAX", 2):
        run(story, segments("disk", "disk"))


@pytest.mark.parametrize("story", [overtaken, overtaken_in_the_midst])
def test_an_order_to_make_way_that_was_overtaken_changes_nothing(story: Story) -> None:
    """The successor that was made since is filled once, with everything, and takes the place."""
    tell(story)


def test_an_order_to_close_for_others_changes_nothing() -> None:
    """The indexlet goes on, until the next successor has everything."""
    tell(closed_late)


def test_the_next_run_of_a_server_opens_nothing_of_the_one_before() -> None:
    """It would take entries which the present owner lacks."""
    tell(opened_late)


@pytest.mark.parametrize(
    ("bug", "story", "sign"),
    [
        ("names_are_ignored", overtaken, "given up without need"),
        ("names_are_ignored", overtaken_in_the_midst, "too much"),
        ("copies_seem_taken", overtaken, "look-ups miss rows"),
        ("closed_for_anybody", closed_late, "closed for nobody"),
        ("runs_are_one", opened_late, "look-ups miss rows"),
    ],
)
def test_planted_bugs_are_found(bug: str, story: Story, sign: str) -> None:
    """Or the stories would prove nothing."""
    with planted(bug), pytest.raises(SimulationFailure, match=sign):
        tell(story)
