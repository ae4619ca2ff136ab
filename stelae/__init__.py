"""Strongly consistent, durable tables inside a Ray cluster.

::

    import stelae
    from stelae import hash_partition, segments

    db = stelae.launch("cluster.yaml")      # or stelae.connect("demo")
    flights = db.create_table("flights", schema, key="id",
                              partition=hash_partition("id", buckets=8),
                              durability=segments("disk", "disk"))
    flights.upsert(arrow_table)             # also pandas, polars, dicts
    flights.get(42)
    flights.scan(columns=["dest"], where=[("dest", "=", "LAX")]).to_pandas()
"""

from typing import TYPE_CHECKING, Any

from stelae.core.errors import StelaeError
from stelae.core.schema.durability import replicas, segments, wal
from stelae.core.schema.partition import hash_and_range, hash_partition, range_partition

if TYPE_CHECKING:
    from stelae.cluster import connect, launch
    from stelae.database.api import Database, Table
    from stelae.database.backups import list_backups, prune_backups, verify_backups
    from stelae.planning.plan import plan

_LAZY = {
    "Database": "stelae.database.api",
    "Table": "stelae.database.api",
    "connect": "stelae.cluster",
    "launch": "stelae.cluster",
    "list_backups": "stelae.database.backups",
    "plan": "stelae.planning.plan",
    "prune_backups": "stelae.database.backups",
    "verify_backups": "stelae.database.backups",
}
"""Imported at first use, so that ``import stelae`` is quick and rooms can import the package."""

_MODULES = ("data", "errors", "spark")
"""Parts of the package that people name without importing them, e.g. ``stelae.spark.read``."""

__all__ = [
    "Database",
    "StelaeError",
    "Table",
    "connect",
    "hash_and_range",
    "hash_partition",
    "launch",
    "list_backups",
    "plan",
    "prune_backups",
    "range_partition",
    "replicas",
    "segments",
    "verify_backups",
    "wal",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"stelae.{name}")
    raise AttributeError(f"module 'stelae' has no attribute {name!r}")
