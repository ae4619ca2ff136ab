"""`stelae demo`: the main job on real data. Load, read, kill servers under load, check every row.

What was acknowledged before, during and after each kill is compared with what the cluster holds at
the end: rows and versions. Whatever happens (Ctrl-C too), nothing stays behind: no process, no Ray,
and no file but the report.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table as RichTable

from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.demo.data import DemoTable, load_tables
from stelae.demo.report import DemoResult, Round, Strike, summary, write_report
from stelae.demo.spark_reader import read_in_process
from stelae.demo.strikes import Kill, kill_in_turn, lose_power, servers_of
from stelae.demo.writers import Ledger, Writers, check_table, load_table
from stelae.keeper import interrupted_by_sigterm
from stelae.recovery.engine import EnginePolicy
from stelae.recovery.spark_session import check_spark

if TYPE_CHECKING:
    from stelae.database.api import Table

BUCKETS = 8
WRITERS = 8
BEFORE_KILL_S = 2.0
AFTER_RECOVERY_S = 2.0
RECOVERY_TIMEOUT_S = 180.0
HEAL_TIMEOUT_S = 120.0
POLL_S = 0.1
POINT_READS = 2000
HTTP_READS = 200
MANY_KEYS = 10_000
SPARK_CPUS = 4
LONG_FOLDER = 40
"""Ray's sockets lie below the temporary folder, and their paths have 107 bytes at most."""


@dataclass(frozen=True)
class DemoOptions:
    """What the command line says."""

    engine: str = ""
    """``native``, ``spark``, ``both``; empty: both where there is Java, else native."""
    rows: int | None = None
    data: str = "flights"
    report: Path = Path("report")
    config: Path | None = None


