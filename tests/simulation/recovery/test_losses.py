"""Segments of which every replica is gone: the tablet says which and waits, and comes back by
itself, or without them once an operator has said so. Stories on whole clusters."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.client.routing.masters import MastersClient
from stelae.core.errors import InvalidArgument, RetryLater, StelaeError
from stelae.core.ids import ClientId, RequestId
from stelae.core.records.losses import ACCEPT_LOSS, VERSIONS_SKIPPED, AcceptLoss
from stelae.core.records.records import TabletState
from stelae.recovery import plan
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.recovery.loss_cluster import CALL_S, ROWS, LossFixture, spares_head, tell


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_it_says_what_is_missing_and_comes_back_by_itself(seed: int) -> None:
    """With the end of the log lost or not: nothing is served short, and one backup is enough."""

    async def story(here: LossFixture) -> None:
        before = await here.rows()
        pair = here.holders()[-1]
        await here.lose(pair)
        with pytest.raises(StelaeError):
            await here.table.get(1, timeout=3.0)
        problem = (await here.database.status())["tablets"][0]["problem"]
        assert "stays offline" in problem
        report = await here.database.losses()
        (loss,) = report.waiting
        assert set(pair) <= set(report.silent_backups)
        assert loss.is_end_lost
        await here.bring_back(pair[0])
        await here.until_served()
        assert await here.rows() == before
        assert not (await here.database.losses()).waiting

    tell(story, seed)


def test_a_lost_segment_is_told_with_what_it_held_and_given_up_by_name() -> None:
    """Just its rows are gone; it is on record who said so; what returns later changes nothing."""

    async def story(here: LossFixture) -> None:
        before = await here.rows()
        pair = spares_head(here)
        held = {name: here.held(name) for name in pair}
        await here.lose(pair)
        report = await here.database.losses()
        (loss,) = report.waiting
        assert not loss.is_end_lost
        assert loss.is_digest_known
        lost = {each.segment_id: each for each in loss.segments}
        assert set(lost) == set(held[pair[0]]) & set(held[pair[1]])
        assert all(each.rows > 0 and each.size_bytes > 0 for each in lost.values())
        await here.accept(report)
        await here.until_served()
        rows = await here.rows()
        assert len(before) - len(rows) == sum(each.rows for each in lost.values())
        top = max(each.next_version for each in lost.values())
        assert all(before[key] < top for key in before if key not in rows)
        assert all(before[key] == version for key, version in rows.items())
        (record,) = (await here.database.losses()).accepted
        assert (record.number, record.accepted_by, record.loss) == (1, "Ada", loss)
        assert here.tablet.kept is None, "the recovery is over"

        await here.bring_back(*pair)
        await here.until(lambda: not any(set(here.held(n)) & set(lost) for n in pair), "freed")
        assert await here.rows() == rows
        gone = next(key for key in before if key not in rows)
        await here.write([gone])
        assert here.versions[gone] > max(before.values())
        here.world.crash(here.owner)
        await here.until_served()
        assert set(await here.rows()) == {*rows, gone}

    tell(story)


def test_what_has_decayed_everywhere_is_told_and_given_up_while_all_else_is_served() -> None:
    """The owner says which rows cannot be read; the backups have seen by themselves that what they
    hold of them is no good."""

    async def story(here: LossFixture) -> None:
        before = await here.rows()
        decayed, *_ = here.holders()
        segment = sorted(set(here.held(decayed[0])) & set(here.held(decayed[1])))[0]
        former, term = here.owner, here.tablet.term
        here.world.crash(former, restart=False)
        for name in decayed:
            server = here.world.server(name)
            replica = server._holdings.find(here.tablet.tablet_id, segment)
            pieces = server._media[replica.medium].layout.pieces(replica.frames, 200, 1)
            ((offset, _),) = pieces
            here.world.nodes[name].disk.corrupt(f"{replica.medium}/frames", offset)
        await here.until(
            lambda: here.tablet.term > term and here.tablet.state is TabletState.RUNNING, "served"
        )
        here.world.restart(former)
        await here.until(lambda: "readable replica" in here.problem(), "it says so")
        unread = 0
        for key in range(0, ROWS, 3):
            try:
                await here.table.get(key, timeout=2.0)
            except RetryLater:
                unread += 1
        assert 0 < unread < len(range(0, ROWS, 3))

        report = await here.accept()
        (loss,) = report.waiting
        assert loss.is_served
        assert [each.segment_id for each in loss.segments] == [segment]
        await here.until_served()
        rows = await here.rows()
        assert len(before) - len(rows) == sum(each.rows for each in loss.segments)
        assert all(before[key] == version for key, version in rows.items())

    tell(story)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_without_the_end_of_the_log_versions_go_on_far_above(seed: int) -> None:
    """Nobody knows how many were given; and the old head that comes back is not read again."""

    async def story(here: LossFixture) -> None:
        before = await here.rows()
        pair = here.holders()[-1]
        await here.lose(pair)
        await here.accept()
        await here.until_served()
        rows = await here.rows()
        assert 0 < len(rows) < len(before)
        assert all(before[key] == version for key, version in rows.items())
        await here.bring_back(*pair)
        await asyncio.sleep(5.0)
        assert await here.rows() == rows
        await here.write([ROWS])
        assert here.versions[ROWS] > VERSIONS_SKIPPED
        here.world.crash(here.owner)
        await asyncio.sleep(1.0)
        await here.until_served()
        assert await here.rows() == {**rows, ROWS: here.versions[ROWS]}

    tell(story, seed)


def test_everything_gone_for_good_leaves_an_empty_tablet() -> None:
    """All backups lost their disks: after the word for it the table can be written to."""

    async def story(here: LossFixture) -> None:
        backups = list(here.cluster.backups)
        await here.lose(backups, for_good=True)
        await here.bring_back(*backups)
        report = await here.database.losses()
        (loss,) = report.waiting
        assert not loss.is_digest_known
        assert loss.kept_segments == 0
        await here.accept(report)
        await here.until_served()
        assert await here.rows() == {}
        await here.write([1])
        assert here.versions[1] > VERSIONS_SKIPPED

    tell(story)


def test_no_version_is_given_twice_however_often_the_end_of_a_log_is_lost() -> None:
    """Each time what is left may end where it ended before: who remembers a version, as a client's
    condition or in an archive, must not take another row for it."""

    async def story(here: LossFixture) -> None:
        seen = dict(here.versions)
        for number in range(3):
            backups = list(here.cluster.backups)
            await here.lose(backups, for_good=True)
            await here.bring_back(*backups)
            await here.accept()
            await here.until_served()
            await here.write([number])
            assert here.versions[number] > max(seen.values())
            seen = {**seen, -1 - number: here.versions[number]}

    tell(story)


def test_a_second_loss_on_the_way_is_told_and_accepted_in_its_turn() -> None:
    """What was to be kept is gone as well, before the tablet was handed over."""

    async def story(here: LossFixture) -> None:
        pair = spares_head(here)
        owner = here.owner
        await here.lose(pair)
        for name in here.cluster.tservers:
            here.world.partition([name], here.cluster.backups)  # nobody can read them now
        report = await here.accept()
        rest = [name for name in here.cluster.backups if name not in pair]
        for name in rest:
            here.world.crash(name, lose_disk=True, restart=False)
        here.world.network.unblock_all()
        await here.bring_back(*rest)
        await here.until(lambda: here.tablet.kept is not None, "the loss stands in its record")
        await asyncio.sleep(3.0)
        second = await here.database.losses()
        assert second.fingerprint != report.fingerprint
        (loss,) = second.waiting
        assert loss.kept_segments == 0
        await here.accept(second)
        await here.until_served()
        assert await here.rows() == {}
        assert len((await here.database.losses()).accepted) == 2
        assert owner in here.cluster.tservers

    tell(story)


def test_nothing_is_given_up_that_is_not_lost_or_not_as_it_was_shown() -> None:
    """Refused: with nothing lost, with another report's word, of another tablet, by nobody."""

    async def story(here: LossFixture) -> None:
        report = await here.database.losses()
        with pytest.raises(InvalidArgument, match="nothing is lost"):
            await here.accept(report)
        pair = here.holders()[-1]
        await here.lose(pair)
        with pytest.raises(InvalidArgument, match="look again"):
            await here.accept(report)
        report = await here.database.losses()
        with pytest.raises(InvalidArgument, match="nothing is lost of tablet"):
            await here.database.accept_loss(report, by="Ada", tablets=["other"])
        with pytest.raises(InvalidArgument, match="who accepts"):
            await here.database.accept_loss(report, by=" ")
        await here.bring_back(*pair)
        await here.until_served()
        with pytest.raises(InvalidArgument, match="nothing is lost"):
            await here.accept(report)
        assert not (await here.database.losses()).accepted

    tell(story)


