"""Changes of the access tokens, drafted from what the catalog has. Pure but for the time given."""

from __future__ import annotations

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.core.errors import InvalidArgument, TokenExists, TokenNotFound
from stelae.core.records.tokens import (
    LAUNCH_TOKEN,
    MAX_TOKENS,
    AccessToken,
    AccessTokens,
    DropToken,
    ListTokens,
    PutToken,
    TokenList,
    check_token_name,
)

_HEX = frozenset("0123456789abcdef")


def draft_put(catalog: Catalog, order: PutToken, now_s: float) -> CatalogBatch | None:
    """One more token. Raises as `PutToken` says."""
    if catalog.result_of(order.request) is not None:
        return None
    known = catalog.access
    check_token_name(order.name)
    if order.name == LAUNCH_TOKEN:
        raise InvalidArgument(f"{LAUNCH_TOKEN!r} is the token made at launch: take another name")
    _check_hash(order.sha256)
    if any(token.name == order.name for token in known.tokens):
        raise TokenExists(order.name)
    if len(known.tokens) >= MAX_TOKENS:
        raise InvalidArgument(f"there are {MAX_TOKENS} tokens: revoke some")
    made = AccessToken(order.name, order.role, order.sha256, now_s, order.by[:200])
    wanted = AccessTokens((*known.tokens, made), known.revoked, known.generation + 1)
    return CatalogBatch(access=wanted, request=order.request)


def draft_drop(catalog: Catalog, order: DropToken) -> CatalogBatch | None:
    """One token less; two, if the catalog and a file have one. Raises as `DropToken` says."""
    if catalog.result_of(order.request) is not None:
        return None
    known = catalog.access
    left = tuple([token for token in known.tokens if token.name != order.name])
    revoked = known.revoked
    if order.sha256:
        _check_hash(order.sha256)
        if order.sha256 not in revoked:
            if len(revoked) >= MAX_TOKENS:
                raise InvalidArgument(f"{MAX_TOKENS} tokens of files are revoked: clear the file")
            revoked = (*revoked, order.sha256)
    elif len(left) == len(known.tokens):
        raise TokenNotFound(order.name)
    if (left, revoked) == (known.tokens, known.revoked):
        return CatalogBatch(request=order.request)
    wanted = AccessTokens(left, revoked, known.generation + 1)
    return CatalogBatch(access=wanted, request=order.request)


def tokens_for(catalog: Catalog, known: int = ListTokens().known) -> TokenList:
    """All of them, unless the caller has them."""
    access = catalog.access
    same = known == access.generation
    return TokenList(access.generation, None if same else access)


def _check_hash(text: str) -> None:
    if len(text) != 64 or not _HEX.issuperset(text):
        raise InvalidArgument("a token's hash is 64 hexadecimal digits")
