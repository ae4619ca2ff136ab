"""Backends of the configuration store, by the URL of the spec.

``sqlite:///path`` is the embedded default; ``postgresql://…`` needs the extra ``postgres``.
"""

from __future__ import annotations

from pathlib import Path

from stelae.actors.cas_store.backends import Backend
from stelae.core.config.store_url import POSTGRESQL, SQLITE
from stelae.core.errors import InvalidArgument
from stelae.core.runtime import Runtime


def open_backend(url: str, runtime: Runtime, folder: Path, cluster: str) -> Backend:
    """The backend that ``url`` names, not opened yet.

    Args:
        folder: the server's data directory, which a relative path begins in.
        cluster: whose rows they are, where several clusters share one database.

    Raises:
        InvalidArgument: the URL names no backend, or what it needs is not installed.
    """
    if url.startswith(SQLITE):
        from stelae.actors.cas_store.sqlite import SqliteBackend

        path = url.removeprefix(SQLITE)
        if not path:
            raise InvalidArgument(f"cas_store.url {url!r} names no file: sqlite:///cas.db")
        return SqliteBackend(folder / path, runtime.offload)
    if url.startswith(POSTGRESQL):
        try:
            from stelae.actors.cas_store.postgres import PostgresBackend
        except ImportError as error:
            raise InvalidArgument(
                f"cas_store.url {url!r} needs psycopg: pip install 'stelae[postgres]' ({error})"
            ) from error
        return PostgresBackend(url, cluster, runtime.offload)
    raise InvalidArgument(f"cas_store.url {url!r} is neither sqlite:///… nor postgresql://…")
