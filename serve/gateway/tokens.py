"""Bearer tokens: who may do what over HTTP.

The masters' catalog has the tokens that are made while the cluster runs; a file (JSON, mode 0600)
has the one made at launch, which must work before there is a catalog. Both keep only SHA-256
hashes, and so do replicas: how long a look-up by the hash takes tells nobody anything of a token.
Only the admin token made at launch also lies in clear, in a file of its own, so that its owner can
use it. Invariants: a file that others can read is refused; a token for some tables reaches those
paths alone that are known to be about one table. (design §12)
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from stelae.actors.ray_host.kept_files import ADMIN_TOKEN_FILE as ADMIN_TOKEN_FILE
from stelae.actors.ray_host.kept_files import TOKENS_FILE as TOKENS_FILE
from stelae.core.errors import InvalidArgument
from stelae.core.records.tokens import (
    LAUNCH_TOKEN,
    MAX_TOKENS,
    AccessTokens,
    Role,
    check_token_name,
    hash_token,
)
from stelae.core.schema.own_tables import is_own_table
from stelae.serve.bodies.problems import NotAuthenticated, NotPermitted

TOKEN_BYTES = 32
PREFIX = "stelae_"
_ABOUT_TABLE = re.compile(r"/v1/tables/([^/]+)(?:/.*)?", re.DOTALL)
_ABOUT_NONE = re.compile(r"/v1/tables|/openapi\.json|/problems/[^/]*")
"""Paths for tokens of some tables. The list of tables has those alone."""


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token as the file has it."""

    name: str
    role: Role
    sha256: str
    """Of the token's text, in hex."""


class _TokenFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[TokenEntry]
    version: int = 1


class Principal(msgspec.Struct, frozen=True):
    """Who asks."""

    name: str
    role: Role
    tables: frozenset[str] = frozenset()
    """Names of the tables that the token is good for; empty: all, and the cluster itself."""
    expires_at_s: float = 0.0
    """Seconds since 1970; 0: never."""

    def check(self, role: Role) -> None:
        """Raise `NotPermitted` unless this role is enough."""
        if not self.role.includes(role):
            raise NotPermitted(f"token {self.name!r} has role {self.role}; this needs {role}")

    def check_path(self, path: str) -> None:
        """Raise `NotPermitted` unless the token is good for what the path is about. Tables of
        Stelae's own are for admins."""
        about = _ABOUT_TABLE.fullmatch(path)
        if about is not None and is_own_table(about[1]):
            self.check(Role.ADMIN)
        if not self.tables or _ABOUT_NONE.fullmatch(path):
            return
        if about is not None and about[1] in self.tables:
            return
        what = "this path" if about is None else f"table {about[1][:80]!r}"
        good = ", ".join(sorted(self.tables)[:10])
        raise NotPermitted(f"token {self.name!r} is for the tables {good}; not for {what}")

    def may_see(self, table: str) -> bool:
        """Whether the token is good for that table."""
        return not self.tables or table in self.tables


class TokenVerifier:
    """Knows tokens by their hashes: those of a file, and those of the masters' catalog.

    ``now``: seconds since 1970, for tokens that expire.
    """

    def __init__(
        self, entries: Iterable[TokenEntry] = (), now: Callable[[], float] = time.time
    ) -> None:
        self._now = now
        self._of_file: tuple[TokenEntry, ...] = ()
        self._access = AccessTokens(generation=-1)
        self._known: dict[str, Principal] = {}
        self.replace(entries)

    @property
    def generation(self) -> int:
        """Of the catalog's tokens; -1: they have not been asked for yet."""
        return self._access.generation

    def replace(self, entries: Iterable[TokenEntry]) -> None:
        """Take a new list of the file's."""
        self._of_file = tuple(entries)
        self._make()

    def follow(self, access: AccessTokens) -> None:
        """Take what the masters have now. What they revoked is good no more, wherever it is from;
        an older list than the one that is known changes nothing."""
        if access.generation > self._access.generation:
            self._access = access
            self._make()

    def _make(self) -> None:
        known = {entry.sha256: Principal(entry.name, entry.role) for entry in self._of_file}
        for token in self._access.all:
            known[token.sha256] = Principal(
                token.name, token.role, frozenset(token.tables), token.expires_at_s
            )
        for sha256 in self._access.revoked:
            known.pop(sha256, None)
        self._known = known

    def verify(self, token: str) -> Principal:
        """Who has this token. Raises `NotAuthenticated`."""
        found = self._known.get(hash_token(token))
        if found is None:
            raise NotAuthenticated("this token is not known")
        if found.expires_at_s and found.expires_at_s <= self._now():
            raise NotAuthenticated(f"token {found.name!r} has expired: ask for another")
        return found

    def of_file(self) -> list[TokenEntry]:
        """Those made at launch that are good."""
        return [entry for entry in self._of_file if entry.sha256 in self._known]


