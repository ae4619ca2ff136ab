"""Feast's online store on Stelae: ``online_store: {type: stelae.feast.StelaeOnlineStore}``.

::

    project: flights
    provider: local
    online_store:
      type: stelae.feast.StelaeOnlineStore
      cluster: .stelae/demo        # or a name inside this Ray, or https://…

Each feature view is a table, each entity key a row of it. See docs/how-to/feast.md.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

try:
    from feast.infra.online_stores.online_store import OnlineStore
    from feast.infra.supported_async_methods import SupportedAsyncMethods
    from feast.repo_config import FeastConfigBaseModel
except ImportError as error:
    raise ImportError(f"Feast is missing: pip install 'stelae[feast]' ({error})") from error
from pydantic import PositiveFloat, PositiveInt, SecretStr, StrictStr

from stelae.client.database import DEFAULT_DURABILITY
from stelae.cluster import connect
from stelae.connectors.feast_rows import Batch, Given, Layout, Read, feast_rows, layout_of
from stelae.connectors.feast_tables import ViewTables
from stelae.core.forks import forget_in_children
from stelae.core.schema.durability import parse_durability
from stelae.database.api import Database

TOKEN_VARIABLE = "STELAE_TOKEN"
PRECOMPUTED = "__precomputed__"
"""How Feast names the views that hold a feature service's vectors. It never applies them."""

T = TypeVar("T")
Rows = list[Given]
Progress = Callable[[int], Any] | None


class StelaeOnlineStoreConfig(FeastConfigBaseModel):  # type: ignore[misc]
    """What ``online_store:`` of ``feature_store.yaml`` may say."""

    type: Literal["stelae.feast.StelaeOnlineStore"] = "stelae.feast.StelaeOnlineStore"
    cluster: StrictStr
    """A cluster's name inside this Ray, its data_dir (as seen from the feature repository, or
    from where Feast runs), or its URL."""
    token: SecretStr | None = None
    """With a URL; the environment's ``STELAE_TOKEN`` if absent."""
    ca_file: StrictStr | None = None
    """With ``https://``: whose certificates are believed (PEM)."""
    durability: StrictStr = str(DEFAULT_DURABILITY)
    """Of tables made from now on, as it is written in Python: ``wal(3)``, ``replicas(3)``, …"""
    buckets: PositiveInt = 8
    """Into how many tablets a table made from now on is cut, by the hash of the entity key."""
    write_rows: PositiveInt = 10_000
    """How many rows are written at a time."""
    timeout_s: PositiveFloat = 10.0
    """Of each call."""
    max_staleness_s: PositiveFloat | None = None
    """Reads may be answered by any replica of a table with ``replicas(n)`` that is no older."""


