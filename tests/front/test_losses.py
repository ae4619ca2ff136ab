"""Missing segments on the command line and over HTTP: shown, and given up by those who say so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cluster_fixture import LocalCluster, local_cluster

from stelae import cli, cli_recover
from stelae.client.losses import words_of
from stelae.core.durability import segments
from stelae.core.ids import TableId, TabletId
from stelae.core.losses import LossReport, LostSegment, TabletLoss
from stelae.serve.tokens import Role
from tests.front.http_world import World, problem_of
from tests.front.test_cli_operators import database_of, run

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
    for _ in range(int(WAIT_S / 0.05)):
        if (await cluster.database.losses()).waiting:
            return tablet_id
        await asyncio.sleep(0.05)
    raise AssertionError("it does not wait for what is missing")


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


async def test_over_http_admins_give_it_up_with_the_fingerprint_of_what_they_saw(
    cluster: LocalCluster,
) -> None:
    """Others may look; another fingerprint, or nothing lost, is refused, and changes nothing."""
    world = World(cluster)
    async with world.client() as http, world.client(Role.READ) as reader:
        empty: dict[str, Any] = (await reader.get("/v1/losses")).json()
        assert (empty["waiting"], empty["accepted"]) == ([], [])
        order = {"fingerprint": empty["fingerprint"]}
        refused = await http.post("/v1/losses:accept", json=order)
        problem_of(refused, 400, "invalid-argument")
        await lose(cluster)
        seen = (await reader.get("/v1/losses")).json()
        assert len(seen["waiting"]) == 1
        problem_of(await http.post("/v1/losses:accept", json=order), 400, "invalid-argument")
        order = {"fingerprint": seen["fingerprint"], "by": "Ada"}
        assert (await reader.post("/v1/losses:accept", json=order)).status_code == 403
        assert (await http.post("/v1/losses:accept", json={})).status_code == 422
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
