"""The files of a cluster on its machines: the newest wins, and no other cluster's is taken."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.actors.ray_host import kept_files
from stelae.actors.ray_host.kept_files import (
    NAMES,
    SPEC_FILE,
    STATE_FILE,
    FileKeeper,
    KeptFiles,
    newest,
    read_files,
    write_files,
)
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import InvalidArgument, NotEnoughServers, RetryLater
from stelae.deploy import cluster_files, nodes
from stelae.deploy.asked import keep_spec, kept_spec
from stelae.deploy.cluster_files import check_most_answered, take_from_machines
from stelae.deploy.cluster_state import ClusterState, load_state
from tests.own_files import of_files_in

SECRET = b"s" * 32
MACHINES = {"master-1": "a", "master-2": "b", "master-3": "c"}


def files(version: int, spec: bytes = b"{}", secret: bytes = SECRET) -> KeptFiles:
    state = {
        "cluster": "demo",
        "data_dir": "/data",
        "masters": dict.fromkeys(MACHINES, "10.0.0.1:1"),
        "machines": MACHINES,
        "version": version,
    }
    content = {"secret": secret, SPEC_FILE: spec, STATE_FILE: json.dumps(state).encode()}
    return KeptFiles(version, content)


@given(st.permutations([files(1), files(2, b"x"), files(2, b"y"), files(2, b"z")]))
def test_in_whatever_order_they_are_told_all_keep_the_same(given: list[KeptFiles]) -> None:
    """Also of two that two operators have made of one version: else machines would differ."""
    best = newest([files(1), files(2, b"x"), files(2, b"y"), files(2, b"z")])
    assert newest(given) == best


def test_a_keeper_takes_what_is_newer_and_writes_it_for_this_user_alone(tmp_path: Path) -> None:
    """What is older changes nothing, what is of another secret is refused."""
    keeper = FileKeeper(tmp_path / "data", SECRET)
    assert keeper.kept() is None
    assert keeper.keep(files(3)) == 3
    assert keeper.keep(files(2, b"old")) == 3
    assert read_files(tmp_path / "data") == files(3)
    written = [path for path in (tmp_path / "data" / name for name in NAMES) if path.exists()]
    assert written
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in written)
    with pytest.raises(InvalidArgument, match="another secret"):
        keeper.keep(files(9, secret=b"t" * 32))
    assert FileKeeper(tmp_path / "data", SECRET).kept() == files(3), "the next process has them"


@pytest.mark.parametrize("damage", ["lost", "garbage", "foreign"])
def test_a_folder_that_was_lost_is_written_anew_from_memory(tmp_path: Path, damage: str) -> None:
    """The next time that somebody tells what changed, and even what did not."""
    keeper = FileKeeper(tmp_path, SECRET)
    keeper.keep(files(3))
    if damage == "lost":
        for name in NAMES:
            (tmp_path / name).unlink(missing_ok=True)
    elif damage == "garbage":
        (tmp_path / STATE_FILE).write_text("not JSON")
    else:
        write_files(tmp_path, files(99, secret=b"t" * 32))
    assert keeper.kept() == files(3)
    assert keeper.keep(files(2)) == 3
    assert read_files(tmp_path) == files(3)


def test_what_an_operator_has_written_beside_a_server_is_newer(tmp_path: Path) -> None:
    """On the machine of the launch, folder and server's folder are one."""
    keeper = FileKeeper(tmp_path, SECRET)
    keeper.keep(files(3))
    load_state(tmp_path).save()
    found = keeper.kept()
    assert found is not None
    assert found.version == 4


def test_a_keeper_puts_nothing_over_what_an_operator_writes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose write falls between its look at the folder and its own."""
    keeper = FileKeeper(tmp_path, SECRET)
    keeper.keep(files(3))
    operator = Thread(target=replace(load_state(tmp_path), http="http://x", version=8).save)

    def late(folder: Path, kept: KeptFiles) -> None:
        operator.start()
        operator.join(0.2)
        write_files(folder, kept)

    monkeypatch.setattr(kept_files, "write_files", late)
    assert keeper.keep(files(5)) == 5
    operator.join()
    assert (load_state(tmp_path).version, load_state(tmp_path).http) == (9, "http://x")


@pytest.mark.parametrize("other", [b"a", b"b", b"c", b"d", b"e"])
def test_what_is_written_beside_the_state_has_a_version_of_its_own_at_once(
    tmp_path: Path, other: bytes
) -> None:
    """Of two contents of one version a keeper might choose the one that was before."""
    keeper = FileKeeper(tmp_path, SECRET)
    keeper.keep(files(3))
    spec = load_spec({"cluster": "new"})
    keep_spec(tmp_path, spec, is_done=False)
    assert keeper.keep(files(3, other)) == 4
    found = kept_spec(tmp_path)
    assert found is not None
    assert found.spec == spec.document()


def test_who_changes_the_files_for_ever_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing was changed."""
    monkeypatch.setattr(kept_files, "LOCK_TIMEOUT_S", 0.05)
    write_files(tmp_path, files(3))
    with kept_files.locked(tmp_path), pytest.raises(RetryLater, match="another process"):
        load_state(tmp_path).save()
    assert load_state(tmp_path).version == 3


