"""The ``media`` scenario: tables of every durability strategy, and everything that befalls media.

Strategies are drawn: disks, flash that is synced when a segment is sealed, memory, and mixes; in
some worlds backups are grouped in copysets. Disks fill up, superblocks are torn, sealed frames
decay on one backup, and all backups of some segment go away together with its owner and come back
later. What the ``tables`` scenario demands holds throughout. In some runs, once all is judged, more
is lost for good than the promise covers, and an operator accepts it: then every tablet serves what
is left of its log, versions go on above all that were given, and whatever returns changes nothing;
an index finds what is left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from stelae.actors.backup.frames import BLOCK_BYTES, MediumSpec
from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.core.errors import (
    IndexExists,
    InvalidArgument,
    OutcomeUnknown,
    RetryElsewhere,
    RetryLater,
)
from stelae.core.ids import ServerUuid
from stelae.core.records.losses import SilentBackup
from stelae.core.records.records import TabletState
from stelae.simulation.cluster import SimCluster
from stelae.simulation.history import History
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.options import Options, Servers
from stelae.simulation.world.world import World
from tests.simulation.tables import tables
from tests.simulation.tables.planted import planted
from tests.simulation.tables.strikes import KINDS, LOSING_A_DISK

MEDIA = {
    "disk": MediumSpec(name="disk", path="disk"),
    "flash": MediumSpec(name="flash", path="flash", sync="on_seal"),
    "ram": MediumSpec(name="ram", size_bytes=4 << 20),
    "pram": MediumSpec(name="pram", path="pram", size_bytes=8 << 20),
}
ONE_SURVIVES = (
    ("disk", "disk"),
    ("pram", "pram"),
    ("disk", "flash"),
    ("disk", "ram"),
    ("disk", "disk", "ram"),
    ("flash", "disk", "disk"),
    ("disk", "disk", "disk"),
)
"""At least one replica outlives any crash of machines."""
WITHOUT_POWER_LOSS = (*ONE_SURVIVES, ("flash", "flash"))
SYNCED = ("disk", "pram")
WORST_RATE = 0.35
"""Runs that end with more lost than is promised."""
INDEXED_RATE = 0.6
"""Of these: an index of the table is lost with it."""
COLUMN = "value"
ACCEPTED_S = 120.0
UNREADABLE_S = 10.0
"""For so long an operator sees a tablet wait for rows before its server is started again."""


class MediaFaults:
    """Faults of media, one after the other."""

    def __init__(self, cluster: SimCluster, decays: str, longest_gap_s: float) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = cluster.world.rng("media")
        self._decays = decays
        self._longest_gap_s = longest_gap_s
        self.counts: dict[str, int] = {}

    async def run(self, until_s: float) -> None:
        faults: list[Callable[[], object]] = [self._superblock, self._away]
        faults += [self._decay] * bool(self._decays)
        while self._world.loop.time() < until_s:
            await asyncio.sleep(self._rng.uniform(0.5, self._longest_gap_s))
            fault = self._rng.choice(faults)
            name = fault.__name__
            self.counts[name] = self.counts.get(name, 0) + 1
            await fault()  # type: ignore[misc]

    async def judge(self, history: History) -> None:
        self._world.note("world", f"faults of media: {self.counts}")

    async def _superblock(self) -> None:
        """A backup dies while it writes a superblock: the one that it was to replace is torn."""
        name = self._rng.choice(self._cluster.backups)
        disk = self._world.nodes[name].disk
        self._world.crash(name, restart=False)
        for medium in ("disk", "flash", "pram"):
            path = f"{medium}/frames"
            if path in disk.paths() and len(disk.durable(path)) >= 2 * BLOCK_BYTES:
                older = _older_superblock(disk.durable(path))
                if older is not None:
                    disk.corrupt(path, older + self._rng.randrange(4, 30))
        await asyncio.sleep(self._rng.uniform(0.0, 1.0))
        self._world.restart(name)

    async def _decay(self) -> None:
        """A byte of a sealed frame changes, always on the same backup: the others are whole."""
        server = self._world.server(self._decays)
        if server is None or not hasattr(server, "info"):
            return
        found = [
            replica
            for log in server._holdings.logs
            for segment in server._holdings.segments(log)
            if (replica := server._holdings.find(log, segment)) is not None
            if replica.facts is not None and replica.frames and replica.batch is None
            if replica.facts.state.value == "sealed"
        ]
        if not found:
            return
        replica = self._rng.choice(found)
        medium = server._media[replica.medium]
        at = self._rng.randrange(replica.facts.length // 2)
        ((offset, _),) = medium.layout.pieces(replica.frames, at, 1)
        self._world.note("nemesis", f"a byte of segment {replica.segment_id} decays")
        self._world.nodes[self._decays].disk.corrupt(f"{replica.medium}/frames", offset)

    async def _away(self) -> None:
        """All backups of some segment and its owner die at once; the backups stay away a while."""
        owners = [
            (name, segments)
            for name in self._cluster.tservers
            if (server := self._world.server(name)) is not None and hasattr(server, "info")
            for segments in server.holders().values()
        ]
        if not owners:
            return
        owner, segments = self._rng.choice(owners)
        uuids = self._rng.choice(segments)
        names = [n for n in self._cluster.backups if self._uuid(n) in uuids]
        self._world.note("nemesis", f"takes {', '.join(names)} and {owner} away")
        for name in names:
            self._world.crash(name, restart=False)
        self._world.crash(owner)
        await asyncio.sleep(self._rng.uniform(0.5, 5.0))
        self._rng.shuffle(names)
        for name in names:
            self._world.restart(name)
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))

    def _uuid(self, name: str) -> ServerUuid | None:
        server = self._world.server(name)
        return server.info.uuid if server is not None and hasattr(server, "info") else None


def _older_superblock(head: bytes) -> int | None:
    """Where the older of two superblocks is; None: there are not two."""
    from stelae.actors.backup.frames import newest_superblock, superblock_offset

    newest = newest_superblock(head)
    if newest is None or newest.generation < 2:
        return None
    return superblock_offset(newest.generation + 1)


# ---- more than is promised ------------------------------------------------------------------


class Worst:
    """The end of a run: backups lose their disks for good, and an operator gives up what was."""

    def __init__(self, cluster: SimCluster, database: AsyncDatabase, replicas: int) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._database = database
        self._replicas = replicas
        self._rng = cluster.world.rng("worst")
        self._is_indexed = cluster.world.rng("worst/index").random() < INDEXED_RATE

    async def run(self) -> None:
        table = await self._database.table(tables.TABLE)
        if self._is_indexed:
            await self._make_index(table)
        before = await self._rows(table)
        backups, rng = self._cluster.backups, self._rng
        lost = rng.sample(backups, rng.randrange(self._replicas, len(backups) + 1))
        stale = [name for name in lost if rng.random() < 0.5]
        stale = stale[: len(backups) - self._replicas]  # enough are left for new heads
        for name in lost:
            self._world.crash(name, lose_disk=name not in stale, restart=False)
        for name in self._cluster.tservers:
            self._world.crash(name)
        for name in lost:
            if name not in stale:
                self._world.restart(name)
        await self._accept_all(lost)
        for name in stale:
            self._world.restart(name)
        await self._until_whole(lost)
        after = await self._rows(table)
        for key, (_, version) in after.items():  # what a lost segment replaced may be back
            if key in before:
                assert version <= before[key][1], f"key {key}: never written"
        await self._look_up(table, after)
        for key in range(self._world.options.workload.keys):
            versions = await table.upsert({"id": key, "value": "after"}, timeout=ACCEPTED_S)
            assert int(versions[0]) > before.get(key, ("", 0))[1], "versions only grow"
        for name in self._cluster.tservers:
            self._world.crash(name)
        rows = await self._rows(table)
        assert {value for value, _ in rows.values()} == {"after"}
        await self._look_up(table, rows)

    async def _make_index(self, table: AsyncTable) -> None:
        try:
            await table.create_index(COLUMN, timeout=ACCEPTED_S)
        except OutcomeUnknown:  # it is made all the same, or stands already
            with suppress(IndexExists):
                await table.create_index(COLUMN, timeout=ACCEPTED_S)

    async def _look_up(self, table: AsyncTable, rows: Mapping[int, tuple[str, int]]) -> None:
        """By value, each row that is left is found, and none besides."""
        if not self._is_indexed:
            return
        for value in sorted({value for value, _ in rows.values()}):
            found = await self._patiently(partial(table.find, COLUMN, value, timeout=ACCEPTED_S))
            wanted = sorted(key for key, (there, _) in rows.items() if there == value)
            assert sorted(found["id"].to_pylist()) == wanted, f"look-ups of {value!r}"

    async def _rows(self, table: AsyncTable) -> dict[int, tuple[str, int]]:
        found = await self._patiently(lambda: table.scan(with_versions=True, timeout=10.0))
        return {r["id"]: (r["value"], r["_version"]) for r in found.to_pylist()}

    async def _patiently(self, read: Callable[[], Awaitable[pa.Table]]) -> pa.Table:
        while True:
            try:
                return await read()
            except (RetryLater, RetryElsewhere, OutcomeUnknown):
                await asyncio.sleep(0.2)

    async def _accept_all(self, lost: Sequence[str]) -> None:
        """Whatever is reported as missing is given up, until every tablet runs again; of these
        backups the operator says that they never return."""
        end_s = self._world.loop.time() + ACCEPTED_S
        while not self._is_running():
            assert self._world.loop.time() < end_s, "a tablet does not come back"
            try:
                report = await self._database.losses()
                if report.waiting:
                    gone = [b.uuid for b in report.silent if b.name in lost or self._is_replaced(b)]
                    await self._database.accept_loss(report, by="the scenario", gone=gone)
            except (InvalidArgument, RetryLater, OutcomeUnknown):
                pass  # something has come back meanwhile, or somebody does not answer yet
            await asyncio.sleep(0.5)

    def _is_replaced(self, backup: SilentBackup) -> bool:
        """Whether its name is back with another disk: the faults before have taken the former."""
        server = self._world.server(backup.name)
        info = getattr(server, "info", None)  # it has none before it is ready
        return info is not None and bool(info.uuid != backup.uuid)

    async def _until_whole(self, lost: Sequence[str]) -> None:
        """If all that is left of a segment has decayed, its tablet is served without those rows,
        and says so. Its owner is started again: then they are missing, and can be given up."""
        end_s = self._world.loop.time() + ACCEPTED_S
        looked_s = self._world.loop.time()
        while not self._cluster.is_whole(tables.TABLETS, self._replicas):
            now_s = self._world.loop.time()
            assert now_s < end_s, "not at full strength after a loss"
            if now_s - looked_s > UNREADABLE_S:
                for name in self._waiting_for_rows():
                    self._world.crash(name)
                await self._accept_all(lost)
                looked_s = self._world.loop.time()
            await asyncio.sleep(0.5)

    def _waiting_for_rows(self) -> list[str]:
        """Servers of tablets that wait for a replica that can be read."""
        return [
            name
            for name in self._cluster.tservers
            if (server := self._world.server(name)) is not None and hasattr(server, "info")
            if any("readable replica" in report.problem for report in server.reports())
        ]

    def _is_running(self) -> bool:
        leader = self._cluster.leader()
        if leader is None:
            return False
        tablets = list(self._world.server(leader).catalog.live_tablets())
        serving = {
            tablet_id
            for name in self._cluster.tservers
            if (server := self._world.server(name)) is not None and hasattr(server, "info")
            for tablet_id in server.holders()
        }
        running = [t for t in tablets if t.state is TabletState.RUNNING]
        return len(running) == len(tablets) and {t.tablet_id for t in tablets} == serving


# ---- the scenario ---------------------------------------------------------------------------


async def run(world: World, bug: str = "") -> None:
    """One seed; ``bug`` is one of `tests.simulation.tables.planted`."""
    rng = world.rng("strategy")
    safe = world.options.keep_unsynced_rate == 1.0 and not world.options.nodes
    media = rng.choice(WITHOUT_POWER_LOSS if safe else ONE_SURVIVES)
    size = rng.choice([0, 0, len(media), len(media)])
    cluster = SimCluster(
        world,
        media=MEDIA,
        copyset_size=size if 2 * size <= world.options.servers.backups else 0,
        rereplication_bytes_per_s=rng.choice([0, 20_000]),
        replica_dead_after_s=rng.choice([2.5, 6.0]),
        **tables.cleaning_of(world),
    )
    if sum(medium in SYNCED for medium in media) < 2 and world.schedule is None:
        world.options = world.options.but(lost_disk_every_s=0.0)
    strikes: Sequence[str] = KINDS
    if sum(medium in SYNCED for medium in media) < 2:
        strikes = [kind for kind in KINDS if kind not in LOSING_A_DISK]
    kinds = rng.sample(strikes, rng.randrange(0, 3))
    faults: list[MediaFaults] = []

    def beside(cluster: SimCluster, database: AsyncDatabase) -> MediaFaults:
        # What has decayed counts as lost, and nobody may know yet: another replica must outlive
        # all crashes, and no disk be lost beside.
        may_decay = not world.options.lost_disk_every_s and len(media) - media.count("ram") >= 2
        decays = rng.choice(cluster.backups) if may_decay else ""
        if any(kind in LOSING_A_DISK for kind in kinds):
            decays = ""
        faults.append(MediaFaults(cluster, decays, rng.choice([2.0, 6.0])))
        return faults[0]

    world.note("world", f"segments{media!r}, copysets of {cluster.settings.copyset_size}")
    with planted(bug):
        await tables.run_tables(
            world,
            kinds,
            longest_gap_s=4.0,
            make_beside=beside,
            media=media,
            cluster=cluster,
            fillable=("backup",),
        )
        if rng.random() < WORST_RATE:
            await Worst(cluster, cluster.database("operators"), len(media)).run()


def options(seed: int) -> Options:
    """Some of everything; backups enough for two copysets, in many worlds."""
    drawn, rng = Options.draw(seed), random.Random(f"{seed}/media")
    work = drawn.workload
    busy = replace(
        work,
        clients=max(2, min(5, work.clients)),
        keys=max(3, min(20, work.keys)),
        operations=max(60, min(120, work.operations)),
    )
    return drawn.but(
        workload=busy,
        limits=replace(drawn.limits, segment_size_bytes=rng.choice([1024, 2048, 4096])),
        servers=Servers(
            masters=rng.choice([1, 3, 3]),
            tservers=rng.choice([2, 3]),
            backups=rng.choice([4, 5, 6]),
        ),
        drop_request_rate=min(0.05, drawn.drop_request_rate),
        drop_reply_rate=min(0.05, drawn.drop_reply_rate),
        restart_mean_s=min(1.0, drawn.restart_mean_s),
        lost_disk_every_s=drawn.lost_disk_every_s if rng.random() < 0.5 else 0.0,
    )


SCENARIO = Scenario("media", run, options, limit_s=1200.0)
