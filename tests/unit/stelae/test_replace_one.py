"""How one server is replaced by a new one of its name: the order of what is done, on a Ray that
does not exist. What comes next is decided by the real rules, from a status document."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import ray

from stelae.applying import one_server, replace_master, replace_one
from stelae.applying import steps as apply_steps
from stelae.applying.processes import Deployment
from stelae.applying.replace_one import replace_server
from stelae.applying.replacement import Replacement
from stelae.cli import app as cli
from stelae.cli.cluster import servers as cli_servers
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import AlreadyRunning, InvalidArgument, RetryLater, Unavailable
from stelae.core.schema.durability import replicas
from stelae.deploy import launcher, locks, machines
from stelae.deploy.cluster_state import SECRET_FILE, ClusterState

KINDS = ("master", "tserver", "backup", "safekeeper")
STORE = "cas_store-1"
NAMES = [f"{kind}-{n}" for kind in KINDS for n in (1, 2, 3, 4) if (kind, n) != ("master", 4)]
NAMES.append(STORE)


class Killed(Exception):
    """The operator's process ends here."""


class Cluster:
    """Servers of each kind; masters that drain and hear what the operator's process does."""

    cluster, ray_address, home = "demo", "", ""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.uuids = {name: f"u-{name}" for name in NAMES}
        self.live = dict.fromkeys(NAMES)
        self.has = dict.fromkeys(NAMES, 2)
        """How much a drain has yet to move, by name; one goes with each look."""
        self.retiring: dict[str, None] = {}
        self.fences: dict[str, dict[str, Any]] = {}
        self.missing: list[int] = []
        """How many replicas a tablet lacks at the next looks."""
        self.unheard = 0
        """For how many more looks the leader master has just begun."""
        self.unknown: dict[str, None] = {}
        """Dead servers that no master has heard since it began."""
        self.named: list[str] = []
        """Those of them that the catalog names."""
        self.marked_only = False
        """By an operator's mark alone."""
        self.needs_disk = False
        self.in_turn: Callable[[], None] = lambda: None
        """Called when the turn was taken: what others have done meanwhile."""
        self.is_in_turn = False
        self.taken: list[str] = []
        """Who has the turn at the next tries; empty: nobody."""
        self.refused_waiting: list[bool] = []
        """Of each try that was refused: whether it is tried again, and so no row of the audit
        log."""
        self.dies_before = ""
        """The step before which the operator's process ends."""
        self.busy: list[str] = []
        """Why folders cannot be set aside, at the next tries."""
        self.actors = {name: self._actor(name) for name in NAMES}
        folder.mkdir()
        (folder / SECRET_FILE).write_bytes(b"s" * 32)
        places = {f"master-{n}": f"127.0.0.1:70{n}" for n in (1, 2, 3)}
        self.masters = [{"name": name, "uuid": f"u-{name}"} for name in places]
        self.state = ClusterState("demo", str(folder), places)
        self.asked: dict[str, Any] = {
            "cluster": "demo", "data_dir": str(folder), "masters": {"count": 3},
            "tservers": {"count": 4}, "backups": {"count": 4}, "safekeepers": {"count": 4},
            "cas_store": {"url": "postgresql://127.0.0.1/stelae"},
        }  # fmt: skip
        self.spec = load_spec(self.asked)
        self.known = Deployment(folder, self.spec, self.state)
        self._patch(monkeypatch)
        self._loop, self._database = MagicMock(), MagicMock()
        self._loop.run = lambda found: found
        self._database.status, self._database.tables = self.status, lambda *, own: []
        self._database.replace_server = self._fence
        self._database.retire_server = self._database.retire_safekeeper = self._retire
        self._database.safekeepers = self._safekeepers
        self._database.servers = lambda kind: []

    def _patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        modules = (one_server, apply_steps, replace_one, replace_master)
        monkeypatch.setattr(one_server, "deployment_of", lambda *_: nullcontext(self.known))
        for module in modules:
            monkeypatch.setattr(module, "cluster_actors", lambda _: dict(self.actors))
        monkeypatch.setattr(apply_steps, "create_actor", self._create)
        for module in (apply_steps, replace_one, replace_master):
            monkeypatch.setattr(module, "empty_folders", self._empty)
        for module in (replace_one, replace_master):
            monkeypatch.setattr(module, "refresh", lambda home, cluster: self._step("reads files"))
            monkeypatch.setattr(module, "load_state", lambda home: self.known.state)
        monkeypatch.setattr(replace_one, "kept_spec", lambda home: None)
        for module in (one_server, replace_one, apply_steps):
            monkeypatch.setattr(module, "POLL_S", 0.0)
        monkeypatch.setattr(launcher, "find_cluster", lambda _: (MagicMock(selector={}), []))
        monkeypatch.setattr(launcher, "kill_servers", self._kill)
        monkeypatch.setattr(locks, "wait_ended", lambda folders: [])
        monkeypatch.setattr(machines, "this_node", lambda: "")
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(ray, "get", lambda asked, timeout: asked())
        monkeypatch.setattr(ray, "kill", self._kill_actor)
        monkeypatch.setattr(replace_master, "list_masters", lambda _: list(self.masters))
        monkeypatch.setattr(replace_master, "remove_master", self._remove)
        monkeypatch.setattr(replace_master, "add_master", self._add)

    def _step(self, text: str) -> None:
        if self.dies_before and text.startswith(self.dies_before):
            self.dies_before = ""
            raise Killed
        self.done.append(text)

    def _actor(self, name: str) -> MagicMock:
        actor = MagicMock()
        actor.hand_over.remote = lambda _: lambda: self._step(f"{name} hands over")
        actor.describe.remote = lambda: lambda: MagicMock(media=())
        actor.ready.remote = lambda _: lambda: self._heard(name)
        return actor

    def forget(self, name: str) -> None:
        """All masters were started anew while it was dead."""
        self.unknown[name] = None
        del self.live[name]

    def _heard(self, name: str) -> None:
        self.live[name] = None
        self.unknown.pop(name, None)
        for each in self.fences.values():
            if each["id"] == name and not each["successor"]:
                each["successor"] = self.uuids[name] = f"new-{name}"

    def _create(self, plan: Any) -> MagicMock:
        self._step(f"{plan.name} starts")
        self.actors[plan.name] = self._actor(plan.name)
        return self.actors[plan.name]

    def _kill(self, actors: dict[str, Any]) -> None:
        for name in actors:
            self._step(f"{name} ends")
            assert self.is_in_turn
            self.live.pop(name, None)
            del self.actors[name]

    def _kill_actor(self, actor: Any) -> None:
        (name,) = [each for each, its in self.actors.items() if its is actor]
        self._kill({name: actor})

    def _empty(self, plan: Any) -> tuple[str, ...]:
        if self.busy:
            raise Unavailable(plan.name, self.busy.pop(0))
        if f"{plan.name} aside" in self.done:
            return ()
        self._step(f"{plan.name} aside")
        return (f"/data/{plan.name}.replaced",)

    def _fence(self, uuid: str, *, goes_on: bool) -> None:
        self._step(f"fences {uuid}" if goes_on else f"notes {uuid}")
        name = self.fences[uuid]["id"] if uuid in self.fences else self._name_of(uuid)
        assert uuid in self.fences or name not in self.live, "the masters refuse that"
        before = {"id": name, "uuid": uuid, "successor": "", "marked_only": self.marked_only}
        before = self.fences.get(uuid, before)
        self.fences[uuid] = {**before, "goes_on": goes_on}

    def _name_of(self, uuid: str) -> str:
        (name,) = [name for name, its in self.uuids.items() if its == uuid]
        return name

    def _retire(self, uuid: str, *, wait: bool, timeout: float) -> None:
        assert not wait
        self._step(f"drains {uuid}")
        self.retiring[uuid] = None

    def _safekeepers(self) -> list[Any]:
        return [
            MagicMock(timelines=self.has[name], record=MagicMock(uuid=self.uuids[name]))
            for name in NAMES
            if name.startswith("safekeeper")
        ]

    def _remove(self, database: Any, uuid: str, timeout: float) -> None:
        self._step(f"{uuid} leaves the set")
        self.masters = [each for each in self.masters if each["uuid"] != uuid]

    def _add(self, database: Any, name: str, timeout: float) -> list[dict[str, Any]]:
        self._step(f"{name} joins")
        self.uuids[name] = f"new-{name}"
        self.actors[name], self.live[name] = self._actor(name), None
        self.masters = [*self.masters, {"name": name, "uuid": self.uuids[name]}]
        return self.masters

    @contextmanager
    def turn(
        self, what: str, by: str = "", *, tries_again: bool = False
    ) -> Iterator[Callable[[], None]]:
        if self.taken and (whose := self.taken.pop(0)):
            self.refused_waiting.append(tries_again)
            raise AlreadyRunning(whose)
        self._step(what)
        self.in_turn()
        self.is_in_turn = True
        try:
            yield lambda: None
        finally:
            self.is_in_turn = False

    def _server(self, name: str) -> dict[str, Any]:
        kind, uuid = name.rpartition("-")[0], self.uuids[name]
        leaves = uuid in self.retiring
        if leaves and self.has[name] and not self.is_in_turn:
            self.has[name] -= 1
        left = self.has[name] if uuid.startswith("u-") else 0
        state = "live" if name in self.live else "dead"
        found = {"id": name, "uuid": uuid, "kind": kind, "incarnation": 1, "state": state}
        if kind == "master":
            return {**found, "role": "follower", "voter": True, "keeps_up": True}
        found |= {"silent_s": 60.0, "memory_bytes": 0, "memory_limit_bytes": 0}
        match kind:
            case "tserver":
                found |= {"retiring": leaves, "maintenance": False, "replicas": left}
                found |= {"tablets": left, "indexlets": 0}
            case "backup":
                found |= {"retiring": leaves, "drained": leaves and not left}
                found |= {"media": ["disk"], "segments": left}
            case "safekeeper":
                status = "decommissioned" if leaves else "active"
                found |= {"safekeeper_id": 1, "status": status, "timelines": left}
        return found

    def status(self, *, timeout: float = 5.0) -> dict[str, Any]:
        lacks = self.missing.pop(0) if self.missing else 0
        self.unheard -= self.unheard > 0
        heard = [name for name in NAMES if name not in self.unknown]
        servers = [self._server(name) for name in heard if self.uuids[name] not in self.fences]
        named = [
            {"id": name, "uuid": self.uuids[name], "marked_only": self.marked_only}
            for name in self.named
            if name in self.unknown
        ]
        tablet = {
            "table": "t", "number": 1, "state": "running", "under_replicated": lacks,
            "memory_bytes": 0, "leader": "tserver-1", "replicas": [], "reported": True,
            "loaded": 1.0, "segments_lacking": int(self.needs_disk),
        }  # fmt: skip
        return {
            "servers": servers, "tablets": [tablet], "shortages": [],
            "heard_all": not self.unheard, "replaced": list(self.fences.values()),
            "servers_not_heard": [e for e in named if e["uuid"] not in self.fences],
        }  # fmt: skip

    def replace(self, server: str, *, timeout: float = 60.0, **how: Any) -> Replacement:
        changed: Any = self
        return replace_server(changed, server, timeout=timeout, **how)

    @property
    def steps(self) -> list[str]:
        return [each for each in self.done if each != "reads files"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path / "data", monkeypatch)


