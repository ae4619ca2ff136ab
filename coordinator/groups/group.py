"""What is known of a tablet with ``replicas(n)``: its leader, its members, why it is offline. Pure.

The catalog says who the members are, by the newest committed configuration reported; everything
else is soft state, made from the last reports of live servers whenever it is wanted. The leader is
whoever says so in the highest term that any of its replicas speaks of.

Source: seed Kudu tablet copy (consensus state in heartbeats); design §8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stelae.coordinator.groups.healing import majority
from stelae.coordinator.liveness.liveness import Liveness, Seen
from stelae.core.ids import Address, ServerUuid
from stelae.core.messages.catalog import ReplicaLocation, TabletLocation
from stelae.core.messages.servers import GroupReport, ReplicaRole, TabletReport
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.records.replication import Configuration

TAKES_PART = (ReplicaRole.LEADER, ReplicaRole.FOLLOWER, ReplicaRole.CANDIDATE)
"""Roles of replicas that have their rows."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica, as its live server reports it."""

    seen: Seen
    report: TabletReport
    group: GroupReport

    @property
    def is_full(self) -> bool:
        """It has stopped because its disk is full, and will begin again by itself."""
        return self.group.role is ReplicaRole.FAILED and self.group.no_room

    @property
    def tries_again(self) -> bool:
        """It has failed, and its server begins it again by itself."""
        return self.group.role is ReplicaRole.FAILED and self.group.tries_again

    @property
    def comes_back(self) -> bool:
        """Nothing that it said makes it impossible."""
        return self.is_full or self.tries_again


@dataclass(frozen=True, slots=True)
class Group:
    """One tablet as its replicas report it."""

    tablet: TabletRecord
    configuration: Configuration
    """That of the catalog."""
    replicas: Mapping[ServerUuid, Replica]
    """Reported by live servers, members or not."""
    leader: Replica | None
    """Who leads now, as far as the reports tell."""
    hint: ServerUuid
    """Whom the newest word names as leader, heard or not; empty: nobody."""

    @property
    def newest(self) -> Configuration:
        """The newest committed configuration that anybody knows."""
        known = [r.group.configuration for r in self.replicas.values()]
        found = [c for c in known if c is not None]
        return max([self.configuration, *found], key=lambda c: c.op_id)

    @property
    def has_majority(self) -> bool:
        """Whether a majority of the voters says that it takes part."""
        voters = self.newest.voters
        part = [u for u in voters if u in self.replicas]
        taking = sum(self.replicas[u].group.role in TAKES_PART for u in part)
        return taking >= majority(len(voters))


def group_of(tablet: TabletRecord, reporters: Sequence[Seen]) -> Group:
    """What these live servers say of a tablet."""
    assert tablet.configuration is not None, f"{tablet.tablet_id} has no replicas"
    replicas: dict[ServerUuid, Replica] = {}
    leader: Replica | None = None
    hint, hint_term = ServerUuid(""), -1
    for seen in reporters:
        report = seen.reports.get(tablet.tablet_id)
        if report is None or report.group is None:
            continue
        replica = replicas[seen.server.uuid] = Replica(seen, report, report.group)
        if report.group.leader and report.term > hint_term:
            hint, hint_term = report.group.leader, report.term
        leads = report.group.role is ReplicaRole.LEADER
        if leads and (leader is None or leader.report.term < report.term):
            leader = replica
    if leader is not None and leader.report.term < hint_term:
        leader = None  # somebody follows another already
    return Group(tablet, tablet.configuration, replicas, leader, hint)


def is_at_rest(group: Group, wanted: int) -> bool:
    """Whether all is as it should be, and nothing is to be looked at before somebody says more."""
    tablet, leader = group.tablet, group.leader
    if tablet.state is not TabletState.RUNNING or tablet.move is not None:
        return False
    if leader is None or leader.group.is_changing:
        return False
    peers = group.configuration.peers
    if leader.group.configuration != group.configuration or len(peers) != wanted:
        return False
    if not all(peer.voter for peer in peers):
        return False
    if not all(peer.is_heard for peer in leader.group.peers):
        return False
    held = {u: r for u, r in group.replicas.items() if r.group.role is not ReplicaRole.TOMBSTONE}
    if len(held) != len(peers) or not all(peer.uuid in held for peer in peers):
        return False
    return all(r.group.role in TAKES_PART for r in held.values())


def absent_members(group: Group) -> tuple[ServerUuid, ...]:
    """The members by whose fault a tablet has no leader: those that do not take part; all, if all
    of them do, as they then do not reach each other."""
    uuids = tuple(peer.uuid for peer in group.configuration.peers)
    return tuple(uuid for uuid in uuids if not _takes_part(group, uuid)) or uuids


def problem_of(group: Group, liveness: Liveness, now: float) -> str:
    """Why nobody can be told who leads; empty if somebody can."""
    if group.leader is not None:
        return ""
    voters = group.configuration.voters
    missing = [u for u in voters if not _takes_part(group, u)]
    if len(voters) - len(missing) < majority(len(voters)):
        names = ", ".join(_name(group.configuration, liveness, uuid) for uuid in missing)
        return (
            f"{len(voters) - len(missing)} of its {len(voters)} replicas are there; "
            f"it waits for {names}"
        )
    return "its replicas elect a leader"


def _takes_part(group: Group, uuid: ServerUuid) -> bool:
    replica = group.replicas.get(uuid)
    return replica is not None and replica.group.role in TAKES_PART


def _name(configuration: Configuration, liveness: Liveness, uuid: ServerUuid) -> str:
    """How people call a member."""
    seen = liveness.newest(uuid)
    peer = configuration.peer(uuid)
    return seen.server.name if seen is not None else (peer.name if peer and peer.name else uuid)


def location_of(
    tablet: TabletRecord, liveness: Liveness, now: float, *, knows_reports: bool
) -> TabletLocation:
    """Where a RUNNING tablet's replicas are, and who leads as far as is known here.

    ``knows_reports``: this is the leader master, which servers tell of their replicas.
    """
    assert tablet.configuration is not None
    group = group_of(tablet, liveness.reporters(now).of.get(tablet.tablet_id, ()))
    replicas: list[ReplicaLocation] = []
    for peer in tablet.configuration.peers:
        seen = liveness.live_server(peer.uuid, now)
        address = seen.server.address if seen is not None else Address("")
        replicas.append(
            ReplicaLocation(peer.uuid, address, peer.voter, is_leader=peer.uuid == group.hint)
        )
    hinted = liveness.live_server(group.hint, now) if group.hint else None
    problem = problem_of(group, liveness, now) if knows_reports and hinted is None else ""
    address = hinted.server.address if hinted is not None else Address("")
    return TabletLocation(tablet, address, problem, tuple(replicas))
