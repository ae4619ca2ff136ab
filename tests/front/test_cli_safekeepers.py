"""What operators of safekeepers type, against real servers in this process, without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.cli.cluster import check as cli_check
from stelae.cli.cluster import safekeepers as cli_safekeepers
from stelae.cli.cluster import servers as cli_servers
from stelae.cli.cluster import timelines as cli_timelines
from stelae.cli.cluster.timelines import aborted, is_decided
from stelae.client.aio import Loop
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.timelines import MigrationProgress, MigrationResult, SafekeeperView
from stelae.core.records.configurations import TimelineId
from stelae.core.records.records import SafekeeperRecord
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus
from stelae.core.schema.durability import segments, wal
from stelae.core.schema.partition import hash_partition
from stelae.database.api import Database
from tests.cluster_fixture import LocalCluster, local_cluster
from tests.front.http_world import copies_held
from tests.front.safekeeper_operator import Operator, story
from tests.front.test_cli_operators import database_of, run
from tests.until import until_async

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
WAL3 = wal(3, segments=("disk",))
TIMELINE = TimelineId(TableId("a" * 32), TabletId("b" * 32))


@pytest.fixture
def doors(monkeypatch: pytest.MonkeyPatch) -> Callable[[LocalCluster], None]:
    """Lets the commands find a cluster."""

    def open_to(cluster: LocalCluster) -> None:
        monkeypatch.setenv("COLUMNS", "250")
        for module in (cli_check, cli_safekeepers, cli_servers, cli_timelines):
            monkeypatch.setattr(module, "open_cluster", lambda _: database_of(cluster))

    return open_to


async def tablets_of(cluster: LocalCluster, table: str) -> list[str]:
    return [each.tablet.tablet_id for each in await cluster.database.locate_table(table)]


async def names_of(cluster: LocalCluster) -> dict[int, str]:
    views = await cluster.database.safekeepers()
    return {view.record.safekeeper_id: view.record.name for view in views}


async def members_of(cluster: LocalCluster, tablet: str) -> list[int]:
    configuration = (await cluster.database.locate_timeline(tablet)).configuration
    assert not configuration.is_joint
    return sorted(configuration.sk_set)


async def test_a_log_is_moved_by_command_while_rows_come(
    tmp_path: Path, doors: Callable[[LocalCluster], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a tablet, of a table, off a safekeeper; the command ends once it is done, writes go on
    all the while, and every acknowledged row is there."""
    async with local_cluster(tmp_path, safekeepers=5) as cluster:
        doors(cluster)
        table = await cluster.database.create_table(
            "w", SCHEMA, key="id", durability=WAL3, partition=hash_partition("id", buckets=2)
        )
        tablets = await tablets_of(cluster, "w")
        written, goes_on = 0, True

        async def write() -> None:
            nonlocal written
            while goes_on:
                await table.upsert({"id": written})
                written += 1
                await asyncio.sleep(0.005)

        async def move(*arguments: str) -> Any:
            before = written
            command = ("safekeeper", "migrate", *arguments, "--json")
            code, out = await asyncio.to_thread(run, capsys, *command)
            assert code == 0, out
            assert written > before, "writes went on"
            return json.loads(out)["scheduled"]

        writer = asyncio.create_task(write())
        for tablet in tablets:
            await move("--tablet", tablet, "--to", "1,2,3")
        names = await names_of(cluster)
        (moved,) = await move("--tablet", tablets[0], "--to", f"{names[2]}, 3,4")
        assert (moved["timeline_id"], moved["desired_set"]) == (tablets[0], [2, 3, 4])
        assert await members_of(cluster, tablets[0]) == [2, 3, 4]
        assert await members_of(cluster, tablets[1]) == [1, 2, 3]
        assert len(await move("--table", "w", "--to", "2,3,4")) == 1, "one was there already"
        assert len(await move("--from", "4", "--to", names[5], "--limit", "1")) == 1
        assert len(await move("--from", "4", "--to", "5")) == 1
        for tablet in tablets:
            assert await members_of(cluster, tablet) == [2, 3, 5]
        goes_on = False
        await writer
        assert (await table.scan()).num_rows == written
        code, out = await asyncio.to_thread(
            run, capsys, "safekeeper", "migrate", "--from", "4", "--to", "5"
        )
        assert (code, "nothing to move" in out) == (0, True), out


