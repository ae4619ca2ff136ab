"""What hosts servers and Spark says so when something goes wrong: no silent, idle actor."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from stelae.actors.ray_host import host as ray_host
from stelae.actors.ray_host.host import ServerHost, ServerPlan
from stelae.actors.ray_host.spark_host import FRAME_BYTES_MAX, Session
from stelae.core.config.settings import Settings
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import AlreadyRunning, Unavailable
from stelae.core.ids import Address
from stelae.core.records.records import ServerKind
from stelae.deploy import cluster_state, launcher


def _plan(folder: Path) -> ServerPlan:
    masters = {"master-1": Address("127.0.0.1:1")}
    return ServerPlan(
        kind=ServerKind.TSERVER,
        name="tserver-1",
        cluster="c",
        secret=b"s" * 32,
        folder=str(folder),
        host="127.0.0.1",
        port=0,
        masters=masters,
        settings=Settings(),
    )


async def _problem(plan: ServerPlan) -> str:
    """What a host says that keeps its server from starting."""
    host = ServerHost(plan)
    try:
        with pytest.raises(AlreadyRunning) as caught:
            await host.ready(0.6)
        return str(caught.value)
    finally:
        await host.stop()


async def test_a_folder_that_cannot_be_used_is_what_ready_tells(tmp_path: Path) -> None:
    """An actor that cannot start says why, whoever the error is from."""
    (tmp_path / "file").write_text("")
    assert "Not a directory" in await _problem(_plan(tmp_path / "file" / "tserver-1"))


async def test_a_full_disk_is_told_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the folder, what is free, and what to do; without a traceback. Nothing else is called a
    full disk."""

    async def refused(host: Any, disk: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "cmeta")

    monkeypatch.setattr(ServerHost, "_start", refused)
    problem = await _problem(_plan(tmp_path / "tserver-1"))
    assert f"the disk of {tmp_path / 'tserver-1'} is full" in problem
    assert "MB are free). Free some" in problem
    (record,) = [each for each in caplog.records if "does not start yet" in each.message]
    assert not record.exc_info
    assert ray_host.full_disk(OSError(errno.EIO, "bad sector"), str(tmp_path)) == ""
    assert "not known" in ray_host.full_disk(OSError(errno.EDQUOT, "quota"), str(tmp_path / "no"))


async def test_a_bug_in_starting_is_told_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With its traceback; tried again all the same, and not logged at each try."""
    tries = []

    def broken(*_: Any) -> Any:
        tries.append(1)
        raise TypeError("nobody foresaw this")

    monkeypatch.setattr(ray_host, "make_server", broken)
    with caplog.at_level(logging.WARNING):
        assert "nobody foresaw this" in await _problem(_plan(tmp_path / "tserver-1"))
    assert len(tries) > 1
    logged = [record for record in caplog.records if record.name == ray_host.__name__]
    assert [record.exc_info is not None for record in logged] == [True]


async def test_a_host_starts_a_safekeeper_that_syncs_in_threads(tmp_path: Path) -> None:
    """Its appends must not stop its loop: votes and heartbeats of other timelines go on."""
    kind = ServerKind.SAFEKEEPER
    plan = dataclasses.replace(_plan(tmp_path / "safekeeper-1"), kind=kind, name="safekeeper-1")
    host = ServerHost(plan)
    try:
        address = await host.ready(20.0)
        server: Any = host._server
        assert server.info.kind is ServerKind.SAFEKEEPER
        assert server.info.address == address
        assert server._runtime.disk._sync_in_thread
        await host._farewell(0.1)
    finally:
        await host.stop()


def test_a_spec_plans_as_many_safekeepers_as_it_says(tmp_path: Path) -> None:
    """Each with a folder of its own; none unless they are asked for."""
    (tmp_path / cluster_state.SECRET_FILE).write_bytes(b"s" * 32)
    state = cluster_state.ClusterState("c", str(tmp_path), {"master-1": "127.0.0.1:20001"})

    def folders(**fields: Any) -> list[str]:
        planned = launcher.plans(load_spec({"cluster": "c", **fields}), state)
        return [Path(p.folder).name for p in planned if p.kind is ServerKind.SAFEKEEPER]

    assert folders() == []
    names = ["safekeeper-1", "safekeeper-2", "safekeeper-3"]
    assert folders(safekeepers={"count": 3}) == names


@pytest.mark.parametrize(
    "sent",
    [b"\x08" + bytes(7) + b"no frame", (FRAME_BYTES_MAX + 1).to_bytes(8, "little"), b"\x08\0"],
    ids=["garbage", "too large", "cut"],
)
async def test_an_order_to_a_broken_spark_session_does_not_wait_for_its_deadline(
    sent: bytes,
) -> None:
    """Whatever the child sends: who waits for an answer hears that there will be none."""
    output = asyncio.StreamReader()
    process: Any = SimpleNamespace(stdout=output)
    session = Session(process)
    waiting = session._answers[1] = asyncio.get_running_loop().create_future()
    output.feed_data(sent)
    output.feed_eof()
    await session._read_answers()
    with pytest.raises(Unavailable):
        await waiting


def test_an_actor_that_ends_while_actors_are_listed_is_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray lists it, and then knows no such name: the others are found all the same."""
    named = [f"c/{name}" for name in ("tserver-2", "tserver-1", "backup-1")] + ["other/backup-1"]
    listed = [{"name": name, "namespace": ray_host.NAMESPACE} for name in named]

    def get_actor(name: str, *, namespace: str) -> str:
        if name == "c/tserver-2":
            raise ValueError(f"Failed to look up actor with name {name!r} in {namespace}")
        return f"handle of {name}"

    monkeypatch.setattr(ray.util, "list_named_actors", lambda **_: listed)
    monkeypatch.setattr(ray, "get_actor", get_actor)
    assert ray_host.cluster_actors("c") == {
        "backup-1": "handle of c/backup-1",
        "tserver-1": "handle of c/tserver-1",
    }
