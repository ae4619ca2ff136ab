"""What a launch makes of ``cas_store`` in a spec, up to the servers themselves; without Ray."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import ray

from stelae.actors.cas_store.server import CasStore, RemoteConfigurations
from stelae.actors.ray_host.host import WATCHED, ServerHost, ServerPlan
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import AlreadyRunning, InvalidArgument, Unavailable
from stelae.core.ids import Address, TableId, TabletId
from stelae.core.records.configurations import TimelineId, TimelineRecord
from stelae.core.records.records import ServerKind
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration
from stelae.deploy import launcher
from stelae.deploy.cluster_state import STATE_FILE, load_state, newest
from stelae.deploy.launcher import plans, prepare, take_down
from stelae.deploy.node_checks import place_problem
from stelae.runtime.files import LocalDisk
from stelae.runtime.free_ports import family_of, free_port
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import SECRET_BYTES, Credentials
from stelae.runtime.tcp.peers import TcpPeers

SQLITE = {"url": "sqlite:///cas.db"}


def spec_of(folder: Path, cas_store: Any) -> ClusterSpec:
    small: dict[str, Any] = {"serve": None, "spark": None, "data_dir": str(folder / "data")}
    return load_spec({**small, "cas_store": cas_store})


def made(folder: Path, cas_store: Any) -> list[ServerPlan]:
    """The plans of a launch, that ends again."""
    spec = spec_of(folder, cas_store)
    state, lock = prepare(spec)
    lock.release()
    return plans(spec, state)


def test_a_launch_starts_the_store_and_masters_know_that_there_is_one(tmp_path: Path) -> None:
    """One more server, on a folder of its own, any port; masters are told of its death."""
    found = made(tmp_path, SQLITE)
    (store,) = (plan for plan in found if plan.kind is ServerKind.CAS_STORE)
    assert (store.name, store.port) == ("cas_store-1", 0)
    assert store.folder == str(tmp_path / "data" / "cas_store-1")
    masters = [plan for plan in found if plan.kind is ServerKind.MASTER]
    assert [plan.cas_store_url for plan in (*masters, store)] == [SQLITE["url"]] * 4
    assert store.name.startswith(WATCHED)
    assert not any(plan.name.startswith(WATCHED) for plan in masters)


def test_without_one_the_masters_are_the_store(tmp_path: Path) -> None:
    """The default: no server more than was asked for."""
    found = made(tmp_path, None)
    assert len(found) == 9
    assert {plan.cas_store_url for plan in found} == {""}
    assert ServerKind.CAS_STORE not in {plan.kind for plan in found}


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (None, SQLITE, "its masters, not in sqlite:///cas.db"),
        (SQLITE, None, "sqlite:///cas.db, not in its masters"),
        (SQLITE, {"url": "sqlite:///other.db"}, "cas.db, not in sqlite:///other.db"),
    ],
)
def test_a_cluster_keeps_its_store_for_ever(
    tmp_path: Path, first: Any, then: Any, said: str
) -> None:
    """Another one would be empty, and know of no timeline: it is refused before anything starts,
    and what there was starts again."""
    made(tmp_path, first)
    with pytest.raises(InvalidArgument, match=said):
        made(tmp_path, then)
    made(tmp_path, first)


def test_a_cluster_made_before_there_were_stores_has_its_masters(tmp_path: Path) -> None:
    """Its ``cluster.json`` says nothing of it."""
    made(tmp_path, None)
    file = tmp_path / "data" / STATE_FILE
    state = json.loads(file.read_text())
    del state["cas_store"]
    file.write_text(json.dumps(state))
    assert load_state(file.parent).cas_store == ""
    assert made(tmp_path, None)


def test_a_database_may_move_and_needs_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of PostgreSQL only the kind is for ever; without psycopg nothing is made or started."""
    with monkeypatch.context() as without:
        without.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(
            InvalidArgument, match=r"needs psycopg: pip install 'stelae\[postgres\]'"
        ):
            made(tmp_path, {"url": "postgresql://me@here/d"})
        assert not (tmp_path / "data" / STATE_FILE).exists()
    made(tmp_path, {"url": "postgresql://me@here/d"})
    assert made(tmp_path, {"url": "postgres://me@there/d"})


async def test_a_host_runs_the_store_and_it_has_all_after_its_restart(tmp_path: Path) -> None:
    """The actor's own way of starting: a record written to one run is read from the next."""
    (plan,) = (p for p in made(tmp_path, SQLITE) if p.kind is ServerKind.CAS_STORE)
    plan = replace(plan, masters={"master-1": Address("127.0.0.1:1")})
    failures: list[BaseException] = []
    peers = TcpPeers(Credentials(plan.cluster, plan.secret), on_failure=failures.append)
    client = RealRuntime(peers, LocalDisk(tmp_path / "client"))
    at = Address("")
    remote = RemoteConfigurations(client, lambda: [at])
    timeline = TimelineId(TableId("table"), TabletId("tablet"))
    members = tuple(SafekeeperId(number) for number in (1, 2, 3))
    record = TimelineRecord(timeline, TimelineConfiguration(1, members))
    try:
        for run in (1, 2):
            host = ServerHost(plan)
            at = Address(await host.ready(20.0))
            assert isinstance(host._server, CasStore)
            assert (await host.run())[1] == run
            if run == 1:
                await remote.cas(record, 0, writer="w", nonce="n", timeout_s=5.0)
            stored = await remote.get(timeline, timeout_s=5.0)
            assert stored is not None
            assert (stored.record, stored.revision) == (record, 1)
            await host.stop()
            assert host._runtime is not None
            host._runtime.disk.close()  # type: ignore[attr-defined]
            await asyncio.sleep(0)
    finally:
        await client.close()
    assert not failures