def new_token() -> str:
    """The text of a new token."""
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def make_token(name: str, role: Role) -> tuple[str, TokenEntry]:
    """A new token: its text, to be given to its owner once, and its entry for the file."""
    check_token_name(name)
    token = new_token()
    return token, TokenEntry(name, role, hash_token(token))


def read_tokens(path: str | os.PathLike[str]) -> list[TokenEntry]:
    """The entries of a token file.

    Raises:
        FileNotFoundError: there is none.
        InvalidArgument: it cannot be read as a token file, or others may read it.
    """
    path = Path(path)
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & 0o077:
            raise InvalidArgument(f"{path} may be read by others (mode {mode:o}): chmod 600 it")
        data = file.read()
    try:
        return msgspec.json.decode(data, type=_TokenFile).tokens
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{path} is not a token file: {error}") from None


def write_tokens(path: str | os.PathLike[str], entries: Sequence[TokenEntry]) -> None:
    """Replace a token file in one step, mode 0600."""
    if len(entries) > MAX_TOKENS:
        raise InvalidArgument(f"{len(entries)} tokens; the limit is {MAX_TOKENS}")
    if len({entry.name for entry in entries}) != len(entries):
        raise InvalidArgument("two tokens have one name")
    document = msgspec.json.encode(_TokenFile(list(entries)))
    _write_private(Path(path), msgspec.json.format(document) + b"\n")


def make_admin_token(folder: str | os.PathLike[str]) -> str:
    """Make the admin token of a cluster, or find the one made before; return its text.

    ``admin-token`` in ``folder`` has it in clear, ``tokens.json`` beside it its hash. A token that
    is not in ``tokens.json`` any more (or files that do not fit together) is made anew; what was
    revoked over HTTP, `stelae.deploy.revoked_tokens` takes out of there.
    """
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    entries = read_tokens(root / TOKENS_FILE) if (root / TOKENS_FILE).exists() else []
    clear = root / ADMIN_TOKEN_FILE
    if clear.exists():
        token = clear.read_text().strip()
        digest = hash_token(token)
        if any(entry.sha256 == digest and entry.role is Role.ADMIN for entry in entries):
            return token
    token, entry = make_token(LAUNCH_TOKEN, Role.ADMIN)
    write_tokens(root / TOKENS_FILE, [e for e in entries if e.name != LAUNCH_TOKEN] + [entry])
    _write_private(clear, token.encode() + b"\n")
    return token


def _write_private(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def entries_of_folder(folder: str | os.PathLike[str]) -> list[TokenEntry]:
    """Those of a cluster's token file, if there is one. Raises InvalidArgument."""
    file = Path(folder) / TOKENS_FILE
    return read_tokens(file) if file.exists() else []


def hash_of_file(folder: str | os.PathLike[str], name: str) -> str:
    """The hash of the token of that name in a cluster's file; empty: it has none."""
    return next((e.sha256 for e in entries_of_folder(folder) if e.name == name), "")


def drop_of_file(folder: str | os.PathLike[str], sha256: str) -> None:
    """Take a token out of a cluster's file, so that no launch hands it to replicas again."""
    entries = [entry for entry in entries_of_folder(folder) if entry.sha256 != sha256]
    write_tokens(Path(folder) / TOKENS_FILE, entries)
