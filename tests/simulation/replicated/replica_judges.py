"""What holds of replicated tablets at every moment, and what once all faults have ended.

Always: no term of a group has two leaders, and whatever two replicas execute at one index of their
log is the same command with the same outcome. At rest: every tablet has its replicas, as voters on
live servers that are to be kept, with the same rows at the same index; and on no disk lies anything
of another tablet, but for tombstones and what was set aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from stelae.actors.raft.types import RoleChange
from stelae.actors.tserver.replicated_tablet.tablet import ReplicatedTablet
from stelae.actors.tserver.server import TabletServer
from stelae.consensus.raft.ready import Role
from stelae.coordinator.catalog.catalog import Catalog
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.records.replication import Configuration
from stelae.core.schema.durability import Replicas
from stelae.simulation.cluster import SimCluster
from stelae.storage.replicated.state_machine import TabletStateMachine

FOLDERS = ("data", "wals")
"""Of what may lie there only of a tablet that is there."""


class Always:
    """Looks at every replica while it works; one for each run."""

    def __init__(self) -> None:
        self.leaders: dict[tuple[TabletId, int], ServerUuid] = {}
        self._executed: dict[tuple[TabletId, int], tuple[int, bytes, object]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Until the end of the block."""
        told, apply = ReplicatedTablet._on_role_change, TabletStateMachine.apply

        def on_role_change(tablet: ReplicatedTablet, change: RoleChange) -> None:
            if change.role is Role.LEADER:
                key = (tablet.tablet_id, change.term)
                known = self.leaders.setdefault(key, tablet.replica.uuid)
                assert known == tablet.replica.uuid, f"two leaders of {key}: {known} and another"
            told(tablet, change)

        def applied(machine: TabletStateMachine, index: int, term: int, command: bytes) -> Any:
            outcome = apply(machine, index, term, command)
            mine = (term, bytes(command), outcome)
            known = self._executed.setdefault((machine.tablet_id, index), mine)
            assert known == mine, f"two histories of {machine.tablet_id} at {index}"
            return outcome

        with (
            patch.object(ReplicatedTablet, "_on_role_change", on_role_change),
            patch.object(TabletStateMachine, "apply", applied),
        ):
            yield


