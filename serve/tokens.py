"""Bearer tokens: who may do what over HTTP.

A token is 32 random bytes as text. The token file (JSON, mode 0600) keeps only SHA-256 hashes: what
has 256 bits of chance in it needs no slow hash. Only the admin token made at launch also lies in
clear, in a file of its own beside it, so that its owner can use it. Invariants: comparing takes the
same time whatever is wrong; a file that others can read is refused. (design §12)
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stelae.core.errors import InvalidArgument
from stelae.serve.problems import NotAuthenticated, NotPermitted

TOKEN_BYTES = 32
MAX_TOKENS = 1000
TOKENS_FILE = "tokens.json"
ADMIN_TOKEN_FILE = "admin-token"


class Role(enum.StrEnum):
    """Each may do what those before it may."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


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

    def check(self, role: Role) -> None:
        """Raise `NotPermitted` unless this role is enough."""
        if not self.role.includes(role):
            raise NotPermitted(f"token {self.name!r} has role {self.role}; this needs {role}")


class TokenVerifier:
    """Knows tokens by their hashes. `replace` takes a new list while it runs."""

    def __init__(self, entries: Iterable[TokenEntry] = ()) -> None:
        self._entries: tuple[TokenEntry, ...] = ()
        self.replace(entries)

    def replace(self, entries: Iterable[TokenEntry]) -> None:
        self._entries = tuple(entries)

    def verify(self, token: str) -> Principal:
        """Who has this token. Raises `NotAuthenticated`."""
        digest = hash_token(token)
        found: TokenEntry | None = None
        for entry in self._entries:  # all of them, whichever fits
            if hmac.compare_digest(entry.sha256, digest):
                found = entry
        if found is None:
            raise NotAuthenticated("this token is not known")
        return Principal(found.name, found.role)


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def make_token(name: str, role: Role) -> tuple[str, TokenEntry]:
    """A new token: its text, to be given to its owner once, and its entry for the file."""
    if not 0 < len(name) <= 100 or not name.isprintable():
        raise InvalidArgument(f"token name {name!r}: 1 to 100 printable characters")
    token = "stelae_" + secrets.token_urlsafe(TOKEN_BYTES)
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

    ``admin-token`` in ``folder`` has it in clear, ``tokens.json`` beside it its hash. A token
    revoked in ``tokens.json`` (or files that do not fit together) is made anew.
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
    token, entry = make_token("admin", Role.ADMIN)
    write_tokens(root / TOKENS_FILE, [e for e in entries if e.name != "admin"] + [entry])
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
