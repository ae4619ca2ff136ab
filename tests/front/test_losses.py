"""Missing segments on the command line and over HTTP: shown, and given up by those who say so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.master.server import Master
from stelae.cli import app as cli
from stelae.cli.cluster import recover as cli_recover
from stelae.client.admin.losses import words_of
from stelae.client.check.status import problems_of
from stelae.coordinator.catalog.backups import BackupChanges
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.records.losses import LossReport, LostSegment, SegmentFacts, TabletLoss
from stelae.core.records.records import BackupRecord
from stelae.core.records.tokens import Role
from stelae.core.schema.durability import segments
from stelae.runtime.real import CountingMetrics
from tests.cluster_fixture import LocalCluster, local_cluster
from tests.front.http_world import World, problem_of
from tests.front.test_cli_operators import database_of, run
from tests.until import until_async

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string())])
WAIT_S = 30.0


async def lose(cluster: LocalCluster) -> str:
    """A table on one medium in memory, whose backup has forgotten it, and whose owner is closed;
    its tablet's id."""
    table = await cluster.database.create_table(
        "t", SCHEMA, key="id", durability=segments("ram"), timeout=WAIT_S
    )
    await table.upsert([{"id": n, "text": "x"} for n in range(10)])
    (tablet,) = (await cluster.database.status())["tablets"]
    tablet_id = TabletId(tablet["id"])
    for backup in cluster.backups:
        for segment in list(backup._holdings.segments(tablet_id)):
            replica = backup._holdings.find(tablet_id, segment)
            assert replica is not None
            backup._holdings.forget(replica)
    for server in cluster.tservers:
        await server._close(tablet_id)

    async def waits() -> bool:
        return bool((await cluster.database.losses()).waiting)

    await until_async(waits, WAIT_S, "it waits for what is missing")
    return tablet_id


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    async with local_cluster(tmp_path) as made:
        yield made


