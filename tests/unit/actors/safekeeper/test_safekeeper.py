"""A safekeeper's calls, each over a real server in the simulated world.

Its id and the masters: `test_safekeeper_ids`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.actors.safekeeper import acceptor as safekeeper_timeline
from stelae.actors.safekeeper.acceptor import REPLY_WAIT_S
from stelae.actors.safekeeper.timeline_store.log import TimelineLog
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.consensus.wal.messages import (
    WAL_FETCH,
    WAL_TO_ACCEPTOR,
    FetchedEntries,
    FetchEntries,
    ProposerMail,
    Refusal,
    RefusalReason,
    ToAcceptor,
    ToProposer,
    WalAppendResponse,
    WalVoteResponse,
)
from stelae.core.errors import (
    ConfigurationMismatch,
    CorruptData,
    InvalidArgument,
    StaleTerm,
    StelaeError,
    TabletNotFound,
    TabletNotReady,
    TabletTombstoned,
    WrongServer,
)
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.safekeepers import (
    PING,
    PUT_CONFIGURATION,
    Ping,
    PutConfiguration,
    TimelinePresence,
)
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import LogPosition, SafekeeperId
from stelae.simulation import Options
from tests.unit.actors.safekeeper.safekeeper_checks import ME, NONE, given, status
from tests.unit.actors.safekeeper.safekeeper_world import (
    FILE_BYTES,
    OTHER,
    SETTINGS,
    TIMELINE,
    SafekeepersWorld,
    entry,
    members,
    run,
)

SYNC_S = 0.01


# ---- configurations -----------------------------------------------------------------------------


def test_a_configuration_creates_once_and_the_higher_one_wins() -> None:
    """Without ``create`` nothing is made; a lower one is answered with what is known; the term
    rises with that of the configuration that holds, and is durable with it."""

    async def scenario(here: SafekeepersWorld) -> None:
        assert await here.put(1, members(1), create=False) is None
        first = await here.put(1, members(1))
        assert first is not None
        assert (first.conf, first.position, first.term) == (members(1), NONE, 0)
        joint = members(2, 1, 2, 4)
        second = await here.put(1, joint, min_term=7, create=False)
        assert second is not None
        assert (second.conf, second.term) == (joint, 7)
        late = await here.put(1, members(1), min_term=9)
        assert late == second, "a lower one changes nothing, and is told of the higher"
        await here.restart(1)
        assert await here.insist(lambda: here.put(1, members(1), create=False)) == second

    run(scenario)


def test_of_one_generation_there_is_one_configuration() -> None:
    """Two of the same number are somebody's error: nothing is done."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        with pytest.raises(ConfigurationMismatch):
            await here.put(1, members(1, 1, 2))
        with pytest.raises(InvalidArgument, match="no member"):
            await here.put(3, members(1, 1, 2))

    run(scenario)


# ---- proposers ----------------------------------------------------------------------------------


def test_what_was_acknowledged_and_voted_is_there_after_a_crash() -> None:
    """Greeting, vote, elected, append; then another proposer learns of all of it."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session = here.voice.session(1, "a", 5)
        await session.lead([])
        log = [entry(5, n) for n in range(1, 9)]
        answer = await session.append(log, 6)
        assert isinstance(answer, WalAppendResponse)
        assert (answer.flush_lsn, answer.commit_lsn) == (8, 6)
        await here.restart(1)
        refused = await session.append([entry(5, 9)])
        assert isinstance(refused, Refusal)
        assert refused.reason is RefusalReason.SESSION
        rival = here.voice.session(1, "b", 5)
        await rival.greet()
        twice = await rival.vote()
        assert isinstance(twice, Refusal), "one vote in a term"
        rival.term = 6
        vote = await rival.vote()
        assert isinstance(vote, WalVoteResponse)
        assert vote.position == LogPosition(5, 8)

    run(scenario)


def test_mail_for_somebody_else_is_refused() -> None:
    """By server UUID, by safekeeper id, and by timeline."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        meant = here.voice.session(1, "a", 1)
        meant.sequence = 1
        wrong = msgspec.structs.replace(meant.request([]), safekeeper=SafekeeperId(2))
        with pytest.raises(InvalidArgument, match="mail for safekeeper 2"):
            await here.voice.tell(1, wrong)
        with pytest.raises(TabletNotFound):
            await here.voice.session(1, "a", 1, timeline=OTHER).greet()
        address = here.server(1).info.address
        with pytest.raises(WrongServer):
            await here.client.peers.call(
                address, PING, Ping(ME), timeout_s=1.0, destination=here.server(2).info.uuid
            )

    run(scenario)


