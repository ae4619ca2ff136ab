"""A process that launches a cluster, loads a table, and kills servers one after the other; then it
writes until somebody kills it with all that it has started. What was acknowledged is in files.

Run as ``python -m tests.cluster.segments_load SPEC.json FOLDER``; it says how far it is on standard
output, a JSON document in each line.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import feather

import stelae
from stelae import Database, Table, hash_partition, segments
from stelae.client.check.status import problems_of
from stelae.demo.writers import Ledger, Writers, check_table, load_table
from tests.until import until

ROWS, TEXT_BYTES = 600_000, 960
"""About 600 MB."""
BUCKETS = 6
KILLS = 20
KILL_EVERY_S = 1.5
HEALED_S = 60.0
LAST_WRITERS = 3
FIRST_LAST_ID = 100_000_000
"""The last writers each have a range of ids above it, in the order of which they write."""
IDS_EACH = 1_000_000
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), ("text", pa.string()), ("reading", pa.int64())]
)


def rows_of(count: int) -> pa.Table:
    """Rows whose text says which they are."""
    texts = pa.array([f"{number} ".ljust(TEXT_BYTES, "x") for number in range(count)])
    zeros = np.zeros(count, np.int64)
    return pa.table({"id": np.arange(count), "text": texts, "reading": zeros}, schema=SCHEMA)


def last_row(number: int) -> dict[str, Any]:
    """What a last writer writes."""
    return {"id": number, "text": f"{number}", "reading": number % 97}


def tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def kill_in_turn(db: Database, rng: random.Random) -> int:
    """Kill tservers and backups in turn, and wait each time until all is whole again."""
    killed = 0
    for number in range(KILLS):
        kind = ("tserver", "backup")[number % 2]
        live = [s for s in db.status()["servers"] if s["kind"] == kind and s["state"] == "live"]
        victim = rng.choice(live)
        os.kill(victim["pid"], signal.SIGKILL)
        killed += 1
        time.sleep(KILL_EVERY_S)
        wait_whole(db, victim)
    return killed


def wait_whole(db: Database, victim: dict[str, Any]) -> None:
    def is_whole() -> bool:
        status = db.status()
        back = [s for s in status["servers"] if s["id"] == victim["id"] and s["state"] == "live"]
        return any(s["pid"] != victim["pid"] for s in back) and not problems_of(status)

    until(is_whole, HEALED_S, lambda: f"all whole: {problems_of(db.status())}", poll_s=0.1)


def write_for_ever(table: Table, writer: int, folder: Path) -> None:
    """Each row that was acknowledged is in a file before the next one is written."""
    with (folder / f"acknowledged-{writer}").open("w") as acknowledged:
        for number in range(IDS_EACH):
            row = last_row(FIRST_LAST_ID + writer * IDS_EACH + number)
            (version,) = table.upsert(row, timeout=60.0)
            acknowledged.write(f"{row['id']} {version}\n")
            acknowledged.flush()


def main(spec: dict[str, Any], folder: Path) -> None:
    db = stelae.launch(spec)
    table = db.create_table(
        "t",
        SCHEMA,
        key="id",
        partition=hash_partition("id", BUCKETS),
        durability=segments("disk", "disk"),
    )
    began = time.monotonic()
    ledger: Ledger = table._loop.run(load_table(table._table, rows_of(ROWS), lambda _: None))
    tell(loaded_s=time.monotonic() - began)
    writers = Writers(table._table, ledger, "reading", count=4)
    table._loop.run(writers.start())
    began = time.monotonic()
    try:
        killed = kill_in_turn(db, random.Random(11))
    finally:
        table._loop.run(writers.stop())
    tell(killed=killed, killing_s=time.monotonic() - began, writes=len(writers.acknowledged))
    checked = table._loop.run(check_table(table._table, ledger))
    tell(right=checked.is_right, rows=checked.rows, problems=checked.problems[:5])
    assert checked.is_right, checked.problems
    assert not writers.failures, writers.failures[:5]
    feather.write_feather(ledger.expected(), str(folder / "expected"), compression="uncompressed")
    for writer in range(LAST_WRITERS):
        work = threading.Thread(target=write_for_ever, args=(table, writer, folder), daemon=True)
        work.start()
    tell(last=True)
    while True:
        time.sleep(60.0)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
