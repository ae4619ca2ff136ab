"""The files that a cluster is found, changed and started by, on each machine that has a server.

``cluster.json`` (where masters listen, which server is on which machine), the secret, what was
asked for last, and the tokens of launch. Whoever changes one writes it where he is, and has each
server keep all of them (`FileKeeper`): in its memory, and in the data_dir of its machine. So none
of these folders is the only one, and a machine that was away takes what is newer when it is back.

Which of two is newer is said by the version in ``cluster.json``; of the same version, by what is in
them, so that all servers choose alike. Invariants: files are this user's alone; ``cluster.json`` is
written last; what has another secret is refused; who compares before he writes is alone meanwhile
(`locked`). Decisions §51.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stelae.core.errors import InvalidArgument, RetryLater
from stelae.runtime.tcp.handshake import SECRET_BYTES

logger = logging.getLogger(__name__)

STATE_FILE = "cluster.json"
SECRET_FILE = "secret"
SPEC_FILE = "spec.json"
TOKENS_FILE = "tokens.json"
ADMIN_TOKEN_FILE = "admin-token"
NAMES = (SECRET_FILE, TOKENS_FILE, ADMIN_TOKEN_FILE, SPEC_FILE, STATE_FILE)
"""In the order in which they are written."""
_LOST_SECRET = (
    "copy it from the data_dir of another machine of the cluster or, if the cluster runs, have it "
    "written again by `stelae attach`"
)
LOCK_FILE = "files.lock"
LOCK_TIMEOUT_S = 10.0
LOCK_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """All of them, of one moment. Never shows what is in them."""

    version: int
    files: Mapping[str, bytes] = field(repr=False)

    @property
    def secret(self) -> bytes:
        return self.files[SECRET_FILE]

    @property
    def order(self) -> tuple[int, bytes]:
        """The newest has the greatest."""
        digest = hashlib.blake2b(digest_size=16)
        for name in NAMES:
            digest.update(self.files.get(name, b"") + b"\0")
        return self.version, digest.digest()


def read_files(folder: Path) -> KeptFiles | None:
    """Those of a folder; None: it has none, or not enough of them to find a cluster by.

    Raises:
        InvalidArgument: ``cluster.json`` or the secret is damaged.
    """
    found: dict[str, bytes] = {}
    for name in NAMES:
        try:
            found[name] = (folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
    if STATE_FILE not in found or SECRET_FILE not in found:
        return None
    check_secret(found[SECRET_FILE], folder)
    return KeptFiles(version_of(found[STATE_FILE], folder), found)


def version_of(state: bytes, folder: Path) -> int:
    """Of a ``cluster.json``. Raises InvalidArgument: it is none."""
    try:
        return int(json.loads(state).get("version", 0))
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"{folder / STATE_FILE} cannot be read: {error}") from error


def read_secret(folder: Path) -> bytes:
    """The cluster's secret.

    Raises:
        InvalidArgument: the file is not there, or is no secret.
    """
    path = folder / SECRET_FILE
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        raise InvalidArgument(f"{path} is missing; {_LOST_SECRET}") from None
    check_secret(secret, folder)
    return secret


def check_secret(secret: bytes, folder: Path) -> None:
    """Raise `InvalidArgument` if these bytes are no secret."""
    if len(secret) != SECRET_BYTES:
        raise InvalidArgument(
            f"{folder / SECRET_FILE} has {len(secret)} bytes; a cluster's secret has "
            f"{SECRET_BYTES}; {_LOST_SECRET}"
        )


def write_files(folder: Path, kept: KeptFiles) -> None:
    """Make a folder's files these. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        if name in kept.files:
            write_file(folder / name, kept.files[name])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Alone among all processes that change a folder's files: on the machine of a launch its
    servers keep them where operators write them. Not within itself.

    Raises RetryLater: somebody else takes too long.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise RetryLater(
                    f"another process has been changing the cluster's files in {folder} for "
                    f"{LOCK_TIMEOUT_S:g} s"
                )
            time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Change other files than ``cluster.json`` inside, as one step with its version: of two
    contents of one version a server might put back what was before.

    Raises RetryLater: as `locked`.
    """
    with locked(folder):
        yield
        path = folder / STATE_FILE
        if not path.exists():
            return  # nobody knows of the cluster yet
        state = path.read_bytes()
        grown = {**json.loads(state), "version": version_of(state, folder) + 1}
        write_file(path, (json.dumps(grown, indent=2) + "\n").encode())


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_file(path: Path, data: bytes) -> None:
    """Put a file in another's place, whole and durable, for this user alone. Raises OSError."""
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
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def newest(found: list[KeptFiles]) -> KeptFiles | None:
    """Of several; None: there is none. Pure."""
    return max(found, key=lambda kept: kept.order, default=None)


class FileKeeper:
    """What one server keeps. Its methods block, and may be called from any thread."""

    def __init__(self, folder: Path, secret: bytes) -> None:
        """``folder``: the data_dir of its machine. ``secret``: the cluster's."""
        self._folder = folder
        self._secret = secret
        self._lock = threading.Lock()
        self._newest: KeptFiles | None = None

    def kept(self) -> KeptFiles | None:
        """The newest that it knows: what it was given, or what is in the folder by now."""
        with self._lock:
            return self._look()

    def _look(self) -> KeptFiles | None:
        on_disk = self._on_disk()
        if on_disk is not None:
            self._newest = newest([on_disk, *([self._newest] if self._newest else [])])
        return self._newest

    def _on_disk(self) -> KeptFiles | None:
        """This cluster's, in the folder; None: they are lost, or cannot be read, or another's."""
        try:
            found = read_files(self._folder)
        except (InvalidArgument, OSError) as error:  # then they are written anew
            logger.warning("the cluster's files in %s cannot be read: %s", self._folder, error)
            return None
        return found if found is not None and found.secret == self._secret else None

    def keep(self, given: KeptFiles) -> int:
        """Keep these, unless what is here is newer; the version that is kept now.

        Raises:
            InvalidArgument: they are of another cluster.
            OSError: the folder cannot be written to.
            RetryLater: somebody else has been writing to it for long.
        """
        if given.secret != self._secret:
            raise InvalidArgument("these files are of a cluster with another secret")
        with self._lock, locked(self._folder):
            known = self._look()
            if known is None or given.order > known.order:
                self._newest = known = given
            on_disk = self._on_disk()
            if on_disk is None or on_disk.order < known.order:
                write_files(self._folder, known)
            return known.version