class Cluster:
    """A look at everything, as only a simulation has it."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.world = cluster.world

    @property
    def servers(self) -> dict[str, TabletServer]:
        """The tservers that have started, by name."""
        nodes = self.world.nodes
        return {
            name: self.world.server(name)
            for name in self.cluster.tservers
            if nodes[name].ready and self.world.server(name) is not None
        }

    @property
    def catalog(self) -> Catalog | None:
        """Of the master that leads."""
        name = self.cluster.leader()
        if name is None:
            return None
        catalog = self.world.server(name).catalog
        assert isinstance(catalog, Catalog)
        return catalog

    def groups(self) -> list[tuple[TabletRecord, int]]:
        """All tablets of today, with how many replicas each is to have."""
        catalog = self.catalog
        found: list[tuple[TabletRecord, int]] = []
        for tablet in catalog.live_tablets() if catalog is not None else ():
            durability = catalog.tables[tablet.table_id].durability if catalog else None
            if isinstance(durability, Replicas):
                found.append((tablet, durability.count))
        return found

    # ---- may a disk be lost now -------------------------------------------------------------

    def may_lose(self, name: str) -> bool:
        """Whether every group is whole, as its replicas themselves see it, so that it may lose
        any one of them."""
        servers = self.servers
        if len(servers) < len(self.cluster.tservers) or self.catalog is None:
            return False
        if any(n.kind == "zombie" and n.running for n in self.world.nodes.values()):
            return False
        for tablet, count in self.groups():
            if count < 3:
                continue
            if any(self._word(s, tablet.tablet_id) == "in doubt" for s in servers.values()):
                return False
            if tablet.state is TabletState.RUNNING and not self._is_full(tablet, count):
                return False
            if self._has_lost_one(tablet):
                return False
        return True

    def _word(self, server: TabletServer, tablet_id: TabletId) -> str:
        replicas = server.replicas
        if replicas.tablet(tablet_id) is None and replicas.data_state(tablet_id) is DataState.READY:
            return "in doubt"
        return ""

    def _has_lost_one(self, tablet: TabletRecord) -> bool:
        """Whether the server of a replica is gone for good: a tablet that is being created may not
        have made up for it yet."""
        assert tablet.configuration is not None
        running = {server.info.uuid: None for server in self.servers.values()}
        return any(peer.uuid not in running for peer in tablet.configuration.peers)

    def _is_full(self, tablet: TabletRecord, count: int) -> bool:
        assert tablet.configuration is not None
        running = {server.info.uuid: server for server in self.servers.values()}
        configurations: dict[OpId, Configuration] = {}
        for peer in tablet.configuration.peers:
            server = running.get(peer.uuid)
            found = server.replicas.tablet(tablet.tablet_id) if server is not None else None
            if found is None:
                return False
            for known in (found.replica.members, found.replica.core.configuration):
                configurations[known.op_id] = known
        return len(configurations) == 1 and len(next(iter(configurations.values())).voters) == count

    # ---- at rest ----------------------------------------------------------------------------

    def unrest(self) -> str:
        """What is not as it should be in the end; empty if all is well."""
        servers = self.servers
        if len(servers) < len(self.cluster.tservers):
            return "not all servers have started"
        catalog = self.catalog
        if catalog is None:
            return "the masters have no leader"
        names = {server.info.uuid: name for name, server in servers.items()}
        for tablet, count in self.groups():
            problem = self._problem(tablet, count, names, catalog)
            if problem:
                return f"tablet {tablet.tablet_id}: {problem}"
        return self._strays(catalog)

    def _problem(
        self, tablet: TabletRecord, count: int, names: dict[ServerUuid, str], catalog: Catalog
    ) -> str:
        configuration = tablet.configuration
        assert configuration is not None
        if tablet.state is not TabletState.RUNNING:
            return tablet.state.value
        members = [f"{peer.name}{'' if peer.voter else '*'}" for peer in configuration.peers]
        if len(configuration.voters) != count or len(configuration.peers) != count:
            return f"its members are {members}"
        states: dict[object, str] = {}
        for uuid in configuration.voters:
            name = names.get(uuid)
            if name is None:
                return f"{uuid} of {members} is lost"
            if catalog.mark(uuid).retiring:
                return f"{name} is to be retired"
            replicas = self.servers[name].replicas
            found = replicas.tablet(tablet.tablet_id)
            if found is None:
                return f"no replica runs on {name}"
            if found.replica.members != configuration:
                return f"{name} knows other members"
            states[self._state(found)] = name
        return "" if len(states) == 1 else f"its replicas differ: {states}"

    def _state(self, tablet: ReplicatedTablet) -> object:
        """What is applied, and the sum of it. A machine that was loaded counts entries that are no
        commands, and others do not, so it is the log that says where a replica is."""
        machine = tablet.machine
        source = machine.checksum(machine.applied_index)
        assert source is not None, "nothing is applied meanwhile"
        applied_index = tablet.replica.core.log.applied_index
        return applied_index, msgspec.structs.replace(source.compute(), index=0)

    def _strays(self, catalog: Catalog) -> str:
        live = {tablet.tablet_id: tablet for tablet, _ in self.groups()}
        for name, server in self.servers.items():
            held = {
                tablet_id: None
                for tablet_id, tablet in live.items()
                if tablet.configuration is not None
                and tablet.configuration.peer(server.info.uuid) is not None
            }
            for path in self.world.nodes[name].disk.paths():
                folder, _, rest = path.partition("/")
                if folder in FOLDERS and rest.partition("/")[0] not in held:
                    return f"{path} lies on {name}, which has no replica of that"
            for tablet_id, superblock in server.replicas.store.superblocks.items():
                is_there = superblock.state is DataState.READY
                if is_there != (tablet_id in held):
                    return f"{tablet_id} is {superblock.state.value} on {name}"
                if tablet_id not in live and not superblock.forever:
                    return f"{tablet_id} on {name} is not deleted for ever"
                if is_there:
                    self._check_images(name, server, tablet_id)
        return ""

    def _check_images(self, name: str, server: TabletServer, tablet_id: TabletId) -> None:
        store = server.replicas.store
        folder = f"data/{tablet_id}/"
        lying = {p: None for p in self.world.nodes[name].disk.paths() if p.startswith(folder)}
        snapshot = store.superblocks[tablet_id].snapshot
        needed = [file.name for file in store.files_of(snapshot)] if snapshot is not None else []
        if not store.lock(tablet_id).locked():  # else what a flush replaced may be going just now
            needed += store.images(tablet_id)
        for image in needed:
            assert folder + image in lying, f"{name} lacks the image {image}"


class Census:
    """Counts what became of the members of the tablets: nothing of it happens by itself."""

    def __init__(self, look: Cluster) -> None:
        self._look = look
        self._known: dict[TabletId, Configuration] = {}
        self.promoted = 0
        self.evicted = 0

    def take(self) -> None:
        """Compare with the last time."""
        for tablet, _ in self._look.groups():
            new, old = tablet.configuration, self._known.get(tablet.tablet_id)
            assert new is not None
            self._known[tablet.tablet_id] = new
            if old is None or old.op_id == new.op_id:
                continue
            before = {peer.uuid: peer.voter for peer in old.peers}
            after = {peer.uuid: peer.voter for peer in new.peers}
            voters = [uuid for uuid, voter in after.items() if voter]
            self.promoted += sum(not before.get(uuid, False) for uuid in voters)
            self.evicted += sum(uuid not in after for uuid in before)
