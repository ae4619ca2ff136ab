"""What is missing on machines is told before anything is started there, all of it at once."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stelae.applying.places import ask_machines, is_own_place, memory_held, what_is_taken
from stelae.coordinator.apply.checks import Made
from stelae.coordinator.apply.plan import FRONT, Act, Step
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import InvalidArgument
from stelae.core.records.records import ServerKind
from stelae.deploy import cluster_state, machines, node_checks, nodes
from stelae.deploy.node_checks import (
    HEAD_RESOURCE,
    Needs,
    check_launch,
    needs_of,
    place_problem,
    problems_here,
)

GIB = 1 << 30
NAMES = [f"{kind}-{n}" for kind in ("master", "backup", "tserver") for n in (1, 2, 3)]
ON = {name: "abc"[int(name[-1]) - 1] for name in NAMES}


def spec_of(folder: Path, **more: Any) -> ClusterSpec:
    first = {"ray": {"address": "auto"}, "placement": {"label": "disk"}, "data_dir": str(folder)}
    return load_spec({**first, "serve": None, "spark": None, **more})


def state_of(folder: Path, placed: Mapping[str, str]) -> cluster_state.ClusterState:
    masters = {f"master-{n}": f"10.0.0.{n}:700{n}" for n in (1, 2, 3)}
    (folder / cluster_state.SECRET_FILE).write_bytes(b"0" * 32)
    return cluster_state.ClusterState("demo", str(folder), masters, machines=dict(placed))


class Machines:
    """Ray's nodes, and what they answer; those in ``silent`` do not."""

    def __init__(self) -> None:
        self.there = [self.node("", "10.0.0.9", {HEAD_RESOURCE: 1.0})]
        self.there += [self.node(m, f"10.0.0.{n + 1}", {}) for n, m in enumerate("abc")]
        self.silent: tuple[str, ...] = ()
        self.asked: dict[str, Needs] = {}
        self.selectors: dict[str, Mapping[str, str]] = {}

    @staticmethod
    def node(machine: str, address: str, resources: dict[str, float]) -> dict[str, Any]:
        found = {"Alive": True, "NodeID": address, "NodeManagerAddress": address}
        labels = {"disk": machine} if machine else {}
        return {**found, "Labels": labels, "Resources": {"memory": 4.0 * GIB, **resources}}

    def ask(
        self,
        work: Callable[[Needs], list[str]],
        selectors: Mapping[str, Mapping[str, str]],
        arguments: Mapping[str, tuple[Needs]],
        timeout_s: float,
    ) -> nodes.Told[list[str]]:
        self.asked = {name: each for name, (each,) in arguments.items()}
        self.selectors = dict(selectors)
        silent = {n: "no answer" for n in arguments if any(each in n for each in self.silent)}
        told = {name: work(*each) for name, each in arguments.items() if name not in silent}
        return nodes.Told(told, silent)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Machines:
    found = Machines()
    monkeypatch.setattr("ray.nodes", lambda: found.there)
    monkeypatch.setattr(nodes, "ask", found.ask)
    monkeypatch.setattr("stelae.serve.deployment.serve_place", lambda: None)
    return found


def test_without_a_placement_nobody_is_asked(tmp_path: Path, monkeypatch: Any) -> None:
    """All of it is where the operator is."""
    monkeypatch.setattr(nodes, "ask", lambda *_: pytest.fail("a node is asked"))
    spec = load_spec({"data_dir": str(tmp_path)})
    check_launch(spec, state_of(tmp_path, {}), NAMES)


def test_a_launch_tells_all_that_is_missing_on_all_machines(
    there: Machines, tmp_path: Path
) -> None:
    """A folder on each, memory on one, and on Ray's head a port and a certificate; each problem
    names its node. Nothing is kept of where servers would have been."""
    blocked = tmp_path / "file"
    blocked.touch()
    there.there[2]["Resources"]["memory"] = GIB / 2
    state = state_of(tmp_path, {})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        tls = {"cert": str(tmp_path / "cert.pem"), "key": str(blocked)}
        spec = spec_of(blocked / "data", serve={"port": port, "tls": tls})
        with pytest.raises(InvalidArgument) as caught:
            check_launch(spec, state, NAMES)
    text = str(caught.value)
    for number, machine in enumerate("abc", 1):
        where = f"on machine disk={machine} (10.0.0.{number}): data_dir: {blocked}/data cannot"
        assert f"{where} be made: {blocked} is no folder" in text
    memory = "tservers.memory: the tablet servers there need 1GiB, and Ray has 512 MiB"
    assert f"on machine disk=b (10.0.0.2): {memory}" in text
    assert text.count("tservers.memory") == 1
    assert f"on Ray's head (10.0.0.9): serve.port {port} on 127.0.0.1 cannot be used" in text
    assert f"on Ray's head (10.0.0.9): serve.tls.cert: {tmp_path}/cert.pem is no file" in text
    assert "serve.tls.key" not in text
    assert there.selectors["machine disk=a (10.0.0.1)"] == {"disk": "a"}
    assert there.selectors["Ray's head (10.0.0.9)"] == {machines.NODE_ID: "10.0.0.9"}
    assert not (tmp_path / cluster_state.STATE_FILE).exists()


