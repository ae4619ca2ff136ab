"""How a server of a machine that stays away is started elsewhere: the order of what is done."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import ray

from stelae.actors.ray_host.host import ServerPlan
from stelae.actors.server.instance import INSTANCE_FILE, Instance, encode_instance
from stelae.applying import replacing
from stelae.applying import steps as apply_steps
from stelae.applying.replacing import (
    PAUSE_MAX_S,
    Replacing,
    SetAside,
    empty_folders,
    needs_on,
    set_aside,
)
from stelae.applying.steps import Steps
from stelae.coordinator.apply.away import Next
from stelae.coordinator.apply.plan import Act, Step
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import AlreadyRunning, RetryLater, Unavailable
from stelae.core.ids import ServerUuid
from stelae.deploy import machines, node_checks, nodes
from stelae.deploy.asked import keep_spec
from stelae.deploy.cluster_state import SECRET_FILE, ClusterState, load_state
from stelae.deploy.node_checks import Checked
from stelae.runtime.files import LOCK_FILE

SECRET = b"s" * 32
SPEC: dict[str, Any] = {
    "cluster": "demo",
    "ray": {"address": "auto"},
    "placement": {"label": "disk", "replace_after": "60s"},
    "backups": {"count": 3},
}
MACHINES = {
    f"{kind}-{n}": "abc"[n - 1] for kind in ("master", "backup", "tserver") for n in (1, 2, 3)
}
AFTER_S = 60.0
LOOK_EVERY_S = 50.0


class Cluster:
    """A cluster on machines a, b and c, in a Ray that does not exist; what was done, in order."""

    cluster, ray_address, home = "demo", "", ""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.done: list[str] = []
        self.live = {"a": "1", "b": "2", "c": "3"}
        self.actors = {name: MagicMock(name=name) for name in MACHINES}
        self.problems: dict[str, str] = {}
        """What machines lack, by machine."""
        self.silent: list[str] = []
        """Machines that do not answer when they are asked."""
        self.misfits: list[str] = []
        """Kinds of servers that fit on no machine."""
        self.checked = 0
        """How often a machine was asked whether it has what a server needs."""
        self.unusable: list[str] = []
        """Machines on which no folder can be set aside."""
        self.fenced: dict[str, str] = {}
        self.now = 1000.0
        self.asked = 0
        """How often masters were asked for the status."""
        self.leads = True
        """Whether a master leads."""
        self.in_turn: Callable[[], None] = lambda: None
        """Called when the turn was taken: what others have done meanwhile."""
        folder.mkdir(exist_ok=True)
        (folder / SECRET_FILE).write_bytes(SECRET)
        masters = {f"master-{n}": f"10.0.0.{n}:70{n}" for n in (1, 2, 3)}
        ClusterState("demo", str(folder), masters, machines=dict(MACHINES)).save()
        self.ask(SPEC)
        self.work = Replacing(str(folder), lambda: self.now)
        for name, fake in (
            ("home_of", lambda cluster, folders: nullcontext(folder)),
            ("refresh", lambda home, cluster: None),
            ("publish", lambda home, cluster: self.done.append("publish")),
            ("cluster_actors", lambda cluster: dict(self.actors)),
            ("create_actor", self._create),
            (
                "empty_folders",
                self._empty,
            ),
        ):
            monkeypatch.setattr(replacing, name, fake)
        monkeypatch.setattr(machines, "live_machines", lambda label: dict(self.live))
        monkeypatch.setattr(node_checks, "check_nodes", self._check)
        monkeypatch.setattr(ray, "kill", self._kill)
        self._loop, self._database = MagicMock(), MagicMock()
        self._loop.run = lambda found: found
        self._database.tables = lambda *, own: []
        self._database.status = self.status
        self._database.replace_server = self._fence

    def ask(self, spec: dict[str, Any]) -> None:
        keep_spec(self.folder, load_spec({**spec, "data_dir": str(self.folder)}), is_done=True)

    def _create(self, plan: ServerPlan) -> None:
        if plan.name in self.actors:
            raise AlreadyRunning(plan.name)
        self.actors[plan.name] = MagicMock()
        self.done.append(f"start {plan.name} on {plan.selector}")

    def _empty(self, plan: ServerPlan) -> None:
        if plan.machine in self.unusable:
            raise Unavailable(plan.name, "no answer")
        self.done.append(f"empty {plan.name} on {plan.machine}")

    def _check(self, label: str, needs: Any) -> Checked:
        (machine,) = needs
        self.checked += 1
        if "backup" in self.misfits and not needs[machine].memory_bytes:
            return Checked(("no room",), ())
        problem = self.problems.get(machine)
        unchecked = (f"{machine} did not say",) if machine in self.silent else ()
        return Checked((problem,) if problem else (), unchecked)

    def _kill(self, actor: Any) -> None:
        (name,) = [each for each, its in self.actors.items() if its is actor]
        del self.actors[name]
        self.done.append(f"kill {name}")

    def _fence(self, uuid: str) -> None:
        self.done.append(f"fence {uuid}")
        self.fenced[uuid] = ""

    @contextmanager
    def turn(
        self, what: str, by: str = "", *, tries_again: bool = False
    ) -> Iterator[Callable[[], None]]:
        assert tries_again, "each look whose turn is refused would be a row of the audit log"
        self.in_turn()
        yield lambda: self.done.append("sure")

    def status(self, *, timeout: float = 5.0) -> dict[str, Any]:
        self.asked += 1
        if not self.leads:
            raise RetryLater("no master leads")
        servers = [
            {
                "id": name,
                "uuid": f"u-{name}",
                "kind": name.partition("-")[0],
                "state": "live" if machine in self.live else "dead",
            }
            for name, machine in MACHINES.items()
            if f"u-{name}" not in self.fenced
        ]
        replaced = [
            {"id": uuid.removeprefix("u-"), "uuid": uuid, "successor": successor}
            for uuid, successor in self.fenced.items()
        ]
        return {
            "heard_all": True,
            "servers": servers,
            "tablets": [],
            "shortages": [],
            "replaced": replaced,
        }

    def step(self, after_s: float = 0.0) -> list[str]:
        """What is done in the steps of so long; the first that does something is the last."""
        connected: Any = self
        self.done = []
        until = self.now + after_s
        while True:
            self.now = min(self.now + LOOK_EVERY_S, until)
            self.work.step("demo", lambda: nullcontext(connected))
            if self.done or self.now >= until:
                return self.done


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Machine c has just gone away."""
    found = Cluster(tmp_path / "data", monkeypatch)
    assert found.step() == []
    del found.live["c"]
    assert found.step() == []
    return found