def test_an_acceptance_is_carried_out_once() -> None:
    """A copy of the request that comes late gives the same answer, and changes nothing."""

    async def story(here: LossFixture) -> None:
        await here.lose(here.holders()[-1])
        report = await here.database.losses()
        gone = tuple(backup.uuid for backup in report.silent)
        order = AcceptLoss(RequestId(ClientId("c"), 1, 1), report.fingerprint, "Ada", gone=gone)
        masters = MastersClient(here.database.runtime, list(here.cluster.addresses.values()))
        first = await masters.call(ACCEPT_LOSS, order, timeout_s=CALL_S)
        await here.until_served()
        again = await masters.call(ACCEPT_LOSS, order, timeout_s=CALL_S)
        assert first == again
        assert len(again.records) == 1
        assert len((await here.database.losses()).accepted) == 1

    tell(story)


def test_masters_that_change_in_the_midst_go_on_with_it() -> None:
    """The word is in the catalog: whoever leads next recovers what is kept."""

    async def story(here: LossFixture) -> None:
        pair = spares_head(here)
        await here.lose(pair)
        report = await here.database.losses()
        lost = sum(each.rows for each in report.waiting[0].segments)
        before = len(here.versions)
        await here.accept(report)
        leader = here.cluster.leader()
        assert leader is not None
        here.world.crash(leader)
        await asyncio.sleep(1.0)
        await here.until_served()
        assert len(await here.rows()) == before - lost

    tell(story)


def test_a_plan_that_forgets_what_was_given_up_is_caught() -> None:
    """The stories see it: a stale replica that comes back in time would end the log."""

    def forgetful(tablet: Any, media: int, inventories: Any) -> Any:
        return real(msgspec.structs.replace(tablet, kept=None), media, inventories)

    real = plan.plan_recovery

    async def story(here: LossFixture) -> None:
        pair = here.holders()[-1]
        await here.lose(pair)
        for name in here.cluster.tservers:
            here.world.partition([name], here.cluster.backups)
        await here.accept()
        await here.bring_back(*pair)
        here.world.network.unblock_all()
        await here.until_served()
        assert ROWS - 1 not in await here.rows(), "the old head was read again"

    tell(story)
    planted = patch("stelae.recovery.inherited.plan_recovery", forgetful)
    with planted, pytest.raises(SimulationFailure, match="was read again"):
        tell(story)
