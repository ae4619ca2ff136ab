"""PostgreSQL on loopback, for comparison: COPY into a table with a primary key, and single rows by
many connections, all durable."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from benchmarks.common.figures import timed
from benchmarks.peers.etcd import Missing, have

SINGLE = "CREATE TABLE IF NOT EXISTS single (id bigint PRIMARY KEY, x float8, body text)"
SETTINGS = """
listen_addresses = '127.0.0.1'
shared_buffers = 1GB
max_wal_size = 8GB
checkpoint_timeout = 30min
"""


class Postgres:
    """A server with its defaults where durability is concerned."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        self._folder = folder

    def run(self, statement: str, rows: Path | None = None) -> None:
        """Run one statement; ``rows``: its standard input."""
        command = ["psql", "-h", "127.0.0.1", "-p", str(self._port), "-U", "postgres", "-q"]
        command += ["-v", "ON_ERROR_STOP=1", "-c", statement]
        data = subprocess.DEVNULL if rows is None else rows.open("rb")
        subprocess.run(command, check=True, stdin=data, timeout=300)

    def commit_rate(self, connections: int, duration_s: float) -> float:
        """Single-row upserts a second, through psycopg, in a process of their own."""
        self.run("SET client_min_messages = warning; " + SINGLE)
        command = [sys.executable, "-m", "benchmarks.peers.postgres_writer"]
        command += [str(self._port), str(connections), str(duration_s)]
        timeout_s = duration_s + 60
        done = subprocess.run(command, check=True, capture_output=True, timeout=timeout_s)
        return float(done.stdout)

    def copy_s(self, rows: pa.Table) -> float:
        """Seconds to COPY the rows into an empty table, from a file made before."""
        path = self._folder / "rows.csv"
        options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
        pyarrow.csv.write_csv(rows, path, options)
        self.run("DROP TABLE IF EXISTS t")
        self.run("CREATE TABLE t (id bigint PRIMARY KEY, x double precision, body text)")
        self.run("CHECKPOINT")
        return timed(lambda: self.run("COPY t FROM STDIN (FORMAT csv)", path))


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server of its own, run as ``postgres`` where this process is root. Raises `Missing`."""
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="stelae-bench-postgres-", dir="/var/tmp"))
    folder.chmod(0o755)
    data = folder / "data"
    data.mkdir(mode=0o700)
    prefix: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(data, "postgres")
        prefix = ["runuser", "-u", "postgres", "--"]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])

    def run(*command: str) -> None:
        subprocess.run(
            [*prefix, *command], check=True, stdout=subprocess.DEVNULL, cwd="/", timeout=120
        )

    try:
        run(str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "postgres", "-N")
        with (data / "postgresql.conf").open("a") as conf:
            conf.write(f"{SETTINGS}port = {port}\nunix_socket_directories = '{data}'\n")
        control = str(programs / "pg_ctl")
        run(control, "-w", "-D", str(data), "-l", str(data / "log"), "start")
        try:
            yield Postgres(port, folder)
        finally:
            run(control, "-w", "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    """Where Debian keeps the server's programs, which are not on PATH."""

    def found() -> list[Path]:
        return sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))

    if not found():
        have(("initdb",), ("postgresql",))
    if not found():
        raise Missing("no PostgreSQL here: apt-get install postgresql")
    return found()[-1].parent
