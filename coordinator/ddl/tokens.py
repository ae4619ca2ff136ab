"""Changes of the access tokens, drafted from what the catalog has. Pure but for the time given."""

from __future__ import annotations

from collections.abc import Sequence

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.core.errors import InvalidArgument, TableNotFound, TokenExists, TokenNotFound
from stelae.core.ids import RequestId
from stelae.core.records.tokens import (
    LAUNCH_TOKEN,
    MAX_LIFETIME_S,
    MAX_TOKEN_TABLES,
    MAX_TOKENS,
    AccessToken,
    AccessTokens,
    DropToken,
    ListTokens,
    PutToken,
    Role,
    TokenList,
    check_token_name,
)

EXPIRED_KEPT_S = 30 * 86400.0
"""How long a token that has expired is listed, so that its owner finds why it is refused."""
_HEX = frozenset("0123456789abcdef")


def draft_put(catalog: Catalog, order: PutToken, now_s: float) -> CatalogBatch | None:
    """One more token. Raises as `PutToken` says."""
    if catalog.result_of(order.request) is not None:
        return None
    known = catalog.access
    there = [t for t in known.all if not 0 < t.expires_at_s < now_s - EXPIRED_KEPT_S]
    check_token_name(order.name)
    if order.name == LAUNCH_TOKEN:
        raise InvalidArgument(f"{LAUNCH_TOKEN!r} is the token made at launch: take another name")
    _check_hash(order.sha256)
    if any(token.name == order.name for token in there):
        raise TokenExists(order.name)
    if len(there) >= MAX_TOKENS:
        raise InvalidArgument(f"there are {MAX_TOKENS} tokens: revoke some")
    _check_limits(catalog, order)
    made = AccessToken(
        order.name,
        order.role,
        order.sha256,
        now_s,
        order.by[:200],
        tuple(sorted(order.tables)),
        now_s + order.lifetime_s if order.lifetime_s else 0.0,
    )
    return _batch(order.request, known, [*there, made], known.revoked)


def draft_drop(catalog: Catalog, order: DropToken) -> CatalogBatch | None:
    """One token less; two, if the catalog and a file have one. Raises as `DropToken` says."""
    if catalog.result_of(order.request) is not None:
        return None
    known = catalog.access
    left = [token for token in known.all if token.name != order.name]
    revoked = known.revoked
    if order.sha256:
        _check_hash(order.sha256)
        if order.sha256 not in revoked:
            if len(revoked) >= MAX_TOKENS:
                raise InvalidArgument(f"{MAX_TOKENS} tokens of files are revoked: clear the file")
            revoked = (*revoked, order.sha256)
    elif len(left) == len(known.all):
        raise TokenNotFound(order.name)
    # Also where nothing changes: a token may be in the log, and not applied yet.
    return _batch(order.request, known, left, revoked)


def _batch(
    request: RequestId,
    known: AccessTokens,
    tokens: Sequence[AccessToken],
    revoked: tuple[str, ...],
) -> CatalogBatch:
    """The entry that makes these the tokens."""
    wanted = AccessTokens(
        tuple([token for token in tokens if not token.is_limited]),
        revoked,
        known.generation + 1,
        tuple([token for token in tokens if token.is_limited]),
    )
    return CatalogBatch(access=wanted, request=request)


def _check_limits(catalog: Catalog, order: PutToken) -> None:
    """Raises InvalidArgument, TableNotFound."""
    if not 0 <= order.lifetime_s <= MAX_LIFETIME_S:  # also NaN
        raise InvalidArgument(
            f"lifetime of token {order.name!r}: {order.lifetime_s:g} s; above 0, and at most "
            "100 years"
        )
    if not order.tables:
        return
    if order.role is Role.ADMIN:
        raise InvalidArgument(
            f"token {order.name!r}: the role admin is for the whole cluster; a token for some "
            "tables has the role read or write"
        )
    if len(order.tables) > MAX_TOKEN_TABLES:
        raise InvalidArgument(
            f"token {order.name!r}: {len(order.tables)} tables; at most {MAX_TOKEN_TABLES}"
        )
    if len(set(order.tables)) != len(order.tables):
        raise InvalidArgument(f"token {order.name!r}: a table is named twice")
    for table in order.tables:
        if catalog.find(table) is None:
            raise TableNotFound(table)


def tokens_for(catalog: Catalog, known: int = ListTokens().known) -> TokenList:
    """All of them, unless the caller has them."""
    access = catalog.access
    same = known == access.generation
    return TokenList(access.generation, None if same else access)


def _check_hash(text: str) -> None:
    if len(text) != 64 or not _HEX.issuperset(text):
        raise InvalidArgument("a token's hash is 64 hexadecimal digits")
