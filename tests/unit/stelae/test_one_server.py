"""How one server is stopped and started: what is looked at, and the order of what is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import ray

from stelae.applying import one_server
from stelae.applying import steps as apply_steps
from stelae.applying.one_server import start_server, stop_server
from stelae.applying.processes import Deployment
from stelae.cli.cluster.servers import retired
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import InvalidArgument, RetryLater
from stelae.database.api import Database
from stelae.database.servers import with_stopped
from stelae.deploy import launcher, locks, machines, masters
from stelae.deploy.cluster_state import SECRET_FILE, ClusterState

NAMES = [f"{kind}-{n}" for kind in ("master", "tserver", "backup") for n in (1, 2, 3)]


class Cluster:
    """Three masters, tablet servers and backups, in a Ray that does not exist."""

    cluster, ray_address, home = "demo", "", ""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.live = dict.fromkeys(NAMES)
        self.missing: list[int] = []
        """How many replicas a tablet lacks at the next looks."""
        self.in_turn: Callable[[], None] = lambda: None
        """Called when the turn was taken: what others have done meanwhile."""
        self.actors = {name: self._actor(name) for name in NAMES}
        folder.mkdir()
        (folder / SECRET_FILE).write_bytes(b"s" * 32)
        places = {f"master-{n}": f"127.0.0.1:70{n}" for n in (1, 2, 3)}
        self.masters = [{"name": name, "uuid": f"u-{name}"} for name in places]
        state = ClusterState("demo", str(folder), places)
        spec = load_spec({"cluster": "demo", "data_dir": str(folder)})
        known = Deployment(folder, spec, state)
        monkeypatch.setattr(one_server, "deployment_of", lambda *_: nullcontext(known))
        for module in (one_server, apply_steps):
            monkeypatch.setattr(module, "cluster_actors", lambda _: dict(self.actors))
        monkeypatch.setattr(apply_steps, "create_actor", self._create)
        monkeypatch.setattr(one_server, "POLL_S", 0.0)
        monkeypatch.setattr(launcher, "find_cluster", lambda _: (MagicMock(selector={}), []))
        monkeypatch.setattr(launcher, "kill_servers", self._kill)
        monkeypatch.setattr(locks, "wait_ended", lambda folders: [])
        monkeypatch.setattr(machines, "this_node", lambda: "")
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "get", lambda asked, timeout: asked())
        for module_ in (one_server, apply_steps):
            monkeypatch.setattr(module_, "list_masters", lambda _: self.masters)
        self._loop, self._database = MagicMock(), MagicMock()
        self._loop.run = lambda found: found
        self._database.tables, self._database.status = lambda *, own: [], self.status

    def _actor(self, name: str) -> MagicMock:
        actor = MagicMock()
        actor.hand_over.remote = lambda _: lambda: self.done.append(f"{name} hands over")
        actor.describe.remote = lambda: lambda: MagicMock(media=())
        actor.ready.remote = lambda _: lambda: self.live.setdefault(name)
        return actor

    def _create(self, plan: Any) -> MagicMock:
        self.actors[plan.name] = self._actor(plan.name)
        self.done.append(f"{plan.name} starts{', joining' if plan.joining else ''}")
        return self.actors[plan.name]

    def _kill(self, actors: dict[str, Any]) -> None:
        for name in actors:
            self.done.append(f"{name} ends")
            self.live.pop(name, None)
            del self.actors[name]

    @contextmanager
    def turn(
        self, what: str, by: str = "", *, tries_again: bool = False
    ) -> Iterator[Callable[[], None]]:
        self.done.append(what)
        self.in_turn()
        yield lambda: self.done.append("sure")

    def status(self, *, timeout: float = 5.0) -> dict[str, Any]:
        lacks = self.missing.pop(0) if self.missing else 0
        servers = [
            {
                "id": name,
                "uuid": f"u-{name}",
                "kind": name.partition("-")[0],
                "state": "live" if name in self.live else "dead",
                "incarnation": 1,
                "voter": True,
                "retiring": False,
                "media": ["disk"],
                "memory_bytes": 0,
                "memory_limit_bytes": 0,
            }
            for name in NAMES
        ]
        voters = [
            {"uuid": f"u-tserver-{n}", "server": f"tserver-{n}", "member": "voter",
             "server_live": f"tserver-{n}" in self.live, "role": "follower"}
            for n in (1, 2, 3)
        ]  # fmt: skip
        tablet = {
            "table": "t", "number": 1, "state": "running", "under_replicated": lacks,
            "memory_bytes": 0, "leader": "tserver-1", "replicas": voters,
        }  # fmt: skip
        return {"servers": servers, "tablets": [tablet], "shortages": [], "heard_all": True}

    def stop(self, server: str, timeout: float = 60.0) -> list[str]:
        self.done = []
        changed: Any = self
        stop_server(changed, server, timeout=timeout)
        return [each for each in self.done if each != "sure"]

    def start(self, server: str, timeout: float = 60.0) -> list[str]:
        self.done = []
        changed: Any = self
        start_server(changed, server, timeout=timeout)
        return [each for each in self.done if each != "sure"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path / "data", monkeypatch)


def test_leaderships_go_first_and_the_end_is_last(cluster: Cluster) -> None:
    """In the turn; and whoever lost it ends nothing."""
    assert cluster.stop("tserver-2") == [
        "server stop tserver-2",
        "tserver-2 hands over",
        "tserver-2 ends",
    ]
    assert cluster.done.index("sure") < cluster.done.index("tserver-2 hands over")
    assert cluster.stop("u-backup-1")[1:] == ["backup-1 ends"], "by its UUID; it leads nothing"


def test_one_that_would_be_missed_is_refused_before_anybody_waits(cluster: Cluster) -> None:
    """With the table, and the reason."""
    cluster.stop("tserver-2")
    with pytest.raises(InvalidArgument, match="tablet 1 of 't' would have no live majority"):
        cluster.stop("tserver-1")
    assert cluster.done == []
    assert "tserver-1" in cluster.actors


def test_one_that_came_to_be_missed_meanwhile_is_refused(cluster: Cluster) -> None:
    """While it waited for the turn another one died."""
    cluster.in_turn = lambda: cluster.live.pop("master-3")
    with pytest.raises(InvalidArgument, match="1 of 3 masters would live"):
        cluster.stop("master-1")
    assert "master-1" in cluster.actors


def test_nothing_is_ended_while_anything_is_missing(cluster: Cluster) -> None:
    """It is waited for; and not for longer than was asked."""
    cluster.missing = [0, 0, 0, 2, 1]
    assert cluster.stop("backup-1")[-1] == "backup-1 ends"
    assert cluster.missing == []
    cluster.missing = [1] * 100
    with pytest.raises(RetryLater, match="backup-2 is not stopped yet: 1 tablets lack replicas"):
        cluster.stop("backup-2", timeout=0.0)
    assert "backup-2" in cluster.actors


def test_a_dead_one_is_ended_so_that_ray_does_not_start_it(cluster: Cluster) -> None:
    """It serves nothing: there is nothing to wait for, and nothing to refuse."""
    del cluster.live["tserver-3"]
    cluster.missing = [1] * 3
    assert cluster.stop("tserver-3") == ["server stop tserver-3", "tserver-3 ends"]
    assert cluster.stop("tserver-3") == ["server stop tserver-3"], "again is fine"
    with pytest.raises(InvalidArgument, match="'nobody' is no server"):
        cluster.stop("nobody")


def test_a_stopped_one_is_started_under_its_name(cluster: Cluster) -> None:
    """A master as one of the set that founds nothing; one that runs is only waited for."""
    for name in ("backup-1", "master-2"):
        cluster.stop(name)
    assert cluster.start("u-backup-1") == ["server start backup-1", "backup-1 starts"]
    assert cluster.start("master-2") == ["server start master-2", "master-2 starts, joining"]
    assert cluster.start("backup-1") == ["server start backup-1"]


def test_what_the_spec_does_not_have_is_not_started(cluster: Cluster) -> None:
    """Nor a master that has left the set: it would be another one."""
    with pytest.raises(InvalidArgument, match="'backup-9' is no server"):
        cluster.start("backup-9")
    cluster.masters = cluster.masters[:2]
    with pytest.raises(InvalidArgument, match="`stelae master add`"):
        cluster.start("master-3")


def test_a_server_without_an_actor_is_shown_as_stopped() -> None:
    """Ray keeps the actors of those that died. One that nobody heard is listed all the same."""
    servers = [
        {"kind": "tserver", "name": "tserver-1", "state": "live"},
        {"kind": "tserver", "name": "tserver-2", "state": "dead"},
        {"kind": "tserver", "name": "tserver-3", "state": "dead"},
        {"kind": "tserver", "name": "tserver-4", "state": "dead"},
    ]
    wanted = ["tserver-1", "tserver-2", "tserver-3", "backup-1"]
    found = with_stopped(servers, wanted, ["tserver-3"])
    assert [(each["name"], each["state"]) for each in found] == [
        ("tserver-1", "live"),
        ("tserver-2", "stopped"),
        ("tserver-3", "dead"),
        ("tserver-4", "dead"),
        ("backup-1", "stopped"),
    ]


class Kinds:
    """The masters' word on servers, for a `Database`."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def kind_of(self, server: str) -> str:
        return self._kind