def test_a_state_is_saved_where_it_was_read_and_counts_its_changes(tmp_path: Path) -> None:
    """A private copy stays one: the data_dir is that of the servers' machines."""
    write_files(tmp_path, files(3))
    state = load_state(tmp_path)
    assert (state.data_dir, state.folder, state.secret) == ("/data", tmp_path, SECRET)
    state.save()
    state.save()
    assert load_state(tmp_path).version == 5
    assert "home" not in json.loads((tmp_path / STATE_FILE).read_text())


def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]) -> Path:
    """What a launch finds in its data_dir, once machines have told what they have."""
    folder = tmp_path / "data"
    spec = load_spec(
        {
            "ray": {"address": "auto"},
            "placement": {"label": "disk"},
            "data_dir": str(folder),
        }
    )
    monkeypatch.setattr(cluster_files, "live_machines", lambda _: dict.fromkeys(told, "10.0.0.1"))
    monkeypatch.setattr(nodes, "ask", lambda *_: nodes.Told(told, {}))
    take_from_machines(spec)
    return folder


def test_a_launch_from_an_empty_folder_goes_on_with_what_machines_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest; nothing is made where nobody has any; a folder that was made and never came up
    gives way."""
    assert not launched(tmp_path, monkeypatch, {"a": None, "b": None}).exists()
    folder = launched(tmp_path, monkeypatch, {"a": files(3), "b": files(5), "c": None})
    assert read_files(folder) == files(5)
    ClusterState("demo", str(folder), {"master-1": "127.0.0.1:1"}, version=8).save()
    (folder / "secret").write_bytes(b"t" * 32)
    launched(tmp_path, monkeypatch, {"a": files(5), "b": files(5), "c": None})
    assert read_files(folder) == files(5)


def test_a_launch_refuses_files_of_two_clusters_and_those_that_may_be_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has which is told; one of three machines with masters is not enough to know."""
    with pytest.raises(InvalidArgument, match="a, b have files of different clusters"):
        launched(tmp_path, monkeypatch, {"a": files(3), "b": files(4, secret=b"t" * 32), "c": None})
    with pytest.raises(NotEnoughServers, match="b, c do not answer"):
        launched(tmp_path, monkeypatch, {"a": files(3)})
    check_most_answered(files(3), ["a", "c"])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"cluster": "c"}', b"\xff\xfe"])
def test_a_damaged_state_is_named_with_the_way_out(tmp_path: Path, content: bytes) -> None:
    """An empty or cut cluster.json is no raw error and no cluster."""
    write_files(tmp_path, files(1))
    assert load_state(tmp_path).masters.keys() == MACHINES.keys()
    (tmp_path / STATE_FILE).write_bytes(content)
    with pytest.raises(InvalidArgument, match="stelae attach") as caught:
        load_state(tmp_path)
    assert str(tmp_path / STATE_FILE) in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"s" * 31])
def test_a_damaged_secret_is_named_with_the_way_out(tmp_path: Path, content: bytes | None) -> None:
    """Servers with a cut secret would refuse each other one by one, each after its own time."""
    write_files(tmp_path, files(1))
    path = tmp_path / "secret"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidArgument, match="stelae attach") as caught:
        _ = load_state(tmp_path).secret
    assert str(path) in str(caught.value)


def test_a_file_is_replaced_as_a_whole_and_its_name_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content is synced before the name is given, and the folder after it."""
    steps: list[str] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        steps.append("there" if (tmp_path / "f").exists() else "not there")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", of_files_in(tmp_path, real, noted))
    kept_files.write_file(tmp_path / "f", b"x")
    assert steps == ["file", "not there", "folder", "there"]
