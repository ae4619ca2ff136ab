"""A process (a notebook's kernel, say) that launches, closes and launches again, with HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.soak]


def test_http_answers_after_a_second_launch_in_one_process(
    launch_small: Callable[..., Any],
) -> None:
    """What Serve remembers of the first Ray of a process is not taken for the second's."""
    for _ in range(2):
        database = launch_small("twice", serve={"port": 0})
        try:
            answer = httpx.get(f"{database.http_url}/healthz", timeout=30.0)
            assert answer.status_code == 200
        finally:
            database.close()


def test_http_answers_after_its_proxy_was_killed_and_the_cluster_launched_again(
    launch_small: Callable[..., Any],
) -> None:
    """The death of the first Ray's proxy does not keep the second one's from starting."""
    for number in range(2):
        database = launch_small("proxy", serve={"port": 0})
        try:
            answer = httpx.get(f"{database.http_url}/healthz", timeout=60.0)
            assert answer.status_code == 200
            if number == 0:
                _kill_proxy()
        finally:
            database.close()


def test_http_answers_where_serve_replaces_a_slow_proxy(
    launch_small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the first proxy is killed before it is ready; the launch goes on."""
    monkeypatch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "0.3")
    database = launch_small("slow", serve={"port": 0})
    try:
        answer = httpx.get(f"{database.http_url}/healthz", timeout=60.0)
        assert answer.status_code == 200
    finally:
        database.close()


def _kill_proxy() -> None:
    """SIGKILL the first process of this process's Ray that is the HTTP proxy or its manager."""
    for process in psutil.Process().children(recursive=True):
        line = " ".join(process.cmdline())
        if "haproxy" in line or "ProxyActor" in line:
            process.kill()
            return
    raise AssertionError("no proxy runs")
