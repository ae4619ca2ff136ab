"""A server's process and its log are named after the server; a failure of that is logged only."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from stelae.actors.ray_host import own_log


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of Ray's."""
    found = SimpleNamespace(get_worker_id=lambda: "w1")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: found)


def test_a_log_gets_the_servers_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: None
) -> None:
    """As a link next to it, which Ray's own programs do not look at."""
    monkeypatch.setattr(own_log, "logs_folder", lambda: tmp_path)
    log = tmp_path / f"worker-w1-02000000-{os.getpid()}.err"
    log.write_text("hello")
    own_log.link_own_log("demo", "tserver-1")
    link = tmp_path / f"stelae_demo_tserver-1_{os.getpid()}.err"
    assert (link.is_symlink(), link.read_text()) == (True, "hello")


def test_a_folder_that_takes_no_link_keeps_no_server_from_starting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    context: None,
) -> None:
    """It is logged, by the server's name; so is a Ray that has its logs elsewhere."""

    def refused(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(own_log, "logs_folder", lambda: tmp_path)
    monkeypatch.setattr(own_log, "link_log", refused)
    with caplog.at_level(logging.WARNING):
        own_log.link_own_log("demo", "tserver-1")
        monkeypatch.setattr(own_log, "logs_folder", lambda: SimpleNamespace().missing)
        own_log.link_own_log("demo", "tserver-1")
    assert [each.message.partition(":")[0] for each in caplog.records] == [
        "the log of tserver-1 has no name of its own"
    ] * 2


def test_a_process_is_named_after_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to what Ray calls it, by which others find servers. (ps shows it in
    tests/cluster/test_command_line.py.)"""
    said: list[str] = []
    monkeypatch.setattr(ray, "_raylet", SimpleNamespace(setproctitle=said.append))
    own_log.title_as("demo", "tserver-1")
    assert said == ["ray::ServerHost demo/tserver-1"]
