"""What operators ask of a cluster: retire and maintain tablet servers, move and spread replicas.

All of it is asked of the masters, who write it into their catalog and work on it whoever leads. So
every call here may be given up and made again: it then goes on to watch what was under way. Once an
order is acknowledged, none of the same client's that was acknowledged or given up before it changes
anything any more, however late a copy of it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from stelae.client.admin.quarantine import QuarantineReport, ask_all, servers_to_ask
from stelae.client.routing.masters import MastersClient
from stelae.client.routing.session import Session
from stelae.core.errors import InvalidArgument, RetryLater
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.catalog import (
    GET_TABLET_LOCATIONS,
    STATUS,
    GetStatus,
    GetTabletLocations,
)
from stelae.core.messages.operators import (
    GET_REBALANCING,
    GET_SERVER,
    MARK_SERVER,
    MOVE_REPLICA,
    REPLACE_SERVER,
    SET_REBALANCING,
    GetServer,
    MarkServer,
    MoveReplica,
    RebalancingState,
    ReplaceServer,
    ServerProgress,
    SetRebalancing,
)
from stelae.core.messages.replicas import (
    CANCEL_COPY,
    LIST_QUARANTINE,
    PURGE_QUARANTINE,
    TRANSFER_LEADERSHIP,
    CancelCopy,
    ListQuarantine,
    PurgeQuarantine,
    QuarantineList,
    TransferLeadership,
)
from stelae.core.records.records import ReplicaMove, ServerKind, TabletRecord
from stelae.core.rpc import Empty, Reply
from stelae.core.runtime import Runtime

CALL_TIMEOUT_S = 30.0
CHANGE_TIMEOUT_S = 60.0
"""For changes of servers, which may have to be brought up."""
WAIT_TIMEOUT_S = 24 * 3600.0
"""Of waiting for replicas to be copied elsewhere, which may be many and large."""
REBALANCE_AFTER_S = 60.0
"""Calm before each step where the operator does not say how long."""
COPY_HOLD_S = 300.0
"""For which a server does not begin a copy again that an operator cancelled."""
WATCH_S = 0.5
"""Between two looks at how far it is."""
AWAY_S = 120.0
"""For so long a server that is away is waited for while nothing comes of it."""

TAKES_PART = ("leader", "follower", "candidate")

Retiring: TypeAlias = Callable[[ServerProgress], None]
Moving: TypeAlias = "Callable[[MoveStage], None]"


@dataclass(frozen=True, slots=True)
class MoveStage:
    """How far the move of one replica is."""

    stage: str
    """waits, copies, catches up, lets go, done"""
    copied_bytes: int = 0
    copy_bytes: int = 0
    """0: not known, or nothing to copy."""
    why: str = ""
    """What it waits for, if that is known; empty: it goes on."""

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.stage}: {self.why}" if self.why else self.stage

    @property
    def is_done(self) -> bool:
        return self.stage == "done"


def stage_of(tablet: TabletRecord, move: ReplicaMove, status: Mapping[str, Any]) -> MoveStage:
    """Where a move is, by the catalog's record and a status document. Pure.

    Raises:
        RetryLater: the move was given up, or the tablet is no more.
    """
    configuration = tablet.configuration
    assert configuration is not None, "only groups have moves"
    if tablet.state.is_gone:
        raise RetryLater(f"tablet {tablet.tablet_id} is {tablet.state.value}: nothing is moved")
    has_target = configuration.peer(move.target) is not None
    if configuration.peer(move.source) is None and has_target:
        return MoveStage("done")
    if tablet.move != move:
        raise RetryLater(f"the move of tablet {tablet.tablet_id} was given up meanwhile")
    for copy in _copies_of(tablet, move, status):
        if copy["state"] == "copying":
            return MoveStage("copies", int(copy["copied_bytes"]), int(copy["bytes"]))
    there, why = configuration.peer(move.target), what_hinders(tablet, move, status)
    if there is None:
        return MoveStage("waits", why=why)
    return MoveStage("lets go" if there.voter else "catches up", why=why)


def _copies_of(
    tablet: TabletRecord, move: ReplicaMove, status: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Of the tablet, to where it moves."""
    wanted = (tablet.tablet_id, move.target)
    return [copy for copy in status["copies"] if (copy["tablet"], copy["uuid"]) == wanted]


