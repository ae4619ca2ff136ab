"""Spark and Ray Data on one cluster: each reads what the other has written, from the same tables.

Needs Java 17 for Spark.

    python spark_and_ray_data.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import ray

import stelae

ROWS = 100_000
STATIONS = 50
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("station", pa.string()),
        ("celsius", pa.float64()),
    ]
)


def readings() -> pa.Table:
    """Of some stations, one after the other."""
    ids = np.arange(ROWS)
    stations = [f"station-{n % STATIONS}" for n in range(ROWS)]
    return pa.table([pa.array(ids), pa.array(stations), pa.array(10 + ids % 17)], schema=SCHEMA)


def main(folder: Path) -> None:
    """Load, clean by Ray Data, sum up by Spark, look rows up."""
    spec = {
        "cluster": "weather",
        "data_dir": str(folder),
        "ray": {"address": "local", "num_cpus": 4},
        "masters": {"count": 1},
        "tservers": {"count": 2, "memory": "256MiB"},
        "backups": {"count": 2},
        "serve": None,
        "spark": {"executors": 1, "cores": 1, "memory": "1GiB"},
    }
    with stelae.launch(spec) as db:
        table = db.create_table(
            "celsius", SCHEMA, key="id", partition=stelae.hash_partition("id", 4)
        )
        table.load(readings())
        fields = [SCHEMA.field("id"), SCHEMA.field("station"), ("fahrenheit", pa.float64())]
        db.create_table(
            "fahrenheit",
            pa.schema(fields),
            key="id",
            partition=stelae.hash_partition("id", 4),
        )

        def convert(batch: pa.Table) -> pa.Table:
            converted = pa.compute.add(pa.compute.multiply(batch["celsius"], 1.8), 32.0)
            return batch.drop_columns(["celsius"]).append_column("fahrenheit", converted)

        # Ray Data: the condition is applied by the servers, one read task runs for each tablet.
        warm = stelae.data.read("celsius", where=[("celsius", ">=", 20.0)])
        warm.map_batches(convert, batch_format="pyarrow").write_datasink(
            stelae.data.Sink("fahrenheit")
        )

        # Spark: the same table, in the cluster's own session, on the same Ray.
        spark = stelae.spark.session(db)
        frame = stelae.spark.read(spark, "fahrenheit", ["station", "fahrenheit"])
        means = frame.groupBy("station").avg("fahrenheit").toDF("station", "mean")
        stelae.spark.write(means, "means", "error", key="station")

        count = db.table("means").count()
        row = db.table("means").get("station-7")
        assert count == STATIONS
        assert 68.0 <= row["mean"] <= 80.0
        print(
            f"{db.table('fahrenheit').count():,} warm readings, {count} means; one of them: {row}"
        )
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ".stelae/weather").absolute())
