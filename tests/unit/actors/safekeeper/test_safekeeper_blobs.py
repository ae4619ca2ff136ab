"""Where blobs of evicted timelines go, and which of them are deleted."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import msgspec
import pytest

from stelae.actors.safekeeper.offload import BackupOffload
from stelae.consensus.wal.messages import WalAppendResponse
from stelae.core.ids import ServerUuid
from stelae.core.messages.backup_loads import BackupsView
from stelae.core.messages.safekeepers import TimelinePresence
from stelae.core.records.records import ServerInfo
from stelae.core.records.timelines import SafekeeperId
from tests.unit.actors.safekeeper.safekeeper_checks import ME
from tests.unit.actors.safekeeper.safekeeper_world import (
    EVICTING,
    TIMELINE,
    SafekeepersWorld,
    entry,
    members,
    run,
)

TABLET = TIMELINE.tablet_id
COUNT = 6
SWEEPS_S = 2.0
"""Many sweeps."""


async def fill(here: SafekeepersWorld) -> None:
    """A timeline on the first safekeeper."""
    await here.put(1, members(1))
    session = here.voice.session(1, "a", 1)
    await session.lead([])
    for index in range(1, COUNT + 1):
        answer = await session.append([entry(1, index)], index - 1)
        assert isinstance(answer, WalAppendResponse)


def retire(here: SafekeepersWorld, *names: str) -> None:
    """Tell the first safekeeper which backups are to be retired."""
    uuids = tuple(sorted(here.world.server(name).info.uuid for name in names))
    seen = here.server(1).members
    seen.see_backups(BackupsView(seen.backups_view.version + 1, retiring=uuids))


def presence(here: SafekeepersWorld) -> TimelinePresence:
    return here.server(1).timelines.describe(TABLET).presence


async def evicted(here: SafekeepersWorld) -> None:
    await here.world.wait_until(
        lambda: presence(here) is TimelinePresence.EVICTED, 20.0, "it is evicted"
    )


def blobs(here: SafekeepersWorld, name: str) -> list[str]:
    return sorted(here.world.server(name)._blobs._names)


def count(here: SafekeepersWorld, name: str) -> float:
    """A metric of the first safekeeper, whatever its labels."""
    counts = here.world.metrics["sk1"].counts
    return sum(value for key, value in counts.items() if key.partition("{")[0] == name)


def holders(here: SafekeepersWorld) -> set[str]:
    """The backups that have what the timeline's control file names."""
    control = here.server(1).timelines.store(TABLET).timelines[TABLET].control
    named = {each.blob for each in control.evicted.files} if control.evicted is not None else set()
    return {name for name in here.world.names("backup") if named & set(blobs(here, name))}


def test_nothing_is_put_on_a_backup_that_is_to_be_retired() -> None:
    """It would be empty later, or never."""

    async def scenario(here: SafekeepersWorld) -> None:
        retire(here, "b2")
        await fill(here)
        await evicted(here)
        assert holders(here) == {"b1", "b3"}
        assert not blobs(here, "b2")

    run(scenario, backups=3, settings=EVICTING)


