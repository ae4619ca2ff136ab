"""The demo's reader by Spark: a process of its own, as a Spark user of the same Ray would be.

Run as ``python -m stelae.demo.spark_reader RAY_ADDRESS CLUSTER TABLE``; the last line that it
prints is the figures, as JSON. Its JVM is of its process group and ends with that
(`read_in_process`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from stelae.core.errors import Unavailable

TIMEOUT_S = 180.0


def read_in_process(ray_address: str, cluster: str, table: str, log: Path) -> dict[str, float]:
    """Start a session, read a table, end the session: rows and how long it took.

    Raises:
        Unavailable: it failed, or did not end in time; the text says where its log is.
    """
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "stelae.demo.spark_reader", ray_address, cluster, table],
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Unavailable("Spark", f"no answer within {TIMEOUT_S:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise Unavailable("Spark", f"reading {table!r} failed: {' '.join(last)}")
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    return figures


def main() -> int:
    """The child."""
    import ray

    from stelae import spark

    ray_address, cluster, table = sys.argv[1:]
    ray.init(address=ray_address, namespace=f"demo-{os.getpid()}", log_to_driver=False)
    began = time.monotonic()
    session = spark.session(executors=1)
    session_s = time.monotonic() - began
    columns = [str(name) for name in spark.read(session, table, cluster=cluster).columns]
    spark.read(session, table, columns=columns[:1], cluster=cluster).count()  # starts the workers
    began = time.monotonic()
    rows = spark.read(session, table, cluster=cluster).count()
    took_s = time.monotonic() - began
    spark.stop()
    figures = {
        "rows": rows,
        "took_s": round(took_s, 4),
        "rows_per_s": round(rows / took_s),
        "start_s": round(session_s, 2),
    }
    print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