async def test_the_command_shows_what_is_missing_and_gives_it_up_for_those_who_say_yes(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 while a tablet waits; nothing is given up without a yes; then it stays shown."""
    monkeypatch.setattr(cli_recover, "open_cluster", lambda _: database_of(cluster))

    async def call(*words: str) -> tuple[int, str]:
        return await asyncio.to_thread(run, capsys, *words)

    code, out = await call("recover")
    assert (code, "no tablet waits" in out) == (0, True), out
    assert (await call("recover", "--accept-loss", "--yes"))[0] == 2
    tablet = await lose(cluster)
    code, out = await call("recover")
    assert code == 1
    assert tablet in out
    assert "the end of its log" in out
    code, out = await call("recover", "--json")
    (waiting,) = json.loads(out)["waiting"]
    assert (code, waiting["tablet"], waiting["end_lost"]) == (1, tablet, True)
    assert (await call("recover", "--accept-loss", "--json"))[0] == 2
    assert (await call("recover", "--accept-loss", "--yes", "--tablet", "0" * 32))[0] == 2
    code, out = await call("recover", "--accept-loss", "--yes", "--json", "--by", "Ada")
    (accepted,) = json.loads(out)["accepted"]
    assert (code, accepted["accepted_by"], accepted["tablet"]) == (0, "Ada", tablet)
    table = await cluster.database.table("t")
    await table.upsert({"id": 1, "text": "after"}, timeout=WAIT_S)
    assert (await table.scan(timeout=WAIT_S)).num_rows == 1
    code, out = await call("recover")
    assert (code, "Ada" in out) == (0, True), out


async def register_another(cluster: LocalCluster) -> None:
    """A backup that the catalog knows, and that is not there."""
    leading = [m.coordinator for m in cluster.masters if m.coordinator is not None]
    record = BackupRecord(ServerUuid("lost"), "backup-9", "burned", ("ram",), 5.0)
    batch = CatalogBatch(backups=BackupChanges((record,)))
    await leading[0].operations.change(lambda: batch)


async def test_the_command_names_backups_that_are_not_heard_and_waits_for_them(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until it is told that they are gone, which is on record, too."""
    monkeypatch.setattr(cli_recover, "open_cluster", lambda _: database_of(cluster))

    async def call(*words: str) -> tuple[int, str]:
        return await asyncio.to_thread(run, capsys, *words)

    await register_another(cluster)
    tablet = await lose(cluster)
    problems = problems_of(await cluster.database.status())
    assert "backup-9, a backup on machine burned, has not been heard yet" in problems
    code, out = await call("recover")
    assert code == 1
    assert "what is missing may be on" in out
    assert "backup-9 on machine burned (lost) has not reported since this leader master" in out
    (silent,) = json.loads((await call("recover", "--json"))[1])["silent"]
    assert (silent["name"], silent["silent_s"], silent["live"]) == ("backup-9", None, False)
    assert (await call("recover", "--gone", "backup-9"))[0] == 2
    code, out = await call("recover", "--accept-loss", "--yes")
    assert code == 2
    assert not (await cluster.database.losses()).accepted
    words = ("--accept-loss", "--yes", "--json", "--gone", "backup-9")
    code, out = await call("recover", *words)
    (accepted,) = json.loads(out)["accepted"]
    assert (code, accepted["tablet"]) == (0, tablet)
    assert accepted["backups_gone"] == ["backup-9 (lost)"]
    assert not (await cluster.database.status())["backups_not_heard"]


async def test_of_a_tablet_that_is_served_the_command_shows_the_rows_that_are_missing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not while they are in its server's memory only; after the yes all else is served."""
    monkeypatch.setattr(cli_recover, "open_cluster", lambda _: database_of(cluster))

    async def call(*words: str) -> tuple[int, str]:
        return await asyncio.to_thread(run, capsys, *words)

    table = await cluster.database.create_table(
        "t", SCHEMA, key="id", durability=segments("ram"), timeout=WAIT_S
    )
    await table.upsert([{"id": n, "text": "x"} for n in range(10)])
    (tablet,) = [t for server in cluster.tservers for t in server._tablets.values()]
    tablet._missing.lacks = (SegmentFacts(1 << 32 | 900, 5, 300, 7),)
    tablet._missing.in_memory_only = 1

    async def incomplete() -> tuple[int, str] | None:
        found = await call("recover")
        return found if found[0] else None

    code, out = await until_async(incomplete, WAIT_S, "it is told what is lacking")
    assert (code, "is served, and lacks" in out, "1.900: 5 rows" in out) == (1, True, True), out
    code, out = await call("recover", "--accept-loss", "--yes")
    assert code == 1
    tablet._missing.in_memory_only = 0

    async def accepted_by_ada() -> str:
        code, out = await call("recover", "--accept-loss", "--yes", "--json", "--by", "Ada")
        return out if code == 0 else ""

    out = await until_async(accepted_by_ada, WAIT_S, "the loss is accepted")
    (accepted,) = json.loads(out)["accepted"]
    assert (accepted["served"], accepted["end_lost"]) == (True, False)
    assert (await table.scan(timeout=WAIT_S)).num_rows == 10
    code, out = await call("recover")
    assert (code, "Ada" in out) == (0, True), out


async def test_over_http_admins_give_it_up_with_the_fingerprint_of_what_they_saw(
    cluster: LocalCluster,
) -> None:
    """Others may look; another fingerprint, or nothing lost, is refused, and changes nothing."""
    world = World(cluster)
    async with world.client() as http, world.client(Role.READ) as reader:
        empty: dict[str, Any] = (await reader.get("/v1/losses")).json()
        assert (empty["waiting"], empty["accepted"]) == ([], [])
        other = {"fingerprint": empty["fingerprint"]}
        refused = await http.post("/v1/losses:accept", json=other)
        problem_of(refused, 400, "invalid-argument")
        await register_another(cluster)
        await lose(cluster)
        seen = (await reader.get("/v1/losses")).json()
        assert len(seen["waiting"]) == 1
        problem_of(await http.post("/v1/losses:accept", json=other), 400, "invalid-argument")
        order: dict[str, Any] = {"fingerprint": seen["fingerprint"], "by": "Ada"}
        assert (await reader.post("/v1/losses:accept", json=order)).status_code == 403
        assert (await http.post("/v1/losses:accept", json={})).status_code == 422
        waits = problem_of(
            await http.post("/v1/losses:accept", json=order), 400, "invalid-argument"
        )
        assert "backup-9 on machine burned" in str(waits)
        order["gone"] = ["lost"]
        done = await http.post("/v1/losses:accept", json=order)
        assert done.status_code == 200, done.text
        (accepted,) = done.json()["accepted"]
        assert accepted["accepted_by"] == "Ada (token admin)"
        again = await http.post("/v1/losses:accept", json=order)
        assert again.status_code == 400
        assert (await reader.get("/v1/losses")).json()["accepted"] == [accepted]
        assert (await http.get("/v1/cluster")).json()["losses_accepted"] == 1


def test_a_loss_is_told_in_words() -> None:
    """Each segment with what is known of it, and what else follows."""
    loss = TabletLoss(
        TabletId("a"),
        TableId("b"),
        "t",
        0,
        3,
        (LostSegment(2 << 32 | 1, 10, 1000, 77), LostSegment(2 << 32 | 2, kept_bytes=50)),
        is_end_lost=True,
        is_digest_known=False,
        kept_segments=1,
        kept_bytes=5,
    )
    lines = words_of(loss)
    assert lines[0] == "segment 2.1: 10 rows, 1,000 bytes, versions below 77"
    assert "not known; its first 50 bytes are kept" in lines[1]
    assert len(lines) == 5
    assert LossReport((loss,), "f").accepted == ()
    assert cli.FAILED == cli_recover.WAITING


async def test_a_tablet_that_waits_for_segments_is_told_until_they_are_given_up(
    cluster: LocalCluster,
) -> None:
    """The gauge that the alert goes by, from the loss to the operator's word."""
    (master,) = cluster.masters
    await lose(cluster)
    await until_gauge(master, "cluster_tablets_incomplete", 1.0)
    await cluster.database.accept_loss(await cluster.database.losses(), by="somebody")
    await until_gauge(master, "cluster_tablets_incomplete", 0.0)
    await until_gauge(master, "cluster_losses_accepted", 1.0)


async def until_gauge(master: Master, name: str, value: float) -> None:
    metrics = master.runtime.metrics
    assert isinstance(metrics, CountingMetrics)

    def is_so() -> bool:
        master._gauges._next_s = 0.0  # do not wait for the next look
        master.measure()
        return metrics.gauges[name, ()] == value

    await until_async(is_so, WAIT_S, lambda: f"{name} {value}: {metrics.gauges[name, ()]}")
