"""What must hold of ``wal`` tablets once all faults have ended, and when a disk may be lost.

At rest: every tablet serves, and all that is sealed is on its backups; every record of the store is
finished, and the catalog has its configuration; each timeline is on its members, in that
configuration, and on nobody else's disk. Members agree in what is committed.
"""

from __future__ import annotations

from typing import Any

from stelae.coordinator.catalog.catalog import Catalog
from stelae.core.ids import TabletId
from stelae.core.messages.safekeepers import TimelinePresence
from stelae.core.records.configurations import StoredRecord, TimelineRecord
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import SafekeeperId
from stelae.simulation.cluster import SimCluster


class Look:
    """A look at everything, as only a simulation has it."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.world = cluster.world

    # ---- what there is ----------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog | None:
        """Of the master that leads."""
        name = self.cluster.leader()
        if name is None:
            return None
        catalog = self.world.server(name).catalog
        assert isinstance(catalog, Catalog)
        return catalog

    def tablets(self) -> list[TabletRecord]:
        catalog = self.catalog
        found = catalog.live_tablets() if catalog is not None else ()
        return [tablet for tablet in found if tablet.timeline is not None]

    def records(self) -> list[TimelineRecord] | None:
        """What the configuration store has; None: it does not run."""
        stored: list[StoredRecord]
        if self.cluster.cas_store is None:
            catalog = self.catalog
            return None if catalog is None else [s.record for s in catalog.timelines.all()]
        from stelae.actors.cas_store.server import _stored

        server = self.world.server(self.cluster.cas_store)
        if server is None or not self.world.nodes[self.cluster.cas_store].ready:
            return None
        stored = [_stored(rows[-1]) for rows in server._backend._rows_by_key.values()]
        return [each.record for each in stored]

    def keepers(self) -> dict[SafekeeperId, Any]:
        """Safekeepers that have started and have their ids."""
        found: dict[SafekeeperId, Any] = {}
        for name in self.cluster.safekeepers:
            server = self.world.server(name)
            if server is not None and self.world.nodes[name].ready and server.safekeeper_id:
                found[server.safekeeper_id] = server
        return found

    def _names(self, kind: str) -> list[str]:
        """Servers of a kind that have started."""
        nodes, names = self.world.nodes, getattr(self.cluster, kind)
        return [n for n in names if nodes[n].ready and self.world.server(n) is not None]

    # ---- may a disk be lost now -------------------------------------------------------------

    def may_lose(self, name: str, media: int) -> bool:
        """Whether ``wal`` covers the loss of this server's disk: of one safekeeper while all other
        members have their timelines, or of one backup while every segment has all replicas."""
        if any(n.kind == "zombie" and n.running for n in self.world.nodes.values()):
            return False
        if name in self.cluster.tservers:
            return True
        if name in self.cluster.backups:
            is_whole = len(self._names("backups")) == len(self.cluster.backups)
            return is_whole and self._is_served() and self._is_sealed_whole(media)
        server = self.world.server(name)
        return server is not None and self._is_spare(server.safekeeper_id)

    def _is_spare(self, number: SafekeeperId | None) -> bool:
        records, keepers = self.records(), self.keepers()
        if records is None or number is None:
            return False
        for record in records:
            configuration = record.configuration
            if record.deleted or number not in configuration.members:
                continue
            if configuration.is_joint or len(configuration.sk_set) < 3:
                return False
            for member in configuration.sk_set:
                server = keepers.get(member)
                if server is None or record.timeline.tablet_id not in server.timelines.held:
                    return False
                held = server.timelines.describe(record.timeline.tablet_id)
                if held.presence is not TimelinePresence.RESIDENT:
                    return False
        return True

    def _is_sealed_whole(self, media: int) -> bool:
        running = {self.world.server(name).info.uuid for name in self._names("backups")}
        for name in self._names("tservers"):
            for segments in self.world.server(name).holders().values():
                if any(len(set(held) & running) < media for held in segments):
                    return False
        return True

    def _is_served(self) -> bool:
        served: dict[TabletId, int] = {}
        for name in self._names("tservers"):
            for tablet in self.world.server(name)._tablets.values():
                if tablet.progress.value == "serving":
                    served[tablet.tablet_id] = tablet.term
        return self.catalog is not None and all(  # without a leader nobody knows
            tablet.state is TabletState.RUNNING and served.get(tablet.tablet_id) == tablet.term
            for tablet in self.tablets()
        )

    # ---- at rest ----------------------------------------------------------------------------

    def unrest(self) -> str:
        """What is not yet as it should be; empty: nothing."""
        catalog, records, keepers = self.catalog, self.records(), self.keepers()
        if catalog is None or records is None:
            return "no leader, or no store"
        if len(keepers) < len(self.cluster.safekeepers):
            return "a safekeeper is not there"
        if not self._is_served():
            return "a tablet is not served: " + self._problem()
        if not self._is_sealed_whole(2):
            return "a segment lacks replicas"
        left = [f"{r.timeline.tablet_id[:8]}: {r.unfinished}" for r in records if not r.is_finished]
        if left:
            return f"migrations are not finished: {left}"
        if catalog.timelines.orders:
            return f"orders are not decided: {list(catalog.timelines.orders.values())}"
        by_id = {record.timeline.tablet_id: record for record in records}
        for tablet in self.tablets():
            record = by_id.get(tablet.tablet_id)
            if record is None or record.deleted:
                return f"tablet {tablet.tablet_id} has no timeline"
            if record.configuration != tablet.timeline:
                return f"the catalog has {tablet.timeline}, the store {record.configuration}"
        return self._misplaced(by_id, keepers)

    def _problem(self) -> str:
        name = self.cluster.leader()
        coordinator = self.world.server(name).coordinator if name is not None else None
        told = [str(problem) for problem in coordinator.problems.values()] if coordinator else []
        for server in self._names("tservers"):
            told += [r.problem for r in self.world.server(server).reports() if r.problem]
        return "; ".join(told)

    def _misplaced(
        self, by_id: dict[TabletId, TimelineRecord], keepers: dict[SafekeeperId, Any]
    ) -> str:
        for number, server in keepers.items():
            for tablet_id in server.timelines.held:
                record = by_id.get(tablet_id)
                if record is None or record.deleted:
                    return f"{number} holds {tablet_id[:8]}, which is gone"
                if number not in record.configuration.members:
                    return f"{number} holds {tablet_id[:8]}, and is no member"
        for tablet_id, record in by_id.items():
            for member in () if record.deleted else record.configuration.members:
                if member not in keepers:
                    return f"{member} is a member of {tablet_id[:8]}, and gone"
                timelines = keepers[member].timelines
                if tablet_id not in timelines.held:
                    return f"{member} lacks {tablet_id[:8]}"
                held = timelines.describe(tablet_id)
                if held.presence is TimelinePresence.FAILED:
                    return f"{tablet_id[:8]} failed on {member}: {held.problem}"
                if held.configuration != record.configuration:
                    return f"{member} has {tablet_id[:8]} in {held.configuration}"
        return ""

    async def check_logs(self) -> None:
        """What is committed is the same on all members."""
        committed: dict[tuple[TabletId, int], Entry] = {}
        for server in self.keepers().values():
            for tablet_id, timeline in list(server.timelines.store("").timelines.items()):
                if not timeline.control.exists or timeline.is_evicted or timeline.failure:
                    continue
                commit_lsn, first = timeline.acceptor.commit_lsn, timeline.base_lsn + 1
                while first <= commit_lsn:
                    entries = await timeline.read(first, commit_lsn, 1 << 20)
                    for entry in entries:
                        key = (tablet_id, entry.index)
                        assert committed.setdefault(key, entry) == entry, f"two histories at {key}"
                    if not entries:
                        break
                    first = entries[-1].index + 1