def test_fence_then_the_end_of_the_actor_then_the_machine_then_the_start(cluster: Cluster) -> None:
    """So there are never two of a name; and a name is free only once its UUID is fenced."""
    assert cluster.step(AFTER_S - 1.0) == []
    assert cluster.step(2.0) == [
        "sure",
        "fence u-backup-3",
        "kill backup-3",
        "publish",
        "empty backup-3 on a",
        "start backup-3 on {'disk': 'a'}",
    ]
    assert load_state(cluster.folder).machines["backup-3"] == "a"
    assert cluster.step() == [], "it starts, and the next waits for it"
    cluster.fenced["u-backup-3"] = "new"
    assert cluster.step()[1] == "fence u-tserver-3"
    cluster.fenced["u-tserver-3"] = "new"
    assert cluster.step(1000.0) == [], "masters stay"
    assert load_state(cluster.folder).machines["master-3"] == "c"


def test_nothing_is_done_for_a_spec_that_does_not_ask_for_it(cluster: Cluster) -> None:
    """Nor is it known then since when the machine was away."""
    cluster.ask({**SPEC, "placement": {"label": "disk"}})
    assert cluster.step(2 * AFTER_S) == []
    cluster.ask(SPEC)
    assert cluster.step(1.0) == []
    assert cluster.work.away_since.keys() == {"c"}
    assert cluster.work.there == {"c": ["backup-3", "master-3", "tserver-3"]}