@pytest.mark.parametrize("is_slow", [False, True])
def test_answers_are_in_the_reply_for_who_takes_them_there_unless_the_disk_is_slow(
    is_slow: bool,
) -> None:
    """And not in a mail too; whoever does not ask for that gets mail, as ever; and so does who has
    to wait long for the disk, once it is done: in either case all that is told is durable."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session, voice = here.voice.session(1, "a", 1), here.voice
        server, peers = here.server(1).info, here.client.peers

        async def told(message: ToAcceptor, *, takes_replies: bool) -> Sequence[ToProposer]:
            mail = ProposerMail(
                TIMELINE.tablet_id, peers.address, (message,), takes_replies=takes_replies
            )
            reply = await peers.call(
                server.address, WAL_TO_ACCEPTOR, mail, timeout_s=1.0, destination=server.uuid
            )
            return reply.body.messages

        await session.lead([])
        heard = list(voice.heard)
        (answer,) = await told(session.request([]), takes_replies=True)
        assert isinstance(answer, WalAppendResponse)
        assert answer.sequence == session.sequence - 1
        await asyncio.sleep(1.0)
        assert voice.heard == heard, "told once"
        assert not await told(session.request([]), takes_replies=False)
        await asyncio.sleep(1.0)
        assert len(voice.heard) == len(heard) + 1
        both = [session.request([entry(1, 1)]), session.request([entry(1, 2)])]
        replies = await asyncio.gather(*(told(each, takes_replies=True) for each in both))
        in_replies = [answer for reply in replies for answer in reply]
        await asyncio.sleep(2.0)
        in_mail = voice.heard[len(heard) + 1 :]
        appended, others = (in_mail, in_replies) if is_slow else (in_replies, in_mail)
        assert not others, "told once"
        ends = [each.flush_lsn for each in appended if isinstance(each, WalAppendResponse)]
        assert sorted(ends) == [1, 2]
        timelines = here.server(1).timelines.store(TIMELINE.tablet_id).timelines
        assert timelines[TIMELINE.tablet_id].flush_lsn == 2

    wait_s = SYNC_S / 2 if is_slow else REPLY_WAIT_S
    with patch.object(safekeeper_timeline, "REPLY_WAIT_S", wait_s):
        run(scenario, options=Options(sync_mean_s=SYNC_S, sync_min_s=SYNC_S))


def test_mail_that_a_timeline_cannot_carry_out_is_answered_all_the_same() -> None:
    """With nothing, and not only after the longest wait: what it waited for will never be."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session = here.voice.session(1, "a", 1)
        await session.lead([])
        with patch.object(Timeline, "append", side_effect=OSError("the disk is gone")):
            mail = ProposerMail(
                TIMELINE.tablet_id,
                here.client.peers.address,
                (session.request([entry(1, 1)]),),
                takes_replies=True,
            )
            began_s = here.client.clock.monotonic()
            server = here.server(1).info
            reply = await here.client.peers.call(
                server.address, WAL_TO_ACCEPTOR, mail, timeout_s=1.0, destination=server.uuid
            )
        assert reply.body.messages == ()
        assert here.client.clock.monotonic() - began_s < REPLY_WAIT_S / 2

    run(scenario)