def run_demo(options: DemoOptions, console: Console) -> DemoResult:
    """Run it all, and write the report.

    Raises:
        InvalidArgument: the options do not fit together, or a package is missing.
        StelaeError: some step failed. Rows that are missing or wrong are no error here: the result
            says so.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidArgument("the plot needs matplotlib: pip install 'stelae[demo]'")
    engines, notes = _engines(options.engine)
    if options.data not in ("flights", "generated"):
        raise InvalidArgument(f"--data {options.data}: flights or generated")
    for note in notes:
        console.print(note, style="yellow", highlight=False)
    with interrupted_by_sigterm(), _own_folder() as folder:
        spec = _spec(options.config, folder, engines)
        result = _Demo(options, console, engines, spec).run()
    result.notes += notes
    with console.status("writing the report"):
        paths = write_report(result, options.report)
    _show(result, console)
    console.print("report: " + ", ".join(map(str, paths)), highlight=False, soft_wrap=True)
    return result


def _engines(wanted: str) -> tuple[list[EnginePolicy], list[str]]:
    """The engines to show, and what has to be said about that."""
    if wanted not in ("", "native", "spark", "both"):
        raise InvalidArgument(f"--engine {wanted}: native, spark or both")
    if wanted == "native":
        return ["native"], []
    try:
        check_spark()
    except InvalidArgument as error:
        if wanted:
            raise
        return ["native"], [f"Without Spark: {error}"]
    return (["spark"] if wanted == "spark" else ["native", "spark"]), []


def _spec(config: Path | None, folder: Path, engines: list[EnginePolicy]) -> ClusterSpec:
    """The user's cluster, or a small one in a folder of its own and on a free HTTP port."""
    if config is not None:
        spec = load_spec(config)
        if "spark" in engines and spec.spark is None:
            raise InvalidArgument(f"{config} has spark: null; use --engine native")
        return spec
    spark = {"executors": 2, "cores": 1, "memory": "1GiB", "warm": True}
    return load_spec(
        {
            "cluster": "demo",
            "data_dir": str(folder / "data"),
            "ray": {"address": "local", "num_cpus": max(SPARK_CPUS, os.cpu_count() or 1)},
            "tservers": {"count": 3, "memory": "768MiB"},
            "serve": {"host": "127.0.0.1", "port": 0},
            "spark": spark if "spark" in engines else None,
        }
    )


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """A temporary folder for everything, Ray's session and the JVMs' files too; gone afterwards."""
    parent = tempfile.gettempdir() if len(tempfile.gettempdir()) < LONG_FOLDER else "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="stelae-", dir=parent))
    java = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -Djava.io.tmpdir={folder}".strip()
    ours = dict.fromkeys(("RAY_TMPDIR", "TMPDIR", "SPARK_LOCAL_DIRS"), str(folder))
    ours["JAVA_TOOL_OPTIONS"] = java
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield folder
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a tree into which processes that are just ending may still write."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(POLL_S)
    raise StelaeError(f"{folder} cannot be removed")


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Taking down is not interrupted: a second Ctrl-C would leave things behind."""
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _show(result: DemoResult, console: Console) -> None:
    table = RichTable(show_header=False, box=None, padding=(0, 2, 0, 0))
    for what, much in summary(result):
        table.add_row(what, much)
    console.print()
    console.print(table)
    for each in result.checked:
        for problem in each.problems:
            console.print(problem, style="red", markup=False)
    if result.is_right:
        console.print("Every acknowledged row is there, and right.", style="bold green")
    else:
        console.print("ACKNOWLEDGED ROWS ARE MISSING OR WRONG.", style="bold red")


class _Demo:
    """One run: the cluster, its tables, and what they must hold."""

    def __init__(
        self, options: DemoOptions, console: Console, engines: list[EnginePolicy], spec: ClusterSpec
    ) -> None:
        self._options = options
        self._console = console
        self._engines = engines
        self._spec = spec
        self._tables: dict[str, Table] = {}
        self._ledgers: dict[str, Ledger] = {}

    def run(self) -> DemoResult:
        from stelae.cluster import launch

        with self._console.status(f"reading {self._options.data}"):
            data = load_tables(self._options.data, self._options.rows, BUCKETS)
        result = DemoResult(
            data=self._options.data,
            rows=sum(table.rows.num_rows for table in data),
            data_bytes=sum(table.rows.nbytes for table in data),
        )
        began = time.monotonic()
        with self._console.status("starting") as status:
            self._database = launch(self._spec, progress=status.update)
        try:
            result.launch_s = time.monotonic() - began
            self._say(f"{self._spec.cluster} is up after {result.launch_s:.1f} s")
            self._load(data, result)
            self._read(data[0], result)
            for engine in self._engines:
                result.rounds.append(self._round(engine, data[0]))
            result.strikes.append(self._strike("rolling kills", data[0], kill_in_turn))
            result.strikes.append(self._strike("loss of power", data[0], lose_power))
        finally:
            with self._console.status("taking the cluster down"), _undisturbed():
                self._database.close()
        return result

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    # ---- load and read ----------------------------------------------------------------------

    def _load(self, data: list[DemoTable], result: DemoResult) -> None:
        with self._bars() as bars:
            for each in data:
                table = self._database.create_table(
                    each.name, each.rows.schema, key=each.key, partition=each.partition
                )
                self._tables[each.name] = table
                bar = bars.add_task(f"load {each.name}", total=each.rows.num_rows)
                began = time.monotonic()

                def advance(rows: int, bar: Any = bar) -> None:
                    bars.advance(bar, rows)

                self._ledgers[each.name] = table._loop.run(
                    load_table(table._table, each.rows, advance)
                )
                result.load_s += time.monotonic() - began

    def _bars(self) -> Progress:
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description:16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )

    def _read(self, main: DemoTable, result: DemoResult) -> None:
        table = self._tables[main.name]
        count = main.rows.num_rows
        keys = np.random.Generator(np.random.PCG64(7)).integers(0, count, POINT_READS).tolist()
        with self._console.status("reading"):
            result.measured["get, one row"] = _latencies(lambda key: table.get(key), keys)
            many = list(range(min(MANY_KEYS, count)))
            result.measured["get_many"] = _rate(lambda: table.get_many(many).num_rows)
            result.measured["scan, all rows and columns"] = _rate(lambda: table.scan().num_rows)
            name = main.value_column
            result.measured[f"scan, {name} > 60"] = _rate(
                lambda: table.scan(columns=[name], where=[(name, ">", 60)]).num_rows
            )
            self._read_over_http(main, keys[:HTTP_READS], result)
        self._say("read by key, by scan" + (" and over HTTP" if self._database.http_url else ""))
        if "spark" in self._engines:
            with self._console.status("starting a Spark session, and reading by it"):
                self._read_by_spark(main, result)
            self._say("read by Spark")

    def _read_over_http(self, main: DemoTable, keys: list[int], result: DemoResult) -> None:
        url = self._database.http_url
        if not url:
            return
        import httpx
        import pyarrow as pa

        from stelae.client.http.protocol import ARROW_TYPE

        token = self._database.admin_token
        rows = f"/v1/tables/{main.name}/rows"
        with httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60.0
        ) as client:

            def scan() -> int:
                answer = client.post(f"{rows}:scan", json={}, headers={"Accept": ARROW_TYPE})
                return int(
                    pa.ipc.open_stream(answer.raise_for_status().content).read_all().num_rows
                )

            result.measured["HTTP, one row"] = _latencies(
                lambda key: client.get(f"{rows}/{key}").raise_for_status(), keys
            )
            result.measured["HTTP, scan as Arrow"] = _rate(scan)

    def _read_by_spark(self, main: DemoTable, result: DemoResult) -> None:
        state = self._database.state
        result.measured["Spark, all rows and columns"] = read_in_process(
            state.ray_address, state.cluster, main.name, Path(state.data_dir) / "demo-spark.log"
        )

    # ---- a kill -----------------------------------------------------------------------------

    def _round(self, engine: EnginePolicy, main: DemoTable) -> Round:
        table, ledger = self._tables[main.name], self._ledgers[main.name]
        self._database.use_engine(engine)
        if engine == "spark":
            self._warm_spark()
        victim = self._victim(main.name)
        writers = Writers(table._table, ledger, main.value_column, count=WRITERS)
        with self._console.status(f"{WRITERS} writers write to {main.name}") as status:
            table._loop.run(writers.start())
            try:
                time.sleep(BEFORE_KILL_S)
                killed_at = time.time()
                os.kill(victim["pid"], signal.SIGKILL)
                status.update(f"{victim['id']} was killed: its memory is gone; recovering")
                recovery = self._wait_recovered(victim["id"], killed_at)
                time.sleep(AFTER_RECOVERY_S)
            finally:
                table._loop.run(writers.stop())
            status.update("waiting for full strength")
            healed_s = self._wait_healed(killed_at)
        made = _make_round(engine, victim, recovery, writers, killed_at)
        made.healed_s = healed_s
        self._check(made)
        self._say(
            f"{made.victim} killed and recovered by the {made.engine} engine: writers paused for "
            f"{made.pause_s:.2f} s, {made.rows_checked:,} rows checked"
        )
        return made

    def _strike(self, what: str, main: DemoTable, kill: Kill) -> Strike:
        """Kill servers under load, and check every row."""
        table, ledger = self._tables[main.name], self._ledgers[main.name]
        writers = Writers(table._table, ledger, main.value_column, count=WRITERS)
        with self._console.status(f"{what}: {WRITERS} writers write to {main.name}") as status:
            table._loop.run(writers.start())
            try:
                time.sleep(BEFORE_KILL_S)
                began = time.time()
                killed = kill(self._database, lambda text: status.update(f"{what}: {text}"))
                took_s = time.time() - began
                time.sleep(AFTER_RECOVERY_S)
            finally:
                table._loop.run(writers.stop())
        acknowledged = sum(each.at >= began for each in writers.acknowledged)
        pauses_s = writers.pauses_s(began, time.time())
        made = Strike(what, killed, took_s, acknowledged, pauses_s, failures=writers.failures)
        self._check(made)
        self._say(
            f"{what}: {len(killed)} servers killed under {made.writes:,} writes, at full strength "
            f"after {took_s:.1f} s, {made.rows_checked:,} rows checked"
        )
        return made

    def _warm_spark(self) -> None:
        """The cluster's own session, which recovers: begun at launch, and slow to come."""
        from stelae import spark

        with self._console.status("waiting for the cluster's Spark session to be warm"):
            spark.warm(self._database)

    def _victim(self, table: str) -> dict[str, Any]:
        """The tserver with most tablets of a table, which has to be on this machine."""
        tablets = self._database.status()["tablets"]
        owned = [tablet["leader"] for tablet in tablets if tablet["table"] == table]
        tservers = servers_of(self._database, ("tserver",))
        return max(tservers, key=lambda server: owned.count(server["id"]))

    def _wait_recovered(self, victim: str, killed_at: float) -> dict[str, Any]:
        deadline = time.monotonic() + RECOVERY_TIMEOUT_S
        while time.monotonic() < deadline:
            status = self._database.status()
            for recovery in status["recoveries"]:
                is_this = recovery["server"] == victim and recovery["started"] >= killed_at - 0.5
                if is_this and recovery["state"] == "done":
                    found: dict[str, Any] = recovery
                    return found
            time.sleep(POLL_S)
        problems = [t["problem"] for t in self._database.status()["tablets"] if t["problem"]]
        raise StelaeError(
            f"{victim} is not recovered after {RECOVERY_TIMEOUT_S:g} s: {problems[:3]}"
        )

    def _wait_healed(self, killed_at: float) -> float:
        """Until all servers live and every segment has all its replicas; seconds since the kill."""
        spec = self._spec
        wanted = spec.masters.count + spec.others_count
        deadline = time.monotonic() + HEAL_TIMEOUT_S
        while time.monotonic() < deadline:
            status = self._database.status()
            live = sum(server["state"] == "live" for server in status["servers"])
            short = sum(tablet["under_replicated"] for tablet in status["tablets"])
            if live >= wanted and not short:
                return time.time() - killed_at
            time.sleep(POLL_S)
        raise StelaeError(
            f"not at full strength after {HEAL_TIMEOUT_S:g} s: {live} of {wanted} servers live, "
            f"{short} segments with too few replicas"
        )

    def _check(self, made: Round | Strike) -> None:
        """Compare every table with its ledger."""
        with self._bars() as bars:
            total = sum(ledger.rows.num_rows for ledger in self._ledgers.values())
            bar = bars.add_task("check rows", total=total)
            for name, ledger in self._ledgers.items():
                table = self._tables[name]
                checked = table._loop.run(check_table(table._table, ledger))
                bars.update(bar, advance=checked.rows)
                made.rows_checked += checked.rows
                made.rows_missing += checked.missing
                made.rows_wrong += checked.wrong + checked.extra
                made.problems += [f"{name}: {problem}" for problem in checked.problems]
            bars.update(bar, total=made.rows_checked)  # writers have added rows meanwhile


