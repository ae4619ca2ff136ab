"""URLs of configuration stores in ``cluster.yaml``: which there are, and what they need.

``sqlite:///cas.db`` is a file in the server's own folder: it has no rows of other clusters, and so
belongs to one server. ``postgresql://user@host/database`` is a database, which several clusters may
share. Invariant: a URL that passes has no password, because it stands in plans, logs and errors.

Part of seed 004 ("configuration storage"); design §10, §12.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import parse_qs, urlsplit

SQLITE = "sqlite:///"
POSTGRESQL = ("postgresql://", "postgres://")
URL_BYTES_MAX = 2000


def check_store_url(url: str) -> None:
    """Whether a configuration store can be there. Raises ValueError, which never shows a password.

    The text goes after the field's name: "must …".
    """
    if not url.isprintable() or len(url.encode()) > URL_BYTES_MAX:
        raise ValueError(f"must be printable text of {URL_BYTES_MAX} bytes at most")
    if url.startswith(SQLITE):
        _check_sqlite(url)
    elif url.startswith(POSTGRESQL):
        _check_postgresql(url)
    else:
        raise ValueError(f"must be {SQLITE}FILE or {POSTGRESQL[0]}USER@HOST/DATABASE")


def origin_of(url: str) -> str:
    """What must stay the same for as long as the cluster is there: a database may move."""
    return url if url.startswith(SQLITE) else "postgresql"


def _check_sqlite(url: str) -> None:
    path = PurePosixPath(url.removeprefix(SQLITE))
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise ValueError(
            f"must name a file inside the server's own folder, as {SQLITE}cas.db does, got {url!r}"
        )


def _check_postgresql(url: str) -> None:
    try:
        parts = urlsplit(url)
        fields = parse_qs(parts.query, keep_blank_values=True)
        password = parts.password
    except ValueError:  # its text would show the URL
        raise ValueError("must be the URL of a PostgreSQL database") from None
    if parts.fragment:  # what comes after a # is perhaps the end of a password
        raise ValueError("must have no # in it")
    if password is not None or any("password" in name for name in fields):
        raise ValueError(
            "must have no password in it; put that into a file (of mode 0600, as PostgreSQL's "
            ".pgpass), and add ?passfile=/absolute/path"
        )
    if any(not path.startswith("/") for path in fields.get("passfile", ())):
        raise ValueError("must have an absolute path as passfile")
