"""A search over hyperparameters whose state survives: Ray tasks share a table of trials.

Each worker claims a trial by a conditional write, so no trial is run twice, and writes its result.
In the middle a tablet server is killed; the workers only notice a short wait.

    python researcher.py [FOLDER]
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

import stelae

TRIALS = 120
WORKERS = 3
SCHEMA = pa.schema(
    [
        pa.field("trial", pa.int64(), nullable=False),
        ("rate", pa.float64()),
        ("state", pa.string()),
        ("worker", pa.string()),
        ("loss", pa.float64()),
    ]
)


@ray.remote(num_cpus=0)
def work(name: str) -> int:
    """Claim open trials and run them until there are none; how many it ran."""
    done = 0
    with stelae.connect("search") as db:  # by its name: this task runs inside the cluster's Ray
        trials = db.table("trials")
        while True:
            waiting = trials.find("state", "open", columns=["trial"], limit=20).to_pylist()
            if not waiting:
                return done
            for row in waiting:
                if claim(trials, row["trial"], name):
                    rate = trials.get(row["trial"])["rate"]
                    loss = (rate - 0.3) ** 2  # the experiment
                    time.sleep(0.02)
                    result = {"trial": row["trial"], "state": "done", "loss": loss}
                    trials.update(result)
                    done += 1


def claim(trials: Any, trial: int, worker: str) -> bool:
    """Whether the trial is this worker's now: it was open, and nobody has written it meanwhile."""
    row = trials.get(trial, with_version=True)
    if row["state"] != "open":
        return False
    change = {"trial": trial, "state": "running", "worker": worker}
    try:
        trials.update(change, if_version=row["_version"])
    except stelae.errors.VersionMismatch:
        return False
    return True


def main(folder: Path) -> None:
    """Launch, search, kill, look."""
    spec = {
        "cluster": "search",
        "data_dir": str(folder),
        "ray": {"address": "local", "num_cpus": 4},
        "masters": {"count": 1},
        "tservers": {"count": 3, "memory": "128MiB"},
        "backups": {"count": 2},
        "serve": None,
        "spark": None,
    }
    with stelae.launch(spec) as db:
        trials = db.create_table(
            "trials",
            SCHEMA,
            key="trial",
            durability=stelae.segments("disk", "disk"),
            indexes=["state"],
        )
        rates = [number / TRIALS for number in range(TRIALS)]
        trials.insert([{"trial": n, "rate": rate, "state": "open"} for n, rate in enumerate(rates)])
        workers = [work.remote(f"worker-{number}") for number in range(WORKERS)]
        while trials.find("state", "done").num_rows < TRIALS // 4:
            time.sleep(0.05)
        victim = next(s for s in db.status()["servers"] if s["kind"] == "tserver")
        os.kill(victim["pid"], signal.SIGKILL)
        print(f"killed {victim['id']} in the middle of it")
        ran = ray.get(workers)
        results = trials.scan(where=[("state", "=", "done")]).to_pandas()
        assert len(results) == sum(ran) == TRIALS, "each trial was run once"
        best = results.sort_values("loss").iloc[0]
        print(f"{TRIALS} trials by {WORKERS} workers ({ran}); best rate {best['rate']:.3f}")
        assert db.check(wait=60.0).is_well


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".stelae/search").absolute())
