"""What a cluster stores is removed when it is asked for, and nothing else is."""

from __future__ import annotations

import dataclasses
import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stelae import forgetting
from stelae.cli.app import app
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import AlreadyRunning, InvalidArgument, RetryLater
from stelae.deploy import cluster_state, nodes
from stelae.deploy.asked import keep_spec
from stelae.forgetting import forget, forget_here, stored
from stelae.runtime.files import LOCK_FILE as SERVER_LOCK_FILE

SECRET = bytes(range(32))


def made(folder: Path, media: Path, **more: Any) -> Path:
    """A data_dir as a cluster leaves it, with a backup that has a medium elsewhere."""
    data_dir = folder / "demo"
    for name in ("master-1", "backup-1", "audit"):
        (data_dir / name).mkdir(parents=True)
        (data_dir / name / "file").write_bytes(b"x" * 10_000)
    for name in ("backup-1", "others"):
        (media / name).mkdir(parents=True)
        (media / name / "frames").write_bytes(b"x" * 10_000)
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


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A server runs on that folder."""
    with (folder / SERVER_LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_all_of_it_goes_and_nothing_of_others(tmp_path: Path) -> None:
    """Also what its servers have on media elsewhere; again is fine."""
    media = tmp_path / "fast"
    data_dir = made(tmp_path, media)
    known = stored(data_dir)
    assert known is not None
    assert known.folders == (data_dir, media / "backup-1")
    assert known.size_bytes >= 40_000
    assert known.machines == ()
    forget(data_dir, known)
    assert not data_dir.exists()
    assert [path.name for path in media.iterdir()] == ["others"]
    forget(data_dir, known)
    assert stored(data_dir) is None


def test_a_folder_on_which_a_server_runs_keeps_all_of_it(tmp_path: Path) -> None:
    """In the data_dir, and on a medium elsewhere."""
    media = tmp_path / "fast"
    data_dir = made(tmp_path, media)
    known = stored(data_dir)
    assert known is not None
    for folder in (data_dir / "master-1", media / "backup-1"):
        with locked(folder), pytest.raises(AlreadyRunning, match=str(folder)):
            forget(data_dir, known)
    assert (media / "backup-1" / "frames").exists()
    assert (data_dir / "backup-1" / "file").exists()


def test_another_clusters_folder_is_left_alone(tmp_path: Path) -> None:
    """One of the same name, made by somebody else on that machine."""
    data_dir = made(tmp_path, tmp_path / "fast")
    with pytest.raises(InvalidArgument, match="another cluster"):
        forget_here(data_dir, bytes(32), [])
    assert (data_dir / "backup-1" / "file").exists()


@pytest.mark.parametrize("after", range(5))
def test_what_was_interrupted_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The files that say whose folder it is go last."""
    media = tmp_path / "fast"
    data_dir = made(tmp_path, media)
    known = stored(data_dir)
    assert known is not None
    real, removed = shutil.rmtree, list[Path]()

    def interrupted(path: Path) -> None:
        if len(removed) == after:
            raise KeyboardInterrupt
        removed.append(path)
        real(path)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        forget(data_dir, known)
    monkeypatch.undo()
    again = stored(data_dir)
    assert again is not None
    forget(data_dir, again)
    assert not data_dir.exists()


def test_machines_that_do_not_answer_are_named_and_nothing_is_forgotten_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is given again once they are back."""
    machines = {"master-1": "a", "backup-1": "b"}
    data_dir = made(tmp_path, tmp_path / "fast", machines=machines)
    known = stored(data_dir)
    assert known is not None
    assert known.machines == ("a", "b")
    answers: dict[str, None] = {"a": None}

    class FakeRay:
        """Two nodes besides this one, which has no servers."""

        def is_initialized(self) -> bool:
            return True

        def nodes(self) -> list[dict[str, Any]]:
            names = [("0", "me"), ("1", "a"), ("2", "b")]
            return [{"Alive": True, "NodeID": i, "NodeManagerAddress": name} for i, name in names]

        def get_runtime_context(self) -> FakeRay:
            return self

        def get_node_id(self) -> str:
            return "0"

    def ask(work: Any, selectors: Any, arguments: Any) -> nodes.Told[None]:
        assert work is forget_here
        assert sorted(selectors) == ["a", "b"]
        assert arguments["a"] == (data_dir, SECRET, known.media)
        silent = {name: "no answer" for name in selectors if name not in answers}
        return nodes.Told(answers, silent)

    monkeypatch.setattr(forgetting, "ray", FakeRay())
    monkeypatch.setattr(nodes, "ask", ask)
    with pytest.raises(RetryLater, match=r"^b cannot be reached"):
        forget(data_dir, known)
    assert (data_dir / "backup-1" / "file").exists()
    answers["b"] = None
    forget(data_dir, known)
    assert not data_dir.exists()


def test_the_command_asks_first(tmp_path: Path) -> None:
    """Whoever says no keeps everything; `--yes` does not ask; --json needs it."""
    data_dir = made(tmp_path, tmp_path / "fast")
    result = CliRunner().invoke(app, ["down", str(data_dir), "--forget"], input="n\n")
    assert result.exit_code == 1
    assert "removes all rows of cluster 'demo'" in result.output
    assert str(data_dir) in result.output
    assert CliRunner().invoke(app, ["down", str(data_dir), "--forget", "--json"]).exit_code == 2
    assert CliRunner().invoke(app, ["down", str(data_dir)]).exit_code == 0
    assert (data_dir / "backup-1" / "file").exists()
    result = CliRunner().invoke(app, ["down", str(data_dir), "--forget", "--yes"])
    assert result.exit_code == 0, result.output
    assert "is removed" in result.output
    assert not data_dir.exists()