def test_appends_that_come_during_a_sync_share_the_next_one() -> None:
    """Group commit: forty appends, sent one after the other without waiting, cost a few syncs."""
    syncs = 0
    sync = TimelineLog._sync

    async def counted(self: TimelineLog, file: Any) -> None:
        nonlocal syncs
        syncs += 1
        await sync(self, file)

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session = here.voice.session(1, "a", 1)
        await session.lead([])
        requests = [session.request([entry(1, n, 8)]) for n in range(1, 41)]
        for request in requests[:-1]:
            await here.voice.tell(1, request)
        answer = await here.voice.ask(1, requests[-1])
        assert isinstance(answer, WalAppendResponse)
        assert answer.flush_lsn == 40

    with patch.object(TimelineLog, "_sync", counted):
        run(scenario, options=Options(sync_mean_s=0.05, sync_min_s=0.05))
    assert 0 < syncs < 15


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("deleted", TabletTombstoned),
        ("made anew", TabletNotReady),
        ("failed", TabletNotReady),
        ("cut", None),
    ],
)
def test_what_is_read_of_a_timeline_that_changes_meanwhile_is_not_handed_out(
    what: str, error: type[StelaeError] | None
) -> None:
    """Another timeline, or none, counts by now; of one whose log was cut nothing is told."""
    read, tablet_id = Timeline.read, TIMELINE.tablet_id

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session, server = here.voice.session(1, "a", 1), here.server(1)
        await session.lead([])
        await session.append([entry(1, n) for n in range(1, 6)])

        async def fetch() -> FetchedEntries:
            call = FetchEntries(tablet_id, 1, 1, 1, 5, 1 << 20)
            found = await here.client.peers.call(
                server.info.address, WAL_FETCH, call, timeout_s=2.0, destination=server.info.uuid
            )
            return found.body

        async def slow(self: Timeline, first: int, last: int, size_bytes: int) -> list[Entry]:
            entries = list(await read(self, first, last, size_bytes))
            store = server.timelines.store(tablet_id)
            if what == "failed":
                self.fail(OSError("the disk is gone"))
            elif what == "cut":
                assert await server.timelines.switch(tablet_id, members(1), 2, 1.0) is not None
            else:
                await store.delete(tablet_id, members(2, 2, 3))
            if what == "made anew":
                await store.create(tablet_id, members(3))
            assert len(entries) == 5
            return entries

        assert len((await fetch()).entries) == 5
        with patch.object(Timeline, "read", slow):
            if error is None:
                assert not (await fetch()).entries, "they are of a term that has ended"
                return
            with pytest.raises(error):
                await fetch()

    run(scenario)


def test_a_full_queue_is_answered_as_overload_and_nothing_of_it_is_taken() -> None:
    """Bounded in messages, for each timeline; what was taken is carried out."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session = here.voice.session(1, "a", 1)
        await session.lead([])
        with patch.object(safekeeper_timeline, "MESSAGES_MAX", 3):
            requests = [session.request([entry(1, n)]) for n in range(1, 30)]
            answers = [await given(here.voice.tell(1, request)) for request in requests]
        taken = answers.index("Overloaded")
        assert 0 < taken < 6
        await asyncio.sleep(2.0)
        found = await status(here, 1)
        assert found.flush_lsn == taken

    run(scenario, options=Options(sync_mean_s=0.3, sync_min_s=0.3))


# ---- exclusion ----------------------------------------------------------------------------------


def test_an_exclusion_leaves_a_tombstone_and_refuses_members_and_the_outdated() -> None:
    """Also of what never was here; for ever, nobody asks for generations."""

    async def scenario(here: SafekeepersWorld) -> None:
        async def exclude(n: int, generation: int, *ids: int, forever: bool = False) -> None:
            await here.ports.exclude(
                SafekeeperId(n), TIMELINE, members(generation, *ids), forever=forever, timeout_s=1.0
            )

        await here.put(1, members(3))
        with pytest.raises(InvalidArgument, match="is a member"):
            await exclude(1, 4, 1, 2)
        with pytest.raises(StaleTerm):
            await exclude(1, 2, 2, 3)
        await exclude(1, 4, 2, 3)
        await exclude(1, 4, 2, 3)
        with pytest.raises(TabletTombstoned):
            await status(here, 1)
        await here.restart(1)
        assert await here.insist(lambda: here.put(1, members(9))) is None, "only a pull may"
        await exclude(2, 4, 1, 3)
        assert await here.put(2, members(5)) is None
        await here.put(3, members(3))
        await exclude(3, 4, 1, 2, 3, forever=True)
        with pytest.raises(TabletTombstoned):
            await status(here, 3)

    run(scenario)


# ---- what there is ------------------------------------------------------------------------------


def test_one_damaged_timeline_stops_only_itself() -> None:
    """The others serve; it is listed with the reason, and nothing brings it back but a deletion
    for ever."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        await here.put(1, members(1), timeline=OTHER)
        control = f"timelines/{TIMELINE.tablet_id}"
        disk = here.server(1)._runtime.disk
        await here.within(1, disk.replace(control, b"rubbish"))
        await here.restart(1)
        held = [each async for each in here.ports.timelines(ME, timeout_s=1.0)]
        assert [each.presence for each in held] == [
            TimelinePresence.FAILED,
            TimelinePresence.RESIDENT,
        ]
        assert control in held[0].problem
        with pytest.raises(CorruptData):
            await here.put(1, members(2))
        assert await here.put(1, members(2), timeline=OTHER) is not None
        await here.ports.exclude(ME, TIMELINE, members(9), forever=True, timeout_s=1.0)
        left = [each.tablet_id async for each in here.ports.timelines(ME, timeout_s=1.0)]
        assert left == [OTHER.tablet_id]

    run(scenario)


