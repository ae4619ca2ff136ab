"""Access tokens of the HTTP front, for whoever has the cluster's secret. Blocking, as
`stelae.database.api`.

None of it goes over a `Database` that is connected by HTTP: there, `/v1/tokens` does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stelae.client.admin.tokens import CALL_TIMEOUT_S
from stelae.client.aio import Loop
from stelae.client.database import AsyncDatabase
from stelae.core.records.tokens import hash_token


class TokenOperations:
    """The part of `Database` that is about tokens."""

    if TYPE_CHECKING:

        @property
        def _loop(self) -> Loop: ...

        @property
        def _database(self) -> AsyncDatabase: ...

    def _require_inside(self) -> None:
        raise NotImplementedError

    def create_token(
        self,
        name: str,
        role: str,
        *,
        tables: Sequence[str] = (),
        lifetime_s: float | None = None,
        timeout: float = CALL_TIMEOUT_S,
    ) -> str:
        """A new token for HTTP: ``read``, ``write`` (rows, too) or ``admin``. Only its hash is
        kept, so nobody can show it again. Good at once.

        ``tables``: names of those that it is good for, with nothing else of the cluster; none: all.
        They are names: a table that is renamed is no longer meant, another of that name is.
        ``lifetime_s``: seconds until it expires; None: never.

        Raises:
            TokenExists: there is one of that name.
            TableNotFound: there is no such table.
            InvalidArgument: no such role, or the name is none; or tables with the role admin.
        """
        from stelae.serve.gateway.tokens import new_token

        self._require_inside()
        token = new_token()
        work = self._database.put_token(
            name,
            role,
            hash_token(token),
            tables=tables,
            lifetime_s=lifetime_s,
            by="the cluster's secret",
            timeout=timeout,
        )
        self._loop.run(work)
        return token

    def tokens(self, *, timeout: float = CALL_TIMEOUT_S) -> list[dict[str, Any]]:
        """``name``, ``role``, ``created_at``, ``created_by``, ``tables``, ``expires_at`` of each;
        not the one of launch."""
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
