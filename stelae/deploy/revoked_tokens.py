"""What was revoked over HTTP leaves the file of tokens that a cluster was launched with.

Whoever revokes by HTTP may not reach that file; whoever starts the front anew reads it first.
"""

from __future__ import annotations

import logging
from pathlib import Path

from stelae.actors.ray_host.kept_files import changing
from stelae.client.admin.tokens import CALL_TIMEOUT_S
from stelae.core.errors import StelaeError
from stelae.deploy.changed import Connected
from stelae.serve.gateway.tokens import drop_of_file, entries_of_folder

logger = logging.getLogger(__name__)


def drop_revoked(database: Connected, data_dir: str | Path) -> bool:
    """Take out of a cluster's file what was revoked over HTTP, where nobody knows of that file;
    whether there was any, so that the front is to have another token.

    Masters that do not answer revoke nothing: the front asks them again.
    """
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