def what_hinders(tablet: TabletRecord, move: ReplicaMove, status: Mapping[str, Any]) -> str:
    """Why a move does not go on just now, as far as the masters know; empty: nothing is known to
    be in its way. Pure."""
    shown = next((t for t in status["tablets"] if t["id"] == tablet.tablet_id), None)
    if shown is None or not shown["leader"]:
        return (shown["problem"] if shown else "") or "the tablet has no leader"
    target = next((s for s in status["servers"] if s["uuid"] == move.target), None)
    if target is None or target["state"] != "live":
        return f"{move.target if target is None else target['id']} is dead"
    if target["maintenance"]:
        return f"{target['id']} is in maintenance"
    for copy in _copies_of(tablet, move, status):
        if copy["problem"]:
            return f"the copy to {target['id']}: {copy['problem']}"
        if copy["state"] == "throttled":
            return f"{target['id']} receives as many copies as it may at a time"
    for replica in shown["replicas"]:
        if replica["uuid"] == move.target and replica.get("problem"):
            return f"the replica on {target['id']}: {replica['problem']}"
    away = [
        replica["server"]
        for replica in shown["replicas"]
        if replica["member"] == "voter" and replica["uuid"] != move.target
        if replica["role"] not in TAKES_PART or not replica["server_live"]
    ]
    return f"replicas on {', '.join(away)} do not take part" if away else ""