def test_copies_on_a_backup_that_is_to_be_retired_are_made_anew_elsewhere() -> None:
    """They count no more: the timeline comes back, and is evicted to others."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        await evicted(here)
        first = sorted(holders(here))
        retire(here, first[0])

        def is_elsewhere() -> bool:
            here.see()
            return len(holders(here)) == 2 and first[0] not in holders(here)

        await here.world.wait_until(is_elsewhere, 20.0, "its blobs are on the others")
        await here.world.wait_until(lambda: not blobs(here, first[0]), 20.0, "it is empty")

    run(scenario, backups=3, settings=EVICTING)


def test_copies_have_to_be_missing_twice_before_a_timeline_comes_back_for_them() -> None:
    """One look may miss a blob that has just been put, or a backup that has just come back."""
    census = BackupOffload.census

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        await evicted(here)
        missed = 0

        async def once(
            self: BackupOffload, safekeeper: SafekeeperId
        ) -> dict[str, list[ServerInfo]]:
            nonlocal missed
            found = await census(self, safekeeper)
            missed += safekeeper == ME
            return {} if missed == 1 else found

        with patch.object(BackupOffload, "census", once):
            await asyncio.sleep(SWEEPS_S)
        assert missed > 2
        assert not count(here, "timelines_returned_for_copies")
        assert presence(here) is TimelinePresence.EVICTED

    run(scenario, backups=2, settings=EVICTING)


def test_without_enough_backups_no_eviction_begins() -> None:
    """It would fail at its end, and begin again with each sweep."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        await asyncio.sleep(SWEEPS_S)
        assert presence(here) is TimelinePresence.RESIDENT
        assert not count(here, "upkeep_failed")
        assert not count(here, "blobs_not_put")
        assert not blobs(here, "b1")

    run(scenario, backups=1, settings=EVICTING)


def test_blobs_of_a_timeline_that_cannot_be_read_stay() -> None:
    """Nobody knows which of them its control file names; all of them may be the only copy."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        await evicted(here)
        before = {name: blobs(here, name) for name in ("b1", "b2")}
        assert all(before.values())
        disk = here.server(1)._runtime.disk
        await here.within(1, disk.replace(f"timelines/{TABLET}", b"rubbish"))
        await here.restart(1)
        here.see()
        await asyncio.sleep(SWEEPS_S)
        assert TABLET in here.server(1).timelines.store(TABLET).failed
        assert {name: blobs(here, name) for name in ("b1", "b2")} == before

    run(scenario, backups=2, settings=EVICTING)


def test_blobs_that_a_deletion_left_are_looked_for_though_nothing_is_evicted_any_more() -> None:
    """A backup was away when it was told; evictions were switched off meanwhile."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        await evicted(here)
        upkeep = here.server(1).upkeep
        upkeep._settings = msgspec.structs.replace(EVICTING, evict_after_s=0.0)
        await here.world.wait_until(lambda: not upkeep._blobs.may_have_left, 5.0, "all is counted")
        here.world.crash("b1", restart=False)
        await here.ports.exclude(ME, TIMELINE, members(3, 2), forever=False, timeout_s=1.0)
        here.world.restart("b1")
        await here.world.wait_ready("b1")
        assert blobs(here, "b1")
        here.see()
        await here.world.wait_until(
            lambda: not blobs(here, "b1") and not blobs(here, "b2"), 20.0, "no blob is left"
        )

    run(scenario, backups=2, settings=EVICTING)


def test_blobs_are_looked_for_until_a_backup_could_be_asked() -> None:
    """While none is known, nobody can say that nothing was left."""

    async def scenario(here: SafekeepersWorld) -> None:
        await fill(here)
        await evicted(here)
        server = here.server(1)
        server.upkeep._settings = msgspec.structs.replace(EVICTING, evict_after_s=0.0)
        server.members.update([])
        await here.ports.exclude(ME, TIMELINE, members(3, 2), forever=False, timeout_s=1.0)
        await asyncio.sleep(SWEEPS_S)
        assert blobs(here, "b1")
        here.see()
        await here.world.wait_until(
            lambda: not blobs(here, "b1") and not blobs(here, "b2"), 20.0, "no blob is left"
        )

    run(scenario, backups=2, settings=EVICTING)


@pytest.mark.parametrize("is_known", [True, False])
def test_who_is_not_retired_may_keep_what_it_has(is_known: bool) -> None:
    """By what the masters said last."""

    async def scenario(here: SafekeepersWorld) -> None:
        offload = here.server(1).upkeep._blobs
        info = here.world.server("b1").info
        if is_known:
            retire(here, "b1")
        assert offload.may_keep(info) is not is_known
        assert offload.backup_count == 2 - is_known
        assert ServerUuid(info.uuid) in [each.uuid for each in offload._backups("any")]

    run(scenario, backups=2)
