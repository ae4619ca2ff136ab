"""Bugs planted into the masters' side of timelines, by name: each leaves one rule out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from stelae.actors.master.leader.timelines import TimelineKeeper
from stelae.coordinator.backoff.owners import FailedOwners
from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.catalog.timelines import TimelineCatalog
from stelae.coordinator.timelines import placement as timeline_placement
from stelae.coordinator.timelines.migration_knowledge import Knowledge
from stelae.coordinator.timelines.migration_steps import Exclude
from stelae.core.ids import TabletId
from stelae.core.records.configurations import TimelineRecord
from stelae.core.records.records import SafekeeperRecord, ServerInfo
from tests.simulation.world.planting import planting


def _old_id_for_a_new_disk() -> Any:
    """A safekeeper that lost its disk is the same one to the masters: it votes without its log."""
    register, refusal = timeline_placement.draft_register, TimelineCatalog.refusal
    commit = TimelineCatalog.commit

    def by_name(catalog: Catalog, server: ServerInfo) -> CatalogBatch | None:
        registry = catalog.timelines
        same = [r for r in registry.safekeepers.values() if r.name == server.name]
        if same and registry.id_of(server.uuid) is None:
            record = msgspec.structs.replace(
                same[0], uuid=server.uuid, generation=same[0].generation + 1
            )
            return CatalogBatch(safekeepers=(record,))
        return register(catalog, server)

    def lax(self: TimelineCatalog, safekeepers: Any, timelines: Any) -> str:
        known = [(self.safekeepers.get(r.safekeeper_id), r) for r in safekeepers]
        moved = any(old is not None and old.name == new.name for old, new in known)
        return "" if moved else refusal(self, safekeepers, timelines)

    def forgetful(self: TimelineCatalog, safekeepers: Any, timelines: Any) -> None:
        for record in safekeepers:
            known: SafekeeperRecord | None = self.safekeepers.get(record.safekeeper_id)
            if known is not None and known.uuid != record.uuid:
                self._id_of.pop(known.uuid, None)
        commit(self, safekeepers, timelines)

    return _all(
        patch("stelae.actors.master.heartbeat_requests.draft_register", by_name),
        patch.object(TimelineCatalog, "refusal", lax),
        patch.object(TimelineCatalog, "commit", forgetful),
    )


def _excluded_without_a_word() -> Any:
    """Who left is noted as excluded, and is not told."""
    done = Knowledge.what_is_done

    def hasty(self: Knowledge, gone: Any) -> TimelineRecord:
        return msgspec.structs.replace(done(self, gone), departed=())

    return patch.object(Knowledge, "what_is_done", hasty)


def _nothing_is_finished() -> Any:
    """A new leader does not go on with what another one has left behind."""
    return patch("stelae.actors.master.leader.timelines.left_to_do", lambda *given: [])


def _garbage_without_a_generation() -> Any:
    """Who is not in the old set is taken for a stranger, while members change too; for ever."""

    async def drop(self: TimelineKeeper) -> None:
        records = await self.records()
        for record in records:
            for number in self._catalog.timelines.safekeepers:
                if number not in record.configuration.sk_set and not record.deleted:
                    order = Exclude(number, record.timeline, record.configuration, forever=True)
                    await self.ports.exclude(
                        order.safekeeper,
                        order.timeline,
                        order.configuration,
                        forever=True,
                        timeout_s=1.0,
                    )

    scan = TimelineKeeper._scan

    async def both(self: TimelineKeeper) -> None:
        await scan(self)
        await drop(self)

    return patch.object(TimelineKeeper, "_scan", both)


def _given_up_in_every_term() -> Any:
    """An owner that was given up while it served is not told from the next one: the tablet moves
    on, and nobody is ever told to open it."""

    def any_term(self: FailedOwners[TabletId], tablet_id: TabletId, term: int) -> str:
        known = self._given_up.get(tablet_id)
        return known.reason if known is not None else ""

    return patch.object(FailedOwners, "given_up", any_term)


@contextmanager
def _all(*patches: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "an old id for a new disk": _old_id_for_a_new_disk,
    "excluded without a word": _excluded_without_a_word,
    "nothing is finished": _nothing_is_finished,
    "garbage without a generation": _garbage_without_a_generation,
}


GRAY_BUGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "given up in every term": _given_up_in_every_term,
}
"""Found under gray faults alone: no other fault lasts for longer than masters are patient."""
planted = planting(BUGS, GRAY_BUGS)
