"""What a put of the cluster's spec answers when it is late, or when another was quicker."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import ray

from stelae import spec_host
from stelae.actors.ray_host.kept_files import read_files
from stelae.applying import spec_operations
from stelae.applying.replacement import Replacement
from stelae.applying.replacing import Replacing
from stelae.applying.spec_operations import RaySpecs, ask_away, away_lines
from stelae.client.admin.call_log import Caller
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import (
    AlreadyRunning,
    DeadlineExpired,
    InvalidArgument,
    OutcomeUnknown,
    RetryLater,
    Unavailable,
)
from stelae.database.callers import caller
from stelae.deploy import cluster_files, launcher, machines
from stelae.deploy.asked import keep_spec
from stelae.serve.bodies.problems import PreconditionFailed, problem_type
from stelae.spec_host import SpecHost

SPECS = RaySpecs("demo", "data")


class Actor:
    """Each of its methods does the same."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return self

    async def remote(self, *values: Any) -> Any:
        if self._error is not None:
            raise self._error
        await asyncio.sleep(60.0)


def answers(monkeypatch: pytest.MonkeyPatch, actor: Actor) -> None:
    monkeypatch.setattr(RaySpecs, "_actor", lambda _: actor)


async def test_a_begin_that_is_not_waited_for_has_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The actor goes on with it; 504, and the problem says how to find out. Questions are 503:
    they change nothing."""
    answers(monkeypatch, Actor())
    with pytest.raises(OutcomeUnknown) as caught:
        await SPECS.begin({}, "ada", "", 0.01)
    assert problem_type(caught.value).status == 504
    assert "again: while it runs" in caught.value.__notes__[0]
    for asking in (SPECS.kept(0.01), SPECS.plan({}, 0.01), SPECS.operation("op", 0.01)):
        with pytest.raises(DeadlineExpired):
            await asking


async def test_so_has_one_whose_actor_ended_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have begun before; what it refuses itself is told as it is."""
    answers(monkeypatch, Actor(ray.exceptions.RayActorError()))
    with pytest.raises(OutcomeUnknown):
        await SPECS.begin({}, "ada", "", 5.0)
    with pytest.raises(RetryLater):
        await SPECS.plan({}, 5.0)
    refused = PreconditionFailed("something else was asked for meanwhile")
    error = ray.exceptions.RayTaskError("begin", "", refused)
    answers(monkeypatch, Actor(error))
    with pytest.raises(PreconditionFailed):
        await SPECS.begin({}, "ada", "", 5.0)


