"""What a launch makes of ``tls`` in a spec, up to the servers themselves; without Ray."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stelae.actors.ray_host.spark_process import Setup, _link, encode_frame
from stelae.core.config.peer_tls import PeerTls
from stelae.core.config.settings import Settings
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import AlreadyRunning, InvalidArgument
from stelae.deploy import launcher
from stelae.deploy.cluster_state import STATE_FILE, load_state
from stelae.recovery.spark_session import SessionSize


class BegunError(Exception):
    """The first server was to be started."""


def spec_of(folder: Path, tls: dict[str, Any]) -> ClusterSpec:
    return load_spec({"serve": None, "spark": None, "data_dir": str(folder / "data"), "tls": tls})


def start(spec: ClusterSpec, *, is_running: bool = False) -> None:
    """A launch up to its first server."""
    state, lock = launcher.prepare(spec)
    lock.release()
    error = AlreadyRunning if is_running else BegunError
    with pytest.raises(error):
        launcher.start_servers(spec, state, {})


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The cluster's actors in Ray."""
    actors: dict[str, Any] = {}

    def create(plan: object) -> None:
        raise BegunError

    monkeypatch.setattr(launcher, "cluster_actors", lambda cluster: actors)
    monkeypatch.setattr(launcher, "create_actor", create)
    return actors


def test_the_mode_of_the_last_launch_is_what_is_connected_with(
    tmp_path: Path, there: dict[str, Any]
) -> None:
    """It is written down before the first server starts, and changes with the next launch only."""
    start(spec_of(tmp_path, {"mode": "internal"}))
    folder = tmp_path / "data"
    assert load_state(folder).peer_tls == PeerTls("internal")
    start(spec_of(tmp_path, {"mode": "off"}))
    assert not load_state(folder).peer_tls.is_on
    there["master-1"] = object()
    start(spec_of(tmp_path, {"mode": "internal"}), is_running=True)
    assert not load_state(folder).peer_tls.is_on


def test_the_process_of_spark_is_told_of_it() -> None:
    """What it is started with goes through a pipe, and becomes the link of its tasks."""
    tls = PeerTls("files", "/c.pem", "/k.pem", "/a.pem")
    size = SessionSize(1, 1, 1 << 30)
    setup = Setup("auto", "ns", "c", (), bytes(32), Settings(), size, 1.0, tls)
    told = msgspec.msgpack.decode(encode_frame(setup)[8:], type=Setup)
    assert told == setup
    assert _link(told).tls == tls


def test_what_tls_needs_is_looked_for_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is not there, and the library that the mode internal needs."""
    files = {"mode": "files", "certificate": "/none/c", "key": "/none/k", "authority": "/none/a"}
    with pytest.raises(InvalidArgument, match=r"cannot come up: tls.certificate: /none/c cannot"):
        launcher.prepare(spec_of(tmp_path, files))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match=r"pip install 'stelae\[tls\]'"):
        launcher.prepare(spec_of(tmp_path, {"mode": "internal"}))
    assert not (tmp_path / "data" / STATE_FILE).exists()