@pytest.mark.parametrize("name", ["tserver-2", "backup-2", "safekeeper-2"])
def test_a_server_is_drained_ended_fenced_set_aside_and_started(
    cluster: Cluster, name: str
) -> None:
    """In this order; the turn is not held while it is drained, nor while the end is waited for."""
    turn = f"server replace {name}"
    found = cluster.replace(name)
    assert cluster.steps == [
        turn, f"drains u-{name}",
        turn, f"{name} ends", f"fences u-{name}", f"{name} aside", f"{name} starts",
        f"notes u-{name}",
    ]  # fmt: skip
    assert cluster.done.count("reads files") == 2, "what others have asked for during the drain"
    folder = f"/data/{name}.replaced"
    assert found == Replacement(
        name, (f"u-{name}",), f"new-{name}", set_aside=(folder,), set_aside_on=("",)
    )
    assert found.document()["set_aside"] == [folder]


@pytest.mark.parametrize("drain", [True, False])
def test_a_configuration_store_is_replaced_without_a_drain(
    cluster: Cluster, *, drain: bool
) -> None:
    """Its rows are in PostgreSQL: it has nothing that could leave, and nothing of it is counted."""
    cluster.unheard = 2
    found = cluster.replace(STORE, drain=drain)
    steps = [each for each in cluster.steps if "server replace" not in each]
    assert steps == [
        f"{STORE} ends", f"fences u-{STORE}", f"{STORE} aside", f"{STORE} starts",
        f"notes u-{STORE}",
    ]  # fmt: skip
    assert found.uuid == f"new-{STORE}"