def test_what_is_half_replaced_is_carried_on_without_replace_after(cluster: Cluster) -> None:
    """Somebody took it out of the spec between the fence and the start. Nothing else is fenced."""
    cluster.unusable = ["a"]
    assert cluster.step(2 * AFTER_S)[1] == "fence u-backup-3"
    cluster.ask({**SPEC, "placement": {"label": "disk"}})
    cluster.unusable = []
    cluster.work = Replacing(str(cluster.folder), lambda: cluster.now)
    assert cluster.step()[-1] == "start backup-3 on {'disk': 'a'}"
    cluster.fenced["u-backup-3"] = "new"
    assert cluster.step(10 * AFTER_S) == []
    assert cluster.work.verdicts == []


def test_masters_are_asked_only_where_something_may_be_due(cluster: Cluster) -> None:
    """A machine is away, or a server is half replaced; and once by a new watcher."""
    cluster.live["c"] = "3"
    cluster.step()
    asked = cluster.asked
    cluster.step(AFTER_S)
    assert cluster.asked == asked
    del cluster.live["c"]
    cluster.step()
    assert cluster.asked > asked
    assert cluster.step(2 * AFTER_S)[1] == "fence u-backup-3"
    cluster.live["c"] = "3"
    asked = cluster.asked
    cluster.step()
    assert cluster.asked > asked, "its successor was not heard"


def test_a_machine_that_returned_while_no_master_led_is_counted_anew(cluster: Cluster) -> None:
    """Ray's nodes are looked at all the same."""
    cluster.leads = False
    with pytest.raises(RetryLater):
        cluster.step(LOOK_EVERY_S)
    cluster.live["c"] = "3"
    assert cluster.step(LOOK_EVERY_S) == []
    del cluster.live["c"]
    with pytest.raises(RetryLater):
        cluster.step(LOOK_EVERY_S)
    cluster.leads = True
    assert cluster.step(LOOK_EVERY_S) == []
    assert cluster.step(LOOK_EVERY_S) != []