def _make_round(
    engine: str,
    victim: dict[str, Any],
    recovery: dict[str, Any],
    writers: Writers,
    killed_at: float,
) -> Round:
    detected_s = max(0.0, recovery["started"] - killed_at)
    phases = {name: detected_s + after for name, after in recovery["phases_s"].items()}
    steps: dict[str, float] = {}
    for tablet in recovery["tablets"]:
        for step, took in tablet["replay_s"].items():
            steps[step] = max(steps.get(step, 0.0), took)
    times = np.array([each.at - killed_at for each in writers.acknowledged])
    before = [each.latency_s * 1e3 for each in writers.acknowledged if each.at < killed_at]
    return Round(
        engine=recovery["engine"],
        wanted_engine=engine,
        victim=victim["id"],
        tablets=recovery["tablets_total"],
        phases_s={"detected": detected_s, **phases},
        replay_s=steps,
        acknowledged_s=times,
        pauses_s=writers.pauses_s(killed_at, time.time()),
        write_ms=_percentiles(before),
        healed_s=0.0,
        rows_checked=0,
        rows_missing=0,
        rows_wrong=0,
        failures=writers.failures,
    )


def _percentiles(values_ms: list[float]) -> dict[str, float]:
    if not values_ms:
        return {}
    p50, p99 = np.percentile(values_ms, [50, 99])
    return {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3)}


def _latencies(read: Callable[[Any], Any], keys: list[Any]) -> dict[str, float]:
    """Of one read after another; the first, which opens connections, does not count."""
    read(keys[0])
    took = []
    for key in keys:
        began = time.perf_counter()
        read(key)
        took.append((time.perf_counter() - began) * 1e3)
    return _percentiles(took)


def _rate(read: Callable[[], int]) -> dict[str, float]:
    """Rows and rows per second of one bulk read."""
    began = time.perf_counter()
    rows = read()
    took = time.perf_counter() - began
    return {"rows": float(rows), "took_s": round(took, 4), "rows_per_s": round(rows / took)}