async def test_safekeepers_and_logs_are_shown_to_people_and_programs(
    tmp_path: Path, doors: Callable[[LocalCluster], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command answers in a table or a sentence and, with --json, in a document."""
    async with local_cluster(tmp_path, safekeepers=4) as cluster:
        doors(cluster)
        await cluster.database.create_table("w", SCHEMA, key="id", durability=WAL3)
        await (await cluster.database.table("w")).insert([{"id": n} for n in range(10)])
        await cluster.database.create_table("s", SCHEMA, key="id", durability=segments("disk"))
        (tablet,), (other,) = [await tablets_of(cluster, name) for name in ("w", "s")]
        await asyncio.to_thread(story, Operator(capsys, tablet, other))


async def test_a_safekeeper_is_retired_by_its_name(
    tmp_path: Path, doors: Callable[[LocalCluster], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its logs move to others while rows come; it is refused where too few would be left."""
    async with local_cluster(tmp_path, safekeepers=4) as cluster:
        doors(cluster)
        table = await cluster.database.create_table("w", SCHEMA, key="id", durability=WAL3)
        (tablet,) = await tablets_of(cluster, "w")
        first, *_ = members = await members_of(cluster, tablet)
        names = await names_of(cluster)
        await table.insert([{"id": n} for n in range(100)])

        async def typed(*arguments: str) -> tuple[int, str]:
            return await asyncio.to_thread(run, capsys, "server", *arguments)

        code, out = await typed("retire", names[first])
        assert (code, "has nothing left: it may be stopped" in out) == (0, True), out
        assert first not in await members_of(cluster, tablet)
        code, out = await typed("list", "--kind", "safekeeper", "--json")
        found = {each["name"]: each for each in json.loads(out)["servers"]}
        assert (found[names[first]]["retiring"], found[names[first]]["logs"]) == (True, 0)
        code, out = await typed("retire", names[first], "--json")
        assert (code, json.loads(out)["logs"]) == (0, 0), "again is fine"
        assert (await typed("retire", names[members[1]]))[0] == 2
        assert (await cluster.database.safekeepers())[members[1] - 1].record.status == "active"
        code, out = await typed("retire", names[first], "--cancel", "--json")
        assert (code, json.loads(out)["retiring"]) == (0, False)
        assert (await table.scan()).num_rows == 100


async def test_ctrl_c_ends_waiting_and_not_the_move(
    tmp_path: Path,
    doors: Callable[[LocalCluster], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 130, a sentence that says how to look at it; and the masters go on."""
    async with local_cluster(tmp_path, safekeepers=4) as cluster:
        doors(cluster)
        await cluster.database.create_table("w", SCHEMA, key="id", durability=WAL3)
        (tablet,) = await tablets_of(cluster, "w")
        members = await members_of(cluster, tablet)
        (spare,) = {1, 2, 3, 4} - set(members)
        desired = [*members[1:], spare]

        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Database, "wait_migrated", interrupted)

        wanted = ",".join(map(str, desired))

        def stop_waiting() -> tuple[int | str | None, str]:
            with pytest.raises(SystemExit) as ended:
                cli_main("safekeeper", "migrate", "--tablet", tablet, "--to", wanted)
            return ended.value.code, capsys.readouterr().err

        code, told = await asyncio.to_thread(stop_waiting)
        assert code == 130
        assert f"stelae tablet safekeepers {tablet}" in told
        assert f"stelae safekeeper abort {tablet}" in told
        await cluster.database.wait_migrated(tablet, desired, timeout=20)


async def test_a_move_that_is_stuck_is_looked_at_and_taken_back(
    tmp_path: Path, doors: Callable[[LocalCluster], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what it waits for, whoever waits for it; another move is refused at once; and after
    the abort who waits is told, with exit code 1."""
    async with local_cluster(tmp_path, safekeepers=5) as cluster:
        doors(cluster)
        await cluster.database.create_table("w", SCHEMA, key="id", durability=WAL3)
        (tablet,) = await tablets_of(cluster, "w")
        members = await members_of(cluster, tablet)
        spare = sorted({1, 2, 3, 4, 5} - set(members))
        desired = ",".join(map(str, [members[2], *spare]))
        migrate = ("safekeeper", "migrate", "--tablet", tablet, "--to")
        async with copies_held(cluster, TabletId(tablet), *spare):
            waiting = asyncio.create_task(asyncio.to_thread(exit_of, *migrate, desired))
            out = ""
            for _ in range(500):
                out = await asyncio.to_thread(output_of, "tablet", "safekeepers", tablet)
                if "earlier call" in out:
                    break
            assert f"moving to {[members[2], *spare]}" in out
            assert "step 5: pull; copy the timeline to" in out
            shown = await asyncio.to_thread(output_of, "safekeeper", "status", str(members[0]))
            assert "under way" in shown
            began = asyncio.get_running_loop().time()
            other = ",".join(map(str, [*members[:2], spare[0]]))
            assert await asyncio.to_thread(exit_of, *migrate, other) == 1
            assert asyncio.get_running_loop().time() < began + 10, "operators do not wait"
            out = await asyncio.to_thread(output_of, "safekeeper", "abort", tablet)
            assert "was taken back" in out
            assert await waiting == 1
        assert await members_of(cluster, tablet) == members


def exit_of(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        cli_main(*arguments)
    return ended.value.code


def output_of(*arguments: str) -> str:
    """Of a command, while others may write: by a pipe of its own."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exit_of(*arguments)
    return out.getvalue()


async def test_a_move_that_ends_otherwise_and_a_dead_safekeeper_are_exit_code_1(
    tmp_path: Path, doors: Callable[[LocalCluster], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Who is to join does not answer: the log stays, and the command says why. Later the status
    names the safekeeper that is active and not live, unless it is said to be offline."""
    async with local_cluster(tmp_path, safekeepers=4) as cluster:
        doors(cluster)
        await cluster.database.create_table("w", SCHEMA, key="id", durability=WAL3)
        (tablet,) = await tablets_of(cluster, "w")
        members = await members_of(cluster, tablet)
        (spare,) = {1, 2, 3, 4} - set(members)
        lost = (await cluster.safekeepers_by_id())[spare]
        await lost.stop()
        desired = ",".join(str(n) for n in [*members[1:], spare])
        command = ("safekeeper", "migrate", "--tablet", tablet, "--to", desired)
        code, out = await asyncio.to_thread(run, capsys, *command)
        assert code == 1, out
        assert f"stays on safekeepers {members}" in " ".join(out.split())
        assert f"safekeeper {spare} does not answer" in " ".join(out.split())
        assert await members_of(cluster, tablet) == members

        async def is_silent() -> bool:
            return not (await cluster.database.safekeepers())[spare - 1].is_live

        await until_async(is_silent, 60.0, "the masters miss the safekeeper", poll_s=0.02)
        code, out = await asyncio.to_thread(run, capsys, "safekeeper", "status", "--json")
        named = f"{(await names_of(cluster))[spare]} (safekeeper {spare})"
        remedy = f"stelae safekeeper set-status {spare} decommissioned"
        problem = f"{named} is active, but not live: if it never comes back: {remedy}"
        assert (code, json.loads(out)["problems"]) == (1, [problem])
        code, out = await asyncio.to_thread(run, capsys, *command)
        assert code == 2, out
        status = ("safekeeper", "set-status", str(spare), "offline")
        assert (await asyncio.to_thread(run, capsys, *status))[0] == 0
        assert (await asyncio.to_thread(run, capsys, "safekeeper", "status"))[0] == 0
        code, _ = await asyncio.to_thread(run, capsys, "safekeeper", "scrub", str(spare))
        assert code == 1


async def test_one_that_is_decommissioned_gives_its_logs_to_others(
    tmp_path: Path, doors: Callable[[LocalCluster], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says how many there are; nobody has to ask for each."""
    async with local_cluster(tmp_path, safekeepers=4) as cluster:
        doors(cluster)
        await cluster.database.create_table("w", SCHEMA, key="id", durability=WAL3)
        (tablet,) = await tablets_of(cluster, "w")
        first, *others = await members_of(cluster, tablet)
        (spare,) = {1, 2, 3, 4} - {first, *others}
        status = ("safekeeper", "set-status", str(first), "decommissioned")
        code, out = await asyncio.to_thread(run, capsys, *status)
        assert (code, "is decommissioned; 1 logs are to move" in out) == (0, True), out
        desired = sorted([*others, spare])

        async def has_moved() -> bool:
            view = await cluster.database.locate_timeline(tablet)
            return sorted(view.configuration.sk_set) == desired

        await until_async(has_moved, 20.0, f"the log is on {desired}", poll_s=0.02)
        order = ("safekeeper", "migrate", "--from", str(spare), "--to", str(first))
        assert (await asyncio.to_thread(run, capsys, *order))[0] == 2


async def test_a_check_sees_logs_that_are_not_whole(
    tmp_path: Path, doors: Callable[[LocalCluster], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and which safekeeper lacks what; 0 when it is whole again. One that is lost is
    no problem any more once it is decommissioned, and others have its logs."""
    async with local_cluster(tmp_path, safekeepers=4) as cluster:
        doors(cluster)
        table = await cluster.database.create_table("w", SCHEMA, key="id", durability=WAL3)
        await table.insert([{"id": n} for n in range(10)])
        (tablet,) = await tablets_of(cluster, "w")
        members = await members_of(cluster, tablet)
        code, out = await asyncio.to_thread(run, capsys, "check", "--wait", "20")
        assert code == 0, out

        keepers = await cluster.safekeepers_by_id()
        broken = keepers[members[0]]
        store = broken.timelines.store(TabletId(tablet))
        timeline = store.timelines[TabletId(tablet)]
        timeline.failure = OSError("the disk has failed")
        code, out = await asyncio.to_thread(run, capsys, "check")
        words = " ".join(out.split())
        assert code == 1, out
        assert f"safekeeper {members[0]} has given its log up: the disk has failed" in words
        assert f"stelae safekeeper migrate --tablet {tablet}" in words
        assert "its log, generation 1" in words
        code, out = await asyncio.to_thread(run, capsys, "check", "--json")
        (shown,) = json.loads(out)["tablets"]
        assert shown["verdict"] == "under-replicated"
        assert [each["held"]["presence"] for each in shown["log"]].count("failed") == 1
        timeline.failure = None

        await keepers[members[1]].stop()
        status = ("safekeeper", "set-status", str(members[1]), "decommissioned")
        assert (await asyncio.to_thread(run, capsys, *status))[0] == 0
        code, out = await asyncio.to_thread(run, capsys, "check", "--wait", "30")
        assert code == 0, out
        assert "is away for good: it is decommissioned" in " ".join(out.split())
        assert members[1] not in await members_of(cluster, tablet)


def cli_main(*arguments: str) -> None:
    from stelae.cli import app as cli

    cli.main(list(arguments))


# ---- words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "reason", "is_decided_now", "words"),
    [
        ("aborted", "", True, "was taken back (generation 5)"),
        ("done", "there is nothing to take back", True, "stays where it is: there is nothing"),
        ("under way", "", False, "is not taken back yet: under way"),
        ("waiting", "nothing moves", False, "is not taken back yet: waiting: nothing moves"),
    ],
)
def test_an_abort_says_what_has_come_of_it(
    verdict: str, reason: str, is_decided_now: bool, words: str
) -> None:
    """Only what is decided is success."""
    result = MigrationResult(TIMELINE, "abort", verdict, reason, 5, True, 0.0)
    assert words in aborted(result)
    assert is_decided(result) is is_decided_now


def test_a_stage_names_what_failed_before_what_is_waited_for() -> None:
    """So that the reason is not cut off; one that waits for its turn says so."""

    def stage(step: int, problems: dict[str, str]) -> str:
        progress = MigrationProgress(
            TIMELINE, step, "pull", 2, (), None, ("copy the timeline to 3",), problems, 0.0, 0.0
        )
        return cli_safekeepers.stage_of(progress)

    assert stage(5, {}) == "step 5: pull; waits for: copy the timeline to 3"
    assert stage(5, {"copy the timeline to 3": "no"}) == "step 5: pull; copy the timeline to 3: no"
    assert stage(0, {}) == "waits for a turn"


def view(number: int, name: str, *, live: bool = True, broken: int = 0) -> SafekeeperView:
    record = SafekeeperRecord(SafekeeperId(number), ServerUuid(str(number)), name, "n")
    return SafekeeperView(record, live, 0.0, Address("a:1"), 0, broken)


def test_one_that_is_away_has_its_logs_taken_over() -> None:
    """As long as it is a member nobody has to say anything."""
    away = SafekeeperView(view(1, "s").record, False, 60.0, Address("a:1"), 2, 0)
    (problem,) = cli_safekeepers.problems_of(away)
    assert problem.endswith("not live: if it stays away, others take over its logs (2)")


def test_broken_logs_are_a_problem_of_those_that_are_to_stay() -> None:
    """One that is decommissioned may be as broken as it likes."""
    (problem,) = cli_safekeepers.problems_of(view(1, "s", broken=2))
    assert "2 logs do nothing any more" in problem
    gone = view(1, "s", live=False, broken=2)
    record = SafekeeperRecord(
        gone.record.safekeeper_id, gone.record.uuid, "s", "n", SafekeeperStatus.DECOMMISSIONED
    )
    left = SafekeeperView(record, False, 0.0, Address(""), 0, 2)
    assert cli_safekeepers.problems_of(left) == []


def test_a_name_stands_for_the_one_that_lives() -> None:
    """Of two of one name the dead one has lost its disk; two that live have to be told apart."""
    from stelae.database.safekeepers import _named

    assert _named("a", [view(1, "a", live=False), view(2, "a"), view(3, "b")]) == 2
    assert _named("a", [view(1, "a", live=False)]) == 1
    for wrong in ("c", "a"):
        with pytest.raises(InvalidArgument, match=wrong):
            _named(wrong, [view(1, "a"), view(2, "a")])


def test_calls_about_safekeepers_do_not_go_over_http() -> None:
    """They say so, rather than fail in some other way."""
    loop = Loop()
    database = Database(loop, None, "x")  # type: ignore[arg-type]
    calls: list[Callable[[], Any]] = [
        database.safekeepers,
        database.timelines,
        database.migrations,
        lambda: database.scrub_safekeeper(1),
        lambda: database.set_safekeeper_status(1, "active"),
        lambda: database.migrate_table("t", [1, 2, 3]),
        lambda: database.abort_migration("t"),
    ]
    for call in calls:
        with pytest.raises(StelaeError, match="not over HTTP"):
            call()
    loop.close()
