"""The demo: its data, its checks, its report; and a whole run that leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from stelae import hash_partition
from stelae.cli import app as cli
from stelae.core.errors import InvalidArgument, RetryLater
from stelae.core.schema.durability import segments
from stelae.demo import run as demo
from stelae.demo.data import FLIGHTS_ROWS, flights_tables, generated_tables
from stelae.demo.report import (
    DemoResult,
    Round,
    Strike,
    bins,
    html_page,
    marks,
    summary,
    write_report,
)
from stelae.demo.strikes import TURNS, lose_power
from stelae.demo.writers import Acknowledged, Ledger, Writers, check_table, load_table
from tests.cluster_fixture import local_cluster
from tests.until import until_async

# ---- data -----------------------------------------------------------------------------------


def test_flights_are_whole_and_their_keys_are_unique() -> None:
    """All 336,776 flights with their four companions; no key is null, or there twice."""
    tables = {table.name: table for table in flights_tables(None, 8)}
    assert list(tables) == ["flights", "planes", "airports", "airlines", "weather"]
    assert tables["flights"].rows.num_rows == FLIGHTS_ROWS
    for table in tables.values():
        keys = table.rows.select(list(table.key))
        assert keys.group_by(list(table.key)).aggregate([]).num_rows == table.rows.num_rows
        assert not any(column.null_count for column in keys.columns)


def test_rows_says_how_many_flights() -> None:
    """The first so many flights; more than there are is an error that names what is possible."""
    assert flights_tables(100, 8)[0].rows.num_rows == 100
    with pytest.raises(InvalidArgument, match=r"1 to 336,776 flights"):
        flights_tables(FLIGHTS_ROWS + 1, 8)


def test_generated_rows_are_the_same_every_time() -> None:
    """The same seed makes the same rows, another one others."""
    (one,), (same,), (other,) = (generated_tables(500, 4, seed) for seed in (1, 1, 2))
    assert one.rows.equals(same.rows)
    assert not one.rows.equals(other.rows)


# ---- the check ------------------------------------------------------------------------------

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string()), ("v", pa.int64())])


def _rows(count: int) -> pa.Table:
    names = [None if i % 7 == 0 else f"n{i}" for i in range(count)]
    return pa.table({"id": range(count), "name": names, "v": [0] * count}, schema=SCHEMA)


DAMAGE: dict[str, tuple[Callable[[Any], Any], tuple[int, int, int]]] = {
    "nothing": (lambda t: t.get(1), (0, 0, 0)),
    "a lost row": (lambda t: t.delete(5), (1, 0, 0)),
    "a row nobody wrote": (lambda t: t.upsert({"id": 9999}), (0, 0, 1)),
    "another value": (lambda t: t.update({"id": 5, "v": 77}), (0, 1, 0)),
    "a null for a value": (lambda t: t.update({"id": 5, "name": None}), (0, 1, 0)),
    "the same value in another version": (
        lambda t: t.upsert({"id": 5, "name": "n5", "v": 0}),
        (0, 1, 0),
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_the_check_finds_what_is_not_right(tmp_path: Path, what: str) -> None:
    """Of real servers' rows: missing, wrong in value or version, or nobody's; and only those."""
    damage, (missing, wrong, extra) = DAMAGE[what]
    async with local_cluster(tmp_path) as cluster:
        table = await cluster.database.create_table(
            "t", SCHEMA, key="id", partition=hash_partition("id", 2), durability=segments("ram")
        )
        ledger = await load_table(table, _rows(200), lambda _: None)
        writers = Writers(table, ledger, "v", count=2)
        await writers.start()
        await until_async(lambda: len(writers.acknowledged) >= 20, 60.0, "writes", poll_s=0.01)
        await writers.stop()
        assert len(ledger.written) > 2
        ledger.written.pop(5, None)
        await table.upsert({"id": 5, "name": "n5", "v": 0})
        row = await table.get(5, with_version=True)
        assert row is not None
        ledger.written[5] = ({"id": 5, "name": "n5", "v": 0}, row["_version"])
        await damage(table)
        checked = await check_table(table, ledger)
    assert (checked.missing, checked.wrong, checked.extra) == (missing, wrong, extra)
    assert checked.is_right == (what == "nothing")
    assert bool(checked.problems) != checked.is_right


async def test_a_write_of_unknown_outcome_may_stand_or_not_but_nothing_else_may(
    tmp_path: Path,
) -> None:
    """The row of such a write is the old one or the new one; a third is an error."""
    async with local_cluster(tmp_path) as cluster:
        table = await cluster.database.create_table(
            "t", SCHEMA, key="id", durability=segments("ram")
        )
        ledger = await load_table(table, _rows(20), lambda _: None)
        ledger.unsure[5] = [{"id": 5, "name": "n5", "v": 1}]
        assert (await check_table(table, ledger)).is_right
        await table.update({"id": 5, "v": 1})
        assert (await check_table(table, ledger)).is_right
        await table.update({"id": 5, "v": 2})
        assert (await check_table(table, ledger)).wrong == 1


def test_the_pause_is_the_longest_silence_of_a_writer_around_the_kill() -> None:
    """Silences before the kill do not count, one that spans it does, in full."""
    writers = Writers(None, Ledger(_rows(3), np.ones(3, np.uint64), ("id",)), "v", count=2)  # type: ignore[arg-type]
    for writer, times in enumerate([[0.0, 5.0, 9.9, 11.4, 11.5], [9.0, 9.5]]):
        writers.acknowledged += [Acknowledged(at, 0.001, writer) for at in times]
    assert writers.pauses_s(10.0, 12.0) == [pytest.approx(1.5), pytest.approx(2.0)]


# ---- strikes --------------------------------------------------------------------------------


class _Killed:
    """A cluster of two processes, which die and are back a moment later, as its status says."""

    def __init__(self, *, pid_of_backup: int | None = None) -> None:
        self.processes = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
        self.looks = 0
        self._backup = pid_of_backup or self.processes[1].pid

    def status(self) -> dict[str, Any]:
        ended = [process.poll() is not None for process in self.processes]
        self.looks += any(ended)
        if any(ended) and self.looks == 2:
            raise RetryLater("no master leads")
        pids = [self.processes[0].pid, self._backup]
        back = [1000 + n if gone and self.looks > 3 else pids[n] for n, gone in enumerate(ended)]
        kinds = ("master", "backup")
        return {
            "servers": [
                {"id": kind, "kind": kind, "state": "live", "pid": pid, "node": "n", "role": role}
                for kind, pid, role in zip(kinds, back, ("leader", ""), strict=True)
            ],
            "tablets": [],
            "tables": [],
        }


def test_after_a_loss_of_power_each_server_is_waited_for_under_another_pid() -> None:
    """All get SIGKILL; a status that is old, or that nobody gives, is none of a whole cluster."""
    cluster: Any = _Killed()
    said: list[str] = []
    assert lose_power(cluster, said.append) == ["backup", "master"]
    assert cluster.looks > 3
    assert "all 2 servers" in said[0]
    assert [process.returncode for process in cluster.processes] == [-signal.SIGKILL] * 2


def test_servers_of_another_machine_are_not_killed_by_their_pids_here() -> None:
    """Nothing is killed then, and the text says where to run it."""
    cluster: Any = _Killed(pid_of_backup=1 << 30)
    with pytest.raises(InvalidArgument, match="not on this machine"):
        lose_power(cluster, lambda _: None)
    assert cluster.looks == 0
    for process in cluster.processes:
        assert process.poll() is None
        process.kill()
        process.wait()


# ---- the report -----------------------------------------------------------------------------


def _round(**more: Any) -> Round:
    fields: dict[str, Any] = {
        "engine": "native",
        "wanted_engine": "native",
        "victim": "tserver-1",
        "tablets": 3,
        "phases_s": {"detected": 0.04, "raised": 0.06, "running": 0.5},
        "replay_s": {"merge": 0.2},
        "acknowledged_s": np.array([-1.2, -1.19, -0.01, 0.61, 0.62, 2.0]),
        "pauses_s": [0.62, 0.1],
        "write_ms": {"p50_ms": 1.0, "p99_ms": 2.0},
        "healed_s": 3.0,
        "rows_checked": 1000,
        "rows_missing": 0,
        "rows_wrong": 0,
    }
    return Round(**(fields | more))


def _strike(**more: Any) -> Strike:
    return Strike("loss of power", ["master-1", "tserver-1"], 9.0, 500, [4.0, 3.0], 1000, **more)


def _result(*rounds: Round, strikes: tuple[Strike, ...] = ()) -> DemoResult:
    measured = {"get": {"p50_ms": 0.2}}
    figures = (1000, 10**6, 12.0, 2.0, measured, ["a note"])
    return DemoResult("flights", *figures, list(rounds), list(strikes))


def test_the_timeline_counts_every_acknowledgement_in_its_50_ms() -> None:
    """Bars add up to the writes that are shown; the pause is empty; marks stand at their times."""
    each = _round()
    starts, counts = bins(each)
    assert np.allclose(np.diff(starts), 0.05)
    assert counts.sum() == len(each.acknowledged_s)
    assert not counts[(starts > 0.0) & (starts < 0.55)].any()
    assert [at for _, at in marks(each)] == [0.0, 0.04, 0.06, 0.5]


def test_the_page_is_one_file_with_all_figures(tmp_path: Path) -> None:
    """Nothing is fetched and no script runs; a plot for each round; text is escaped."""
    result = _result(_round(), _round(engine="spark", victim="<b>"), strikes=(_strike(),))
    page = html_page(result)
    assert page.count("<svg") == 2
    assert not re.search(r"<script|src=|href=|url\(|<b>", page)
    for what, much in summary(_result(_round(), strikes=(_strike(),))):
        assert what in page
        assert much in page
    paths = write_report(result, tmp_path / "report")
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert json.loads(paths[2].read_text())["right"] is True


@pytest.mark.parametrize("make", [_round, _strike])
@pytest.mark.parametrize(
    ("change", "code"),
    [({}, 0), ({"rows_missing": 1}, 1), ({"rows_wrong": 1}, 1), ({"problems": ["x"]}, 1)],
)
def test_the_exit_code_says_whether_a_row_is_missing_or_wrong(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    make: Callable[..., Any],
    change: dict[str, Any],
    code: int,
) -> None:
    """One bad round, or strike, is enough for 1, whatever the others were."""
    made = make(**change)
    rounds = [_round(), *([made] if make is _round else []), _round()]
    result = _result(*rounds, strikes=(made,) if make is _strike else ())
    monkeypatch.setattr(demo, "run_demo", lambda *_: result)
    with pytest.raises(SystemExit) as caught:
        cli.main(["demo", "--json"])
    assert (caught.value.code or 0) == code
    assert json.loads(capsys.readouterr().out)["right"] is (code == 0)


@pytest.mark.parametrize(("wanted", "expected"), [("", ["native"]), ("native", ["native"])])
def test_without_java_the_demo_is_native_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, wanted: str, expected: list[str]
) -> None:
    """No Java is no error unless Spark was asked for; then the text says where to get it."""

    def none() -> None:
        raise InvalidArgument("Spark needs Java 17: apt-get install openjdk-17-jre-headless")

    monkeypatch.setattr(demo, "check_spark", none)
    engines, notes = demo._engines(wanted)
    assert engines == expected
    assert bool(notes) == (wanted == "")
    with pytest.raises(InvalidArgument, match="apt-get install"):
        demo._engines("both")


# ---- whole runs -----------------------------------------------------------------------------

COMMAND = [sys.executable, "-m", "stelae", "demo", "--rows", "2000", "--engine", "native"]


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="st-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def _start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": str(folder)}
    return subprocess.Popen(
        [*COMMAND, *arguments, "--report", str(folder / "report")],
        env={**os.environ, **env, "COLUMNS": "150"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.ray
@pytest.mark.soak
def test_the_demo_kills_a_server_checks_every_row_and_leaves_only_its_report(folder: Path) -> None:
    """Exit code 0, all rows right, figures for each step; afterwards there is just the report."""
    process = _start(folder, "--json")
    output, problems = process.communicate(timeout=900)
    assert process.returncode == 0, problems
    result = json.loads(output)
    assert result["right"] is True
    (kill,) = result["rounds"]
    assert kill["engine"] == "native"
    assert kill["tablets"] > 0
    assert kill["rows_checked"] >= result["rows"]
    assert kill["writes_acknowledged"] > 0
    assert list(kill["phases_s"]) == [
        "detected",
        "raised",
        "fenced",
        "planned",
        "opened",
        "running",
    ]
    rolling, power = result["strikes"]
    assert len(rolling["killed"]) == 2 * TURNS
    assert len(power["killed"]) >= 9  # masters, tablet servers, backups
    for strike in (rolling, power):
        assert strike["rows_checked"] >= result["rows"]
        assert strike["writes_acknowledged"] > 0
        assert strike["writes_failed"] == []
    assert {"get, one row", "HTTP, one row"} <= set(result["reads"])
    assert sorted(path.name for path in folder.iterdir()) == ["report"]
    assert sorted(path.name for path in (folder / "report").iterdir()) == [
        "timeline.html",
        "timeline.json",
        "timeline.png",
    ]


@pytest.mark.ray
@pytest.mark.soak
def test_ctrl_c_in_the_demo_leaves_nothing_behind(folder: Path) -> None:
    """Interrupted while the cluster runs: no process, no Ray, no file, no traceback."""
    process = _start(folder)
    assert process.stdout is not None
    assert "is up after" in process.stdout.readline()
    everything = psutil.Process(process.pid).children(recursive=True)
    assert len(everything) > 9
    process.send_signal(signal.SIGINT)
    _, problems = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in problems
    _, left = psutil.wait_procs(everything, 60)
    assert not left
    assert not list(folder.iterdir())
