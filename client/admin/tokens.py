"""Access tokens of the HTTP API, made and revoked by whoever holds the cluster's secret."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stelae.client.routing.masters import MastersClient
from stelae.client.routing.session import Session
from stelae.core.errors import InvalidArgument
from stelae.core.records.tokens import (
    DROP_TOKEN,
    LIST_TOKENS,
    PUT_LIMITED_TOKEN,
    PUT_TOKEN,
    AccessToken,
    DropToken,
    ListTokens,
    PutToken,
    Role,
    TokenList,
)

CALL_TIMEOUT_S = 30.0


class TokenCalls:
    """The part of `AsyncDatabase` that is about tokens."""

    _masters: MastersClient
    _session: Session

    async def put_token(
        self,
        name: str,
        role: str,
        sha256: str,
        *,
        tables: Sequence[str] = (),
        lifetime_s: float | None = None,
        by: str = "",
        timeout: float = CALL_TIMEOUT_S,
    ) -> None:
        """A new token, ``read``, ``write`` or ``admin``, by the hash of its text.

        ``tables``: names of those that it is good for; none: all. ``lifetime_s``: seconds until it
        expires; None: never.

        Raises:
            TokenExists, TableNotFound, InvalidArgument.
        """
        wanted = _role(role)
        if isinstance(tables, str):
            raise InvalidArgument(f"tables={tables!r}: a list of names, not one text")
        if lifetime_s is not None and not lifetime_s > 0:
            raise InvalidArgument(f"lifetime_s={lifetime_s!r}: above 0; None: it never expires")
        method = PUT_LIMITED_TOKEN if tables or lifetime_s else PUT_TOKEN
        with self._session.request() as request:
            order = PutToken(
                request, name, wanted, sha256, by, tuple(tables), float(lifetime_s or 0.0)
            )
            await self._masters.call(method, order, timeout_s=timeout)

    async def revoke_token(
        self, name: str, *, sha256: str = "", timeout: float = CALL_TIMEOUT_S
    ) -> None:
        """The token of this name is good no more. ``sha256``: of one that was made at launch.

        Raises `TokenNotFound`.
        """
        with self._session.request() as request:
            order = DropToken(request, name, sha256)
            await self._masters.call(DROP_TOKEN, order, timeout_s=timeout)

    async def tokens(self, *, timeout: float = CALL_TIMEOUT_S) -> list[dict[str, Any]]:
        """Name, role, tables, when and by whom each was made, and until when; never the token."""
        found = (await self.access_tokens(timeout=timeout)).tokens
        return [] if found is None else [token_document(token) for token in found.all]

    async def access_tokens(self, known: int = -1, *, timeout: float = CALL_TIMEOUT_S) -> TokenList:
        """All of them as the masters have them, unless ``known`` is their generation."""
        return await self._masters.call(LIST_TOKENS, ListTokens(known), timeout_s=timeout)


def token_document(token: AccessToken) -> dict[str, Any]:
    """For people and JSON."""
    return {
        "name": token.name,
        "role": token.role.value,
        "created_at": token.created_at_s,
        "created_by": token.created_by,
        "tables": list(token.tables) or None,
        "expires_at": token.expires_at_s or None,
    }


def launch_token_document(name: str, role: Role) -> dict[str, Any]:
    """The same of one made at launch, which has no limits."""
    return {
        "name": name,
        "role": role.value,
        "created_at": None,
        "created_by": "launch",
        "tables": None,
        "expires_at": None,
    }


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise InvalidArgument(f"role {text[:40]!r}: one of {', '.join(Role)}") from None
