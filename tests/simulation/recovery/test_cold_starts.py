"""Cold starts without some machines: who is missing is known, and is waited for. Many seeds, and
stories on whole clusters."""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.errors import InvalidArgument, RetryLater, StelaeError, TooManyReplicas
from stelae.core.records.losses import LossReport
from stelae.core.records.records import BackupRecord, TabletState
from stelae.core.schema.durability import segments
from stelae.simulation.runner import find_bug, run_seed, run_seeds
from stelae.simulation.scenarios import load_scenario
from stelae.simulation.world.options import Limits
from tests.simulation.recovery.loss_cluster import CALL_S, LossFixture, tell
from tests.simulation.recovery.planted_cold_starts import PLANTED
from tests.simulation.wal.wal_cluster import SCHEMA

SEEDS = 2
BUG_SEEDS = 60
NEVER = "has not reported since this leader master began"


def test_cold_starts_without_some_backups_lose_nothing() -> None:
    """The kept seeds and a fixed few."""
    run_seeds(load_scenario("cold_starts"), SEEDS)


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_of_the_register_is_found(bug: str) -> None:
    """The scenario can see it; the same seed is fine without it."""
    scenario = load_scenario("cold_starts")
    outcome = find_bug(scenario, bug, BUG_SEEDS)
    assert outcome.failure is not None
    found = outcome.failure.error
    assert isinstance(found, AssertionError | StelaeError), "the planting itself is broken"
    assert run_seed(scenario, outcome.seed).failure is None


# ---- stories ----------------------------------------------------------------------------------


async def until_missed(here: LossFixture) -> LossReport:
    """The table's tablet waits for what is not there."""
    await here.until(
        lambda: here.cluster.leader() and here.tablet.state is TabletState.RECOVERING, "a recovery"
    )
    for _ in range(200):
        try:
            report = await here.database.losses()
        except RetryLater:
            continue
        if report.waiting and len({*here.cluster.backups} - {*report.silent_backups}) == 3:
            return report
        await asyncio.sleep(0.1)
    raise AssertionError("nothing is missing")


def known(here: LossFixture) -> dict[str, BackupRecord]:
    """The register, by name."""
    return {each.name: each for each in here.leader.catalog.backups.known.values()}


@pytest.mark.parametrize("snapshot_entries", [2, 1000])
def test_backups_that_no_master_has_heard_are_named_and_waited_for(snapshot_entries: int) -> None:
    """By the report, the status and the check; to accept is refused with their names and the way
    out, until each is said to be gone. One that returns brings everything back."""

    async def story(here: LossFixture) -> None:
        before = await here.rows()
        pair = sorted(here.holders()[-1])
        await here.start_cold(*pair)
        report = await until_missed(here)
        assert [(each.name, each.silent_s) for each in report.silent] == [(n, -1) for n in pair]
        assert all(NEVER in each.words and each.machine in each.words for each in report.silent)
        with pytest.raises(InvalidArgument, match=rf"{pair[0]} on .*{NEVER}.*{pair[1]}.*--gone"):
            await here.database.accept_loss(report, by="Ada")
        with pytest.raises(InvalidArgument, match=rf"{pair[1]} on .*--gone {pair[1]}"):
            await here.database.accept_loss(report, by="Ada", gone=pair[:1])
        there = next(n for n in here.cluster.backups if n not in pair)
        with pytest.raises(InvalidArgument, match=f"{there} is not gone: it is live"):
            await here.database.accept_loss(report, by="Ada", gone=[*pair, there])
        status = await here.database.status()
        assert [each["id"] for each in status["backups_not_heard"]] == pair
        found = {each.subject: each.text for each in (await here.database.check()).problems}
        assert all("was not heard" in found[name] for name in pair)
        await here.bring_back(pair[1])
        await here.until_served()
        assert await here.rows() == before
        assert not (await here.database.losses()).accepted

    tell(story, limits=Limits(snapshot_entries=snapshot_entries))


def test_a_machine_that_burned_down_is_given_up_by_name() -> None:
    """It is counted on no more from then on, and stays on record; what comes back all the same is a
    backup as any other, and changes nothing of what was given up."""

    async def story(here: LossFixture) -> None:
        before = await here.rows()
        pair = sorted(here.holders()[-1])
        first = known(here)
        await here.start_cold(*pair)
        report = await until_missed(here)
        (record,) = await here.database.accept_loss(
            report, by="Ada", gone=[pair[0], first[pair[1]].uuid, "a typing error"]
        )
        assert record.gone == tuple(f"{name} ({first[name].uuid})" for name in pair)
        assert not {*pair} & {*known(here)}
        await here.until_served()
        rows = await here.rows()
        assert {key for key in before if before[key] == rows.get(key)} == {*rows} != {*before}
        assert not (await here.database.status())["backups_not_heard"]
        await here.bring_back(*pair)
        await here.until(lambda: {*pair} <= {*known(here)}, "registered anew")
        assert await here.rows() == rows

    tell(story)


def test_a_start_of_what_is_known_writes_nothing() -> None:
    """What changes at each start is not in the register."""

    async def story(here: LossFixture) -> None:
        def is_known() -> bool:
            return sorted(known(here)) == here.cluster.backups

        await here.until(is_known, "all are registered")
        before = known(here)
        (replica,) = here.leader._replicas.values()
        index = replica.status().commit_index
        spare = next(n for n in here.cluster.backups if not any(n in h for h in here.holders()))
        here.world.crash(spare)
        await asyncio.sleep(5.0)
        assert replica is next(iter(here.leader._replicas.values())), "the same master leads"
        assert replica.status().commit_index == index
        await here.start_cold()
        await here.until(is_known, "the register is read back")
        await here.until_served()
        assert known(here) == before

    tell(story, backups=9)


def test_a_table_waits_for_known_backups_and_is_refused_for_want_of_others() -> None:
    """The first may be had at any moment; the second is for the operator to change."""

    async def story(here: LossFixture) -> None:
        count = len(here.cluster.backups)
        await here.start_cold(here.cluster.backups[0])
        await asyncio.sleep(35.0)
        for more, error in ((0, RetryLater), (1, TooManyReplicas)):
            with pytest.raises(error, match=f"needs {count + more} .*backups with medium 'disk'"):
                await here.database.create_table(
                    "wide",
                    SCHEMA,
                    key="id",
                    durability=segments(*["disk"] * (count + more)),
                    timeout=5.0,
                )
        await here.bring_back(here.cluster.backups[0])
        await here.database.create_table(
            "wide", SCHEMA, key="id", durability=segments(*["disk"] * count), timeout=CALL_S
        )

    tell(story)


def test_a_backup_that_is_away_is_forgotten_once_it_is_retired_and_all_is_whole() -> None:
    """By its name, though this leader master never heard it. One with a new disk takes the place of
    the former one, and is not in its place while anything is missing."""

    async def story(here: LossFixture) -> None:
        one, two = here.holders()[-1]
        await here.start_cold(one)
        await here.until_served()
        assert one in known(here)
        found = await here.database.retire_server(one, wait=False)
        assert (found.is_live, found.mark.retiring) == (False, True)
        await here.until(lambda: one not in known(here), "forgotten", limit_s=100.0)

        uuid = known(here)[two].uuid
        here.world.crash(two, lose_disk=True)
        await here.until(lambda: known(here)[two].uuid != uuid, "registered with another uuid")
        assert uuid in here.leader.catalog.backups.known
        register = here.leader.catalog.backups
        await here.until(lambda: uuid not in register.known, "forgotten", limit_s=100.0)
        assert here.cluster.is_whole(1, 2)

    tell(story)
