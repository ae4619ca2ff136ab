"""What a user's executors fork their Python workers from: PySpark's daemon, with all loaded that
tasks of `stelae.spark` need.

Otherwise each worker imports it anew, which takes longer than many a task. Named by
``spark.python.daemon.module``; runs in an executor's child process. Nothing here leaves a thread or
an open file that a fork would inherit. Spark 3.5.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

from stelae.connectors import spark_tasks

LOADED = (spark_tasks,)
"""What tasks import, here once for all workers."""

if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # PySpark collects after each task: not what all workers share
    manager()
