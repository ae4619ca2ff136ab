"""Single-row upserts into PostgreSQL by many connections of one process, each its own transaction.

    python -m benchmarks.peers.postgres_writer PORT CONNECTIONS SECONDS

Prints how many were committed a second. It is a process of its own, since threads of the process
that measures would take turns with these.
"""

from __future__ import annotations

import sys
import threading
import time

import psycopg

from benchmarks.common.generated import one_row

UPSERT = (
    "INSERT INTO single VALUES (%s, %s, %s)"
    " ON CONFLICT (id) DO UPDATE SET x = EXCLUDED.x, body = EXCLUDED.body"
)


def commit_rate(port: int, connections: int, duration_s: float) -> float:
    """A thread for each connection, which writes one row after the other."""
    opened = [
        psycopg.connect(host="127.0.0.1", port=port, user="postgres", autocommit=True)
        for _ in range(connections)
    ]
    done = [0] * connections
    started = time.perf_counter()

    def write(number: int) -> None:
        cursor = opened[number].cursor()
        while time.perf_counter() < started + duration_s:
            row = one_row(number * 1_000_000 + done[number] % 10_000)
            cursor.execute(UPSERT, tuple(row.values()))
            done[number] += 1

    threads = [threading.Thread(target=write, args=(n,)) for n in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = sum(done) / (time.perf_counter() - started)
    for connection in opened:
        connection.close()
    return rate


if __name__ == "__main__":
    print(commit_rate(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