def test_a_time_without_looks_does_not_count_as_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor as time in which a server did not start: another machine is not better then."""
    monkeypatch.setattr(machines, "live_machines", MagicMock(side_effect=RetryLater("Ray is away")))
    for _ in range(30):
        with pytest.raises(RetryLater):
            cluster.step(LOOK_EVERY_S)
    monkeypatch.setattr(machines, "live_machines", lambda label: dict(cluster.live))
    assert cluster.step() == []
    assert cluster.step(2 * AFTER_S)[-1].startswith("start backup-3")
    cluster.step()
    cluster.leads = False
    for _ in range(30):
        with pytest.raises(RetryLater):
            cluster.step(LOOK_EVERY_S)
    cluster.leads = True
    assert cluster.step() == []
    assert cluster.step(2 * AFTER_S)[-1] == "start backup-3 on {'disk': 'b'}"


def test_what_somebody_asked_for_meanwhile_counts(cluster: Cluster) -> None:
    """A server that was taken out before the turn was taken does not come back."""
    fewer = {**SPEC, "backups": {"count": 2}, "tservers": {"count": 2}}
    cluster.in_turn = lambda: cluster.ask(fewer)
    assert cluster.step(2 * AFTER_S) == []


def test_a_spec_that_was_asked_for_again_is_looked_at_anew(cluster: Cluster) -> None:
    """Whatever it says: what was decided before the turn was decided for another one."""
    cluster.in_turn = lambda: cluster.ask({**SPEC, "serve": None})
    assert cluster.step(2 * AFTER_S) == []
    cluster.in_turn = lambda: None
    assert cluster.step() != []


def test_a_machine_that_is_back_by_then_keeps_its_servers(cluster: Cluster) -> None:
    """It is looked at again in the turn."""
    cluster.in_turn = lambda: cluster.live.update(c="3")
    assert cluster.step(2 * AFTER_S) == []


def test_a_machine_that_lacks_something_is_no_target(cluster: Cluster) -> None:
    """Another one is; and where all lack something nothing is given up."""
    cluster.problems = {"a": "no room"}
    assert "start backup-3 on {'disk': 'b'}" in cluster.step(2 * AFTER_S)
    cluster.fenced["u-backup-3"] = "new"
    cluster.problems = {"a": "no room", "b": "no memory"}
    assert cluster.step() == [], "not even the turn was taken"
    assert "tserver-3" in cluster.actors


def test_a_server_that_fits_nowhere_does_not_keep_the_next_one(cluster: Cluster) -> None:
    """It says why it waits, and is tried again, ever less often."""
    cluster.misfits = ["backup"]
    assert cluster.step(LOOK_EVERY_S) == []
    assert cluster.step(LOOK_EVERY_S) == []
    assert cluster.step(5.0)[1] == "fence u-tserver-3"
    (why,) = [v.why for v in cluster.work.verdicts if v.name == "backup-3"]
    cluster.fenced["u-tserver-3"] = "new"
    assert "no machine can take it: no room" in why
    tries = []
    for _ in range(100):
        before = cluster.checked
        assert cluster.step(5.0) == []
        tries.append(cluster.checked > before)
        assert [each.next for each in cluster.work.verdicts] == [Next.WAIT]
    assert 2 <= sum(tries) <= 8
    cluster.misfits = []
    assert cluster.step(PAUSE_MAX_S)[1] == "fence u-backup-3"


def test_a_target_that_went_away_meanwhile_is_chosen_again(cluster: Cluster) -> None:
    """It was chosen before the turn."""

    def lose_target() -> None:
        cluster.live.pop("a", None)

    cluster.in_turn = lose_target
    for _ in range(2):
        assert cluster.step(LOOK_EVERY_S) == []
    assert "a" not in cluster.live
    cluster.in_turn = lambda: None
    assert cluster.step()[-1] == "start backup-3 on {'disk': 'b'}"


def test_a_machine_that_does_not_answer_is_no_target(cluster: Cluster) -> None:
    """An added server may wait for it; one that is moved gives something up before."""
    cluster.silent = ["a"]
    assert "start backup-3 on {'disk': 'b'}" in cluster.step(2 * AFTER_S)


def test_a_move_goes_on_where_it_was_left(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is not free yet; then a process that was killed before the start."""
    kill = cluster._kill
    stays = cluster.actors["backup-3"]

    def slowly(actor: Any) -> None:
        kill(actor)
        cluster.actors["backup-3"] = stays

    monkeypatch.setattr(ray, "kill", slowly)
    assert cluster.step(2 * AFTER_S)[-1] == "empty backup-3 on a"
    del cluster.actors["backup-3"]
    cluster.work = Replacing(str(cluster.folder), lambda: cluster.now)
    assert cluster.step() == ["sure", "empty backup-3 on a", "start backup-3 on {'disk': 'a'}"]


def test_a_server_that_does_not_start_goes_to_another_machine(cluster: Cluster) -> None:
    """Not to the one where it did not start, as long as there is another."""
    cluster.step(2 * AFTER_S)
    assert cluster.step() == []
    found = cluster.step(100.0)
    assert found[1:3] == ["kill backup-3", "publish"]
    assert found[-1] == "start backup-3 on {'disk': 'b'}"
    cluster.step()
    assert cluster.step(100.0)[-1] == "start backup-3 on {'disk': 'a'}"


def test_a_server_whose_folder_cannot_be_emptied_goes_to_another_machine(
    cluster: Cluster,
) -> None:
    """Each attempt to start it there fails, and it has no actor."""
    cluster.unusable = ["a"]
    assert cluster.step(2 * AFTER_S)[-1] == "publish"
    assert "backup-3" not in cluster.actors
    assert [(v.next, v.why) for v in cluster.work.verdicts if v.name == "backup-3"] == [
        (Next.WAIT, "backup-3 cannot be reached: no answer")
    ]
    found = [cluster.step(5.0) for _ in range(30)]
    assert [done[-1] for done in found if len(done) > 1] == ["start backup-3 on {'disk': 'b'}"]