def test_of_two_puts_with_one_etag_the_second_is_412(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were the last one asked for when they were looked at; and one at a time is carried
    out."""
    asked = ["e1"]
    monkeypatch.setattr(SpecHost, "kept", lambda _: {"etag": asked[-1]})
    monkeypatch.setattr(SpecHost, "plan", lambda _, spec: {"steps": [], "refused": spec["no"]})
    monkeypatch.setattr(SpecHost, "_run", lambda *_: asked.append("e2"))
    host = SpecHost("demo", "data")
    with pytest.raises(InvalidArgument):
        host.begin({"no": ["too few"]}, "ada", "e1")
    begun = host.begin({"no": []}, "ada", "e1")
    with pytest.raises(AlreadyRunning, match=begun["id"]):
        host.begin({"no": []}, "eve", "e1")
    host._operations[begun["id"]].state = "done"
    with pytest.raises(PreconditionFailed) as caught:
        host.begin({"no": []}, "eve", "e1")
    assert problem_type(caught.value).status == 412


def test_one_that_waits_is_cancelled_at_its_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then another one may begin; what has ended stays as it was."""
    looked = threading.Event()

    def apply(database: Any, spec: Any, *, dry_run: bool, progress: Any, **_: Any) -> Any:
        while not dry_run and "tservers" in spec:
            progress(1, 3, "drain tserver-4: 7 tablets are left")
            looked.set()
            time.sleep(0.001)
        return MagicMock(document=lambda: {"steps": [], "refused": []})

    monkeypatch.setattr(spec_host, "apply", apply)
    monkeypatch.setattr(spec_host, "connect", MagicMock())
    host = SpecHost("demo", "data")
    first = host.begin({"tservers": {"count": 3}}, "ada", "")["id"]
    assert looked.wait(10.0)
    assert host.cancel("another", "eve") is None
    told = host.cancel(first, "eve")
    assert told is not None
    while told["state"] == "running":
        told = host.operation(first)
        assert told is not None
    assert (told["state"], told["cancelled_by"], told["error"]) == ("cancelled", "eve", "")
    second = host.begin({}, "ada", "")["id"]
    while (shown := host.operation(second)) and shown["state"] == "running":
        pass
    done = host.cancel(second, "eve")
    assert done is not None
    assert (done["state"], done["cancelled_by"]) == ("done", "")


class Servers:
    """A database whose commands end when they are told to."""

    def __init__(self) -> None:
        self.looked, self.goes_on = threading.Event(), threading.Event()
        self.told_of_turn: Callable[[bool], None] = lambda has_turn: None
        self.takes_turn = True
        """Whether a replacement waits within its turn."""
        self.done: list[Any] = []

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def status(self) -> dict[str, Any]:
        unheard = [{"uuid": "unheard", "id": "backup-3"}]
        return {
            "replaced": [{"uuid": "former", "id": "tserver-1"}],
            "servers_not_heard": unheard,
        }

    def servers(self) -> list[dict[str, Any]]:
        stopped = [{"name": f"backup-{n}", "uuid": ""} for n in (1, 2)]
        return [{"name": f"tserver-{n}", "uuid": f"u{n}"} for n in range(1, 8)] + stopped

    def _processes(self) -> tuple[list[str], list[str]]:
        names = [f"backup-{n}" for n in (1, 2, 3, 4)]
        return names, names[2:]

    def replace_server(self, server: str, *, progress: Any, **how: Any) -> Any:
        progress("2 tablets are left")
        tell, has_turn = self.told_of_turn, self.takes_turn
        tell(has_turn)
        self.looked.set()
        assert self.goes_on.wait(10.0)
        tell(False)
        progress("tserver-1 starts, empty")
        self.done.append((server, how))
        return Replacement("tserver-1", ("u1",), "u2", set_aside=("/d/tserver-1.replaced",))

    def retire_server(self, server: str, *, wait: bool, cancel: bool, progress: Any) -> None:
        assert not wait, "the masters drain it, and hold no operation for that"
        progress(MagicMock(replicas=1, tablets=0, indexlets=0, segments=0, logs=0, problem=""))
        self.done.append((server, cancel))

    def stop_server(self, server: str, *, progress: Any) -> None:
        raise InvalidArgument("t would have no majority")


def ended(host: SpecHost, operation_id: str) -> dict[str, Any]:
    while (told := host.operation(operation_id)) and told["state"] == "running":
        time.sleep(0.001)
    assert told is not None
    return told


def test_a_command_on_a_server_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs; others are refused meanwhile, and told which runs. What came of it is said at
    the end, and one that was refused is `failed` with the reasons."""
    database = Servers()
    monkeypatch.setattr(spec_host, "connect", lambda cluster: database)
    host = SpecHost("demo", "data")
    for wrong in (("replace", "nobody"), ("delete", "tserver-1")):
        with pytest.raises(InvalidArgument):
            host.begin_server(*wrong, {}, "ada")
    how = {"drain": False, "elsewhere": True}
    begun = host.begin_server("replace", "tserver-1", how, "ada")
    assert database.looked.wait(10.0)
    told = host.operation(begun["id"])
    assert told is not None
    assert (told["text"], told["state"], told["result"]) == ("2 tablets are left", "running", {})
    with pytest.raises(AlreadyRunning, match="server replace tserver-1, by ada"):
        host.begin_server("stop", "u1", {}, "eve")
    with pytest.raises(AlreadyRunning, match="server replace tserver-1, by ada"):
        host.begin({}, "eve", "")
    database.goes_on.set()
    told = ended(host, begun["id"])
    assert (told["state"], told["result"]["uuid"]) == ("done", "u2")
    assert database.done == [("tserver-1", {**how, "timeout": spec_host.LONGEST_S})]
    left = ended(host, host.begin_server("retire", "u1", {"cancel": False}, "ada")["id"])
    assert (left["text"], left["what"]) == ("1 tablets are left", "server retire u1")
    refused = ended(host, host.begin_server("stop", "tserver-1", {}, "ada")["id"])
    assert (refused["state"], refused["error"]) == ("failed", "t would have no majority")
    database.goes_on.clear()
    again = host.begin_server("replace", "former", how, "ada")["id"]
    host.cancel(again, "eve")
    database.goes_on.set()
    assert ended(host, again)["state"] == "cancelled"


@pytest.mark.parametrize("verb", ["retire", "stop", "replace"])
def test_whoever_gave_a_command_is_in_all_its_rows_of_the_audit_log(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Of its orders and of its turns: the connection that carries it out says who. §87"""
    database, callers = Servers(), [caller()]
    database.goes_on.set()

    def connect(cluster: str) -> Servers:
        callers.append(caller())
        return database

    monkeypatch.setattr(spec_host, "connect", connect)
    host, how = SpecHost("demo", "data"), {"drain": True, "elsewhere": False, "cancel": False}
    ended(host, host.begin_server(verb, "tserver-1", how, "token ci")["id"])
    assert callers[-1].door == "applier"
    assert callers[-1].details.startswith("by token ci, process ")


def test_the_token_that_asked_for_a_spec_is_in_all_rows_of_the_audit_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the orders of the apply as well as of its turn; a plan gives none, and names nobody."""
    callers: list[Caller] = []

    def connect(cluster: str) -> Servers:
        callers.append(caller())
        return Servers()

    def apply(*_: Any, **__: Any) -> Any:
        return MagicMock(document=lambda: {"steps": [], "refused": []})

    monkeypatch.setattr(spec_host, "connect", connect)
    monkeypatch.setattr(spec_host, "apply", apply)
    host = SpecHost("demo", "data")
    assert ended(host, host.begin({}, "token ci", "")["id"])["state"] == "done"
    planned, applied = callers
    assert (planned.door, applied.door) == ("applier", "applier")
    assert "token ci" not in planned.details
    assert applied.details.startswith("by token ci, process ")


def test_a_drain_is_taken_back_while_its_server_is_being_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By name or UUID, next to the replacement that has its turn. Nothing else passes: no other
    server's, no other command, and nothing next to an apply."""
    database = Servers()
    monkeypatch.setattr(spec_host, "connect", lambda cluster: database)
    host = SpecHost("demo", "data")
    back = {"cancel": True}
    begun = host.begin_server("replace", "tserver-1", {"drain": True, "elsewhere": False}, "ada")
    assert database.looked.wait(10.0)
    for called in ("u1", "tserver-1"):
        told = ended(host, host.begin_server("retire", called, back, "eve")["id"])
        assert (told["state"], database.done[-1]) == ("done", (called, True))
    for verb, server, options in (
        ("retire", "tserver-2", back),
        ("retire", "tserver-1", {"cancel": False}),
        ("start", "tserver-1", {}),
    ):
        with pytest.raises(AlreadyRunning, match=r"is changing .* tserver-1, by ada"):
            host.begin_server(verb, server, options, "eve")
    database.goes_on.set()
    assert ended(host, begun["id"])["state"] == "done"
    monkeypatch.setattr(SpecHost, "plan", lambda _, spec: {"steps": [], "refused": []})
    monkeypatch.setattr(SpecHost, "_run", lambda *_: None)
    host.begin({}, "ada", "")
    with pytest.raises(AlreadyRunning, match="apply, by ada"):
        host.begin_server("retire", "tserver-1", back, "eve")


def test_a_replacement_that_waits_keeps_only_its_own_server_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the turn it changes nothing: commands on others pass, and an apply; what is about its
    server is refused, by each of its names, but for taking the drain back. A few may wait at once;
    the next is told which ones do. One that has ended makes room."""
    database = Servers()
    database.takes_turn = False
    monkeypatch.setattr(spec_host, "connect", lambda cluster: database)
    monkeypatch.setattr(SpecHost, "plan", lambda _, spec: {"steps": [], "refused": []})
    monkeypatch.setattr(SpecHost, "_apply", lambda *_, **__: {})
    host, how = SpecHost("demo", "data"), {"drain": True, "elsewhere": False}
    begun = [
        host.begin_server("replace", f"tserver-{n + 1}", how, "ada")["id"]
        for n in range(spec_host.WAITING_AT_ONCE)
    ]
    assert database.looked.wait(10.0)
    for verb, server in (("retire", "u1"), ("stop", "tserver-1"), ("replace", "former")):
        with pytest.raises(AlreadyRunning, match=r"is about this server: server replace tserver-1"):
            host.begin_server(verb, server, {"cancel": False, **how}, "eve")
    told = ended(host, host.begin_server("retire", "u1", {"cancel": True}, "eve")["id"])
    assert told["state"] == "done"
    assert ended(host, host.begin_server("stop", "tserver-7", {}, "eve")["id"])["error"]
    assert ended(host, host.begin({}, "eve", "")["id"])["state"] == "done"
    with pytest.raises(RetryLater, match=f"4 replacements .*{begun[0]} .server replace tserver-1"):
        host.begin_server("replace", "tserver-6", how, "eve")
    database.goes_on.set()
    assert [ended(host, each)["state"] for each in begun] == ["done"] * len(begun)
    assert ended(host, host.begin_server("replace", "u6", how, "eve")["id"])["state"] == "done"


def test_servers_that_no_master_has_heard_are_replaced_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the name that the spec has, or by the UUID that the catalog has. Two of them that have no
    UUID are two servers; a UUID and its name are one."""
    database = Servers()
    database.takes_turn = False
    monkeypatch.setattr(spec_host, "connect", lambda cluster: database)
    host, how = SpecHost("demo", "data"), {"drain": True, "elsewhere": False}
    given = ["backup-1", "backup-2", "unheard", "backup-4"]
    begun = [host.begin_server("replace", server, how, "ada")["id"] for server in given]
    for server in [*given, "backup-3"]:
        with pytest.raises(AlreadyRunning, match="is about this server"):
            host.begin_server("replace", server, how, "eve")
    for nobody in ("", "backup-5"):
        with pytest.raises(InvalidArgument, match="is no server"):
            host.begin_server("replace", nobody, how, "eve")
    database.goes_on.set()
    assert [ended(host, each)["state"] for each in begun] == ["done"] * len(begun)


def test_an_operation_that_runs_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have ended are, the oldest first."""
    database = Servers()
    database.takes_turn = False
    monkeypatch.setattr(spec_host, "connect", lambda cluster: database)
    monkeypatch.setattr(spec_host, "OPERATIONS_KEPT", 3)
    host = SpecHost("demo", "data")
    waits = host.begin_server("replace", "tserver-1", {"drain": True, "elsewhere": False}, "ada")
    stops = [host.begin_server("stop", "tserver-2", {}, "ada")["id"] for _ in range(1)]
    for _ in range(4):
        ended(host, stops[-1])
        stops.append(host.begin_server("stop", "tserver-2", {}, "ada")["id"])
    assert [host.operation(each) is None for each in stops] == [True, True, True, False, False]
    database.goes_on.set()
    assert ended(host, waits["id"])["state"] == "done"


def test_a_file_of_elsewhere_is_of_this_data_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a relative one lies only who has the file knows; an absolute one is compared."""
    given: list[str] = []

    def apply(database: Any, spec: Any, **_: Any) -> Any:
        given.append(spec["data_dir"])
        return MagicMock(document=dict)

    monkeypatch.setattr(spec_host, "apply", apply)
    monkeypatch.setattr(spec_host, "connect", MagicMock())
    host = SpecHost("demo", "/data/demo")
    for spec in ({}, {"data_dir": ".stelae/demo"}, {"data_dir": "/elsewhere"}):
        host.plan(spec)
    assert given == ["/data/demo", "/data/demo", "/elsewhere"]


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_actor_runs_on_the_node_that_has_the_data_dir(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of whoever started the front: the front itself may be on any node."""
    remote, context = MagicMock(), MagicMock()
    context.get_node_id.return_value = "here"
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True}] * nodes)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray, "remote", remote)
    RaySpecs("demo", "/data", machines.this_node())._actor()
    selector = remote.return_value.options.call_args.kwargs.get("label_selector")
    assert selector == (None if nodes == 1 else {"ray.io/node-id": "here"})


def test_what_is_away_is_told_in_words() -> None:
    """Since when, what becomes of each server, and why."""
    servers = [
        {"name": "backup-3", "next": "wait", "why": "its machine c may come back for 20 s more"},
        {"name": "tserver-3", "next": "move", "why": "machine c stays away"},
    ]
    there = {"c": ["backup-3", "tserver-3"]}
    assert away_lines({"since": {"c": 0.0}, "there": there, "servers": servers}) == [
        "machine c is away since 1970-01-01 00:00:00+00:00: backup-3, tserver-3",
        "backup-3 waits: its machine c may come back for 20 s more",
        "tserver-3 is started elsewhere now: machine c stays away",
    ]


def test_nobody_is_asked_where_servers_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no such actor. One that does not answer, or ends, is an error that says so."""
    actors: dict[str, Any] = {}
    monkeypatch.setattr(spec_operations, "cluster_actors", lambda cluster: actors)
    assert away_lines(ask_away("demo", 0.1)) == []
    actors["apply"] = MagicMock()
    for error, raised in (
        (ray.exceptions.GetTimeoutError(), DeadlineExpired),
        (ray.exceptions.RayActorError(), RetryLater),
    ):
        monkeypatch.setattr(ray, "get", MagicMock(side_effect=error))
        with pytest.raises(raised):
            ask_away("demo", 0.1)


def test_a_watch_goes_on_after_an_error_until_the_cluster_goes_down(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same trouble is logged once."""
    looks, twice = [], threading.Event()

    def step(self: Any, cluster: str, connect: Any) -> None:
        looks.append(cluster)
        if len(looks) > 2:
            twice.set()
        raise RetryLater("no master answers")

    monkeypatch.setattr(Replacing, "step", step)
    host = SpecHost("demo", "data", 0.001)
    assert twice.wait(30.0)
    host.stop()
    assert set(looks) == {"demo"}
    assert [r.getMessage() for r in caplog.records if r.name == spec_host.__name__] == [
        "servers of machines that are away are not replaced now: no master answers"
    ]
    assert host.away() == {"since": {}, "there": {}, "servers": []}


def test_an_actor_of_an_older_version_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no such method, and a check goes on without it."""
    old = MagicMock(spec=["plan"])
    monkeypatch.setattr(spec_operations, "cluster_actors", lambda cluster: {"apply": old})
    with pytest.raises(Unavailable, match="older version, which replaces no servers"):
        ask_away("demo", 0.1)


SPEC = """
apiVersion: stelae/v1
kind: Cluster
cluster: demo
data_dir: DATA
masters: {count: 3}
backups: {count: 2}
tservers: {count: 2}
safekeepers: {count: 3}
"""


@pytest.mark.parametrize("has_home", [False, True])
async def test_who_is_stopped_is_known_without_a_file_written(
    has_home: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the newest files, of servers or of the data_dir: neither the cluster's secret nor anything
    else is put into another folder, and the data_dir is read only."""
    data, here = tmp_path / "data", tmp_path / "here"
    (tmp_path / "spec.yaml").write_text(SPEC.replace("DATA", str(data)))
    spec = load_spec(tmp_path / "spec.yaml")
    state, lock = launcher.prepare(spec)
    state.save()
    keep_spec(data, spec, is_done=True, by="ada")
    lock.release()
    files = read_files(data)
    assert files is not None
    assert launcher.server_names(spec, state.masters) == [
        plan.name for plan in launcher.plans(spec, state)
    ]
    if not has_home:
        shutil.rmtree(data)

    def on_disk() -> dict[str, int]:
        return {str(each): each.stat().st_mtime_ns for each in tmp_path.rglob("*")}

    before = on_disk()
    told = None if has_home else files
    monkeypatch.setattr(cluster_files, "newest_files", lambda cluster: told)
    actors = {"master-1": 1, "master-2": 1, "tserver-1": 1, "backup-2": 1, "safekeeper-1": 1}
    monkeypatch.setattr(spec_operations, "cluster_actors", lambda cluster: actors)
    monkeypatch.setattr(tempfile, "tempdir", str(here))  # it is not there: nothing can be made
    found = await RaySpecs("demo", str(data)).around()
    missing = ["master-3", "backup-1", "safekeeper-2", "safekeeper-3", "tserver-2"]
    assert found == {"stopped": missing, "away": None, "spread": None}
    assert on_disk() == before


async def test_a_ray_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As what cannot be reached."""
    broken = MagicMock(side_effect=ray.exceptions.RaySystemError("the head is away"))
    monkeypatch.setattr(spec_operations, "cluster_actors", broken)
    with pytest.raises(Unavailable, match="the head is away"):
        await SPECS.around()