class StelaeOnlineStore(OnlineStore):  # type: ignore[misc]
    """Feast calls it. Connects when it is first used, and may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: tuple[Database, ViewTables] | None = None
        forget_in_children(self)

    def forget(self) -> None:
        """See `stelae.core.forks.OfOneProcess`: workers that are forked connect by themselves."""
        self._lock, self._opened = threading.Lock(), None

    def __reduce__(self) -> tuple[type[StelaeOnlineStore], tuple[()]]:
        return type(self), ()  # a copy in another process connects by itself

    @property
    def async_supported(self) -> SupportedAsyncMethods:
        return SupportedAsyncMethods(read=True, write=True)

    # ---- rows ---------------------------------------------------------------------------------

    def online_write_batch(self, config: Any, table: Any, data: Rows, progress: Progress) -> None:
        """Store each row unless a newer event of its entity key is there, or comes meanwhile.
        Features that a row leaves out keep their values."""
        for part in _parts(config, data):
            self._run(config, partial(_write, config, table, part))
            if progress is not None:
                progress(len(part))

    async def online_write_batch_async(
        self, config: Any, table: Any, data: Rows, progress: Progress
    ) -> None:
        """See `online_write_batch`."""
        for part in _parts(config, data):
            await self._bridge(config, partial(_write, config, table, part))
            if progress is not None:
                progress(len(part))

    def online_read(
        self,
        config: Any,
        table: Any,
        entity_keys: list[Any],
        requested_features: list[str] | None = None,
    ) -> list[Read]:
        """The time of the event and the features of each key, or (None, None). One message for
        each tablet that holds some of the keys."""
        layout = _layout(config, table)
        keys = layout.keys(entity_keys)
        names = list(layout.features) if requested_features is None else requested_features
        columns = layout.columns(names)
        found = self._run(config, lambda tables: tables.read(layout, keys, columns))
        return feast_rows(layout, keys, names, found)

    async def online_read_async(
        self,
        config: Any,
        table: Any,
        entity_keys: list[Any],
        requested_features: list[str] | None = None,
    ) -> list[Read]:
        """See `online_read`."""
        layout = _layout(config, table)
        keys = layout.keys(entity_keys)
        names = list(layout.features) if requested_features is None else requested_features
        columns = layout.columns(names)
        found = await self._bridge(config, lambda tables: tables.read(layout, keys, columns))
        return feast_rows(layout, keys, names, found)

    # ---- tables -------------------------------------------------------------------------------

    def update(
        self,
        config: Any,
        tables_to_delete: Sequence[Any],
        tables_to_keep: Sequence[Any],
        entities_to_delete: Sequence[Any],
        entities_to_keep: Sequence[Any],
        partial: bool,
    ) -> None:
        """Make, alter and delete tables, so that each feature view has its own. Columns of
        features that are gone, or are of another type now, are dropped with what they held."""
        kept = [_layout(config, view) for view in tables_to_keep]
        gone = sorted({view.name for view in tables_to_delete} - {layout.view for layout in kept})
        self._run(config, lambda tables: tables.drop(config.project, gone))
        self._run(config, lambda tables: tables.reconcile(kept))

    def teardown(self, config: Any, tables: Sequence[Any], entities: Sequence[Any]) -> None:
        """Delete the tables of these feature views, and all vectors computed from them."""
        views = [view.name for view in tables]
        self._run(config, lambda each: each.drop(config.project, views, also=PRECOMPUTED))

    # ---- the connection -----------------------------------------------------------------------

    async def initialize(self, config: Any) -> None:
        """Connect. Feast's server calls it when it starts."""
        await asyncio.to_thread(self._open, config)

    async def close(self) -> None:
        """End the connections; the next call connects again."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            await asyncio.to_thread(opened[0].close)

    def _open(self, config: Any) -> tuple[Database, ViewTables]:
        with self._lock:
            if self._opened is None:
                self._opened = _connected(config)
            return self._opened

    def _is_versioned_read_supported(self) -> bool:
        return True  # each version of a view has a table of its own

    def _run(self, config: Any, work: Callable[[ViewTables], Coroutine[Any, Any, T]]) -> T:
        database, tables = self._opened or self._open(config)
        return database._loop.run(work(tables))

    async def _bridge(self, config: Any, work: Callable[[ViewTables], Coroutine[Any, Any, T]]) -> T:
        opened = self._opened
        if opened is None:
            opened = await asyncio.to_thread(self._open, config)
        database, tables = opened
        return await database._loop.bridge(work(tables))


def _connected(config: Any) -> tuple[Database, ViewTables]:
    settings: StelaeOnlineStoreConfig = config.online_store
    durability = parse_durability(settings.durability)
    cluster = settings.cluster
    if config.repo_path is not None and "://" not in cluster:
        beside = Path(config.repo_path) / cluster
        cluster = str(beside) if beside.is_dir() else cluster
    given = settings.token
    token = given.get_secret_value() if given is not None else os.environ.get(TOKEN_VARIABLE)
    database = connect(cluster, token=token, ca_file=settings.ca_file)
    tables = ViewTables(
        database._database,
        durability,
        settings.buckets,
        settings.timeout_s,
        settings.max_staleness_s,
    )
    return database, tables


def _layout(config: Any, view: Any) -> Layout:
    return layout_of(
        config.project,
        view,
        versions=config.registry.enable_online_feature_view_versioning,
        key_version=config.entity_key_serialization_version,
    )


def _parts(config: Any, data: Rows) -> list[Rows]:
    step = config.online_store.write_rows
    return [data[start : start + step] for start in range(0, len(data), step)]


async def _write(config: Any, view: Any, rows: Rows, tables: ViewTables) -> None:
    batch = await asyncio.to_thread(Batch.of, _layout(config, view), rows)  # 10,000 take a while
    if view.name.startswith(PRECOMPUTED):
        await tables.make_missing(batch.layout)
    await tables.write(batch)
