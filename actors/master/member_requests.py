"""The leader master's part in a change of masters: checks an order, and does its one step.

Each order is idempotent and does one step only; the intent is in the replicated configuration (a
non-voter is to become a voter), where whichever master leads next finds it. An order that must wait
(for another change, or for a master that is still being brought up) says so with `TabletNotReady`,
which callers repeat. Design §7, §8.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from stelae.actors.master.operator_requests import carry_out
from stelae.actors.master.peers import MasterGroup
from stelae.actors.master.serving import ServingMaster
from stelae.actors.raft.replica import Replica
from stelae.consensus.raft.membership import ChangeKind, MemberChange
from stelae.coordinator.catalog.catalog import CATALOG_ID, CatalogBatch
from stelae.core.errors import (
    ConfigurationMismatch,
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    Rejected,
    TabletNotReady,
    Unavailable,
)
from stelae.core.ids import RequestId, ServerUuid
from stelae.core.messages.masters import (
    ADD_MASTER,
    LIST_MASTERS,
    MASTER_INFO,
    REMOVE_MASTER,
    AddMaster,
    AskMaster,
    MasterSet,
    MasterState,
    RemoveMaster,
)
from stelae.core.records.records import MasterMember, ServerKind
from stelae.core.rpc import Call, Empty, Handlers, Reply
from stelae.core.runtime import Runtime

NAME_MAX = 255
LOOK_TIMEOUT_S = 0.5


class MasterMembers:
    """Changes of the masters, by one that leads."""

    def __init__(
        self, runtime: Runtime, group: MasterGroup, replica: Callable[[], Replica]
    ) -> None:
        self._runtime = runtime
        self._group = group
        self._replica = replica

    def current(self) -> MasterSet:
        """The masters by the committed configuration; linearizable after a read barrier."""
        self._group.follow(self._replica().members)
        return MasterSet(self._replica().members.op_id, self._group.members)

    async def add(self, order: AddMaster, timeout_s: float) -> MasterSet:
        """Make a joining master a non-voter, unless it is a member already.

        Raises:
            InvalidArgument: it is another server, or one that cannot be added.
            TabletNotReady: another change is under way, the master cannot be reached, or its name
                is that of one which lives.
        """
        now = self.current()
        if any(member.uuid == order.uuid for member in now.members):
            return now
        if not order.name or len(order.name) > NAME_MAX or not order.name.isprintable():
            raise InvalidArgument(f"a master's name is 1 to {NAME_MAX} printable characters")
        live = {info.name for info, is_live, _ in self._group.seen() if is_live}
        if order.name in live or order.name == self._group.info.name:
            taken = f"has a master {order.name!r} already, and it lives"
            raise TabletNotReady(CATALOG_ID, f"not changed: the cluster {taken}")
        await self._look(order, min(LOOK_TIMEOUT_S, timeout_s / 2))
        self._require_quiet(now)
        change = MemberChange(ChangeKind.ADD, order.uuid, order.address, order.name)
        return await self._change(change, now, timeout_s)

    async def _look(self, order: AddMaster, timeout_s: float) -> None:
        """See that the server to be added is there, is a master, and waits for it."""
        own = self._group.info
        asker = AskMaster(own.uuid, own.address)
        try:
            reply = await self._runtime.peers.call(
                order.address, MASTER_INFO, asker, timeout_s=timeout_s
            )
        except InvalidArgument as error:
            raise InvalidArgument(f"at {order.address} is not a master: {error}") from None
        except (Unavailable, OutcomeUnknown) as error:
            raise TabletNotReady(CATALOG_ID, f"not given a master it cannot see: {error}") from None
        info, state = reply.body.server, reply.body.state
        if info.uuid != order.uuid or info.kind is not ServerKind.MASTER:
            raise InvalidArgument(
                f"at {order.address} is {info.name} {info.uuid}, not {order.uuid}"
            )
        if state is MasterState.STARTING:
            raise InvalidArgument(f"{order.name} is to found a group of its own: start it to join")

    def _require_quiet(self, now: MasterSet) -> None:
        """One at a time: nobody may be on the way. Raises TabletNotReady."""
        coming = [member for member in now.members if not member.voter]
        if coming:
            text = f"being copied to master {_called(coming[0])}; one change at a time"
            raise TabletNotReady(CATALOG_ID, text)

    async def remove(self, order: RemoveMaster, timeout_s: float) -> MasterSet:
        """Take a master out of the set, unless it is out already.

        Raises:
            InvalidArgument: there is none of that name, or several, or it is the last.
            TabletNotReady: another change is under way, or too few of the others answer.
            NotLeader: it was this one, which has handed its leadership over.
        """
        now = self.current()
        victim = find_master(now.members, order.master)
        if victim is None:
            return now
        voters = [member for member in now.members if member.voter]
        if voters == [victim]:
            raise InvalidArgument(f"master {_called(victim)} is the last one: it cannot be removed")
        replica = self._replica()
        if victim.voter:
            self._require_quiet(now)
        if victim.uuid == self._group.info.uuid:
            await replica.transfer_leadership(None, timeout_s)
            raise NotLeader(self._group.info.name, replica.term, replica.leader_address or "")
        change = MemberChange(ChangeKind.REMOVE, victim.uuid)
        return await self._change(change, now, timeout_s)

    async def _change(self, change: MemberChange, seen: MasterSet, timeout_s: float) -> MasterSet:
        try:
            await self._replica().change_configuration(
                change, expected=seen.op_id, timeout_s=timeout_s
            )
        except ConfigurationMismatch as error:  # what was checked above may not hold any more
            raise TabletNotReady(CATALOG_ID, f"changed by another: {error}") from None
        return self.current()


class MemberRequests:
    """The handlers of those who list the masters and change their set."""

    def __init__(self, master: ServingMaster, members: MasterMembers) -> None:
        self._master = master
        self._members = members

    def handlers(self) -> Handlers:
        return {
            LIST_MASTERS: self._on_list_masters,
            ADD_MASTER: self._on_add_master,
            REMOVE_MASTER: self._on_remove_master,
        }

    async def _on_list_masters(self, call: Call[Empty]) -> Reply[MasterSet]:
        await self._master.barrier(call.timeout_s)
        return Reply(self._members.current())

    async def _on_add_master(self, call: Call[AddMaster]) -> Reply[MasterSet]:
        return await self._carry_out(
            call.body.request,
            lambda: self._members.add(call.body, call.timeout_s),
            call.timeout_s,
        )

    async def _on_remove_master(self, call: Call[RemoveMaster]) -> Reply[MasterSet]:
        return await self._carry_out(
            call.body.request,
            lambda: self._members.remove(call.body, call.timeout_s),
            call.timeout_s,
        )

    async def _carry_out(
        self, request: RequestId, change: Callable[[], Awaitable[MasterSet]], timeout_s: float
    ) -> Reply[MasterSet]:
        """A change, which is then written down as done (or refused): a copy of the request that
        comes later changes nothing. One that has to wait is not, and may be told again."""
        master = self._master
        await master.barrier(timeout_s)
        if master.catalog.result_of(request) is None:
            try:
                await change()
            except Rejected as error:
                await master.lead().operations.refuse(request, error)
            else:
                draft = partial(CatalogBatch, request=request)
                await carry_out(master, request, draft, timeout_s)
        return Reply(self._members.current())


def find_master(members: tuple[MasterMember, ...], master: str) -> MasterMember | None:
    """The member of that UUID or name; None for a UUID that is no member's.

    Raises:
        InvalidArgument: no member has that name, or more than one.
    """
    for member in members:
        if member.uuid == ServerUuid(master):
            return member
    named = [member for member in members if member.name == master]
    if len(named) == 1:
        return named[0]
    known = ", ".join(_called(member) for member in members)
    if named:
        raise InvalidArgument(f"several masters are called {master!r}: give a UUID of {known}")
    if _is_uuid(master):
        return None
    raise InvalidArgument(f"there is no master {master!r}; there are {known}")


def _is_uuid(text: str) -> bool:
    return len(text) == 32 and all(digit in "0123456789abcdef" for digit in text)


def _called(member: MasterMember) -> str:
    return f"{member.name} ({member.uuid})" if member.name else member.uuid
