"""A forked child of a client is a client of its own, by every door, and its parent goes on.

Each door is used by a process of its own (`tests.front.forking_driver`), so that no thread of a
server or of pytest is in the process that forks. Rules F1 and F2 of `stelae.core.forks`, C1 to C3
of `stelae.client.connection`.
"""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.front.doors import Doors, doors
from tests.front.forking_driver import ROWS_EACH, WORKERS, row

ROOT = Path(__file__).parents[2]
ROW = row(1)
Report = dict[str, Any]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with doors(tmp_path_factory.mktemp("forks")) as found:
        yield found


@pytest.fixture(scope="module", params=["direct", "loop", "aio", "http"])
def report(request: pytest.FixtureRequest, opened: Doors) -> Report:
    """What a process saw that used one door and forked."""
    origin = opened.http if request.param == "http" else opened.tcp
    asked = {"door": request.param, "origin": base64.b64encode(pickle.dumps(origin)).decode()}
    done = subprocess.run(
        [sys.executable, "-m", "tests.front.forking_driver", json.dumps(asked)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    found: Report = json.loads(done.stdout)
    return found


def test_every_kind_of_call_is_answered_in_a_child(report: Report) -> None:
    """Of one row, of many, scans and calls to the masters; also in a child of the child."""
    assert report["get"] == ROW
    assert report["get_many"] == 2
    assert report["scan"] == 3
    assert report["bulk"] == 200
    assert report["tables"]
    assert report["grandchild"] == [ROW, ROW]


def test_a_childs_write_and_its_parents_are_both_there(report: Report) -> None:
    """They have client ids of their own: neither is dropped as a repetition of the other."""
    assert report["upsert"] == 1
    assert report["both"] == [row(100), row(200)]


def test_rows_of_forked_workers_are_all_there(report: Report) -> None:
    """Each acknowledged write of each worker."""
    assert report["written"] == [ROWS_EACH] * WORKERS
    assert report["found"] == WORKERS * ROWS_EACH


def test_one_of_three_forked_children_gets_a_lock(report: Report) -> None:
    """The others are told that the row is there."""
    first, *others = report["lock"]
    assert first == 1
    assert [other.partition(":")[0] for other in others] == ["VersionMismatch"] * 2


def test_a_child_that_closes_closes_its_own_connections(report: Report) -> None:
    """Whether it has used them or not; its parent goes on."""
    found, error = report["closed"]
    assert found == ROW
    assert error == "this database is closed: connect again"
    assert report["closed unused"] is None
    assert report["after closes"] == ROW


def test_a_child_that_exits_leaves_its_parent_alone(report: Report) -> None:
    """With exit handlers, and with the end of its interpreter, which deallocates what it can."""
    assert report["exit status"] == 0
    assert report["after exit"] == [ROW, 1]


def test_a_fork_within_calls_of_other_threads_stops_nothing(report: Report) -> None:
    """Locks that were held at the fork are nobody's in the child; the calls end well."""
    assert report["during calls"] == [ROW] * 5
    assert report["locks held"] == [ROW, 1]
    assert report["caller failed"] == []


def test_a_child_keeps_no_copy_of_its_parents_sockets(report: Report) -> None:
    """Or servers would not see that the parent has ended. The parent's connections go on."""
    count, (files, numbers) = report["sockets"]
    assert count > 0
    assert files == ["/dev/null"]
    assert numbers in ([], [-1])
    assert report["after all"][:2] == [ROW, 1]