def database_of_kind(kind: str) -> Database:
    loop = MagicMock()
    loop.run = lambda found: found
    database = Database(loop, Kinds(kind), "demo")  # type: ignore[arg-type]
    database.link = MagicMock()
    return database


def test_a_master_is_retired_as_it_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its UUID, so that nobody else of its name is; it cannot be taken back."""
    removed: list[str] = []
    members = [{"name": "master-2", "uuid": "u2"}]
    monkeypatch.setattr(masters, "list_masters", lambda _: members)
    monkeypatch.setattr(
        masters, "remove_master_alone", lambda _, uuid, timeout: removed.append(uuid)
    )
    database = database_of_kind("master")
    with pytest.raises(InvalidArgument, match="`stelae master add`"):
        database.retire_server("master-2", cancel=True)
    assert removed == []
    found = database.retire_server("master-2")
    assert removed == ["u2"]
    assert retired(found) == "master-2 has left the set of masters, and its process has ended"
    with pytest.raises(InvalidArgument, match="no master of the set any more"):
        database.retire_server("master-3")


def test_the_configuration_store_is_not_retired() -> None:
    """There is one; the text says what helps."""
    with pytest.raises(InvalidArgument, match="restore a backup of the tables"):
        database_of_kind("cas_store").retire_server("cas_store-1")
