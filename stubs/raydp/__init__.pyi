from typing import Any

from pyspark.sql import SparkSession

def init_spark(
    app_name: str,
    num_executors: int,
    executor_cores: int,
    executor_memory: str | int,
    **options: Any,
) -> SparkSession: ...
def stop_spark(cleanup_data: bool = ...) -> None: ...