def test_a_moved_server_needs_what_an_added_one_needs() -> None:
    """Room for a new one, and Ray's memory for all tablet servers that are there then."""
    spec: ClusterSpec = load_spec({**SPEC, "tservers": {"count": 3, "memory": "1GiB"}})
    placed = {**MACHINES, "tserver-3": "a", "backup-3": "a"}
    needs = needs_on(spec, placed, "tserver-3")
    assert set(needs) == {"a"}
    assert needs["a"].memory_bytes == 2 << 30
    assert needs["a"].folders["data_dir"][1] > 0
    assert needs_on(spec, placed, "backup-3")["a"].memory_bytes == 0


# ---- folders --------------------------------------------------------------------------------


def test_a_folder_that_is_there_is_set_aside(tmp_path: Path) -> None:
    """Never old data under a new UUID; and nothing is deleted."""
    folder, other = tmp_path / "backup-1", tmp_path / "media" / "backup-1"
    folders = [str(folder), str(other), str(tmp_path / "none")]
    for ending in ("20261201T093000Z", "20261201T093000Z-2"):
        for each in (folder, other):
            each.mkdir(parents=True)
            (each / "instance").write_text(f"old {ending}")
        new = [each.with_name(f"backup-1.replaced-{ending}") for each in (folder, other)]
        assert set_aside(folders, "20261201T093000Z") == SetAside(tuple(map(str, new)))
        assert not folder.exists()
        assert not other.exists()
        assert [(each / "instance").read_text() for each in new] == [f"old {ending}"] * 2


def test_the_folder_that_says_whose_all_are_is_renamed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename that fails leaves it there: given again, the others are known to be the former's."""
    folder, other = tmp_path / "backup-1", tmp_path / "media" / "backup-1"
    for each in (folder, other):
        each.mkdir(parents=True)
    whose = Instance(ServerUuid("old"), "demo", "backup", "backup-1", 1.0, 1)
    (folder / INSTANCE_FILE).write_bytes(encode_instance(whose))
    rename, tries = Path.rename, iter([True, False])

    def fails_second(path: Path, target: Path) -> Path:
        if not next(tries, True):
            raise OSError("the machine ends")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_second)
    folders = [str(folder), str(other)]
    with pytest.raises(OSError, match="the machine ends"):
        set_aside(folders, "1", ["old"])
    assert folder.exists()
    assert not other.exists()
    assert set_aside(folders, "2", ["old"]).folders == (str(tmp_path / "backup-1.replaced-2"),)