STEPS = ("drains", "backup-2 ends", "fences", "backup-2 aside", "backup-2 starts", "notes")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("given", ["backup-2", "u-backup-2"])
def test_interrupted_anywhere_it_goes_on(cluster: Cluster, step: str, given: str) -> None:
    """Each step is taken once, whoever goes on: by name, or by the UUID that is replaced."""
    cluster.dies_before = step
    with pytest.raises(Killed):
        cluster.replace("backup-2")
    found = cluster.replace(given)
    assert found.uuid == "new-backup-2"
    assert found.only_ended is (step == "notes"), "else it is this call that has replaced it"
    steps = [each for each in cluster.steps if not each.startswith("server replace")]
    uuid = "u-backup-2"
    assert steps == [
        f"drains {uuid}", "backup-2 ends", f"fences {uuid}", "backup-2 aside", "backup-2 starts",
        f"notes {uuid}",
    ]  # fmt: skip
    assert list(cluster.fences) == [uuid], "the new server is not replaced as well"


def test_another_disk_is_not_told_of_as_replaced(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupted replacement, whose end was never noted, is ended; the text says that it was
    that one, and how the server is replaced once more."""
    cluster.dies_before = "notes"
    with pytest.raises(Killed):
        cluster.replace("backup-2")
    database = MagicMock()
    database.replace_server = lambda server, **how: cluster.replace(server)
    monkeypatch.setattr(cli_servers, "open_cluster", lambda _: nullcontext(database))
    with pytest.raises(SystemExit) as ended:
        cli.main(["server", "replace", "backup-2", "--yes"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert "an earlier replacement of backup-2 is whole now; its new server is new-backup-2" in out
    assert "Nothing else was replaced: `stelae server replace backup-2`, given again" in out
    assert "backup-2 is a new server" not in out
    assert cluster.uuids["backup-2"] == "new-backup-2"


def test_success_is_not_told_by_a_leader_that_has_just_begun(cluster: Cluster) -> None:
    """It knows of nothing that lacks; and neither is anything begun by its word."""
    cluster.unheard = 3
    cluster.replace("tserver-2")
    assert cluster.unheard == 0
    started = cluster._heard

    def another_leads(name: str) -> None:
        started(name)
        cluster.unheard, cluster.missing = 5, [0] * 4 + [1]

    cluster._heard = another_leads  # type: ignore[method-assign]
    cluster.replace("tserver-3")
    assert not cluster.unheard
    assert not cluster.missing, "it was waited for what lacked then"


def test_what_was_asked_for_during_the_drain_counts(cluster: Cluster) -> None:
    """A spec without the server: nothing is ended, and nothing started."""
    few = cluster.spec.backups.model_copy(update={"count": 1})
    fewer = cluster.spec.model_copy(update={"backups": few})
    specs = [cluster.spec, fewer]
    assert len(cluster.known.plans) == len(NAMES)
    with pytest.MonkeyPatch.context() as patch:
        kept = MagicMock()
        patch.setattr(replace_one, "kept_spec", lambda home: kept)
        patch.setattr(replace_one, "load_spec", lambda _: specs.pop(0))
        with pytest.raises(InvalidArgument, match="backup-2 was taken out of the spec meanwhile"):
            cluster.replace("backup-2")
    assert "backup-2" in cluster.actors


def test_a_drain_that_somebody_takes_back_ends_it(cluster: Cluster) -> None:
    """With who may have; the server lives on."""
    drain = cluster._retire

    def taken_back(uuid: str, **more: Any) -> None:
        drain(uuid, **more)
        cluster.retiring.clear()

    cluster._database.retire_server = taken_back
    with pytest.raises(RetryLater, match=r"took its drain back .*`stelae apply`"):
        cluster.replace("tserver-2")
    assert "tserver-2" in cluster.live


def test_a_drain_that_was_begun_before_is_never_stuck(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tablet may take long. It goes on as one of this call does, and may be taken back."""
    monkeypatch.setattr(replace_one, "STUCK_S", -1.0)
    cluster.retiring["u-tserver-2"] = None
    cluster.has["tserver-2"] = 9
    assert cluster.replace("tserver-2").uuid == "new-tserver-2"
    assert "drains u-tserver-2" not in cluster.done
    cluster.retiring["u-tserver-3"] = None
    cluster.has["tserver-3"] = 9
    looks = iter(range(9))

    def taken_back(*_: Any) -> str:
        if next(looks) > 1:
            cluster.retiring.clear()
        return "a tablet is left"

    monkeypatch.setattr(replace_one._Replace, "_why_left", taken_back)
    with pytest.raises(RetryLater, match="took its drain back"):
        cluster.replace("tserver-3")


def test_somebody_elses_change_is_named_at_once_and_waited_for_after_a_drain(
    cluster: Cluster,
) -> None:
    """A drain may have taken hours: it is not given up for the moment of another's step."""
    cluster.taken = ["ada is changing this cluster (apply)"]
    with pytest.raises(AlreadyRunning, match=r"ada is changing this cluster \(apply\)"):
        cluster.replace("tserver-2")
    assert not cluster.done
    cluster.taken = ["", "ada is changing this cluster (apply)"]
    cluster.replace("tserver-2")
    assert cluster.uuids["tserver-2"] == "new-tserver-2"
    assert cluster.refused_waiting == [False, True]


def test_without_a_drain_leaderships_go_first(cluster: Cluster) -> None:
    """It is refused while anything lacks, as a stop is."""
    cluster.missing = [0, 0, 2, 1]
    cluster.replace("tserver-2", drain=False)
    assert cluster.steps[:4] == [
        "server replace tserver-2", "tserver-2 hands over", "tserver-2 ends", "fences u-tserver-2",
    ]  # fmt: skip
    assert not cluster.missing


def test_a_dead_one_whose_disk_is_needed_is_not_fenced(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text says why, and how it goes on; nothing has changed."""
    del cluster.live["backup-2"]
    cluster.needs_disk = True
    monkeypatch.setattr(replace_one, "STUCK_S", 0.0)
    again = r"on no backup that lives. No progress .* `stelae server replace u-backup-2` goes on"
    with pytest.raises(RetryLater, match=again):
        cluster.replace("backup-2")
    assert not cluster.done
    cluster.needs_disk = False
    cluster.replace("backup-2")
    assert cluster.steps[1:3] == ["fences u-backup-2", "backup-2 ends"], "Ray would start it again"


@pytest.mark.parametrize("name", ["tserver-2", "backup-2", "safekeeper-2"])
@pytest.mark.parametrize("has_actor", [True, False])
def test_a_server_that_nobody_knows_is_ended_and_set_aside_before_another_starts(
    cluster: Cluster, name: str, *, has_actor: bool
) -> None:
    """All masters were started anew, and the catalog has no UUID of its name: nothing needs its
    disk, and there is nothing to fence."""
    cluster.forget(name)
    if not has_actor:
        del cluster.actors[name]
    found = cluster.replace(name)
    ends = [f"{name} ends"] * has_actor
    turn = f"server replace {name}"
    assert cluster.steps == [turn, *ends, f"{name} aside", f"{name} starts"]
    assert (found.former, found.uuid) == ((), f"u-{name}")
    assert "nothing was fenced" in found.lines()[0]


def each_wait_lasts(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """By a clock on which nothing else takes time."""
    waits: list[float] = []
    clock = MagicMock(monotonic=lambda: sum(waits), sleep=lambda _: waits.append(seconds))
    monkeypatch.setattr(replace_one, "time", clock)


@pytest.mark.parametrize("timeout", [60.0, 1e9])
def test_nobody_is_told_to_replace_the_new_one_of_a_server_that_nobody_knew(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    """Nothing notes that replacement, so that the same command is another one. The text says so
    once the new server was started, whether the time is over or nothing changes."""
    each_wait_lasts(monkeypatch, 30.0)
    cluster.forget("tserver-2")
    cluster.unheard = 9
    with pytest.raises(RetryLater, match="`stelae server replace tserver-2` goes on"):
        cluster.replace("tserver-2", timeout=1.0)
    cluster.unheard, cluster.missing = 0, [0] * 2 + [1] * 99
    with pytest.raises(RetryLater) as caught:
        cluster.replace("tserver-2", timeout=timeout)
    assert "tserver-2 starts" in cluster.steps
    assert "is not whole yet: 1 tablets lack replicas" in str(caught.value)
    assert "Do not give this command again" in str(caught.value)
    assert "goes on" not in str(caught.value)


@pytest.mark.parametrize("step", ["tserver-2 ends", "tserver-2 aside", "tserver-2 starts"])
def test_that_goes_on_wherever_it_was_left(cluster: Cluster, step: str) -> None:
    """Nothing of it is written down: what is done again changes nothing."""
    cluster.forget("tserver-2")
    cluster.dies_before = step
    with pytest.raises(Killed):
        cluster.replace("tserver-2")
    assert cluster.replace("tserver-2").former == ()
    for each in ("tserver-2 ends", "tserver-2 aside", "tserver-2 starts"):
        assert cluster.steps.count(each) == 1


def test_one_that_is_heard_meanwhile_is_not_ended(cluster: Cluster) -> None:
    """It may have what others need: the same command again fences it by its UUID."""
    cluster.forget("tserver-2")
    cluster.in_turn = lambda: cluster.unknown.clear()
    with pytest.raises(InvalidArgument, match="heard it meanwhile: give the same command again"):
        cluster.replace("tserver-2")
    assert cluster.steps == ["server replace tserver-2"]


@pytest.mark.parametrize("given", ["safekeeper-2", "u-safekeeper-2"])
def test_one_that_the_catalog_alone_names_is_fenced(cluster: Cluster, given: str) -> None:
    """By the UUID that the catalog has, although no master has heard it."""
    cluster.forget("safekeeper-2")
    cluster.named = ["safekeeper-2"]
    found = cluster.replace(given)
    assert found.former == ("u-safekeeper-2",)
    assert cluster.steps[:4] == [
        "server replace safekeeper-2", "fences u-safekeeper-2", "safekeeper-2 ends",
        "safekeeper-2 aside",
    ]  # fmt: skip


def test_a_drain_in_which_nothing_leaves_ends_the_wait(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is left, after `DRAIN_STUCK_S` without a new least; the drain itself goes on."""
    now = 0.0

    def later(_: float) -> None:
        nonlocal now
        now += replace_one.DRAIN_STUCK_S / 4
        if cluster.retiring:
            cluster.has["tserver-2"] = max(cluster.has["tserver-2"], 2)

    clock = MagicMock(monotonic=lambda: now, sleep=later)
    monkeypatch.setattr(replace_one, "time", clock)
    cluster.has["tserver-2"] = 9
    stuck = "1 tablets are left. No progress for 30 min; the drain goes on by itself; `stelae"
    with pytest.raises(RetryLater, match=stuck):
        cluster.replace("tserver-2", timeout=1e9)
    assert "u-tserver-2" in cluster.retiring
    assert now > 8 / 4 * replace_one.DRAIN_STUCK_S, "it had progress for a while"
    assert "tserver-2 ends" not in cluster.steps


def test_the_turn_of_another_is_waited_for_once_it_has_waited_itself(cluster: Cluster) -> None:
    """Only its very first try is refused. A dead server has no drain, and is waited for too."""
    del cluster.live["backup-2"]
    cluster.taken = ["ada applies"]
    with pytest.raises(AlreadyRunning, match="ada applies"):
        cluster.replace("backup-2")
    cluster.unheard, cluster.taken = 3, ["ada applies", ""]
    assert cluster.replace("backup-2").uuid == "new-backup-2"
    assert cluster.refused_waiting == [False, True]


def test_a_turn_that_does_not_end_is_stuck_although_its_text_counts_seconds(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `STUCK_S`, as any wait. A number that shows progress begins the time again."""
    each_wait_lasts(monkeypatch, replace_one.STUCK_S / 4)
    del cluster.live["backup-2"]
    cluster.unheard = 3
    cluster.taken = [f"ada applies; its turn ends in {left} s" for left in range(30, 0, -1)]
    with pytest.raises(RetryLater, match=r"its turn ends in 2\d s\. No progress for 2 min"):
        cluster.replace("backup-2", timeout=1e9)
    cluster.taken = []
    lacking = [f"{count} tablets lack replicas" for count in range(30)]
    monkeypatch.setattr(replace_one, "what_is_unwell", lambda _: lacking.pop() if lacking else "")
    assert cluster.replace("backup-2", timeout=1e9).uuid == "new-backup-2"
    assert not lacking


def test_a_folder_that_a_process_still_holds_is_waited_for(cluster: Cluster) -> None:
    """Nothing is started on it."""
    cluster.busy = ["a server runs on /data"] * 3
    cluster.replace("safekeeper-2")
    assert cluster.steps[-3:] == [
        "safekeeper-2 aside", "safekeeper-2 starts", "notes u-safekeeper-2",
    ]  # fmt: skip


def test_without_time_no_turn_is_taken(cluster: Cluster) -> None:
    """It ends with how it goes on; no step would be taken, however often the turn were."""

    def again() -> None:
        assert cluster.steps.count("server replace backup-2") == 1, "an endless loop"

    cluster.in_turn = again
    on = r"the time is over; `stelae server replace u-backup-2` goes on where this was"
    with pytest.raises(RetryLater, match=on):
        cluster.replace("backup-2", timeout=0.0)
    assert cluster.done == []


def test_what_is_no_server_of_the_spec_is_refused(cluster: Cluster) -> None:
    """With the ways that there are."""
    with pytest.raises(InvalidArgument, match="'nobody' is no server"):
        cluster.replace("nobody")
    with pytest.raises(InvalidArgument, match="on one machine"):
        cluster.replace("backup-2", elsewhere=True)
    cluster.fences["gone"] = {"id": "backup-9", "uuid": "gone", "successor": ""}
    with pytest.raises(InvalidArgument, match="backup-9 is no server of the spec"):
        cluster.replace("gone")


# ---- masters --------------------------------------------------------------------------------


MASTER_STEPS = ("master-2 ends", "master-2 aside", "u-master-2 leaves", "master-2 joins")


def test_a_master_leaves_the_set_before_the_new_one_joins(cluster: Cluster) -> None:
    """Once its process has ended and its folder is set aside; all in one turn."""
    found = cluster.replace("master-2")
    assert cluster.steps == [
        "server replace master-2", "master-2 hands over", "master-2 ends", "master-2 aside",
        "u-master-2 leaves the set", "master-2 joins",
    ]  # fmt: skip
    folder = "/data/master-2.replaced"
    assert found == Replacement(
        "master-2", ("u-master-2",), "new-master-2", set_aside=(folder,), set_aside_on=("",)
    )


@pytest.mark.parametrize("step", MASTER_STEPS)
def test_a_masters_replacement_goes_on_wherever_it_was_left(cluster: Cluster, step: str) -> None:
    """From the set and the actors alone."""
    cluster.dies_before = step
    with pytest.raises(Killed):
        cluster.replace("master-2")
    assert cluster.replace("master-2").uuid == "new-master-2"
    assert [each["name"] for each in cluster.masters] == ["master-1", "master-3", "master-2"]
    assert cluster.steps.count("master-2 joins") == 1


def test_a_master_is_not_replaced_while_another_is_away(cluster: Cluster) -> None:
    """With it, a majority might be gone."""
    del cluster.live["master-3"]
    with pytest.raises(RetryLater, match="do not live or are behind: master-3"):
        cluster.replace("master-2", timeout=0.0)
    cluster.masters = cluster.masters[:1]
    assert "master-2" in cluster.live


@pytest.fixture
def places(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Machines that Ray has, where all servers of a kind are on machines of their own."""
    cluster.spec = load_spec(
        {**cluster.asked, "ray": {"address": "auto"}, "placement": {"label": "disk"}}
    )
    cluster.state = replace(cluster.state, machines={name: f"m{name[-1]}" for name in NAMES})
    cluster.known = Deployment(cluster.known.home, cluster.spec, cluster.state)
    live = {f"m{n}": f"10.0.0.{n}" for n in (1, 2, 3, 4, 5)}
    monkeypatch.setattr(machines, "live_machines", lambda label: dict(live))
    monkeypatch.setattr(machines, "live_racks", lambda label, rack: {})
    for module in (replace_one, replace_master):
        monkeypatch.setattr(module, "publish", lambda home, cluster: None)

        def with_room(spec: Any, state: Any, name: str, among: list[str], racks: Any) -> str:
            if not among:
                raise Unavailable(name, "no machine can take it")
            return among[-1]

        monkeypatch.setattr(module, "machine_with_room", with_room)

    def saved(state: ClusterState) -> None:
        cluster.state = state
        cluster.known = Deployment(cluster.known.home, cluster.spec, state)

    monkeypatch.setattr(ClusterState, "save", saved)
    return live


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("marked", [[], ["tserver-2"]])
def test_one_that_nobody_knows_needs_its_machine(
    cluster: Cluster, places: dict[str, str], marked: list[str], *, is_late: bool
) -> None:
    """Without a fence its process must be seen to have ended: also elsewhere, and also where the
    machine is lost during the turn. The UUID of a mark may be that of an earlier server."""
    cluster.forget("tserver-2")
    cluster.named, cluster.marked_only = marked, True

    def lost() -> None:
        del places["m2"]

    if is_late:
        cluster.in_turn = lost
    else:
        lost()
    with pytest.raises(InvalidArgument, match="no UUID of tserver-2 to fence it by"):
        cluster.replace("tserver-2", elsewhere=True)
    assert not [each for each in cluster.steps if "starts" in each or "aside" in each]
    assert not cluster.fences


@pytest.mark.parametrize("dies", ["tserver-2 ends", "tserver-2 aside"])
def test_one_that_a_mark_alone_names_needs_its_machine_also_when_it_goes_on(
    cluster: Cluster, places: dict[str, str], dies: str
) -> None:
    """The command ended between the fence and the end of its process: the fence says that it may be
    of an earlier server. Once the machine is back it is carried on."""
    cluster.forget("tserver-2")
    cluster.named, cluster.marked_only = ["tserver-2"], True
    cluster.dies_before = dies
    with pytest.raises(Killed):
        cluster.replace("tserver-2", elsewhere=True)
    assert cluster.fences
    cluster.actors.pop("tserver-2", None)
    machine = places.pop("m2")
    with pytest.raises(InvalidArgument, match="no UUID of tserver-2 to fence it by"):
        cluster.replace("tserver-2", elsewhere=True)
    assert "tserver-2" not in cluster.actors
    places["m2"] = machine
    assert cluster.replace("tserver-2", elsewhere=True).uuid == "new-tserver-2"


@pytest.mark.parametrize("name", ["master-2", "tserver-2"])
def test_a_folder_is_named_with_the_machine_that_it_is_on(
    cluster: Cluster, places: dict[str, str], name: str
) -> None:
    """Not with that of the new server."""
    told: list[str] = []
    found = cluster.replace(name, elsewhere=True, progress=told.append)
    assert (found.machine, found.set_aside_on) == ("m5", ("m2",))
    folder = f"/data/{name}.replaced on m2"
    assert found.folders() == [folder]
    assert f"what {name} had is in {folder} now" in told


def test_a_machine_is_looked_for_before_a_master_ends(
    cluster: Cluster, places: dict[str, str]
) -> None:
    """At the beginning, and within the turn: the machine may go while others are waited for."""
    before = dict(places)
    for elsewhere, text in ((False, "say --elsewhere"), (True, "no machine can take it")):
        for is_early in (True, False):
            places.update(before)

            def goes(elsewhere: bool = elsewhere) -> None:
                for each in [m for m in places if elsewhere or m == "m2"]:
                    del places[each]

            cluster.in_turn = lambda: None
            if is_early:
                goes()
            else:
                cluster.in_turn = goes
            with pytest.raises((InvalidArgument, Unavailable), match=text):
                cluster.replace("master-2", elsewhere=elsewhere)
    assert set(cluster.steps) == {"server replace master-2"}
    assert "master-2" in cluster.live


def test_a_replica_that_nobody_else_can_take_is_refused(cluster: Cluster) -> None:
    """Before anything is marked."""
    del cluster.live["tserver-4"]
    status = cluster.status

    def everywhere(**more: Any) -> dict[str, Any]:
        found = status(**more)
        held = [{"uuid": f"u-tserver-{n}", "member": "voter", "server_live": True,
                 "role": "follower"} for n in (1, 2, 3)]  # fmt: skip
        found["tablets"][0]["replicas"] = held
        return found

    cluster._database.status = everywhere
    cluster._database.tables = lambda *, own: [MagicMock(durability=replicas(3), becoming=None)]
    with pytest.raises(InvalidArgument, match="say --no-drain"):
        cluster.replace("tserver-2")
    assert cluster.steps == []


# ---- the command ----------------------------------------------------------------------------


def test_the_command_asks_before_a_disk_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless it is told not to; nobody is asked for JSON. It says where the folders are."""
    database = MagicMock()
    folder = "/data/backup-2.replaced-20261201T093005Z"
    found = Replacement("backup-2", ("old",), "new", "b", (folder,), ("a",))
    database.replace_server.return_value = found
    monkeypatch.setattr(cli_servers, "open_cluster", lambda _: nullcontext(database))

    def typed(*arguments: str) -> tuple[int | str | None, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["server", "replace", "backup-2", *arguments])
        return ended.value.code, capsys.readouterr().out

    assert typed("--json")[0] == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert typed()[0] == 1
    database.replace_server.assert_not_called()
    code, out = typed("--yes", "--json", "--no-drain", "--elsewhere")
    assert (code, json.loads(out)["set_aside"]) == (0, [folder])
    how = database.replace_server.call_args.kwargs
    assert (how["drain"], how["elsewhere"]) == (False, True)
    code, out = typed("--yes")
    assert code == 0
    assert "backup-2 is a new server: new" in out
    assert f"{folder} on a, and may be deleted" in out, "not on b, where the new one is"
    assert database.replace_server.call_args.kwargs["drain"] is True