def test_each_machine_is_asked_for_what_tls_between_servers_needs(
    there: Machines, tmp_path: Path
) -> None:
    """Files that are not on a machine of a server are told with that machine."""
    tls = {"mode": "files", "certificate": "/none/c", "key": "/none/k", "authority": "/none/a"}
    with pytest.raises(InvalidArgument) as caught:
        check_launch(spec_of(tmp_path, tls=tls), state_of(tmp_path, ON), NAMES)
    text = str(caught.value)
    for machine in "abc":
        assert f"disk={machine}" in text
    assert text.count("tls.certificate: /none/c cannot be read on this machine") == 3
    check_launch(spec_of(tmp_path, tls={"mode": "internal"}), state_of(tmp_path, ON), NAMES)


def test_who_does_not_answer_was_not_checked_and_keeps_nobody(
    there: Machines, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does one that is not there; both are named in the log."""
    there.silent = ("disk=a",)
    there.there[3]["Alive"] = False
    with caplog.at_level(logging.WARNING):
        check_launch(spec_of(tmp_path), state_of(tmp_path, ON), NAMES)
    assert [record.message for record in caplog.records] == [
        "machine disk=c was not checked: Ray has no such node now",
        "machine disk=a (10.0.0.1) was not checked: no answer",
    ]


def test_servers_that_have_been_there_need_no_room(tmp_path: Path) -> None:
    """However full their disks are, their rows can be read; a new server, and a new medium, begin
    with some."""
    media = {"disk": {"path": "disk"}, "far": {"path": "/far"}, "ram": {"size": "64MiB"}}
    spec = spec_of(tmp_path, media=media, segment_size="1MiB")
    least = 4 << 20
    found = needs_of(spec, {**ON, "backup-4": "a"}, ["backup-4"], NAMES)
    assert found["a"].folders == {"data_dir": (str(tmp_path), least), "media.far": ("/far", least)}
    assert found["b"].folders == {"data_dir": (str(tmp_path), 0), "media.far": ("/far", 0)}
    later = needs_of(spec, ON, [], NAMES, {"far"})
    assert later["b"].folders == {"data_dir": (str(tmp_path), 0), "media.far": ("/far", least)}
    both = needs_of(spec, dict.fromkeys(ON, "a"), NAMES)
    assert both["a"].folders == {
        "data_dir": (str(tmp_path), 9 * least),
        "media.far": ("/far", 3 * least),
    }


def test_a_disk_without_room_and_a_folder_that_nobody_may_look_into_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by the name that cluster.yaml has for it; a problem with one hides no other."""
    free = Needs()
    free.add_folder("data_dir", str(tmp_path / "new" / "data"), 0)
    assert problems_here(free) == []
    full = Needs()
    full.add_folder("data_dir", str(tmp_path / "new"), 1 << 80)
    full.add_folder("media.far", "/closed/far", 0)
    exists = Path.exists

    def closed(path: Path) -> bool:
        if str(path).startswith("/closed"):
            raise PermissionError(13, "Permission denied")
        return exists(path)

    monkeypatch.setattr(Path, "exists", closed)
    first, second = problems_here(full)
    assert first.startswith(f"data_dir: the disk of {tmp_path}/new has ")
    assert second == "media.far: /closed/far cannot be made: Permission denied"


def test_a_port_is_taken_or_free_and_none_is_always_free() -> None:
    """The text says what is in the way, and the way out."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert "or 0 for any free one" in place_problem("127.0.0.1", port)
    assert place_problem("127.0.0.1", port) == ""
    assert place_problem("127.0.0.1", 0) == ""


def made_of(spec: ClusterSpec, **more: Any) -> Made:
    made = Made("demo", spec.data_dir, spec.segment_size_bytes, "", 2.0)
    media = {name: each.path for name, each in spec.media.items()}
    memory = {f"tserver-{n}": GIB for n in (1, 2, 3)}
    return replace(made, media=media, memory_bytes=memory, placement=spec.placement, **more)


def test_an_apply_asks_the_machines_of_what_is_added(there: Machines, tmp_path: Path) -> None:
    """A server that is new, a master whose name is found later, and a new medium of all backups.
    Where nothing is new nobody is asked."""
    old, state = spec_of(tmp_path), state_of(tmp_path, ON)
    made = made_of(old)
    assert ask_machines(old, state, [], {}, made, {}) == node_checks.Checked()
    assert not there.asked
    more = spec_of(tmp_path, tservers={"count": 4})
    steps = [Step(Act.ADD, "tserver", "tserver-4")]
    assert ask_machines(more, state, steps, {}, made, {}) == node_checks.Checked()
    assert list(there.asked) == ["machine disk=a (10.0.0.1)"]
    assert ask_machines(old, state, [Step(Act.ADD, "master")], {}, made, {}).problems == ()
    assert len(there.asked) == 1
    far = tmp_path / "file"
    far.touch()
    media = {"disk": {"path": "disk"}, "ram": {"size": "512MiB"}, "far": {"path": f"{far}/x"}}
    found = ask_machines(spec_of(tmp_path, media=media), state, [], {}, made, {})
    assert [text.partition(" cannot")[0] for text in found.problems] == [
        f"on machine disk={m} (10.0.0.{n}): media.far: {far}/x" for n, m in enumerate("abc", 1)
    ]


def test_an_apply_of_another_placement_asks_nobody(there: Machines, tmp_path: Path) -> None:
    """It is refused as such, by a reason of its own."""
    spec, steps = spec_of(tmp_path), [Step(Act.ADD, "tserver", "tserver-4")]
    other = made_of(spec_of(tmp_path, placement={"label": "other"}))
    assert ask_machines(spec, state_of(tmp_path, ON), steps, {}, other, {}) == node_checks.Checked()
    made = made_of(spec)
    assert ask_machines(spec, state_of(tmp_path, {}), steps, {}, made, {}) == node_checks.Checked()
    assert not there.asked


def test_an_apply_asks_the_head_for_the_port_of_a_front_that_moves(
    there: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of one that stays, nor where Serve runs for others, whose place it takes."""
    spec, state = spec_of(tmp_path, serve={"port": 8123}), state_of(tmp_path, ON)
    made, at = made_of(spec), {"serve.port": "8123", "serve.host": "127.0.0.1"}
    ask_machines(spec, state, [], {FRONT: at}, made, {})
    assert not there.asked
    monkeypatch.setattr("stelae.serve.deployment.serve_place", lambda: ("0.0.0.0", 1))
    ask_machines(spec, state, [], {}, made, {})
    assert not there.asked
    ask_machines(spec, state, [], {FRONT: {**at, "serve.port": "1"}}, made, {})
    assert there.asked["Ray's head (10.0.0.9)"].place == ("127.0.0.1", 8123)


def test_memory_counts_where_a_tablet_server_comes_or_grows(
    there: Machines, tmp_path: Path
) -> None:
    """What is drained has its memory until the end; who waits for room keeps nobody else."""
    spec, state = spec_of(tmp_path, tservers={"count": 4, "memory": "2GiB"}), state_of(tmp_path, ON)
    made = made_of(spec)
    steps = [Step(Act.ADD, "tserver", "tserver-4")]
    steps += [Step(Act.RESTART, "tserver", f"tserver-{n}") for n in (1, 2)]
    held, starting = memory_held(spec, steps, made, {})
    assert held == {f"tserver-{n}": (GIB if n == 3 else 2 * GIB) for n in (1, 2, 3, 4)}
    assert starting == ["tserver-4", "tserver-1", "tserver-2"]
    waits = {"tserver-4": ServerKind.TSERVER}
    assert "tserver-4" not in memory_held(spec, steps, made, waits)[0]
    there.there[1]["Resources"]["memory"] = 3.0 * GIB
    (problem,) = ask_machines(spec, state, steps, {}, made, {}).problems
    assert problem.startswith(
        "on machine disk=a (10.0.0.1): tservers.memory: the tablet servers there need 4GiB, and "
        "Ray has 3,072 MiB for servers; give it more"
    )
    smaller = spec_of(tmp_path, tservers={"memory": "512MiB"})
    there.there[1]["Resources"]["memory"] = 0.0
    assert not ask_machines(smaller, state, steps[1:], {}, made, {}).problems, "it becomes better"


def test_without_a_placement_an_apply_looks_here(tmp_path: Path) -> None:
    """All that is taken is told, the port and the folder."""
    blocked = tmp_path / "file"
    blocked.touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        media = {"disk": {"path": "disk"}, "far": {"path": str(blocked / "x")}}
        serve = {"port": taken.getsockname()[1]}
        spec = load_spec({"data_dir": str(tmp_path), "media": media, "serve": serve})
        port, folder = what_is_taken(spec, {}, {"disk": "disk"})
    assert "serve.port" in port
    assert folder == f"media.far: {blocked}/x cannot be made: {blocked} cannot be written to"


def test_the_fronts_own_port_is_not_taken(tmp_path: Path) -> None:
    """On all addresses instead of one, or the other way round: it is let go of before. On another
    single address somebody else may have it."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        port = own.getsockname()[1]
        front = {"serve": {"serve.host": "127.0.0.1", "serve.port": str(port)}}
        spec = load_spec({"data_dir": str(tmp_path), "serve": {"host": "0.0.0.0", "port": port}})
        assert not what_is_taken(spec, front, {})
        assert what_is_taken(spec, {}, {}), "another's"
        elsewhere = {"serve": {"serve.host": "127.0.0.1", "serve.port": str(port + 1)}}
        assert what_is_taken(spec, elsewhere, {})
    for before, after, is_own in (
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "10.0.0.1", False),
    ):
        wanted = load_spec({"serve": {"host": after, "port": 9}})
        there = {"serve": {"serve.host": before, "serve.port": "9"}}
        assert is_own_place(wanted, there) is is_own, (before, after)