def test_a_folder_that_a_process_holds_is_not_touched(tmp_path: Path) -> None:
    """The former process still runs on that disk."""
    free, held = tmp_path / "free", tmp_path / "held"
    free.mkdir()
    held.mkdir()
    descriptor = os.open(held / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert set_aside([str(free), str(held)], "1").problem == f"a server runs on {held}"
        assert free.exists()
    finally:
        os.close(descriptor)


def test_only_the_folder_of_a_fenced_server_is_set_aside_by_a_launch(tmp_path: Path) -> None:
    """That of its successor stays, and one that cannot be read is told of."""
    folder = tmp_path / "backup-1"
    assert set_aside([str(folder)], "1", ["old"]) == SetAside()
    folder.mkdir()
    assert set_aside([str(folder)], "1", ["old"]) == SetAside(), "it has no identity yet"
    whose = Instance(ServerUuid("new"), "demo", "backup", "backup-1", 1.0, 1)
    (folder / INSTANCE_FILE).write_bytes(encode_instance(whose))
    assert set_aside([str(folder)], "1", ["old"]) == SetAside()
    assert folder.exists()
    assert set_aside([str(folder)], "1", ["old", "new"]).problem == ""
    assert not folder.exists()
    folder.mkdir()
    (folder / INSTANCE_FILE).write_bytes(b"broken")
    assert INSTANCE_FILE in set_aside([str(folder)], "1", ["old"]).problem
    assert folder.exists()


def test_a_launch_starts_a_half_replaced_server_again_with_an_empty_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its machine is back, with the disk of the server that was fenced."""
    plans = [MagicMock(), MagicMock()]
    plans[0].name, plans[1].name = "backup-1", "backup-2"
    fences = [
        {"id": "backup-1", "uuid": "old", "successor": ""},
        {"id": "backup-2", "uuid": "older", "successor": "new"},
    ]
    done: list[Any] = []
    tries = iter([Unavailable("backup-1", "a server runs"), None, None])

    def empty(plan: Any, only_of: Any) -> None:
        done.append(("empty", plan.name, only_of))
        if (error := next(tries)) is not None:
            raise error

    monkeypatch.setattr(replacing, "empty_folders", empty)
    monkeypatch.setattr(replacing, "create_actor", lambda plan: f"new {plan.name}")
    monkeypatch.setattr(replacing, "ENDS_POLL_S", 0.0)
    monkeypatch.setattr(ray, "kill", lambda actor: done.append(("kill", actor)))
    actors = {"backup-1": "first", "backup-2": "second"}
    replacing.start_again_empty({"replaced": fences}, plans, actors, float("inf"))
    attempt = ("empty", "backup-1", ["old", "older"])
    assert done == [("kill", "first"), attempt, attempt]
    assert actors == {"backup-1": "new backup-1", "backup-2": "second"}
    tries = iter([Unavailable("backup-1", "a server runs")])
    with pytest.raises(Unavailable, match="a server runs"):
        replacing.start_again_empty({"replaced": fences}, plans, actors, 0.0)


def test_nothing_is_started_where_the_folders_are_not_known_to_be_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All folders of the server are asked for, on its machine."""
    plan = MagicMock(spec=ServerPlan)
    plan.name, plan.folder, plan.machine, plan.selector = "backup-1", "/d/backup-1", "a", {"d": "a"}
    plan.media = (MagicMock(path="/m"), MagicMock(path="in"), MagicMock(path=None))
    asked: list[Any] = []

    def ask(work: Any, selectors: Any, arguments: Any) -> nodes.Told[SetAside]:
        asked.append((work, selectors, arguments))
        return told

    monkeypatch.setattr(nodes, "ask", ask)
    monkeypatch.setattr(
        time, "gmtime", lambda: time.struct_time((2026, 12, 1, 9, 30, 5, 1, 335, 0))
    )
    told = nodes.Told({"backup-1": SetAside(("/d/backup-1.replaced",))}, {})
    assert empty_folders(plan) == ("/d/backup-1.replaced",)
    given = (["/d/backup-1", "/m/backup-1"], "20261201T093005Z", ())
    assert asked == [(set_aside, {"backup-1": {"d": "a"}}, {"backup-1": given})]
    told = nodes.Told({"backup-1": SetAside(problem="busy")}, {})
    with pytest.raises(Unavailable, match="cannot start on a: busy"):
        empty_folders(plan)
    told = nodes.Told({}, {"backup-1": "no answer"})
    with pytest.raises(Unavailable, match="cannot start on a: no answer"):
        empty_folders(plan)


@pytest.mark.parametrize("there", [False, True])
def test_an_apply_starts_what_is_half_replaced_with_an_empty_folder(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Its machine is back, and has the folder of the server that was fenced. One that has an actor
    is left to it."""
    plan, database = MagicMock(), MagicMock()
    fences = [{"id": "backup-1", "successor": ""}, {"id": "backup-2", "successor": "new"}]
    live = [{"id": f"backup-{n}", "state": "live"} for n in (1, 2)]
    database._loop.run.return_value = {"replaced": fences, "servers": live}
    plan.name = "backup-1"
    steps = Steps(database, MagicMock(), [plan], lambda text: None, time.monotonic() + 5.0)
    done: list[str] = []
    monkeypatch.setattr(apply_steps, "cluster_actors", lambda _: {"backup-1": 1} if there else {})
    monkeypatch.setattr(apply_steps, "empty_folders", lambda _: done.append("empty"))
    monkeypatch.setattr(steps, "_start", lambda _: done.append("start"))
    assert steps.take(Step(Act.ADD, "backup", "backup-1"))
    assert done == (["start"] if there else ["empty", "start"])
    steps._plans["backup-2"] = plan
    assert steps.take(Step(Act.ADD, "backup", "backup-2"))
    assert done.count("empty") == (not there)
