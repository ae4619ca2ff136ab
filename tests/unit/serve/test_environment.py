"""`stelae.serve.environment`: who may reach HAProxy's admin socket, and when its folder goes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import InvalidArgument
from stelae.deploy import ray_session
from stelae.serve import environment

SOCKET = "RAY_SERVE_HAPROXY_SOCKET_PATH"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sockets, and the environment as it was afterwards."""
    before = dict(os.environ)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(environment, "_set_here", {})
    monkeypatch.setattr(environment, "_socket_folders", {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.60.0")
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.lstat().st_mode)


def test_the_sockets_folder_is_this_users_alone_before_ray_starts(temporary: Path) -> None:
    """Also one that an earlier run left open to all; and it goes with all that is in it."""
    environment.set_environment("data", tls=False)
    folder = Path(os.environ[SOCKET]).parent
    assert (folder.parent, mode_of(folder)) == (temporary, 0o700)
    folder.chmod(0o777)
    environment.set_environment("data", tls=False)
    assert mode_of(folder) == 0o700
    (folder / "node").mkdir()
    (folder / "node" / "a.sock").touch()
    environment.remove_sockets()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("version", "mode"), [("2.59.0", "0"), ("2.60.0", "1"), ("2.60.1", "1")])
def test_haproxy_is_used_with_the_versions_of_ray_whose_mode_is_tested(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, version: str, mode: str
) -> None:
    """With an older one Serve has its own proxy."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    environment.set_environment("data", tls=False)
    assert os.environ["RAY_SERVE_ENABLE_HA_PROXY"] == mode


@pytest.mark.parametrize("what", ["a link", "a file", "another user's"])
def test_a_folder_that_is_not_ours_is_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Nothing is changed, nor removed; the text says what to do."""
    folder = Path(environment.serve_environment("data")[SOCKET]).parent
    if what == "a link":
        (temporary / "elsewhere").mkdir(mode=0o755)
        folder.symlink_to(temporary / "elsewhere")
    elif what == "a file":
        folder.touch()
    else:
        folder.mkdir(mode=0o755)
        mine = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(InvalidArgument, match="TMPDIR"):
        environment.set_environment("data", tls=False)
    assert SOCKET not in environment._set_here
    environment.remove_sockets()
    assert folder.lstat()
    if what == "a link":
        assert mode_of(temporary / "elsewhere") == 0o755


def test_with_tls_there_is_no_such_folder(temporary: Path) -> None:
    """Serve's own proxy has no admin socket."""
    environment.set_environment("data", tls=True)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("ends", ["starts not", "is ended", "is ended by Ctrl-C"])
def test_the_folder_goes_with_the_ray_that_it_was_made_for(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Whether Ray came up and was ended, or never came up."""
    spec = ClusterSpec.model_validate(
        {"cluster": "demo", "data_dir": str(temporary / "data"), "serve": {"port": 0}}
    )
    seen: list[int] = []

    def starts(_: object) -> None:
        seen.append(mode_of(Path(os.environ[SOCKET]).parent))
        if ends == "starts not":
            raise KeyboardInterrupt

    def ended() -> None:
        if ends == "is ended by Ctrl-C":
            raise KeyboardInterrupt

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", ended)
    monkeypatch.setattr(ray_session, "_start_local", starts)
    if ends == "starts not":
        with pytest.raises(KeyboardInterrupt):
            ray_session.start_ray(spec)
    else:
        assert ray_session.start_ray(spec)
        assert len(list(temporary.iterdir())) == 1
        if ends == "is ended":
            ray_session.end_ray()
        else:
            with pytest.raises(KeyboardInterrupt):
                ray_session.end_ray()
    assert seen == [0o700]
    assert list(temporary.iterdir()) == []