def test_a_status_says_where_the_timeline_stands_and_lists_come_in_pages() -> None:
    """Term, end, commit, configuration; pages follow one another without gap or double."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session = here.voice.session(1, "a", 5)
        await session.lead([])
        await session.append([entry(5, n) for n in range(1, 5)], 3)
        found = await status(here, 1)
        expected = (members(1), 5, 5, 4, 3)
        what = (found.configuration, found.term, found.last_log_term)
        assert (*what, found.flush_lsn, found.commit_lsn) == expected
        assert found.log_bytes > 4 * 60
        timelines = [
            msgspec.structs.replace(TIMELINE, tablet_id=TabletId(f"t{n:02}")) for n in range(9)
        ]
        for timeline in timelines:
            await here.put(1, members(1), timeline=timeline)
        with patch("stelae.actors.master.leader.migration_ports.LIST_MAX", 3):
            held = [each.tablet_id async for each in here.ports.timelines(ME, timeout_s=1.0)]
        assert held == sorted([TIMELINE.tablet_id, *(each.tablet_id for each in timelines)])

    run(scenario)


def test_a_timeline_at_rest_keeps_how_far_it_is_committed() -> None:
    """So that whoever starts from its disk, or copies it, knows as much."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session = here.voice.session(1, "a", 5)
        await session.lead([])
        await session.append([entry(5, n) for n in range(1, 5)], 3)
        await asyncio.sleep(5 * SETTINGS.safekeeper_sweep_s)
        await here.restart(1)
        assert (await here.insist(lambda: status(here, 1))).commit_lsn == 3

    run(scenario)


def test_what_backups_hold_is_trimmed() -> None:
    """By whole files, up to the horizon that the proposer names."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session = here.voice.session(1, "a", 1)
        await session.lead([])
        for n in range(1, 21):
            await session.append([entry(1, n)], n)
        before = (await status(here, 1)).log_bytes
        await session.append([], 20, 15)
        await session.append([], 20, 15)
        await asyncio.sleep(0.5)
        found = await status(here, 1)
        assert 0 < found.base_lsn <= found.horizon_lsn == 15
        assert found.log_bytes < before
        await here.restart(1)
        assert (await here.insist(lambda: status(here, 1))).flush_lsn == 20

    run(scenario)


def test_a_full_disk_refuses_and_goes_on_once_there_is_room() -> None:
    """What could not be written was not acknowledged; the acceptor begins anew from the disk."""

    async def scenario(here: SafekeepersWorld) -> None:
        await here.put(1, members(1))
        session = here.voice.session(1, "a", 1)
        await session.lead([])
        await session.append([entry(1, 1)])
        disk = here.world.nodes["sk1"].disk
        disk.full = True
        larger = entry(1, 2, FILE_BYTES // 2)  # than what zeros were written ahead for
        await here.voice.tell(1, session.request([larger]))
        await asyncio.sleep(1.0)
        assert (await status(here, 1)).flush_lsn == 1
        disk.full = False
        again = here.voice.session(1, "a", 2)
        await again.lead([entry(1, 1)])
        answer = await again.append([entry(2, 2)])
        assert isinstance(answer, WalAppendResponse)
        assert answer.flush_lsn == 2

    run(scenario)


def test_calls_name_the_server_by_its_uuid() -> None:
    """Who took over an address is not taken for the safekeeper that was there."""

    async def scenario(here: SafekeepersWorld) -> None:
        address = here.server(1).info.address
        with pytest.raises(WrongServer):
            await here.client.peers.call(
                address,
                PUT_CONFIGURATION,
                PutConfiguration(TIMELINE, members(1), create=True),
                timeout_s=1.0,
                destination=ServerUuid("d" * 32),
            )
        assert here.server(1).timelines.held == []

    run(scenario)