def describe_tservers(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tablet servers of a status document, by name, with how many tablets each leads. Pure."""
    leads: dict[str, int] = {}
    loads: dict[str, float] = {}
    """By UUID of those who lead, and by name of those who own."""
    for tablet in status["tablets"]:
        load = tablet.get("load_per_s") or 0.0
        if "replicas" not in tablet:
            loads[tablet["leader"]] = loads.get(tablet["leader"], 0.0) + load
            continue
        for replica in tablet["replicas"]:
            if replica["role"] == "leader" and replica["server"] == tablet["leader"]:
                leads[replica["uuid"]] = leads.get(replica["uuid"], 0) + 1
                loads[replica["uuid"]] = loads.get(replica["uuid"], 0.0) + load
    wanted = (
        "uuid", "state", "retiring", "maintenance", "replicas", "tablets", "address", "node",
        "memory_bytes", "memory_limit_bytes",
    )  # fmt: skip
    found = [
        {
            "name": server["id"],
            **{key: server[key] for key in wanted},
            "rack": server.get("rack", ""),
            "leads": leads.get(server["uuid"], 0),
            "owned": server["tablets"] - server["replicas"],
            "load_per_s": loads.get(server["uuid"], 0.0)
            + (loads.get(server["id"], 0.0) if server["state"] == "live" else 0.0),
        }
        for server in status["servers"]
        if server["kind"] == ServerKind.TSERVER.value
    ]
    return sorted(found, key=lambda server: (server["name"], server["uuid"]))


def what_keeps(status: Mapping[str, Any], uuid: str) -> str:
    """Why a server cannot get rid of its replicas, if it cannot for now; empty: it can. Pure."""
    homes = [
        server["uuid"]
        for server in status["servers"]
        if server["kind"] == ServerKind.TSERVER.value
        and server["state"] == "live"
        and not (server["retiring"] or server["maintenance"])
    ]
    held = [
        tablet
        for tablet in status["tablets"]
        if any(r["uuid"] == uuid and r["member"] != "none" for r in tablet.get("replicas", ()))
    ]
    short = [tablet["replicas_wanted"] for tablet in held if tablet["replicas_wanted"] > len(homes)]
    if short:
        return (
            f"{len(short)} of its tablets want {max(short)} servers, and {len(homes)} are live and "
            "neither retiring nor in maintenance: add tablet servers"
        )
    lost = [tablet for tablet in held if not tablet["leader"]]
    return f"{len(lost)} of its tablets have no leader" if lost else ""


class Waiting:
    """For a backup that is away: what it had is made anew elsewhere, if that is there."""

    def __init__(self, now: float) -> None:
        self._known: tuple[int, str] | None = None
        self._since = now

    def check(self, found: ServerProgress, now: float) -> None:
        """Raises RetryLater: for too long nothing has come of it."""
        known = (found.segments, found.problem)
        if found.is_live or not found.segments or known != self._known:
            self._known, self._since = known, now
        elif now - self._since >= AWAY_S:
            name = found.mark.name
            raise RetryLater(
                f"{name} is not let go of yet: {found.problem}. Start it; or, if it never returns, "
                "see what is missing with `stelae recover`, which gives it up with "
                f"--accept-loss --gone {name}. It stays to be retired whether anybody waits or not "
                "(--no-wait)"
            )


class OperatorCalls:
    """The part of `AsyncDatabase` that is for operators."""

    runtime: Runtime
    _masters: MastersClient
    _session: Session

    async def tservers(self, *, timeout: float = CALL_TIMEOUT_S) -> list[dict[str, Any]]:
        """The tablet servers: name, uuid, state, marks, and how much each has."""
        return describe_tservers(await self._status(timeout))

    async def retire_server(
        self,
        server: str,
        *,
        wait: bool = True,
        cancel: bool = False,
        progress: Retiring | None = None,
        timeout: float = WAIT_TIMEOUT_S,
    ) -> ServerProgress:
        """Move everything off a tablet server or backup (name or UUID), and give it nothing new.

        Replicas and indexlets are moved; tablets of tables with segments are closed and recovered
        elsewhere from their backups, one at a time. Once it has nothing left (``replicas``,
        ``tablets`` and ``indexlets`` are 0) it may be stopped for good. Tablets of tables with
        ``segments()`` cannot leave (``bound``): it then returns once nothing else is left, and
        ``problem`` names the tables. Of a backup all replicas of segments, and blobs of
        safekeepers, are made anew on others before they go (``segments`` are left). ``cancel``
        takes it back; what has moved stays where it is. ``progress`` is told of each look.

        Raises:
            InvalidArgument: there is no such server, or several; or without that backup the others
                are too few for some table.
            RetryLater: the time is over, or somebody took it back meanwhile; again is fine. Or it
                is a backup that is away, and for two minutes nothing came of it: the text says what
                helps.
        """
        clock = self.runtime.clock
        deadline, first = clock.monotonic() + timeout, min(timeout, CALL_TIMEOUT_S)
        waiting = Waiting(clock.monotonic())
        with self._session.request() as request:
            order = MarkServer(request, server, retiring=not cancel)
            found = await self._masters.call(MARK_SERVER, order, timeout_s=first)
        while True:
            if progress is not None:
                progress(found)
            owned = found.tablets - found.bound + found.indexlets
            left = found.replicas + found.segments + (owned if found.is_live else 0)
            if cancel or not wait or not left:
                return found
            waiting.check(found, clock.monotonic())
            uuid = found.mark.uuid
            left_s = deadline - clock.monotonic()
            if left_s <= 0:
                why = found.problem
                if found.replicas:
                    why = what_keeps(await self._status(CALL_TIMEOUT_S), uuid) or why
                what = "segments or blobs" if found.segments else "tablets or indexlets"
                text = f"{left} {what} are still on {found.mark.name}"
                raise RetryLater(f"{text}: {why}" if why else f"{text}; it goes on by itself")
            await clock.sleep(min(WATCH_S, left_s))
            look = GetServer(uuid)
            found = await self._masters.call(GET_SERVER, look, timeout_s=CALL_TIMEOUT_S)
            if not found.mark.retiring:
                raise RetryLater(f"{found.mark.name} is not to be retired any more")

    async def replace_server(
        self, uuid: ServerUuid, *, goes_on: bool = False, timeout: float = CALL_TIMEOUT_S
    ) -> None:
        """Fence a server that is away, by its UUID, so that another may have its name; permanent.

        ``goes_on``: it is replaced by an operator's word, until this is called again without it.
        Raises InvalidArgument: it lives, is in maintenance, or nobody knows it; RetryLater.
        """
        with self._session.request() as request:
            order = ReplaceServer(request, uuid, goes_on)
            await self._masters.call(REPLACE_SERVER, order, timeout_s=timeout)

    async def maintain_server(
        self, server: str, on: bool, *, timeout: float = CALL_TIMEOUT_S
    ) -> ServerProgress:
        """Begin or end maintenance of a tablet server (name or UUID).

        While it lasts the server gets nothing new, hands its leaderships over, and may be away
        without its replicas being made anew elsewhere. Raises `InvalidArgument`.
        """
        with self._session.request() as request:
            order = MarkServer(request, server, maintenance=on)
            return await self._masters.call(MARK_SERVER, order, timeout_s=timeout)

    async def move_replica(
        self,
        tablet: str,
        source: str,
        target: str,
        *,
        wait: bool = True,
        progress: Moving | None = None,
        timeout: float = WAIT_TIMEOUT_S,
    ) -> TabletRecord:
        """Move one replica of a tablet from one server to another (names or UUIDs).

        The target gets a copy and a vote before the source is let go; reads and writes go on. An
        empty ``target`` gives a move up that is under way, from ``source`` or, if that is empty,
        from wherever; what has been copied is let go of. Nothing happens if there is none.

        Raises:
            TabletNotFound, InvalidArgument: the text says which of the servers does not fit.
            RetryLater: the time is over, or it was given up meanwhile; again is fine.
        """
        deadline = self.runtime.clock.monotonic() + timeout
        first = min(timeout, CALL_TIMEOUT_S)
        with self._session.request() as request:
            order = MoveReplica(request, TabletId(tablet), source, target)
            reply = await self._masters.call(MOVE_REPLICA, order, timeout_s=first)
        if reply.is_given_up:
            raise RetryLater(f"the move of tablet {tablet} was given up meanwhile")
        record = reply.tablet
        move = record.move
        while wait and move is not None:
            seen = stage_of(record, move, await self._status(CALL_TIMEOUT_S))
            if progress is not None:
                progress(seen)
            if seen.is_done:
                break
            left_s = deadline - self.runtime.clock.monotonic()
            if left_s <= 0:
                text = f"the move of {tablet} {seen.text}, still"
                raise RetryLater(f"{text}; it goes on by itself until it is cancelled")
            await self.runtime.clock.sleep(min(WATCH_S, left_s))
            body = GetTabletLocations((record.tablet_id,))
            found = await self._masters.call(GET_TABLET_LOCATIONS, body, timeout_s=CALL_TIMEOUT_S)
            record = found.tablets[0].tablet
        return record

    async def step_down(
        self, tablet: str, target: str = "", *, timeout: float = CALL_TIMEOUT_S
    ) -> None:
        """Have the leader of a tablet with replicas hand over: to ``target`` (a server's name or
        UUID), or to whoever has most. Answered once it leads no more.

        Raises:
            TabletNotFound, InvalidArgument: it has no replicas, or none there.
            RetryLater: it has no leader just now, or leads nothing by now.
        """
        body = GetTabletLocations((TabletId(tablet),))
        found = await self._masters.call(GET_TABLET_LOCATIONS, body, timeout_s=timeout)
        where = found.tablets[0]
        if not where.tablet.is_group:
            raise InvalidArgument(f"tablet {tablet} has no replicas: nobody is elected for it")
        leader = next((r for r in where.replicas if r.is_leader and r.address), None)
        if leader is None:
            raise RetryLater(f"tablet {tablet} has no leader just now")
        to = ServerUuid("")
        if target:
            known = describe_tservers(await self._status(timeout))
            uuids = {s["uuid"] for s in known if target in (s["name"], s["uuid"])}
            to = next((r.uuid for r in where.replicas if r.uuid in uuids), to)
            if not to:
                raise InvalidArgument(f"no replica of tablet {tablet} is on {target!r}")
        order = TransferLeadership(TabletId(tablet), to)
        await self.runtime.peers.call(
            leader.address, TRANSFER_LEADERSHIP, order, timeout_s=timeout, destination=leader.uuid
        )

    async def cancel_copy(
        self,
        tablet: str,
        server: str,
        *,
        hold: float = COPY_HOLD_S,
        timeout: float = CALL_TIMEOUT_S,
    ) -> bool:
        """End the copy of a tablet that a server (name or UUID) receives; False: there was none.

        What it wrote is removed. The server refuses to begin anew for ``hold`` seconds: after that
        the tablet's leader has it copied again, unless it is no member any more by then. To give a
        move up for good, give up the move (`move_replica`). Raises `InvalidArgument`.
        """
        if not hold >= 0:
            raise InvalidArgument(f"hold={hold!r}: a number of seconds")
        status = await self._status(timeout)
        found = [each for each in servers_to_ask(status, server) if each.is_live]
        if len(found) != 1:
            raise InvalidArgument(f"{server!r}: {len(found)} live tservers are called so")
        order = CancelCopy(TabletId(tablet), hold)
        reply = await self.runtime.peers.call(
            found[0].address, CANCEL_COPY, order, timeout_s=timeout, destination=found[0].uuid
        )
        return reply.body.was_running

    async def rebalancing(
        self, after: float | None = None, *, timeout: float = CALL_TIMEOUT_S
    ) -> RebalancingState:
        """How replicas and leaders are spread over servers, as from now on if ``after`` is given.

        ``after``: so many seconds without anything to heal before each step; 0: never. It holds
        until it is said anew, whoever leads the masters. Raises `InvalidArgument`.
        """
        if after is None:
            return await self._masters.call(GET_REBALANCING, Empty(), timeout_s=timeout)
        with self._session.request() as request:
            order = SetRebalancing(request, after)
            return await self._masters.call(SET_REBALANCING, order, timeout_s=timeout)

    async def quarantine(
        self, *, server: str = "", tablet: str = "", timeout: float = CALL_TIMEOUT_S
    ) -> QuarantineReport:
        """What deleted replicas have left on the tablet servers, all or one (name or UUID).

        Servers that do not answer are in ``silent``. Raises `InvalidArgument`.
        """
        order = ListQuarantine(TabletId(tablet))

        async def ask(address: Address, uuid: ServerUuid) -> Reply[QuarantineList]:
            return await self.runtime.peers.call(
                address, LIST_QUARANTINE, order, timeout_s=timeout, destination=uuid
            )

        return await ask_all(await self._status(timeout), server, ask)

    async def purge_quarantine(
        self,
        *,
        server: str = "",
        tablet: str = "",
        older_than: float = 0.0,
        timeout: float = CALL_TIMEOUT_S,
    ) -> QuarantineReport:
        """Remove for good what deleted replicas have left for at least ``older_than`` seconds.

        Returns what was removed; servers that do not answer are in ``silent``, and it may be
        called again. Raises `InvalidArgument`.
        """
        if not older_than >= 0:
            raise InvalidArgument(f"older_than={older_than!r}: a number of seconds")
        order = PurgeQuarantine(TabletId(tablet), older_than)

        async def ask(address: Address, uuid: ServerUuid) -> Reply[QuarantineList]:
            return await self.runtime.peers.call(
                address, PURGE_QUARANTINE, order, timeout_s=timeout, destination=uuid
            )

        return await ask_all(await self._status(timeout), server, ask)

    async def _status(self, timeout_s: float) -> dict[str, Any]:
        reply = await self._masters.call(STATUS, GetStatus(), timeout_s=timeout_s)
        return msgspec.json.decode(reply.document, type=dict[str, Any])
