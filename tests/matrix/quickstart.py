"""What a stranger does first, with an installed wheel and nothing else: run by `run.py`.

The README's twenty lines without pandas; HTTP; a tablet server killed under the table; the cluster
taken down and up again. Prints one line of JSON.

    python quickstart.py FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

HEAVY = ("matplotlib", "numba", "pandas", "pyspark", "ray", "raydp")
"""Packages that ``import stelae`` must not import."""
ROWS = 10_000


def main(folder: Path) -> None:
    """Do it, and say how long what took. Raises AssertionError."""
    began = time.perf_counter()
    import stelae

    import_s = time.perf_counter() - began
    assert not [name for name in HEAVY if name in sys.modules]

    import httpx
    import pyarrow as pa
    import ray

    spec = {
        "cluster": "matrix",
        "data_dir": str(folder / "data"),
        "tservers": {"count": 3, "memory": "128MiB"},
        "serve": {"host": "127.0.0.1", "port": 0},
    }
    began = time.perf_counter()
    db = stelae.launch(spec)
    launch_s = time.perf_counter() - began
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("dest", pa.string())])
    partition = stelae.hash_partition("id", buckets=4)
    rows = pa.table({"id": range(ROWS), "dest": [f"D{n % 7}" for n in range(ROWS)]})
    for name, durability in _durabilities(stelae).items():
        table = db.create_table(name, schema, key="id", partition=partition, durability=durability)
        table.upsert(rows)
        table.upsert({"id": 42, "dest": "LAX"})
    flights = db.table("segmented")
    flights.create_index("dest")
    assert flights.find("dest", "LAX").column("id").to_pylist() == [42]
    url = f"{db.http_url}/v1/tables/segmented/rows/42"
    token = (folder / "data" / "admin-token").read_text().strip()
    answer = httpx.get(url, headers={"Authorization": f"Bearer {token}"})
    assert answer.json()["dest"] == "LAX", answer.text
    killed = next(s for s in db.status()["servers"] if s["kind"] == "tserver")
    os.kill(killed["pid"], signal.SIGKILL)
    _check(db, ROWS)
    db.close()
    with stelae.launch(spec) as db:
        _check(db, ROWS)
    figures: dict[str, Any] = {"import_s": round(import_s, 3), "launch_s": round(launch_s, 1)}
    print(json.dumps({**figures, "ray": ray.__version__}))


def _durabilities(stelae: Any) -> dict[str, Any]:
    return {"segmented": stelae.segments("disk", "disk"), "replicated": stelae.replicas(3)}


def _check(db: Any, rows: int) -> None:
    for name in ("segmented", "replicated"):
        table = db.table(name)
        assert table.count() == rows, name
        assert table.get(42)["dest"] == "LAX", name


if __name__ == "__main__":
    main(Path(sys.argv[1]))
