"""`stelae.keeper`: what SIGTERM does while a cluster comes up, and what an HTTP that fails does."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import RetryLater
from stelae.keeper import interrupted_by_sigterm, wait_http


def test_a_second_sigterm_does_not_end_the_cleaning_up_of_the_first() -> None:
    """The first is an interrupt, as Ctrl-C is; what then takes everything down is let finish; and
    afterwards the signal means what it meant before."""
    done: list[str] = []
    before = signal.getsignal(signal.SIGTERM)

    def launch() -> None:
        with interrupted_by_sigterm():
            try:
                signal.raise_signal(signal.SIGTERM)
                done.append("not reached")
            finally:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)
                done.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        launch()
    assert done == ["cleaned up"]
    assert signal.getsignal(signal.SIGTERM) is before


def _database(spec: ClusterSpec, error: BaseException | None = None) -> tuple[Any, list[str]]:
    """A launched database whose HTTP front fails with ``error``, and what was done with it."""
    done: list[str] = []

    def wait() -> str:
        if error is not None:
            raise error
        return "http://h"

    http = SimpleNamespace(wait=wait, cancel=lambda: done.append("given up"))
    return SimpleNamespace(spec=spec, http=http, close=lambda: done.append("closed")), done


def test_up_waits_for_http_where_the_spec_has_it() -> None:
    """`stelae up` tells the URL."""
    database, done = _database(ClusterSpec())
    told: list[str] = []
    assert wait_http(database, told.append) == "http://h"
    assert told == ["waiting for the HTTP front"]
    database, _ = _database(ClusterSpec(serve=None), RetryLater("nobody starts it"))
    assert wait_http(database, told.append) == ""
    assert not done


@pytest.mark.parametrize("error", [RetryLater("no replica"), KeyboardInterrupt()])
def test_a_cluster_whose_http_does_not_start_is_taken_down_by_up(error: BaseException) -> None:
    """Who runs `stelae up` has nothing to wait on, and is told at once; nothing is left running."""
    database, done = _database(ClusterSpec(), error)
    with pytest.raises(type(error)):
        wait_http(database, lambda text: None)
    assert done == ["given up", "closed"]
