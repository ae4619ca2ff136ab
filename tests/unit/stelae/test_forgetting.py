"""What a cluster stores is removed when it is asked for, and nothing else is."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import functools
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stelae import forgetting
from stelae.actors.backup.frames import Superblock, encode_superblock
from stelae.actors.server.instance import Instance, decode_instance, encode_instance
from stelae.cli.app import app
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import AlreadyRunning, InvalidArgument, RetryLater
from stelae.core.ids import ServerUuid, make_uuid
from stelae.deploy import cluster_state, nodes
from stelae.deploy.asked import keep_spec
from stelae.deploy.locks import LaunchLock
from stelae.forgetting import Stored, forget, forget_here, forget_rest, stored
from stelae.runtime.files import LOCK_FILE as SERVER_LOCK_FILE

SECRET = bytes(range(32))
RNG = random.Random(1)


def server_folder(folder: Path, cluster: str = "demo") -> ServerUuid:
    """A folder as a server leaves it."""
    uuid = ServerUuid(make_uuid(RNG))
    kind, _, _ = folder.name.partition("-")
    folder.mkdir(parents=True)
    instance = Instance(uuid, cluster, kind, folder.name, 0.0, 1)
    (folder / "instance").write_bytes(encode_instance(instance))
    (folder / "rows").write_bytes(b"x" * 10_000)
    return uuid


def frames(folder: Path, server: str, cluster: str = "demo") -> None:
    """What a backup has on a medium elsewhere."""
    folder.mkdir(parents=True)
    superblock = Superblock(1, ServerUuid(server), cluster, "fast", 4096, ())
    (folder / "frames").write_bytes(encode_superblock(superblock))


def made(folder: Path, media: Path, **more: Any) -> Path:
    """A data_dir as a cluster leaves it, with a backup that has a medium elsewhere."""
    data_dir = folder / "demo"
    server_folder(data_dir / "master-1")
    backup = server_folder(data_dir / "backup-1")
    former = server_folder(data_dir / "backup-1.replaced-1")
    for stamp in ("20261201T093005Z", "20261201T093005Z-2"):
        server_folder(data_dir / f"backup-1.replaced-{stamp}")
    for name in ("audit", "haproxy"):
        (data_dir / name).mkdir()
        (data_dir / name / "file").write_text("x")
    frames(media / "backup-1", backup)
    frames(media / "backup-1.replaced-20261201T093006Z", former)
    (data_dir / "keeper.log").write_text("x")
    (data_dir / "secret").write_bytes(SECRET)
    (data_dir / "secret").chmod(0o600)
    state = cluster_state.ClusterState(
        cluster="demo", data_dir=str(data_dir), masters={"master-1": "127.0.0.1:1"}, **more
    )
    dataclasses.replace(state, home=str(data_dir)).save()
    spec = {"cluster": "demo", "data_dir": str(data_dir), "media": {"fast": {"path": str(media)}}}
    if more.get("machines"):
        spec |= {"placement": {"spread": "node"}, "ray": {"address": "auto"}}
    keep_spec(data_dir, load_spec(spec), is_done=True)
    return data_dir


def known_of(data_dir: Path) -> Stored:
    known = stored(data_dir)
    assert known is not None
    return known


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A server runs on that folder."""
    with (folder / SERVER_LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_all_of_it_goes(tmp_path: Path) -> None:
    """Also what was set aside, and what its backups have on media elsewhere; again is fine."""
    media = tmp_path / "fast"
    data_dir = made(tmp_path, media)
    known = known_of(data_dir)
    names = [folder.relative_to(tmp_path) for folder in known.folders]
    assert list(map(str, names)) == [
        "demo/backup-1", "demo/backup-1.replaced-1", "demo/backup-1.replaced-20261201T093005Z",
        "demo/backup-1.replaced-20261201T093005Z-2", "demo/master-1",
        "fast/backup-1", "fast/backup-1.replaced-20261201T093006Z",
    ]  # fmt: skip
    assert known.size_bytes >= 30_000
    assert known.left == ()
    forget(known)
    assert not data_dir.exists()
    assert list(media.iterdir()) == []
    forget(known)
    assert stored(data_dir) is None


def test_what_is_not_the_clusters_own_is_left_and_named(tmp_path: Path) -> None:
    """Files and folders of people, servers of other clusters, frames of other backups."""
    media = tmp_path / "fast"
    data_dir = made(tmp_path, media)
    server_folder(data_dir / "backup-2", "other")
    (data_dir / "notes").mkdir()
    (data_dir / "todo.txt").write_text("x")
    (data_dir / "tserver-9").write_text("no folder")
    frames(media / "backup-2", "00000000", "demo")
    frames(media / "backup-3", "00000000", "other")
    # A copy of a backup's folder that another cluster began on: the UUID is the same.
    backup = decode_instance((data_dir / "backup-1" / "instance").read_bytes()).server_uuid
    frames(media / "backup-5", backup, "other")
    for name in ("audit", "backup-4"):
        (media / name).mkdir()
    known = known_of(data_dir)
    left = ["backup-2", "notes", "todo.txt", "tserver-9"]
    assert [each.name for each in known.left] == left
    forget(known)
    assert sorted(each.name for each in data_dir.iterdir()) == left
    assert sorted(each.name for each in media.iterdir()) == [
        "audit", "backup-2", "backup-3", "backup-4", "backup-5",
    ]  # fmt: skip
    assert stored(data_dir) is None


def test_a_copy_of_the_files_is_not_the_cluster(tmp_path: Path) -> None:
    """`stelae attach --into` writes one: to remove it would remove no row."""
    data_dir = made(tmp_path, tmp_path / "fast")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("cluster.json", "secret", "spec.json"):
        shutil.copy(data_dir / name, copy / name)
    with pytest.raises(InvalidArgument, match=f"rows are in {data_dir}"):
        stored(copy)


@pytest.mark.parametrize("name", ["secret", "spec.json"])
def test_without_all_of_its_files_nothing_is_removed(tmp_path: Path, name: str) -> None:
    """It is not known then whose folders those are, or which media there are."""
    data_dir = made(tmp_path, tmp_path / "fast")
    (data_dir / name).unlink()
    with pytest.raises(InvalidArgument, match="lacks"):
        stored(data_dir)


def test_where_a_server_runs_nothing_is_removed(tmp_path: Path) -> None:
    """In the data_dir, or on a medium elsewhere; or while somebody launches the cluster."""
    media = tmp_path / "fast"
    data_dir = made(tmp_path, media)
    known = known_of(data_dir)
    for folder in (data_dir / "master-1", media / "backup-1"):
        with locked(folder), pytest.raises(AlreadyRunning, match=str(folder)):
            forget(known)
    lock = LaunchLock(data_dir)
    with pytest.raises(AlreadyRunning, match="in use by process"):
        forget(known)
    lock.release()
    assert (media / "backup-1" / "frames").exists()
    assert (data_dir / "backup-1" / "rows").exists()


def test_a_link_is_refused_before_anything_is_removed(tmp_path: Path) -> None:
    """Somebody has put a server's folder on another disk."""
    data_dir = made(tmp_path, tmp_path / "fast")
    (data_dir / "master-1").rename(tmp_path / "elsewhere")
    (data_dir / "master-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgument, match="master-1 is a link"):
        forget(known_of(data_dir))
    assert (data_dir / "backup-1" / "rows").exists()
    assert (tmp_path / "elsewhere" / "rows").exists()


def test_the_launch_lock_is_held_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch in between would make a cluster in a folder that is being removed."""
    data_dir = made(tmp_path, tmp_path / "fast")
    real, refused = os.unlink, []

    def unlink(path: Path, *args: Any, **options: Any) -> None:
        real(path, *args, **options)
        if Path(path).name == "cluster.json":
            with pytest.raises(AlreadyRunning):
                LaunchLock(data_dir)
            refused.append(path)

    monkeypatch.setattr(os, "unlink", unlink)
    forget(known_of(data_dir))
    assert len(refused) == 1


def test_another_clusters_folder_is_left_alone(tmp_path: Path) -> None:
    """One of the same name, made by somebody else on that machine."""
    data_dir = made(tmp_path, tmp_path / "fast")
    forget_here(data_dir, "demo", bytes(32), [])
    assert (data_dir / "backup-1" / "rows").exists()
    forget_here(tmp_path / "none", "demo", SECRET, [])


def test_what_was_interrupted_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removal of a file or of a folder is the last one once; the next command removes the
    rest, and media elsewhere are among it."""
    media, after, is_whole = tmp_path / "fast", 0, False
    while not is_whole:
        data_dir, left = made(tmp_path, media), after

        def interrupted(real: Any, *args: Any, **options: Any) -> None:
            nonlocal left
            if left == 0:
                raise OSError(errno.EBUSY, "Device or resource busy", str(args[0]))
            left -= 1
            real(*args, **options)

        with monkeypatch.context() as patched:
            for name in ("unlink", "rmdir"):
                patched.setattr(os, name, functools.partial(interrupted, getattr(os, name)))
            with contextlib.suppress(RetryLater):
                forget(known_of(data_dir))
                is_whole = left > 0
        if (known := stored(data_dir)) is not None:
            forget(known)
        forget_rest(data_dir)
        assert not data_dir.exists(), f"interrupted after {after}"
        assert list(media.iterdir()) == [], f"interrupted after {after}"
        after += 1
    assert after > 20


def test_what_is_no_rest_of_a_removal_is_left(tmp_path: Path) -> None:
    """A cluster, and a folder whose ``cluster.json`` was lost while it has servers."""
    data_dir = made(tmp_path, tmp_path / "fast")
    forget_rest(data_dir)
    assert stored(data_dir) is not None
    bare = tmp_path / "bare"  # a cluster that never began, or has its servers elsewhere
    bare.mkdir()
    for name in ("cluster.json", "secret", "spec.json"):
        shutil.copy(data_dir / name, bare / name)
    forget_rest(bare)
    assert len(list(bare.iterdir())) == 3
    (data_dir / "cluster.json").unlink()
    before = sorted(data_dir.iterdir())
    forget_rest(data_dir)
    assert sorted(data_dir.iterdir()) == before
    forget_rest(tmp_path / "none")


@pytest.mark.parametrize(
    "spec", ["", "{}", '{"openapi": "3.1.0"}', '{"spec": {"openapi": 3}}', "- yaml"]
)
def test_files_of_people_with_the_same_names_are_left(tmp_path: Path, spec: str) -> None:
    """A ``spec.json`` of another program, and a secret without a spec of a cluster."""
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "launch.lock").write_text("17")
    if spec:
        (tmp_path / "spec.json").write_text(spec)
    before = sorted(tmp_path.iterdir())
    forget_rest(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_files_of_running_servers_may_vanish_while_they_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster is looked at before it is taken down."""
    data_dir = made(tmp_path, tmp_path / "fast")
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        if str(path).endswith("rows"):
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(os, "lstat", lstat)
    assert known_of(data_dir).size_bytes < 30_000


class FakeRay:
    """Three nodes: this one, which has no server, and two that have one now, or had one."""

    names = ("me", "a", "former")

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "NodeID": str(n), "NodeManagerAddress": name}
            for n, name in enumerate(self.names)
        ]

    def get_runtime_context(self) -> FakeRay:
        return self

    def get_node_id(self) -> str:
        return "0"


def test_machines_that_do_not_answer_are_named_and_this_one_goes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that only had a server once are asked, too; with the reason of each that is left."""
    machines = {"master-1": "a", "backup-1": "b"}
    data_dir = made(tmp_path, tmp_path / "fast", machines=machines)
    known = known_of(data_dir)
    assert known.machines == ("a", "b")
    silent = {"a": "[Errno 13] Permission denied"}
    asked: list[str] = []

    def ask(work: Any, selectors: Any, arguments: Any, timeout_s: float) -> nodes.Told[None]:
        assert work is forget_here
        assert sorted(selectors) == sorted(set(ray.names) - {"me"})
        assert arguments["a"] == (data_dir, "demo", SECRET, known.media)
        assert timeout_s > 60
        asked.extend(selectors)
        return nodes.Told({name: None for name in selectors if name not in silent}, silent)

    ray = FakeRay()
    monkeypatch.setattr(forgetting, "ray", ray)
    monkeypatch.setattr(nodes, "ask", ask)
    with locked(data_dir / "backup-1"), pytest.raises(AlreadyRunning):
        forget(known)
    assert not asked, "a server runs here, so no other machine removes anything"
    with pytest.raises(RetryLater, match=r"a: .*Permission denied\n  b: Ray does not have it"):
        forget(known)
    assert (data_dir / "backup-1" / "rows").exists()
    silent.clear()
    ray.names = ("me", "a", "b")
    forget(known)
    assert not data_dir.exists()


def invoke(*arguments: str, answer: str = "") -> Any:
    return CliRunner().invoke(app, ["down", *arguments], input=answer)


def test_the_command_asks_first(tmp_path: Path) -> None:
    """Whoever says no keeps everything; `--yes` does not ask; --json needs it."""
    data_dir = made(tmp_path, tmp_path / "fast")
    (data_dir / "notes").mkdir()
    result = invoke(str(data_dir), "--forget", answer="n\n")
    assert result.exit_code == 1
    assert "removes all rows of cluster 'demo'" in result.output
    assert str(data_dir / "backup-1") in result.output
    assert invoke(str(data_dir), "--forget", "--json").exit_code == 2
    assert invoke(str(data_dir)).exit_code == 0
    assert (data_dir / "backup-1" / "rows").exists()
    result = invoke(str(data_dir), "--forget", "--yes")
    assert result.exit_code == 0, result.output
    assert "is removed; not its own, and left:" in result.output
    assert [each.name for each in data_dir.iterdir()] == ["notes"]
    result = invoke(str(data_dir), "--forget", "--yes")
    assert result.exit_code == 0
    assert "nothing is stored there" in result.output


def test_a_cluster_whose_files_are_elsewhere_is_not_taken_down(tmp_path: Path) -> None:
    """By its name in a Ray, or by a file with a placement: it may run, and what it stores is not
    known here."""
    file = tmp_path / "cluster.yaml"
    file.write_text(
        f"apiVersion: stelae/v1\nkind: Cluster\ncluster: demo\ndata_dir: {tmp_path}/none\n"
        "placement: {spread: node}\nray: {address: auto}\n"
    )
    for where in ("demo", str(file)):
        result = invoke(where, "--forget", "--yes")
        assert isinstance(result.exception, InvalidArgument), result.output
        assert "on a machine of the cluster" in str(result.exception)
