"""Where the tablets of tables are, as far as this client knows; refreshed when it proves wrong."""

from __future__ import annotations

import asyncio

from stelae.client.input.split_tablets import Parts, WasSplit
from stelae.client.routing.group_route import GroupRoute
from stelae.client.routing.indexlets import IndexletCache
from stelae.client.routing.masters import MastersClient
from stelae.core.errors import DeadlineExpired, TableNotFound
from stelae.core.ids import TableId, TabletId
from stelae.core.messages.catalog import GET_TABLE, GetTable, TableLocations, TabletLocation
from stelae.core.records.records import TableRecord, TabletState
from stelae.core.schema.shares import place_of

LOOKUP_TIMEOUT_S = 10.0
_NO_ID = TableId("")


class TableCache:
    """The locations of one table. Concurrent refreshes become one call to the masters."""

    def __init__(self, masters: MastersClient, locations: TableLocations) -> None:
        self.masters = masters
        self.indexlets = IndexletCache(masters, locations.table.table_id)
        self._refreshing: asyncio.Task[None] | None = None
        self._routes: dict[int, GroupRoute | None] = {}
        self._tablets: dict[int, TabletLocation] = {}
        self.table = locations.table
        """Another object only when something has changed."""
        self.take(locations)

    def take(self, locations: TableLocations) -> None:
        """Believe what the masters say."""
        self.take_record(locations.table)
        by_number = {location.tablet.number: location for location in locations.tablets}
        count = locations.table.partitioning.tablet_count
        in_order = sorted(by_number, key=lambda number: (place_of(number, count), number))
        tablets = {number: by_number[number] for number in in_order}
        known = {route.tablet_id: route for route in self._routes.values() if route is not None}
        self._routes = {n: self._route(location, known) for n, location in tablets.items()}
        self._tablets = tablets
        self.parts = Parts(tablets, count)
        for route in known.values():
            route.is_gone = True

    @property
    def locations(self) -> TableLocations:
        """What is known of the table now, as masters say it."""
        return TableLocations(self.table, tuple(self._tablets.values()))

    def _route(
        self, location: TabletLocation, known: dict[TabletId, GroupRoute]
    ) -> GroupRoute | None:
        """The replicas of one tablet; None: it is no group. Takes it out of ``known``."""
        if not location.tablet.is_group:
            return None
        route = known.pop(location.tablet.tablet_id, None)
        if route is None:
            return GroupRoute(location)
        route.take(location)
        return route

    def named(self, what: str) -> str:
        """A call with the table that it is on, for messages."""
        return f"{what} on table {self.table.name!r}"

    def take_record(self, table: TableRecord) -> None:
        """Believe what a master says of the table, unless something newer is known."""
        if table.generation > self.table.generation:
            self.table = table

    @property
    def numbers(self) -> list[int]:
        """Of all tablets, in the order of their places."""
        return list(self._tablets)

    @property
    def tablet_count(self) -> int:
        return len(self._tablets)

    def tablet(self, number: int) -> TabletLocation:
        """Raises `WasSplit`."""
        found = self._tablets.get(number)
        if found is None:
            raise WasSplit(number)
        return found

    def group(self, number: int) -> GroupRoute | None:
        """Of a tablet whose replicas are a group, which of them to call. None: it is none, or is
        none any more, as another tablet, or several, are in its place."""
        return self._routes.get(number)

    @property
    def is_running(self) -> bool:
        """Whether every tablet is served by someone."""
        tablets = self._tablets.values()
        return all(t.tablet.state is TabletState.RUNNING and t.address for t in tablets)

    async def refresh(self) -> None:
        """Ask the masters anew.

        Raises:
            TableNotFound: the table was deleted (also if another took its name since). A table
                that was renamed is found.
        """
        # One that has just ended may not be forgotten yet, and tells nothing new.
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(self._refreshed)
        await asyncio.shield(self._refreshing)

    async def refresh_within(self, limit_s: float, what: str) -> None:
        """As `refresh`, for a call that goes on with what masters say.

        Raises:
            DeadlineExpired: they did not answer within ``limit_s``.
        """
        try:
            async with asyncio.timeout(max(limit_s, 0.0)):
                await self.refresh()
        except TimeoutError:
            masters = ", ".join(self.masters.addresses)
            raise DeadlineExpired(what, f"the masters {masters}") from None

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        if self._refreshing is task:
            self._refreshing = None
        if not task.cancelled():
            task.exception()  # every waiter has it; nobody waiting is no reason to complain

    async def _refresh(self) -> None:
        fresh = await look_up(self.masters, self.table.name, self.table.table_id)
        if fresh.table.table_id != self.table.table_id:
            raise TableNotFound(self.table.name)
        self.take(fresh)


async def look_up(masters: MastersClient, name: str, table_id: TableId = _NO_ID) -> TableLocations:
    """Ask the masters for a table, by its id if that is known, and for its tablets.

    Raises:
        TableNotFound: there is none.
    """
    return await masters.call(GET_TABLE, GetTable(name, table_id), timeout_s=LOOKUP_TIMEOUT_S)
