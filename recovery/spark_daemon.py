"""What Spark's executors fork their Python workers from: PySpark's daemon, with a recovery's code
loaded already.

A worker that PySpark starts by itself takes seconds until it has imported everything and loaded the
kernels, and Spark ends workers that were idle for a minute: even a warm session would pay for that
in the middle of a recovery. A fork of this process has all of it at once, and most of its memory is
shared. Nothing here starts a thread or opens a file that a fork would inherit.

Named by ``spark.python.daemon.module``; runs in an executor's child process. Spark 3.5.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

from stelae.recovery import spark_job, spark_tables
from stelae.storage import kernels

LOADED = (spark_job, spark_tables)
"""What tasks import, here once for all workers."""

if __name__ == "__main__":
    kernels.warm()
    gc.collect()
    gc.freeze()  # PySpark collects after each task: not what all workers share
    manager()