def test_what_is_taken_down_forgets_nothing_that_was_chosen_since_it_came_up(
    tmp_path: Path,
) -> None:
    """Masters that were added, and the machines of servers that an apply has placed."""
    state, lock = prepare(spec_of(tmp_path, None))
    lock.release()
    masters = {**state.masters, "master-9": "127.0.0.1:9"}
    up = replace(state, ray_address="10.0.0.1:1", http="http://x", keeper_pid=7)
    replace(up, masters=masters, machines={"tserver-4": "disk-b"}).save()
    assert newest(state).machines == {"tserver-4": "disk-b"}
    take_down(state, {}, owns_ray=True)
    left = load_state(state.data_dir)
    assert (left.masters, left.machines) == (masters, {"tserver-4": "disk-b"})
    assert (left.ray_address, left.http, left.keeper_pid) == ("", "", 0)


def test_who_starts_servers_by_itself_is_ended_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would start those that are ended. What it has started until then is ended, too."""
    state, lock = prepare(spec_of(tmp_path, None))
    lock.release()
    there: dict[str, Any] = {"apply": MagicMock(), "tserver-1": MagicMock()}
    ended: list[str] = []

    def kill(actor: Any) -> None:
        (name,) = [each for each, its in there.items() if its is actor]
        del there[name]
        ended.append(name)
        if name == "apply":
            there["tserver-2"] = MagicMock()

    monkeypatch.setattr(launcher, "cluster_actors", lambda cluster: dict(there))
    monkeypatch.setattr(ray, "kill", kill)
    monkeypatch.setattr(ray, "wait", lambda *_, **__: ([], []))
    take_down(state, dict(there), owns_ray=False)
    assert ended == ["apply", "tserver-1", "tserver-2"]


def test_a_cluster_is_found_while_the_machine_of_a_master_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its actor fails each call; the others say where they listen. It takes one."""
    masters = [plan for plan in made(tmp_path, None) if plan.kind is ServerKind.MASTER]
    actors = {plan.name: MagicMock() for plan in masters}
    for plan in masters:
        actors[plan.name].describe.remote.return_value = plan
    away = {"master-1"}

    def get(plan: ServerPlan) -> ServerPlan:
        if plan.name in away:
            raise ray.exceptions.ActorUnavailableError("its node is gone", b"x" * 16)
        return plan

    monkeypatch.setattr(launcher, "cluster_actors", lambda cluster: actors)
    monkeypatch.setattr(ray, "wait", lambda asked, **_: (asked, []))
    monkeypatch.setattr(ray, "get", get)
    plan, found = launcher.find_cluster("demo")
    assert plan.name == "master-2"
    assert found == [plan.masters["master-2"], plan.masters["master-3"]]
    away.update(actors)
    with pytest.raises(Unavailable, match="no master answers"):
        launcher.find_cluster("demo")


def test_a_folder_that_was_moved_keeps_its_state_where_it_is_now(tmp_path: Path) -> None:
    """Not where it was once."""
    state, lock = prepare(spec_of(tmp_path, None))
    lock.release()
    moved = replace(state, data_dir=str(tmp_path / "moved"))
    (tmp_path / "data").rename(tmp_path / "moved")
    assert newest(moved) == moved


def test_a_masters_port_that_is_taken_is_named_at_once(tmp_path: Path) -> None:
    """Masters keep their ports; without this look a launch ended after a hundred seconds."""
    spec = spec_of(tmp_path, None)
    state, lock = prepare(spec)
    lock.release()
    host, _, port = next(iter(state.masters.values())).rpartition(":")
    with socket.socket() as other:
        other.bind((host, int(port)))
        other.listen()
        with pytest.raises(AlreadyRunning, match=f"master-1 cannot listen on {host}:{port}"):
            prepare(spec)
    prepare(spec)[1].release()


def test_a_secret_that_a_crash_cut_is_made_again_and_a_whole_one_stays(tmp_path: Path) -> None:
    """Nobody has it as long as there is no state; a whole one may be a running cluster's."""
    spec, secret = spec_of(tmp_path, None), tmp_path / "data" / "secret"
    secret.parent.mkdir(parents=True)
    secret.write_bytes(b"cut")
    state, lock = prepare(spec)
    lock.release()
    assert len(state.secret) == SECRET_BYTES
    (tmp_path / "data" / STATE_FILE).unlink()
    again, lock = prepare(spec)
    lock.release()
    assert again.secret == state.secret


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_address_of_either_family_is_looked_at(host: str) -> None:
    """``serve.host: "::1"`` is an address like others."""
    port = free_port(host)
    assert place_problem(host, port) == ""
    with socket.socket(family_of(host)) as other:
        other.bind((host, port))
        other.listen()
        assert "in use" in place_problem(host, port)
    assert "assign" in place_problem("::ffff:203.0.113.7" if ":" in host else "203.0.113.7", port)
