"""Parts of a split tablet that lack what they inherit: they wait, or it is given up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from stelae.actors.master.leader import recovery as recovery_rounds
from stelae.actors.master.leader.recovery_splits import RecoverySplits
from stelae.client.table.table import AsyncTable
from stelae.core.errors import SegmentsMissing, StelaeError
from stelae.core.records.losses import LossReport
from stelae.core.records.records import TabletRecord
from stelae.recovery import inherited
from tests.simulation.splits.split_story import NEVER_S, Story
from tests.unit.actors.tserver.owned_tablet.tablet_world import segment_log

PARTS = 2


async def _wait_for_both(story: Story, *, again: bool) -> None:
    """Until both parts wait for segments; ``again``: their owners die first."""
    if again:
        for owner in {story.owner_of(r.tablet_id) for r in story.tablets}:
            story.world.crash(owner)

    def both_wait() -> bool:
        problems = story.world.server(story.cluster.leader() or "").coordinator.problems
        return len(story.tablets) == PARTS and all(
            "stelae recover" in problems.get(r.tablet_id, "") for r in story.tablets
        )

    await story.world.wait_until(both_wait, 60.0, "they say what helps")


async def _read_in_vain(story: Story, table: AsyncTable) -> None:
    """Until both parts have looked for rows that are nowhere."""
    for _ in range(20):
        with suppress(StelaeError):
            await table.scan(timeout=5.0)
        if len((await story.database.losses()).waiting) == PARTS:
            return
    raise AssertionError("nobody is told that rows are missing")


async def _write_anew(
    story: Story,
    table: AsyncTable,
    lost: Sequence[str],
    versions: Mapping[int, int],
    report: LossReport,
) -> None:
    """What was given up, once the backups that had it are back: a later recovery has the new rows,
    and of the old ones no more than before. ``versions``: of all rows before the loss."""
    for name in lost:
        story.world.restart(name)
    gone = [key for key in versions if key not in story.values][:20]
    written = [{"id": key, "value": "anew", "count": 0} for key in gone]
    anew = await table.upsert(written, timeout=20.0)
    story.values |= dict.fromkeys(gone, "anew")
    if any(loss.is_end_lost for loss in report.waiting):
        assert min(anew.tolist()) > max(versions.values())
    story.kill_owner()
    await story.wait_split()
    await story.check_all(table)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("when", ["first", "later", "served"])
def test_what_parts_inherit_can_be_given_up(
    monkeypatch: pytest.MonkeyPatch, seed: int, when: str
) -> None:
    """Before they ever ran, or after it, or while all else is served: each part says what it lacks,
    and goes on without; nothing comes back later, and what it is written anew gets a later version.
    """
    story = Story(seed, load_bytes_per_s=NEVER_S)
    split = RecoverySplits.split
    lost: list[str] = []

    def lose() -> None:
        for name in lost:
            story.world.crash(name, restart=False)

    async def struck(self: RecoverySplits, *given: Any) -> bool:
        was_split = await split(self, *given)
        if was_split and when == "first":
            lose()
        return was_split

    monkeypatch.setattr(RecoverySplits, "split", struck)

    async def tell() -> None:
        table = await story.begin()
        (tablet,) = story.served().values()
        *sealed, head = tablet.holders()
        pair = next((p for p in sealed if not set(p) & set(head)), sealed[0])
        lost.extend(story.backup(uuid) for uuid in pair)
        before = await table.scan(with_versions=True, timeout=20.0)
        versions = dict(zip(*(before[c].to_pylist() for c in ("id", "_version")), strict=True))
        story.kill_owner()
        if when != "first":
            await story.wait_split()
            lose()
        if when == "served":
            await _read_in_vain(story, table)
        else:
            await _wait_for_both(story, again=when == "later")
        database = story.database
        report = await database.losses()
        assert all(loss.is_served == (when == "served") for loss in report.waiting)
        assert {loss.tablet_id for loss in report.waiting} == {r.tablet_id for r in story.tablets}
        assert all(loss.segments for loss in report.waiting)
        await database.accept_loss(report, by="Ada", gone=[b.uuid for b in report.silent])
        await story.wait_split()
        assert not (await database.losses()).waiting
        found = await table.scan(timeout=20.0)
        rows = dict(zip(*(found[c].to_pylist() for c in ("id", "value")), strict=True))
        assert 0 < len(rows) < len(story.values), "something is lost, and not everything"
        # With a tombstone the row comes back that it had replaced.
        ever = story.values | {key: f"first {key} " + "x" * 60 for key in (5, 6, 7)}
        assert rows.items() <= ever.items()
        story.values = rows
        await story.check_all(table)
        await _write_anew(story, table, lost, versions, report)

    story.run(tell())


@pytest.mark.parametrize("is_one_served", [False, True])
def test_parts_do_not_wait_for_the_end_that_the_split_entry_names(
    monkeypatch: pytest.MonkeyPatch, is_one_served: bool
) -> None:
    """Its backup is gone for good before a part was handed over. Another one, which was away when
    the tablet was split, has less of the head, and all that was acknowledged. A sibling that has
    read all of it knows the answer of a request of which the other part has nothing: repeated, each
    row of it is written once."""
    story, plan_of = Story(), inherited.plan_of
    late = {1} if is_one_served else {1, 2}
    head: list[str] = []

    def planned(tablet: TabletRecord, *given: Any, **more: Any) -> Any:
        if tablet.inherits is not None and head and tablet.number in late:
            raise SegmentsMissing(tablet.tablet_id, "what the story holds back")
        return plan_of(tablet, *given, **more)

    monkeypatch.setattr(recovery_rounds, "plan_of", planned)

    async def tell() -> None:
        table = await story.begin()
        (tablet,) = story.served().values()
        owner, replicas = story.owner_of(tablet.tablet_id), segment_log(tablet).head.replicas
        long, short = (story.backup(replica.backup) for replica in replicas)
        story.world.network.block(owner, short)
        keys = range(1000, 1040)
        new = [{"id": key, "value": f"new {key}", "count": 1} for key in keys]
        write = asyncio.create_task(table.insert(new, timeout=120.0))
        await asyncio.sleep(0.1)
        head.extend((long, short))
        story.world.crash(short, restart=False)
        story.world.crash(owner)
        await story.world.wait_until(lambda: len(story.tablets) == 2, 60.0, "it is split")

        def is_one() -> bool:
            return len(story.served()) == 1

        if is_one_served:
            await story.world.wait_until(is_one, 60.0, "one part is served")
        story.world.crash(long, lose_disk=True, restart=False)
        story.world.restart(short)
        head.clear()
        await story.wait_split()
        versions = (await write).tolist()
        steps = Counter(version - place for place, version in enumerate(versions))
        (_, count), *_ = steps.most_common(1)
        assert (count > 10) == is_one_served, "one part knows the answer of the whole, or none"
        found = await table.get_many(list(keys), with_versions=True, timeout=20.0)
        assert found["id"].to_pylist() == list(keys)
        assert found["_version"].to_pylist() == versions
        assert (await table.delete(list(keys), timeout=20.0)) is not None
        await story.check_all(table)

    story.run(tell())
