"""Access tokens of the HTTP front, for whoever has the cluster's secret. Blocking, as
`stelae.database.api`.

None of it goes over a `Database` that is connected by HTTP: there, `/v1/tokens` does the same.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from stelae.client.admin.tokens import CALL_TIMEOUT_S
from stelae.client.database import AsyncDatabase
from stelae.core.errors import StelaeError
from stelae.core.records.tokens import hash_token
from stelae.database.aio import Loop

logger = logging.getLogger(__name__)


class TokenOperations:
    """The part of `Database` that is about tokens."""

    _loop: Loop
    _database: AsyncDatabase

    def _require_inside(self) -> None:
        raise NotImplementedError

    def create_token(self, name: str, role: str, *, timeout: float = CALL_TIMEOUT_S) -> str:
        """A new token for HTTP: ``read``, ``write`` (rows, too) or ``admin``. Only its hash is
        kept, so nobody can show it again. Good at once.

        Raises:
            TokenExists: there is one of that name.
            InvalidArgument: no such role, or the name is none.
        """
        from stelae.serve.gateway.tokens import new_token

        self._require_inside()
        token = new_token()
        work = self._database.put_token(
            name, role, hash_token(token), by="the cluster's secret", timeout=timeout
        )
        self._loop.run(work)
        return token

    def tokens(self, *, timeout: float = CALL_TIMEOUT_S) -> list[dict[str, Any]]:
        """``name``, ``role``, ``created_at``, ``created_by`` of each; not the one of launch."""
        self._require_inside()
        return self._loop.run(self._database.tokens(timeout=timeout))

    def revoke_token(
        self, name: str, *, data_dir: str | Path = "", timeout: float = CALL_TIMEOUT_S
    ) -> None:
        """A token is good no more: refused everywhere within two seconds.

        ``data_dir``: of the cluster, for the token that was made at launch (``admin``); the next
        launch makes another one then. Raises `TokenNotFound`.
        """
        from stelae.actors.ray_host.kept_files import changing
        from stelae.serve.gateway.tokens import drop_of_file, hash_of_file

        self._require_inside()
        sha256 = hash_of_file(data_dir, name) if data_dir else ""
        self._loop.run(self._database.revoke_token(name, sha256=sha256, timeout=timeout))
        if sha256:
            with changing(Path(data_dir)):
                drop_of_file(data_dir, sha256)


def drop_revoked(database: TokenOperations, data_dir: str | Path) -> bool:
    """Take out of a cluster's file what was revoked over HTTP, where nobody knows of that file;
    whether there was any, so that the front is to have another token.

    Masters that do not answer revoke nothing: the front asks them again.
    """
    from stelae.actors.ray_host.kept_files import changing
    from stelae.serve.gateway.tokens import drop_of_file, entries_of_folder

    work = database._database.access_tokens(timeout=CALL_TIMEOUT_S)
    try:
        found = database._loop.run(work).tokens
    except StelaeError as error:
        logger.warning("it is not known whether the token of launch was revoked: %s", error)
        return False
    revoked = frozenset() if found is None else frozenset(found.revoked)
    gone = [e.sha256 for e in entries_of_folder(data_dir) if e.sha256 in revoked]
    if gone:
        with changing(Path(data_dir)):
            for sha256 in gone:
                drop_of_file(data_dir, sha256)
    return bool(gone)
