"""Access tokens of the HTTP API, as the masters keep them: names, roles, and hashes.

A token is 32 random bytes as text. What has 256 bits of chance in it needs no slow hash, so SHA-256
is all that is ever stored; its owner sees the text once. (design §12)
"""

from __future__ import annotations

import enum
import hashlib

import msgspec

from stelae.core.errors import InvalidArgument
from stelae.core.ids import RequestId
from stelae.core.rpc import ANY_MASTER, Body, Method
from stelae.core.schema.schema import DOT_SEGMENTS

MAX_TOKENS = 1000
MAX_NAME = 100
MAX_TOKEN_TABLES = 100
"""Maximum tables that one token may name."""
MAX_LIFETIME_S = 100 * 365 * 86400.0
LAUNCH_TOKEN = "admin"
"""The name of the token that is made at launch. The catalog makes none of that name."""


class Role(enum.StrEnum):
    """Each may do what those before it may."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS = {role: rank for rank, role in enumerate(Role)}


class AccessToken(msgspec.Struct, frozen=True, array_like=True):
    """One token."""

    name: str
    role: Role
    sha256: str
    """Of the token's text, in hex."""
    created_at_s: float
    created_by: str
    tables: tuple[str, ...] = ()
    """Names of the tables that it is good for; empty: all, and the cluster itself."""
    expires_at_s: float = 0.0
    """Seconds since 1970, by the masters' wall clock; 0: never."""

    @property
    def is_limited(self) -> bool:
        return bool(self.tables) or bool(self.expires_at_s)


class AccessTokens(msgspec.Struct, frozen=True, array_like=True):
    """All that are good, and those that are not any more though a file has them."""

    tokens: tuple[AccessToken, ...] = ()
    revoked: tuple[str, ...] = ()
    """Hashes of tokens that the catalog never had: made at launch."""
    generation: int = 1
    limited: tuple[AccessToken, ...] = ()
    """Those that are good for some tables, or for some time. They are apart from ``tokens`` because
    a replica or master of a version that knows no limits must not know such tokens either."""

    @property
    def all(self) -> tuple[AccessToken, ...]:
        return self.tokens + self.limited


class PutToken(Body, frozen=True):
    """Raises TokenExists, TableNotFound, InvalidArgument (the name, the tables, the lifetime; or
    there are too many), StaleRequest."""

    request: RequestId
    name: str
    role: Role
    sha256: str
    by: str
    tables: tuple[str, ...] = ()
    """Names of the tables that it is good for; empty: all."""
    lifetime_s: float = 0.0
    """0: it never expires."""


class DropToken(Body, frozen=True):
    """The token of this name is good no more. ``sha256``: of one that a file has under that name,
    which is known to whoever asks; it is good no more either. Raises TokenNotFound,
    InvalidArgument, StaleRequest."""

    request: RequestId
    name: str
    sha256: str = ""


class ListTokens(Body, frozen=True):
    known: int = -1
    """The generation that the caller has."""


class TokenList(Body, frozen=True):
    generation: int
    tokens: AccessTokens | None
    """None: the caller has them."""


PUT_TOKEN = Method("master.put_token", PutToken, TokenList, ANY_MASTER)
PUT_LIMITED_TOKEN = Method("master.put_limited_token", PutToken, TokenList, ANY_MASTER)
"""With tables or a lifetime: a master of a version that would ignore these does not know it."""
DROP_TOKEN = Method("master.drop_token", DropToken, TokenList, ANY_MASTER)
LIST_TOKENS = Method("master.list_tokens", ListTokens, TokenList, ANY_MASTER)


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def check_token_name(name: str) -> None:
    """Raises InvalidArgument."""
    fine = 0 < len(name) <= MAX_NAME and name.isprintable() and "/" not in name
    if not fine or name in DOT_SEGMENTS:  # a token is a segment of a path, where it is revoked
        raise InvalidArgument(
            f"token name {name[:MAX_NAME]!r}: 1 to {MAX_NAME} printable characters, no /, and "
            "neither . nor .., which clients and proxies remove from URLs"
        )
